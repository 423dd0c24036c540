"""Chores as a source of work."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, assert_never

from sqlalchemy import BigInteger, Integer, bindparam, case, column, null, select, update

from ledgerstone.engine.attempt_log import FailedAttempt
from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.source import Ask, Claim, Failure, Handler, Outcome, Verdict, mark_of
from ledgerstone.engine.workers import last_words
from ledgerstone.store.batch import AppendEach, ClaimEach, LockEach, UpdateEach
from ledgerstone.store.expressions import now_ms
from ledgerstone.store.statement import Row, Statement
from tests.chores.chores import CHANNEL, record
from tests.chores.states import Status
from tests.chores.tables import REASON_CHARS_MAX, chore, chore_event

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

_log = logging.getLogger("ledgerstone.chores")

_held = (chore.c.id, chore.c.attempt, chore.c.token)

_claim = ClaimEach(
    "chores.claim",
    chore,
    key=chore.c.id,
    due=(chore.c.status == Status.QUEUED.value) & (chore.c.available_at_ms <= now_ms()),
    order_by=(chore.c.available_at_ms, chore.c.id),
    set_={
        "status": Status.RUNNING.value,
        "attempt": chore.c.attempt + 1,
        "token": chore.c.token + 1,
        "lease_until_ms": now_ms() + bindparam("lease_ms", type_=BigInteger()),
        "worker": bindparam("worker", type_=chore.c.worker.type),
    },
    returning=(chore.c.id, chore.c.attempt, chore.c.token, chore.c.body, chore.c.crashes),
)
_done = UpdateEach(
    "chores.done",
    key=chore.c.id,
    incoming=_held,
    build=lambda row: (
        update(chore)
        .where(
            chore.c.id == row.id,
            chore.c.attempt == row.attempt,
            chore.c.token == row.token,
            chore.c.status == Status.RUNNING.value,
        )
        .values(status=Status.DONE.value, lease_until_ms=null(), error=null())
    ),
)

_settle = UpdateEach(
    "chores.settle",
    key=chore.c.id,
    incoming=(
        *_held,
        chore.c.status,
        column("refund", Integer()),
        column("crashed", Integer()),
        column("delay_ms", BigInteger()),
        chore.c.result,
        chore.c.error,
    ),
    build=lambda row: (
        update(chore)
        .where(
            chore.c.id == row.id,
            chore.c.attempt == row.attempt,
            chore.c.token == row.token,
            chore.c.status == Status.RUNNING.value,
        )
        .values(
            status=row.status,
            attempt=chore.c.attempt - row.refund,
            crashes=chore.c.crashes + row.crashed,
            available_at_ms=case(
                (row.delay_ms.is_(None), chore.c.available_at_ms),
                else_=now_ms() + row.delay_ms,
            ),
            lease_until_ms=null(),
            result=row.result,
            error=row.error,
        )
    ),
)
_hold = LockEach("chores.hold", chore, key=chore.c.id)
_extend = UpdateEach(
    "chores.extend",
    key=chore.c.id,
    incoming=_held,
    build=lambda row: (
        update(chore)
        .where(
            chore.c.id == row.id,
            chore.c.attempt == row.attempt,
            chore.c.token == row.token,
            chore.c.status == Status.RUNNING.value,
        )
        .values(lease_until_ms=now_ms() + bindparam("lease_ms", type_=BigInteger()))
    ),
)
_expired = Statement(
    "chores.expired",
    select(chore.c.id, chore.c.attempt, chore.c.token, chore.c.crashes, chore.c.worker)
    .where(chore.c.status == Status.RUNNING.value, chore.c.lease_until_ms <= now_ms())
    .order_by(chore.c.lease_until_ms)
    .limit(bindparam("limit", type_=BigInteger()))
    .with_for_update(skip_locked=True),
)
_rescue = UpdateEach(
    "chores.rescue",
    key=chore.c.id,
    incoming=(*_held, chore.c.status, chore.c.error, column("waited", Integer())),
    build=lambda row: (
        update(chore)
        .where(
            chore.c.id == row.id,
            chore.c.token == row.token,
            chore.c.status == Status.RUNNING.value,
        )
        .values(
            status=row.status,
            attempt=chore.c.attempt - row.waited,
            crashes=chore.c.crashes + 1 - row.waited,
            # Whoever held it must not settle it any more, also before the next claim.
            token=chore.c.token + 1,
            available_at_ms=now_ms(),
            lease_until_ms=null(),
            error=row.error,
        )
    ),
)
_standing = Statement(
    "chores.standing",
    select(chore.c.token, chore.c.status).where(
        chore.c.id == bindparam("id", type_=chore.c.id.type)
    ),
)
_max_attempts = Statement(
    "chores.max_attempts",
    select(chore.c.max_attempts).where(chore.c.id == bindparam("id", type_=chore.c.id.type)),
)
_refuse = AppendEach(
    "chores.refuse",
    chore_event,
    incoming=(
        chore_event.c.chore_id,
        chore_event.c.attempt,
        chore_event.c.prev_status,
        chore_event.c.next_status,
        chore_event.c.reason,
    ),
    values=lambda _: {
        "at_ms": now_ms(),
        "worker": bindparam("worker", type_=chore_event.c.worker.type),
    },
)


class ChoreSource:
    """Chores, due by time; a failed one comes back after a back-off until its attempts are used."""

    name = "chores"
    channel = CHANNEL

    def __init__(self, handler: Handler, *, backoff: Backoff | None = None) -> None:
        self._handler = handler
        self._backoff = backoff or Backoff()
        self._worker: str | None = None

    def handler(self, claim: Claim) -> Handler:
        return self._handler

    def claim(self, tx: Transaction, ask: Ask) -> Sequence[Claim]:
        self._worker = ask.worker
        lease_ms = round(ask.lease_seconds * 1000)
        rows = _claim.run(tx, limit=ask.limit, lease_ms=lease_ms, worker=ask.worker)
        if rows:
            running = Status.RUNNING.value
            events = [(row[0], row[1], running, None) for row in rows]
            record.run(tx, events, prev=Status.QUEUED.value, worker=ask.worker)
        return [
            Claim(key, attempt, token, body, crashes=crashes)
            for key, attempt, token, body, crashes in rows
        ]

    def hold(self, tx: Transaction, claims: Sequence[Claim]) -> Sequence[Claim]:
        return [claims[i] for i in _hold.run(tx, [claim.key for claim in claims])]

    def settle(self, tx: Transaction, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        plain = [o for o in outcomes if o.verdict is Verdict.DONE and o.result is None]
        other = [o for o in outcomes if o.verdict is not Verdict.DONE or o.result is not None]
        refused: list[Outcome] = []
        if plain:
            claims = [outcome.claim for outcome in plain]
            lost = _done.run(tx, [(c.key, c.attempt, c.token) for c in claims])
            done = Status.DONE.value
            self._record(tx, [(c.key, c.attempt, done, None) for c in claims], lost)
            refused += [plain[i] for i in lost]
        if other:
            rows = [self._row(tx, outcome) for outcome in other]
            lost = _settle.run(tx, rows)
            self._record(tx, [(row[0], row[1], row[3], row[8]) for row in rows], lost)
            refused += [other[i] for i in lost]
            for i, outcome in enumerate(other):
                if outcome.verdict in {Verdict.FAILED, Verdict.DEAD} and i not in lost:
                    _log_failed(tx, outcome, rows[i])
        return [outcome for outcome in refused if self._refused(tx, outcome)]

    def extend(
        self, tx: Transaction, claims: Sequence[Claim], lease_seconds: float
    ) -> Sequence[Claim]:
        rows = [(claim.key, claim.attempt, claim.token) for claim in claims]
        return [claims[i] for i in _extend.run(tx, rows, lease_ms=round(lease_seconds * 1000))]

    def rescue(self, tx: Transaction, *, limit: int, crashes_max: int) -> int:
        expired = _expired.rows(tx, limit=limit)
        if not expired:
            return 0
        words = last_words(tx, [row[4] for row in expired])
        rows = []
        for key, attempt, token, crashes, worker in expired:
            word = words.get(worker)
            if word is not None and word.keeps(mark_of(key, token)):
                continue
            waited = word is not None and word.waited(mark_of(key, token), crashes=crashes)
            dead = crashes + 1 >= crashes_max and not waited
            status = Status.DEAD if dead else Status.QUEUED
            reason = f"the lease of {worker} ran out"
            rows.append((key, attempt, token, status.value, reason, int(waited)))
        lost = set(_rescue.run(tx, rows))
        events = [(r[0], r[1], r[3], r[4]) for i, r in enumerate(rows) if i not in lost]
        record.run(tx, events, prev=Status.RUNNING.value, worker=None)
        tx.wake(CHANNEL)
        return len(events)

    def _record(
        self, tx: Transaction, events: list[tuple[str, int, str, str | None]], lost: list[int]
    ) -> None:
        if lost:
            gone = set(lost)
            events = [event for i, event in enumerate(events) if i not in gone]
        record.run(tx, events, prev=Status.RUNNING.value, worker=self._worker)

    def _row(self, tx: Transaction, outcome: Outcome) -> Row:
        claim = outcome.claim
        status, delay, refund = self._judge(tx, outcome)
        failure = outcome.failure
        words = f"{failure.code}: {failure.message}"[:REASON_CHARS_MAX] if failure else None
        return (
            claim.key,
            claim.attempt,
            claim.token,
            status.value,
            int(refund),
            int(failure is not None and failure.crashed),
            None if delay is None else round(delay * 1000),
            outcome.result,
            words,
        )

    def _judge(self, tx: Transaction, outcome: Outcome) -> tuple[Status, float | None, bool]:
        """Where the chore goes, when it is due again, whether the attempt is given back."""
        match outcome.verdict:
            case Verdict.DONE:
                return Status.DONE, None, False
            case Verdict.DEAD:
                return Status.DEAD, None, False
            case Verdict.CANCELED:
                return Status.CANCELED, None, False
            case Verdict.SNOOZED | Verdict.RETURNED:
                return Status.QUEUED, outcome.delay_seconds or 0.0, True
            case Verdict.FAILED:
                row = _max_attempts.one(tx, id=outcome.claim.key)
                attempt = outcome.claim.attempt
                if row is None or attempt >= row[0]:
                    return Status.DEAD, None, False
                return Status.QUEUED, self._backoff.after(attempt), False
            case _:
                assert_never(outcome.verdict)

    def _refused(self, tx: Transaction, outcome: Outcome) -> bool:
        """Whether the claim was really lost; if so, that it tried to settle is on record."""
        claim = outcome.claim
        row = _standing.one(tx, id=claim.key)
        if row is not None and row[0] == claim.token and row[1] != Status.RUNNING.value:
            # Nobody else has held it since: this same claim settled it, and the answer to the
            # commit got lost on its way.
            return False
        status = row[1] if row is not None else "gone"
        reason = f"refused: claim {claim.token} settled {outcome.verdict.value} too late"
        event = (claim.key, claim.attempt, status, status, reason)
        _refuse.run(tx, [event], worker=self._worker)
        return True


def _log_failed(tx: Transaction, outcome: Outcome, row: Row) -> None:
    """Have the log tell of a failed attempt, once it is committed."""
    claim, delay_ms = outcome.claim, row[6]
    failed = FailedAttempt(
        what=f"chore {claim.key}",
        attempt=claim.attempt,
        failure=outcome.failure or Failure("failed", ""),
        next_seconds=None if delay_ms is None else delay_ms / 1000,
        end="it is dead",
        ids={"chore_id": claim.key, "attempt": claim.attempt},
    )
    tx.after_commit(partial(failed.write, _log))
