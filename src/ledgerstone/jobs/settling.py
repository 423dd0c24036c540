"""Settling jobs: each outcome is a path of one or two moves (`items`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never, cast

import msgspec

from ledgerstone.engine.attempt_log import DEAD_LETTER, FailedAttempt
from ledgerstone.engine.backoff import Backoff, BackoffPolicy
from ledgerstone.engine.source import Claim, Failure, NotSettled, Outcome, OutcomeKind
from ledgerstone.items.moves import Step
from ledgerstone.items.settle import ClaimStatus, EndedClaim, Settle, SettleResult, remainder
from ledgerstone.jobs import history, items, limits
from ledgerstone.jobs.states import Status
from ledgerstone.jobs.tables import ERROR_CODE_CHARS_MAX, ERROR_MESSAGE_CHARS_MAX, channel_of
from ledgerstone.store.sql.statement import Row

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

_log = logging.getLogger("ledgerstone.jobs")


class JobClaim(Claim, frozen=True):
    """A job, claimed for one attempt."""

    type: str = ""
    org_id: str = ""
    max_attempts: int = 0
    backoff_policy: str = BackoffPolicy.EXP.value
    limit_key: str | None = None
    requested_by: str | None = None
    correlation_id: str | None = None
    trace_context: str | None = None

    @property
    def is_last(self) -> bool:
        return self.attempt >= self.max_attempts

    @property
    def title(self) -> str:
        return f"job {self.type} {self.key}, attempt {self.attempt}"

    @property
    def log_ids(self) -> dict[str, str | int]:
        """The job for the context of log lines."""
        return {"job_type": self.type, "job_id": self.key, "attempt": self.attempt}


Outcomes = Sequence[Outcome]


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that decide whether there is another attempt, and when."""

    queue: str
    backoff: Callable[[JobClaim], Backoff]
    crashes_max: int
    slots: limits.BusySlots


def settle(
    tx: Transaction,
    outcomes: Outcomes,
    *,
    worker: str | None,
    rules: Rules,
    waits: bool = False,
) -> NotSettled[Outcome]:
    """Settle these; answers claims that are lost, with the refusal on record, and locked ones."""
    ended = [
        EndedClaim(outcome.claim, _path(outcome, worker, rules), outcome.verdict)
        for outcome in outcomes
    ]
    settled = _settle.run(tx, ended, worker=worker, waits=waits)
    for outcome, found in zip(outcomes, settled, strict=True):
        if found.status is ClaimStatus.SETTLED and outcome.verdict in _FAILED:
            _log_settled(tx, outcome, found)
        elif found.status is ClaimStatus.BEFORE and found.state == Status.SUCCEEDED.value:
            _tell_of_late_failure(tx, outcome, worker)
    left = remainder(outcomes, settled)
    freed = _freed(outcomes, left)
    if freed:
        # Last of all: a transaction of the user's, which waits for slots, has its jobs first.
        limits.pass_on(tx, rules.queue, freed, None if waits else rules.slots)
        tx.wake(channel_of(rules.queue))
    return left


def _path(outcome: Outcome, worker: str | None, rules: Rules) -> Step:
    """The moves that a job makes by this outcome."""

    def told(status: Status) -> Row:
        return (_words(outcome, worker, status),)

    def canceled() -> Step:
        return Step(move=items.cancel, told=told(Status.CANCELED))

    match outcome.verdict:
        case OutcomeKind.DONE if outcome.result is None:
            return Step(move=items.succeed, told=told(Status.SUCCEEDED))
        case OutcomeKind.DONE:
            return Step(move=items.succeed_with, row=(outcome.result,), told=told(Status.SUCCEEDED))
        case OutcomeKind.CANCELED:
            return canceled()
        case OutcomeKind.SNOOZED | OutcomeKind.RETURNED:
            return Step(
                move=items.give_back,
                row=(_ms(outcome),),
                told=told(Status.QUEUED),
                otherwise=canceled(),
            )
        case OutcomeKind.FAILED | OutcomeKind.DEAD:
            return Step(
                move=items.fail,
                row=_error_of(outcome),
                told=told(Status.FAILED),
                then=_after_failure(outcome, worker, rules),
                otherwise=canceled(),
            )
        case _:
            assert_never(outcome.verdict)


