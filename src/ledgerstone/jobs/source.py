"""The jobs of one queue as a source of work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from sqlalchemy import bindparam, select

from ledgerstone.engine.backoff import Backoff, BackoffPolicy
from ledgerstone.engine.source import (
    Ask,
    Claim,
    Failure,
    Handler,
    NotSettled,
    Outcome,
    OutcomeKind,
)
from ledgerstone.items.moves import Step
from ledgerstone.items.rescue import ExpiredItem, Rescue
from ledgerstone.items.settle import EndedClaim, Extend, Settle, SettleResult, remainder
from ledgerstone.jobs import history, items, limits, settling
from ledgerstone.jobs.claim_order import ABOUT, COLUMNS, LIMIT_KEY, ClaimOrder
from ledgerstone.jobs.handlers.factory import HandlerFactory
from ledgerstone.jobs.handlers.kinds import Kinds
from ledgerstone.jobs.settling import JobClaim
from ledgerstone.jobs.states import Gate, Status
from ledgerstone.jobs.tables import channel_of, job, stands
from ledgerstone.store.sql.batch import ClaimEach
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Row, Statement
from ledgerstone.store.sql.timestamps import moment_at

if TYPE_CHECKING:
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

OPEN_SECONDS = 0.25
"""How often a busy worker looks for scheduled jobs that have become due."""
OPEN_MAX = 1000

_log = logging.getLogger("ledgerstone.jobs")

_open = ClaimEach(
    "jobs.open_scheduled",
    job,
    key=job.c.id,
    due=stands(Status.QUEUED, gate=Gate.SCHEDULED)
    & (job.c.queue == bindparam("queue", type_=job.c.queue.type))
    & (job.c.run_at_ms <= now_ms()),
    order_by=(job.c.run_at_ms, job.c.id),
    set_={"gate": Gate.OPEN.value},
    returning=(job.c.id,),
)


class JobSource:
    """The jobs of one queue whose types this process knows.

    A type that becomes known later is claimed from then on.
    """

    def __init__(
        self,
        queue: str,
        kinds: Kinds,
        database: Database[Any],
        *,
        crashes_max: int,
    ) -> None:
        self.name = channel_of(queue)
        self.channel = channel_of(queue)
        self._queue = queue
        self._kinds = kinds
        self._slots = limits.BusySlots()
        self._rules = settling.Rules(
            queue=queue, backoff=self._backoff, crashes_max=crashes_max, slots=self._slots
        )
        self._monotonic = database.clock.monotonic
        self._runner = HandlerFactory(database, kinds, self._rules)
        self._worker: str | None = None
        self._known = len(kinds)
        self.types = sorted(kinds.all())
        self._line = ClaimOrder(queue, self.types)
        self._limited = self._keyed()
        self._opened_at = float("-inf")
        self._swept = ""

    def handler(self, claim: Claim) -> Handler:
        return self._runner.handler(cast("JobClaim", claim).type)

    def claim(self, tx: Transaction, ask: Ask) -> Sequence[JobClaim]:
        self._worker = ask.worker
        if len(self._kinds) != self._known:
            self._learn()
        limits.look_again(tx, self._queue, self._slots)
        opened = self._open_scheduled(tx)
        claims = self._claims(tx, ask)
        opened()
        return claims

    def settle(
        self, tx: Transaction, outcomes: Sequence[Outcome], *, waits: bool = False
    ) -> NotSettled[Outcome]:
        if self._limited or any(outcome.verdict is OutcomeKind.RETURNED for outcome in outcomes):
            # A place in the queue is free, or a job is due again: others look.
            tx.wake(self.channel)
        return settling.settle(tx, outcomes, worker=self._worker, rules=self._rules, waits=waits)

    def extend(
        self, tx: Transaction, claims: Sequence[Claim], lease_seconds: float
    ) -> NotSettled[Claim]:
        found = _extend.run(tx, claims, lease_seconds)
        return remainder(claims, [SettleResult(each) for each in found])

    def held_by(self, tx: Transaction, worker: str) -> Sequence[JobClaim]:
        """The claims of this worker that are neither settled nor lost."""
        return [self._made(row) for row in _held.rows(tx, queue=self._queue, worker=worker)]

    def due_seconds(self) -> float:
        """How long until limit keys whose slots were locked are checked again."""
        return self._slots.seconds(self._monotonic())

    def rescue(self, tx: Transaction, *, limit: int, crashes_max: int) -> int:
        expired = [
            _ExpiredJob(each, *each.more)
            for each in _rescue.run(tx, limit=limit, queue=self._queue)
        ]
        again: list[_ExpiredJob] = []
        over: list[_ExpiredJob] = []
        for left in expired:
            spent = left.expired.is_over(crashes_max) or (
                left.expired.is_last and not left.expired.waited
            )
            # Nor does one begin again that was asked to stop.
            (over if left.unwanted or spent else again).append(left)
        self._give_back(tx, again)
        for left in over:
            self._bury(tx, left)
        _, self._swept = limits.sweep(tx, self._queue, self._swept)
        if again:
            tx.wake(self.channel)
        return len(expired)

    def _learn(self) -> None:
        """Types were added after the last claim."""
        # In this order: what is added in between is noticed by the next claim.
        self._known = len(self._kinds)
        self.types = sorted(self._kinds.all())
        self._line.know(self.types)
        self._limited = self._limited or self._keyed()

    def _keyed(self) -> bool:
        """Whether kinds of this queue have limit keys: then all its claims go by limits.

        Jobs of another queue's kind may be sent here, too: these are noticed when they are in line.
        """
        kinds = self._kinds.all().values()
        return any(kind.limit is not None and kind.queue == self._queue for kind in kinds)

    def _claims(self, tx: Transaction, ask: Ask) -> list[JobClaim]:
        common = {
            "lease_ms": round(ask.lease_seconds * 1000),
            "worker": ask.worker,
            **history.between(Status.QUEUED, Status.RUNNING),
        }
        if not self._limited:
            rows = self._line.take(tx, ask.limit, **common)
            if rows or (rows is not None and not limits.limited(tx, self._queue)):
                return [self._made(row) for row in rows]
        look = partial(self._line.look, tx)
        found = limits.claim(tx, self._queue, ask.limit, look, self._slots, **common)
        keyed = self._keyed() or any(row[LIMIT_KEY] is not None for row in found)
        self._limited = keyed or limits.limited(tx, self._queue)
        # The attempt is as it was before they were taken, the token is the new one.
        return [self._made((row[0], row[1] + 1, *row[2:])) for row in found]

    def _open_scheduled(self, tx: Transaction) -> Callable[[], None]:
        """Jobs whose time has come get in line; to be called when it is known how many they were.

        The answer is not waited for: it comes with that of the claim.
        """
        moment = tx.database.clock.monotonic()
        if moment - self._opened_at < OPEN_SECONDS:
            return lambda: None
        opened = _open.later(tx, limit=OPEN_MAX, queue=self._queue)

        def known() -> None:
            count = len(opened())
            # More may be waiting: then the next claim looks again.
            self._opened_at = moment if count < OPEN_MAX else float("-inf")
            if count:
                # This statement may have taken the time, and not the claim.
                self._line.start_at_front()

        return known

    def _made(self, row: Row) -> JobClaim:
        kind = self._kinds.get(row[4])
        timeout = kind.timeout_seconds if kind is not None else None
        about = (row[6], row[4], str(row[5]), *row[ABOUT])
        return JobClaim(str(row[0]), row[1], row[2], row[3] or "{}", None, timeout, *about)

    def _backoff(self, claim: JobClaim) -> Backoff:
        kind = self._kinds.get(claim.type)
        backoff = kind.backoff if kind is not None else Backoff()
        policy = BackoffPolicy(claim.backoff_policy)
        if backoff.policy is policy:
            return backoff
        return msgspec.structs.replace(backoff, policy=policy)

    def _give_back(self, tx: Transaction, again: Sequence[_ExpiredJob]) -> None:
        """Queue the job again, for another worker."""
        ended = [
            EndedClaim(
                left.claim,
                Step(move=items.back, row=(int(left.expired.waited),), told=(left.told,)),
            )
            for left in again
        ]
        _settle.run(tx, ended, worker=None)
        tx.after_commit(partial(_log_rescued, again))

    def _bury(self, tx: Transaction, left: _ExpiredJob) -> None:
        """Too many workers crashed with the job, or no attempt is left."""
        failure = Failure("crashed", left.how_it_died, crashed=True)
        outcome = Outcome(left.claim, OutcomeKind.DEAD, failure=failure)
        worker = left.expired.worker
        settling.settle(tx, [outcome], worker=worker, rules=self._rules)


_held = Statement(
    "jobs.held_by",
    select(*COLUMNS).where(
        stands(Status.RUNNING),
        job.c.queue == bindparam("queue", type_=job.c.queue.type),
        job.c.worker == bindparam("worker", type_=job.c.worker.type),
        job.c.lease_until_ms > now_ms(),
    ),
)
_settle = Settle(items.JOBS)
_extend = Extend(items.JOBS)
_rescue = Rescue(
    items.JOBS,
    where=job.c.queue == bindparam("queue", type_=job.c.queue.type),
    more=(job.c.cancel_requested, job.c.limit_key, job.c.org_id, job.c.type),
    order=(),
)


def _log_rescued(back: Sequence[_ExpiredJob]) -> None:
    for left in back:
        title = f"job {left.type} {left.claim.key}, attempt {left.expired.attempt}"
        words = "%s: the lease of worker %s ran out; it is queued again"
        _log.warning(words, title, left.expired.worker)


class _ExpiredJob(NamedTuple):
    """A job whose lease has expired."""

    expired: ExpiredItem
    unwanted: bool
    limit_key: str | None
    org_id: object
    type: str

    @property
    def claim(self) -> JobClaim:
        """The claim that ends it: its token is above that of its worker."""
        expired = self.expired
        return JobClaim(
            str(expired.key[0]),
            expired.attempt,
            expired.token,
            org_id=str(self.org_id),
            max_attempts=expired.attempts_max or 0,
            crashes=expired.crashes,
            limit_key=self.limit_key,
            type=self.type,
        )

    @property
    def told(self) -> str:
        """The detail of its event."""
        expired = self.expired
        if expired.waited:
            reason = f"{expired.reason} before it began"
            return history.detail(attempt=expired.attempt - 1, reason=reason)
        return history.detail(
            attempt=expired.attempt, crashes=expired.crashes + 1, reason=expired.reason
        )

    @property
    def how_it_died(self) -> str:
        """The last heartbeat of its worker, which has died."""
        word, worker = self.expired.word, self.expired.worker
        if word is None:
            return f"its worker {worker} ended without a word"
        seen = moment_at(word.seen_at_ms)
        return (
            f"its worker {worker} (pid {word.pid} on {word.host}), last seen "
            f"{seen.isoformat(timespec='milliseconds')}, ended without a word"
        )
