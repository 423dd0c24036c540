"""The jobs of one queue as a source of work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
from sqlalchemy import BigInteger, String, bindparam, null, select, update
from sqlalchemy import cast as sql_cast

from ledgerstone.engine.backoff import Backoff, BackoffPolicy
from ledgerstone.engine.source import Ask, Claim, Failure, Handler, Outcome, Verdict
from ledgerstone.jobs import history, limits, settling
from ledgerstone.jobs.accepting import channel_of
from ledgerstone.jobs.kinds import Kinds
from ledgerstone.jobs.line import ABOUT, Line
from ledgerstone.jobs.running import Runner
from ledgerstone.jobs.settling import JobClaim
from ledgerstone.jobs.states import Gate, Status
from ledgerstone.jobs.tables import job, stands, still
from ledgerstone.store.batch import ClaimEach, UpdateEach
from ledgerstone.store.expressions import now_after, now_ms
from ledgerstone.store.schema import ID_CHARS
from ledgerstone.store.statement import Row, Statement
from ledgerstone.store.tables import worker as worker_table

if TYPE_CHECKING:
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

OPEN_SECONDS = 0.25
"""How often a busy worker looks for scheduled jobs whose time has come."""
OPEN_MAX = 1000

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
_extend = UpdateEach(
    "jobs.extend",
    key=job.c.id,
    incoming=(job.c.id, job.c.attempt, job.c.token),
    build=lambda row: (
        update(job)
        .where(
            job.c.id == row.id,
            job.c.attempt == row.attempt,
            job.c.token == row.token,
            still(Status.RUNNING),
        )
        .values(lease_until_ms=now_ms() + bindparam("lease_ms", type_=BigInteger()))
    ),
)
_expired = Statement(
    "jobs.expired",
    select(
        job.c.id,
        job.c.attempt,
        job.c.token,
        job.c.crashes,
        job.c.max_attempts,
        job.c.worker,
        job.c.cancel_requested,
        job.c.limit_key,
        job.c.org_id,
    )
    .where(
        stands(Status.RUNNING),
        job.c.queue == bindparam("queue", type_=job.c.queue.type),
        job.c.lease_until_ms <= now_ms(),
    )
    .limit(bindparam("limit", type_=BigInteger()))
    .with_for_update(skip_locked=True),
)
_rescue = UpdateEach(
    "jobs.rescue",
    key=job.c.id,
    journal=history.moved,
    incoming=(job.c.id, job.c.token),
    build=lambda row: (
        update(job)
        .where(
            job.c.id == row.id,
            job.c.token == row.token,
            still(Status.RUNNING),
        )
        .values(
            status=Status.QUEUED.value,
            crashes=job.c.crashes + 1,
            # Whoever held it must not settle it any more, also before the next claim.
            token=job.c.token + 1,
            updated_at=now_after(job.c.updated_at),
            run_at_ms=now_ms(),
            lease_until_ms=null(),
        )
    ),
)

_disown = UpdateEach(
    "jobs.disown",
    key=job.c.id,
    incoming=(job.c.id, job.c.token),
    build=lambda row: (
        update(job)
        .where(job.c.id == row.id, job.c.token == row.token, still(Status.RUNNING))
        .values(token=job.c.token + 1)
    ),
)


class JobSource:
    """The jobs of one queue that this process knows how to run.

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
        self._rules = settling.Rules(queue=queue, backoff=self._backoff, crashes_max=crashes_max)
        self._runner = Runner(database, kinds, self._rules)
        self._worker: str | None = None
        self._known = len(kinds)
        self.types = sorted(kinds.all())
        self._line = Line(queue, self.types)
        self._limited = False
        self._opened_at = float("-inf")
        self._swept = ""

    def handler(self, claim: Claim) -> Handler:
        return self._runner.handler(cast("JobClaim", claim).type)

    def claim(self, tx: Transaction, ask: Ask) -> Sequence[JobClaim]:
        self._worker = ask.worker
        if len(self._kinds) != self._known:
            self._learn()
        opened = self._open_scheduled(tx)
        claims = self._claims(tx, ask)
        opened()
        return claims

    def settle(self, tx: Transaction, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        if self._limited or any(outcome.verdict is Verdict.RETURNED for outcome in outcomes):
            # A place in the queue is free, or a job is due again: others look.
            tx.wake(self.channel)
        return settling.settle(tx, outcomes, worker=self._worker, rules=self._rules)

    def extend(
        self, tx: Transaction, claims: Sequence[Claim], lease_seconds: float
    ) -> Sequence[Claim]:
        rows = [(claim.key, claim.attempt, claim.token) for claim in claims]
        return [claims[i] for i in _extend.run(tx, rows, lease_ms=round(lease_seconds * 1000))]

    def rescue(self, tx: Transaction, *, limit: int, crashes_max: int) -> int:
        expired = _expired.rows(tx, queue=self._queue, limit=limit)
        again: list[Row] = []
        over: list[Row] = []
        for row in expired:
            # Nor does one begin again that was asked to stop.
            alive = row[3] + 1 < crashes_max and row[1] < row[4] and not row[6]
            (again if alive else over).append(row)
        lost = _rescue.run(
            tx,
            [(str(row[0]), row[2], _last_words(row)) for row in again],
            **history.between(Status.RUNNING, Status.QUEUED),
        )
        rescued = len(again) - len(lost)
        # All at once: each is settled by itself, and slots are locked in order.
        limits.lock(tx, [row[7] for row in over if row[7] is not None])
        for row in over:
            self._bury(tx, row)
        _, self._swept = limits.sweep(tx, self._swept)
        if rescued:
            tx.wake(self.channel)
        return rescued + len(over)

    def _learn(self) -> None:
        """Types were added since the statements of the line were made: they name every type."""
        # In this order: what is added in between is noticed by the next claim.
        self._known = len(self._kinds)
        self.types = sorted(self._kinds.all())
        self._line.know(self.types)

    def _claims(self, tx: Transaction, ask: Ask) -> list[JobClaim]:
        common = {
            "lease_ms": round(ask.lease_seconds * 1000),
            "worker": ask.worker,
            **history.between(Status.QUEUED, Status.RUNNING),
        }
        if not self._limited:
            rows = self._line.take(tx, ask.limit, alone=ask.alone, **common)
            if rows or not limits.limited(tx, self._queue):
                return [self._made(row) for row in rows]
        look = partial(self._line.look, tx)
        found = limits.claim(tx, self._queue, ask.limit, look, **common)
        self._limited = bool(found) or limits.limited(tx, self._queue)
        # These are as they were before they were taken.
        return [self._made((row[0], row[1] + 1, row[2] + 1, *row[3:])) for row in found]

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
                # What took long may have been this, and not the claim.
                self._line.start_at_front()

        return known

    def _made(self, row: Row) -> JobClaim:
        kind = self._kinds.get(row[4])
        timeout = kind.timeout_seconds if kind is not None else None
        about = (row[4], str(row[5]), *row[ABOUT])
        return JobClaim(str(row[0]), row[1], row[2], row[3] or "{}", None, timeout, *about)

    def _backoff(self, claim: JobClaim) -> Backoff:
        kind = self._kinds.get(claim.type)
        backoff = kind.backoff if kind is not None else Backoff()
        policy = BackoffPolicy(claim.backoff_policy)
        if backoff.policy is policy:
            return backoff
        return msgspec.structs.replace(backoff, policy=policy)

    def _bury(self, tx: Transaction, row: Row) -> None:
        """Too many workers died with it, or it has no attempt left."""
        key, attempt, token, crashes, max_attempts, worker, _, limit_key, org_id = row
        # Whoever held it, and only seemed dead, must find that it is another's.
        if _disown.run(tx, [(str(key), token)]):
            return
        claim = JobClaim(
            str(key),
            attempt,
            token + 1,
            org_id=str(org_id),
            max_attempts=max_attempts,
            crashes=crashes,
            limit_key=limit_key,
        )
        failure = Failure("crashed", _how_it_died(tx, worker), crashed=True)
        outcome = Outcome(claim, Verdict.DEAD, failure=failure)
        settling.settle(tx, [outcome], worker=worker, rules=self._rules)


_worker_of = Statement(
    "jobs.worker_of",
    select(worker_table.c.host, worker_table.c.pid, worker_table.c.seen_at_ms).where(
        # As text: the column of a job holds any word.
        sql_cast(worker_table.c.id, String(ID_CHARS)) == bindparam("id", type_=job.c.worker.type)
    ),
)


def _how_it_died(tx: Transaction, worker: str | None) -> str:
    """What is known of a worker that ended without a word."""
    row = _worker_of.one(tx, id=worker) if worker is not None else None
    if row is None:
        return f"its worker {worker} ended without a word"
    seen = datetime.fromtimestamp(row[2] / 1000, UTC).isoformat(timespec="milliseconds")
    return f"its worker {worker} (pid {row[1]} on {row[0]}), last seen {seen}, ended without a word"


def _last_words(row: Row) -> str:
    return history.detail(
        attempt=row[1], crashes=row[3] + 1, reason=f"the lease of {row[5]} ran out"
    )
