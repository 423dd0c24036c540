"""How jobs come out of an attempt: each verdict is one or two moves, each move one statement.

Every statement names the claim (id, attempt, token) and the state it moves from: a worker that lost
its claim changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
from sqlalchemy import (
    BigInteger,
    Integer,
    Update,
    bindparam,
    case,
    column,
    null,
    select,
    update,
)

from ledgerstone.engine.attempt_log import DEAD_LETTER, FailedAttempt
from ledgerstone.engine.backoff import Backoff, BackoffPolicy
from ledgerstone.engine.source import Claim, Failure, Outcome, Verdict
from ledgerstone.jobs import history, limits
from ledgerstone.jobs.accepting import channel_of
from ledgerstone.jobs.states import Gate, Status
from ledgerstone.jobs.tables import ERROR_CODE_CHARS_MAX, ERROR_MESSAGE_CHARS_MAX, job, still
from ledgerstone.store.batch import Incoming, UpdateEach
from ledgerstone.store.expressions import as_json, now, now_after, now_ms
from ledgerstone.store.schema import text_type
from ledgerstone.store.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

_log = logging.getLogger("ledgerstone.jobs")

_held = (job.c.id, job.c.attempt, job.c.token)
_error = (job.c.last_error_code, job.c.last_error_message)


class JobClaim(Claim, frozen=True):
    """A job, taken for one attempt."""

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


def _claimed(row: Incoming, *more: Any) -> Update:
    """The job of a claim that still holds."""
    return update(job).where(
        job.c.id == row.id,
        job.c.attempt == row.attempt,
        job.c.token == row.token,
        still(Status.RUNNING),
        *more,
    )


def _ended(status: Status) -> dict[str, Any]:
    return {
        "status": status.value,
        "finished_at": now(),
        "updated_at": now_after(job.c.updated_at),
        "lease_until_ms": null(),
    }


def _due_again(row: Incoming) -> dict[str, Any]:
    """Queued, to be run when `delay_ms` are over."""
    return {
        "status": Status.QUEUED.value,
        "finished_at": null(),
        "updated_at": now_after(job.c.updated_at),
        "lease_until_ms": null(),
        "run_at_ms": now_ms() + row.delay_ms,
        "gate": case((row.delay_ms > 0, Gate.SCHEDULED.value), else_=Gate.OPEN.value),
    }


_delay = column("delay_ms", BigInteger())
_wanted = job.c.cancel_requested == 0
_unwanted = job.c.cancel_requested == 1

_succeed = UpdateEach(
    "jobs.succeed",
    key=job.c.id,
    journal=history.moved,
    incoming=_held,
    build=lambda row: _claimed(row).values(_ended(Status.SUCCEEDED)),
)
_succeed_with = UpdateEach(
    "jobs.succeed_with",
    key=job.c.id,
    journal=history.moved,
    incoming=(*_held, column("result", text_type())),
    build=lambda row: _claimed(row).values(
        {**_ended(Status.SUCCEEDED), "result": as_json(row.result)}
    ),
)
_fail = UpdateEach(
    "jobs.fail",
    key=job.c.id,
    journal=history.moved,
    incoming=(*_held, *_error, column("crashed", Integer())),
    build=lambda row: _claimed(row, _wanted).values(
        {
            **_ended(Status.FAILED),
            "crashes": job.c.crashes + row.crashed,
            "last_error_code": row.last_error_code,
            "last_error_message": row.last_error_message,
        }
    ),
)
_cancel = UpdateEach(
    "jobs.end_canceled",
    key=job.c.id,
    journal=history.moved,
    incoming=_held,
    build=lambda row: _claimed(row).values(_ended(Status.CANCELED)),
)
_cancel_unwanted = UpdateEach(
    "jobs.end_unwanted",
    key=job.c.id,
    journal=history.moved,
    incoming=_held,
    build=lambda row: _claimed(row, _unwanted).values(_ended(Status.CANCELED)),
)
_return = UpdateEach(
    "jobs.return",
    key=job.c.id,
    journal=history.moved,
    incoming=(*_held, _delay),
    build=lambda row: _claimed(row, _wanted).values(
        {
            **_due_again(row),
            "attempt": job.c.attempt - 1,
            # What is only given back keeps its place in line.
            "run_at_ms": case((row.delay_ms > 0, now_ms() + row.delay_ms), else_=job.c.run_at_ms),
        }
    ),
)


def _failed(row: Incoming) -> Update:
    return update(job).where(
        job.c.id == row.id,
        job.c.attempt == row.attempt,
        job.c.token == row.token,
        still(Status.FAILED),
    )


_retry = UpdateEach(
    "jobs.retry_failed",
    key=job.c.id,
    journal=history.moved,
    incoming=(*_held, _delay),
    build=lambda row: _failed(row).values(_due_again(row)),
)
_bury = UpdateEach(
    "jobs.bury",
    key=job.c.id,
    journal=history.moved,
    incoming=_held,
    build=lambda row: _failed(row).values(_ended(Status.DEAD_LETTER)),
)
_standing = Statement(
    "jobs.standing",
    select(job.c.token, job.c.status, job.c.attempt).where(
        job.c.id == bindparam("id", type_=job.c.id.type)
    ),
)

Outcomes = Sequence[Outcome]


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What decides whether there is another attempt, and when."""

    queue: str
    backoff: Callable[[JobClaim], Backoff]
    crashes_max: int


