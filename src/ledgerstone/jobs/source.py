"""The jobs of one queue as a source of work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from sqlalchemy import BigInteger, Integer, bindparam, column, null, select, update

from ledgerstone.engine.backoff import Backoff, BackoffPolicy
from ledgerstone.engine.source import (
    Ask,
    Claim,
    Failure,
    Handler,
    Outcome,
    Remainder,
    Verdict,
    mark_of,
)
from ledgerstone.engine.workers import LastWord, last_words
from ledgerstone.jobs import history, limits, settling
from ledgerstone.jobs.accepting import channel_of
from ledgerstone.jobs.kinds import Kinds
from ledgerstone.jobs.line import ABOUT, Line
from ledgerstone.jobs.running import Runner
from ledgerstone.jobs.settling import JobClaim
from ledgerstone.jobs.states import Gate, Status
from ledgerstone.jobs.tables import job, stands, still
from ledgerstone.store.batch import ClaimEach, LockEach, UpdateEach
from ledgerstone.store.expressions import now_after, now_ms
from ledgerstone.store.moments import moment_at
from ledgerstone.store.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

OPEN_SECONDS = 0.25
"""How often a busy worker looks for scheduled jobs whose time has come."""
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
_hold = LockEach("jobs.hold_each", job, key=job.c.id)
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
        job.c.type,
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
    incoming=(job.c.id, job.c.token, column("waited", Integer())),
    build=lambda row: (
        update(job)
        .where(
            job.c.id == row.id,
            job.c.token == row.token,
            still(Status.RUNNING),
        )
        .values(
            status=Status.QUEUED.value,
            attempt=job.c.attempt - row.waited,
            crashes=job.c.crashes + 1 - row.waited,
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
        self._limited = self._keyed()
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

    def settle(
        self, tx: Transaction, outcomes: Sequence[Outcome], *, waits: bool = False
    ) -> Remainder[Outcome]:
        held = () if waits else _hold.run(tx, [outcome.claim.key for outcome in outcomes])
        locked = [outcomes[i] for i in held]
        outcomes = [outcome for i, outcome in enumerate(outcomes) if i not in held]
        if self._limited or any(outcome.verdict is Verdict.RETURNED for outcome in outcomes):
            # A place in the queue is free, or a job is due again: others look.
            tx.wake(self.channel)
        lost = settling.settle(tx, outcomes, worker=self._worker, rules=self._rules)
        return Remainder(lost, locked)

    def extend(
        self, tx: Transaction, claims: Sequence[Claim], lease_seconds: float
    ) -> Remainder[Claim]:
        held = _hold.run(tx, [claim.key for claim in claims])
        locked = [claims[i] for i in held]
        claims = [claim for i, claim in enumerate(claims) if i not in held]
        rows = [(claim.key, claim.attempt, claim.token) for claim in claims]
        lost = _extend.run(tx, rows, lease_ms=round(lease_seconds * 1000))
        return Remainder([claims[i] for i in lost], locked)

    def rescue(self, tx: Transaction, *, limit: int, crashes_max: int) -> int:
        expired = [_Left(*row) for row in _expired.rows(tx, queue=self._queue, limit=limit)]
        words = last_words(tx, [left.worker for left in expired])
        again: list[Row] = []
        over: list[_Left] = []
        for left in expired:
            if left.is_kept(words):
                continue
            waited = left.waited(words)
            spent = left.crashes + 1 >= crashes_max or left.attempt >= left.max_attempts
            # Nor does one begin again that was asked to stop.
            if left.unwanted or (spent and not waited):
                over.append(left)
            else:
                again.append((str(left.key), left.token, int(waited), left.told(waited=waited)))
        lost = _rescue.run(tx, again, **history.between(Status.RUNNING, Status.QUEUED))
        rescued = len(again) - len(lost)
        gone = {again[i][0] for i in lost}
        back = [each for each in expired if each not in over and str(each.key) not in gone]
        tx.after_commit(partial(_log_rescued, back))
        # All at once: each is settled by itself, and slots are locked in order.
        limits.lock(tx, [left.limit_key for left in over if left.limit_key is not None])
        for left in over:
            self._bury(tx, left, words)
        _, self._swept = limits.sweep(tx, self._queue, self._swept)
        if rescued:
            tx.wake(self.channel)
        return rescued + len(over)

    def _learn(self) -> None:
        """Types were added since the statements of the line were made: they name every type."""
        # In this order: what is added in between is noticed by the next claim.
        self._known = len(self._kinds)
        self.types = sorted(self._kinds.all())
        self._line.know(self.types)
        self._limited = self._limited or self._keyed()

    def _keyed(self) -> bool:
        """Whether jobs of this queue have limit keys, as far as is known: then all go by limits."""
        kinds = self._kinds.all().values()
        return any(kind.limit is not None and kind.queue == self._queue for kind in kinds)

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
        self._limited = self._keyed() or bool(found) or limits.limited(tx, self._queue)
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
        about = (row[6], row[4], str(row[5]), *row[ABOUT])
        return JobClaim(str(row[0]), row[1], row[2], row[3] or "{}", None, timeout, *about)

    def _backoff(self, claim: JobClaim) -> Backoff:
        kind = self._kinds.get(claim.type)
        backoff = kind.backoff if kind is not None else Backoff()
        policy = BackoffPolicy(claim.backoff_policy)
        if backoff.policy is policy:
            return backoff
        return msgspec.structs.replace(backoff, policy=policy)

    def _bury(self, tx: Transaction, left: _Left, words: Mapping[str, LastWord]) -> None:
        """Too many workers died with it, or it has no attempt left."""
        # Whoever held it, and only seemed dead, must find that it is another's.
        if _disown.run(tx, [(str(left.key), left.token)]):
            return
        claim = JobClaim(
            str(left.key),
            left.attempt,
            left.token + 1,
            org_id=str(left.org_id),
            max_attempts=left.max_attempts,
            crashes=left.crashes,
            limit_key=left.limit_key,
            type=left.type,
        )
        failure = Failure("crashed", left.how_it_died(words), crashed=True)
        outcome = Outcome(claim, Verdict.DEAD, failure=failure)
        settling.settle(tx, [outcome], worker=left.worker, rules=self._rules)


def _log_rescued(back: Sequence[_Left]) -> None:
    for left in back:
        title = f"job {left.type} {left.key}, attempt {left.attempt}"
        _log.warning("%s: the lease of worker %s ran out; it is queued again", title, left.worker)


class _Left(NamedTuple):
    """A job whose lease ran out; what `_expired` finds."""

    key: object
    attempt: int
    token: int
    crashes: int
    max_attempts: int
    worker: str
    unwanted: bool
    limit_key: str | None
    org_id: object
    type: str

    def is_kept(self, words: Mapping[str, LastWord]) -> bool:
        """Whether its worker lives, and could not extend the lease because the row was locked."""
        word = words.get(self.worker)
        return word is not None and word.keeps(mark_of(self.key, self.token))

    def waited(self, words: Mapping[str, LastWord]) -> bool:
        """Whether its worker died before it began with it, as far as is known."""
        word = words.get(self.worker)
        mark, last = mark_of(self.key, self.token), self.attempt >= self.max_attempts
        return word is not None and word.waited(mark, crashes=self.crashes, last=last)

    def told(self, *, waited: bool) -> str:
        """What is told of its return."""
        reason = f"the lease of {self.worker} ran out"
        if waited:
            return history.detail(attempt=self.attempt - 1, reason=f"{reason} before it began")
        return history.detail(attempt=self.attempt, crashes=self.crashes + 1, reason=reason)

    def how_it_died(self, words: Mapping[str, LastWord]) -> str:
        """What is known of its worker, which ended without a word."""
        word = words.get(self.worker)
        if word is None:
            return f"its worker {self.worker} ended without a word"
        seen = moment_at(word.seen_at_ms)
        return (
            f"its worker {self.worker} (pid {word.pid} on {word.host}), last seen "
            f"{seen.isoformat(timespec='milliseconds')}, ended without a word"
        )