def _after_failure(outcome: Outcome, worker: str | None, rules: Rules) -> Step:
    """From failed: to another attempt, or to the end if none is left."""
    claim = cast("JobClaim", outcome.claim)
    if _is_last(outcome, claim, rules):
        return Step(move=items.bury, told=(None,))
    delay_ms = round(rules.backoff(claim).after(claim.attempt) * 1000)
    words = history.detail(delay_ms=delay_ms, worker=worker)
    return Step(move=items.retry, row=(delay_ms,), told=(words,))


def _freed(outcomes: Outcomes, left: NotSettled[Outcome]) -> list[limits.Freed]:
    """The places of limit keys that have become free."""
    locked = set(map(id, left.locked))
    claims = cast("list[JobClaim]", [o.claim for o in outcomes if id(o) not in locked])
    return [(c.limit_key, c.org_id) for c in claims if c.limit_key is not None]


def _log_settled(tx: Transaction, outcome: Outcome, found: SettleResult) -> None:
    """Log a failed attempt, by the last move that it made."""
    assert found.step is not None
    if found.step.move is items.retry:
        _log_failed(tx, outcome, found.step.row[0] / 1000)
    else:
        was_canceled = found.step.move is items.cancel
        _log_failed(tx, outcome, None, end="it was canceled" if was_canceled else DEAD_LETTER)


def _log_failed(
    tx: Transaction, outcome: Outcome, next_seconds: float | None, *, end: str = DEAD_LETTER
) -> None:
    """Log a failed attempt when it is committed."""
    claim = cast("JobClaim", outcome.claim)
    failed = FailedAttempt(
        what=f"job {claim.type} {claim.key}",
        attempt=claim.attempt,
        attempts_max=claim.max_attempts,
        failure=outcome.failure or Failure("failed", ""),
        next_seconds=next_seconds,
        end=end,
        ids=claim.log_ids,
    )
    tx.after_commit(partial(failed.write, _log))


def _is_last(outcome: Outcome, claim: JobClaim, rules: Rules) -> bool:
    if outcome.verdict is OutcomeKind.DEAD or claim.is_last:
        return True
    crashed = outcome.failure is not None and outcome.failure.crashed
    return crashed and claim.crashes + 1 >= rules.crashes_max


def _words(outcome: Outcome, worker: str | None, status: Status) -> str:
    """The event of the move to this status; it leads to the row that the move has written."""
    claim, failure = outcome.claim, outcome.failure
    # Only what goes back in line gets its attempt back.
    attempt = claim.attempt - (status is Status.QUEUED)
    if failure is None and outcome.delay_seconds is None and worker is not None:
        return history.begun(attempt, worker)
    crashed = status is Status.FAILED and failure is not None and failure.crashed
    return history.detail(
        attempt=attempt,
        worker=worker,
        crashes=claim.crashes + 1 if crashed else None,
        verdict=outcome.verdict.value,
        delay_ms=_ms(outcome) if status is Status.QUEUED else None,
        error=_told(failure) if failure is not None else None,
    )


def _told(failure: Failure) -> dict[str, Any]:
    code, message = _cut(failure)
    return {"code": code, "message": message, "traceback": failure.traceback}


def _cut(failure: Failure) -> tuple[str, str]:
    return failure.code[:ERROR_CODE_CHARS_MAX], failure.message[:ERROR_MESSAGE_CHARS_MAX]


def _error_of(outcome: Outcome) -> Row:
    failure = outcome.failure or Failure("failed", "")
    return (*_cut(failure), int(failure.crashed))


def _ms(outcome: Outcome) -> int:
    delay_ms = round((outcome.delay_seconds or 0.0) * 1000)
    # A snoozed job loses its place in the claim order, or jobs behind it would starve.
    return max(delay_ms, 1) if outcome.verdict is OutcomeKind.SNOOZED else delay_ms


def _tell_of_late_failure(tx: Transaction, outcome: Outcome, worker: str | None) -> None:
    """The job stays succeeded; record the failure that came after its end."""
    if outcome.failure is None:
        return
    told = history.detail(
        attempt=outcome.claim.attempt,
        worker=worker,
        reason="the handler failed after it had ended the job",
        error=_told(outcome.failure),
    )
    history.note(tx, outcome.claim.key, Status.SUCCEEDED, told)


_FAILED = frozenset({OutcomeKind.FAILED, OutcomeKind.DEAD})
_settle = Settle(items.JOBS)