def settle(tx: Transaction, outcomes: Outcomes, *, worker: str | None, rules: Rules) -> Outcomes:
    """Write how these came out; the ones whose claim was lost, which is on record then."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(_group(outcome), []).append(outcome)
    lost: list[Outcome] = []
    for group, some in groups.items():
        match group:
            case "succeeded":
                lost += _run(tx, _succeed, some, Status.SUCCEEDED, worker=worker)
            case "succeeded with":
                lost += _run(tx, _succeed_with, some, Status.SUCCEEDED, worker=worker, more=_result)
            case "canceled":
                lost += _run(tx, _cancel, some, Status.CANCELED, worker=worker)
            case "returned":
                left = _run(tx, _return, some, Status.QUEUED, worker=worker, more=_delay_of)
                lost += _run(tx, _cancel_unwanted, left, Status.CANCELED, worker=worker)
            case _:
                left = _run(tx, _fail, some, Status.FAILED, worker=worker, more=_error_of)
                refused = {id(outcome) for outcome in left}
                _go_on(tx, [o for o in some if id(o) not in refused], worker, rules)
                late = _run(tx, _cancel_unwanted, left, Status.CANCELED, worker=worker)
                canceled = {id(outcome) for outcome in left} - {id(outcome) for outcome in late}
                for outcome in (o for o in left if id(o) in canceled):
                    _log_failed(tx, outcome, None, end="it was canceled")
                lost += late
    refusals = [outcome for outcome in lost if _refused(tx, outcome, worker)]
    claims = cast("list[JobClaim]", [outcome.claim for outcome in outcomes])
    freed = [(c.limit_key, c.org_id) for c in claims if c.limit_key is not None]
    if freed:
        # Last of all: see there in which order locks are taken.
        limits.pass_on(tx, rules.queue, freed)
        tx.wake(channel_of(rules.queue))
    return refusals


def _group(outcome: Outcome) -> str:
    match outcome.verdict:
        case Verdict.DONE:
            return "succeeded" if outcome.result is None else "succeeded with"
        case Verdict.CANCELED:
            return "canceled"
        case Verdict.SNOOZED | Verdict.RETURNED:
            return "returned"
        case Verdict.FAILED | Verdict.DEAD:
            return "failed"


def _run(
    tx: Transaction,
    each: UpdateEach,
    outcomes: Outcomes,
    status: Status,
    *,
    worker: str | None,
    more: Callable[[Outcome], Row] = lambda _: (),
) -> list[Outcome]:
    """One move for each of these; the ones that were refused."""
    if not outcomes:
        return []
    rows = [
        (o.claim.key, o.claim.attempt, o.claim.token, *more(o), _words(o, worker, status))
        for o in outcomes
    ]
    refused = each.run(tx, rows, **history.between(Status.RUNNING, status))
    return [outcomes[i] for i in refused]


def _go_on(tx: Transaction, failed: Outcomes, worker: str | None, rules: Rules) -> None:
    """From failed: to another attempt, or to the end if none is left."""
    again, over = [], []
    for outcome in failed:
        claim = cast("JobClaim", outcome.claim)
        held = (claim.key, claim.attempt, claim.token)
        if _is_last(outcome, claim, rules):
            over.append((*held, None))
            _log_failed(tx, outcome, None)
        else:
            delay_ms = round(rules.backoff(claim).after(claim.attempt) * 1000)
            words = history.detail(delay_ms=delay_ms, worker=worker)
            again.append((*held, delay_ms, words))
            _log_failed(tx, outcome, delay_ms / 1000)
    if again:
        _retry.run(tx, again, **history.between(Status.FAILED, Status.QUEUED))
    if over:
        _bury.run(tx, over, **history.between(Status.FAILED, Status.DEAD_LETTER))


def _log_failed(
    tx: Transaction, outcome: Outcome, next_seconds: float | None, *, end: str = DEAD_LETTER
) -> None:
    """Have the log tell of a failed attempt, once it is committed."""
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
    if outcome.verdict is Verdict.DEAD or claim.is_last:
        return True
    crashed = outcome.failure is not None and outcome.failure.crashed
    return crashed and claim.crashes + 1 >= rules.crashes_max


def _words(outcome: Outcome, worker: str | None, status: Status) -> str:
    """What is told of the move to this status; it leads to the row that the move has written."""
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


def _result(outcome: Outcome) -> Row:
    return (outcome.result,)


def _error_of(outcome: Outcome) -> Row:
    failure = outcome.failure or Failure("failed", "")
    return (*_cut(failure), int(failure.crashed))


def _ms(outcome: Outcome) -> int:
    delay_ms = round((outcome.delay_seconds or 0.0) * 1000)
    # What is put off never keeps its place in line, or those behind it would wait for ever.
    return max(delay_ms, 1) if outcome.verdict is Verdict.SNOOZED else delay_ms


def _delay_of(outcome: Outcome) -> Row:
    return (_ms(outcome),)


def _refused(tx: Transaction, outcome: Outcome, worker: str | None) -> bool:
    """Whether the claim was really lost; if so, that it tried to settle is on record."""
    claim = outcome.claim
    row = _standing.one(tx, id=claim.key)
    if row is None:
        return True
    # What was done and is not succeeded was given back meanwhile: another claim will do it.
    given_back = outcome.verdict is Verdict.DONE and row[1] != Status.SUCCEEDED.value
    if row[0] == claim.token and row[1] != Status.RUNNING.value and not given_back:
        # Nobody else has held it since: this same claim settled it, and the answer to the commit
        # got lost on its way; or its handler ended it, and failed after that.
        if outcome.failure is not None and row[1] == Status.SUCCEEDED.value:
            _tell_of_late_failure(tx, outcome, outcome.failure, worker)
        return False
    words = f"claim {claim.token} settled {outcome.verdict.value} too late"
    told = history.detail(refused=words, worker=worker)
    history.note(tx, claim.key, Status(row[1]), told)
    return True


def _tell_of_late_failure(
    tx: Transaction, outcome: Outcome, failure: Failure, worker: str | None
) -> None:
    """It has succeeded and stays so; what went wrong after that is told."""
    told = history.detail(
        attempt=outcome.claim.attempt,
        worker=worker,
        reason="the handler failed after it had ended the job",
        error=_told(failure),
    )
    history.note(tx, outcome.claim.key, Status.SUCCEEDED, told)
