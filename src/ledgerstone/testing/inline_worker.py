"""A worker by hand: one job at a step, in the calling thread, and what became of it."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import Enum
from typing import Any, Self

import msgspec
from sqlalchemy import bindparam, update

from ledgerstone.engine.source import (
    Ask,
    Claim,
    ExecutorKind,
    Handler,
    NotSettled,
    Outcome,
    OutcomeKind,
)
from ledgerstone.engine.worker import Worker
from ledgerstone.jobs import JobRow, JobSource, Status
from ledgerstone.jobs.settling import JobClaim
from ledgerstone.jobs.tables import job as job_table
from ledgerstone.jobs.tables import stands
from ledgerstone.ledger import Ledger
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction


class RunResult(Enum):
    """How one run of a job came out."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """It raised, and there will be another attempt."""
    DEAD = "dead"
    """It raised, and there will be none."""
    SNOOZED = "snoozed"
    CANCELED = "canceled"
    RETURNED = "returned"
    """Not its doing: what it talks to was out of reach; the attempt is refunded."""
    LOST = "lost"
    """Its claim was another's before it ended."""


class Run(msgspec.Struct, frozen=True):
    """One run of one job."""

    id: str
    type: str
    attempt: int
    came_out: RunResult


class _Watched:
    """The jobs of a queue, as a source that says what became of the one it gave out last."""

    def __init__(self, source: JobSource, queue: str) -> None:
        self.name = source.name
        self.channel = source.channel
        self.only: str | None = None
        self.claimed: JobClaim | None = None
        self.verdict: OutcomeKind | None = None
        self.error: BaseException | None = None
        self._source = source
        self._queue = queue

    def claim(self, tx: Transaction, ask: Ask) -> Sequence[Claim]:
        with self._others_hidden(tx):
            claims = self._source.claim(tx, ask)
        self.claimed = claims[0] if claims else None
        self.verdict = self.error = None
        return claims

    def settle(
        self, tx: Transaction, outcomes: Sequence[Outcome], *, waits: bool = False
    ) -> NotSettled[Outcome]:
        for outcome in outcomes:
            if outcome.claim is self.claimed:
                self.verdict = outcome.verdict
        return self._source.settle(tx, outcomes, waits=waits)

    def extend(
        self, tx: Transaction, claims: Sequence[Claim], lease_seconds: float
    ) -> NotSettled[Claim]:
        return self._source.extend(tx, claims, lease_seconds)

    def rescue(self, tx: Transaction, *, limit: int, crashes_max: int) -> int:
        return self._source.rescue(tx, limit=limit, crashes_max=crashes_max)

    def handler(self, claim: Claim) -> Handler:
        handler = self._source.handler(claim)

        def call(*arguments: Any) -> Any:
            try:
                answer = handler.call(*arguments)
                return _awaited(answer) if inspect.iscoroutine(answer) else answer
            except BaseException as error:
                self.error = error
                raise

        # Also an async one: a test may have a loop of its own running in this thread.
        return Handler(call, ExecutorKind.THREAD, handler.atomic, handler.gives_up)

    @contextmanager
    def _others_hidden(self, tx: Transaction) -> Iterator[None]:
        """Every other job of the queue is out of line; by the end of the transaction, back in it.

        Nobody else can see that, and the source needs no way of its own to claim a certain job.
        """
        if self.only is None:
            yield
            return
        _hide.run(tx, queue_=self._queue, id_=self.only)
        yield
        _show.run(tx, queue_=self._queue)


_HIDDEN = 100
_queue_ = bindparam("queue_", type_=job_table.c.queue.type)
_id_ = bindparam("id_", type_=job_table.c.id.type)
_hide = Statement(
    "testing.hide_others",
    update(job_table)
    .where(stands(Status.QUEUED), job_table.c.queue == _queue_, job_table.c.id != _id_)
    .values(gate=job_table.c.gate + _HIDDEN),
)
_show = Statement(
    "testing.show_others",
    update(job_table)
    .where(stands(Status.QUEUED), job_table.c.queue == _queue_, job_table.c.gate >= _HIDDEN)
    .values(gate=job_table.c.gate - _HIDDEN),
)


def _awaited(coroutine: Any) -> Any:
    """Run it to its end on a loop of its own, also where one is running already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(max_workers=1) as elsewhere:
        context = contextvars.copy_context()
        return elsewhere.submit(context.run, asyncio.run, coroutine).result()


class InlineWorker:
    """A worker on one queue that runs one job at each step, in the calling thread."""

    def __init__(self, ledger: Ledger, queue: str) -> None:
        self._ledger = ledger
        self._source = _Watched(ledger.job_source(queue), queue)
        self._worker = Worker(ledger.database, [self._source], ledger.settings.engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.stop(grace_seconds=0)

    def step(self, only: str | None = None) -> Run | None:
        """Run the next job, or only this one; None if it is not due."""
        source = self._source
        source.only = only
        (tick,) = self._worker.tick(limit=1)
        if not isinstance(source.error, Exception | None):
            raise source.error
        claim = source.claimed
        if claim is None:
            return None
        came_out = RunResult.LOST if tick.refused else self._came_out(claim)
        return Run(claim.key, claim.type, claim.attempt, came_out)

    def due(self) -> bool:
        """Whether there is a next job."""
        self._source.only = None
        try:
            with self._ledger.transaction() as tx:
                lease = self._ledger.settings.engine.lease_seconds
                if self._source.claim(tx, Ask(1, self._worker.id, lease)):
                    raise _Undone
        except _Undone:
            return True
        return False

    def complain(self, row: JobRow | None = None) -> None:
        """Raise what the last job raised, or what else it failed of."""
        if self._source.error is not None:
            raise self._source.error
        if self._source.verdict in {OutcomeKind.FAILED, OutcomeKind.DEAD} and self._source.claimed:
            row = row or self._row(self._source.claimed)
            raise AssertionError(f"{row.type} failed: {row.last_error_message}")

    def _came_out(self, claim: JobClaim) -> RunResult:
        status = self._row(claim).status
        ended = {
            Status.SUCCEEDED: RunResult.SUCCEEDED,
            Status.CANCELED: RunResult.CANCELED,
            Status.DEAD_LETTER: RunResult.DEAD,
        }
        open_still = {
            OutcomeKind.FAILED: RunResult.FAILED,
            OutcomeKind.SNOOZED: RunResult.SNOOZED,
            OutcomeKind.RETURNED: RunResult.RETURNED,
        }
        if status in ended:
            return ended[status]
        verdict = self._source.verdict
        return open_still.get(verdict, RunResult.LOST) if verdict is not None else RunResult.LOST

    def _row(self, claim: JobClaim) -> JobRow:
        with self._ledger.reading() as tx:
            return tx.jobs.get(claim.key)


class _Undone(Exception):
    """Only looked: nothing of it is kept."""
