"""From what a handler returned or raised to the outcome of its claim."""

from __future__ import annotations

import traceback
from typing import Any

from ledgerstone import errors
from ledgerstone.engine.source import Cancel, Claim, Failure, Outcome, Snooze, Verdict
from ledgerstone.store.body import encode

MESSAGE_CHARS_MAX = 2048
TRACEBACK_CHARS_MAX = 20_000
CODE_CHARS_MAX = 64
SNOOZE_SECONDS_MAX = 10 * 366 * 86_400


def of_value(claim: Claim, value: Any, *, bytes_max: int) -> Outcome:
    """The handler returned; a value that cannot be kept is a failure."""
    if value is None:
        return Outcome(claim, Verdict.DONE)
    if isinstance(value, Snooze):
        return _snoozed(claim, value.seconds)
    if isinstance(value, Cancel):
        reason = _storable(value.reason[:MESSAGE_CHARS_MAX])
        return Outcome(claim, Verdict.CANCELED, failure=Failure("canceled", reason))
    try:
        return Outcome(claim, Verdict.DONE, result=encode(value, bytes_max=bytes_max))
    except errors.BadInput as error:
        return Outcome(claim, Verdict.FAILED, failure=failure_of(error))


def _snoozed(claim: Claim, seconds: Any) -> Outcome:
    if isinstance(seconds, int | float) and seconds <= SNOOZE_SECONDS_MAX:
        return Outcome(claim, Verdict.SNOOZED, delay_seconds=max(seconds, 0.0))
    error = errors.BadInput(f"a snooze lasts at most {SNOOZE_SECONDS_MAX} s, not {seconds!r}")
    return Outcome(claim, Verdict.FAILED, failure=failure_of(error))


def of_error(claim: Claim, error: BaseException) -> Outcome:
    """The handler raised."""
    if isinstance(error, errors.Interrupted):
        return returned(claim, error)
    if isinstance(error, errors.TargetDown | errors.StoreUnavailable | errors.StoreBusy):
        # Not the item's doing: it keeps its attempt.
        return returned(claim, error, delay_seconds=1.0)
    verdict = Verdict.DEAD if isinstance(error, errors.Hopeless) else Verdict.FAILED
    return Outcome(claim, verdict, failure=failure_of(error))


def returned(
    claim: Claim, error: errors.LedgerstoneError, *, delay_seconds: float = 0.0
) -> Outcome:
    """Back to the source, as if it had not been claimed."""
    failure = Failure(error.code, error.message)
    return Outcome(claim, Verdict.RETURNED, failure=failure, delay_seconds=delay_seconds)


def failure_of(error: BaseException) -> Failure:
    """What is kept of an error."""
    code = error.code if isinstance(error, errors.LedgerstoneError) else type(error).__name__
    text = "".join(traceback.format_exception(error))
    return Failure(
        _storable(code[:CODE_CHARS_MAX]),
        _storable(str(error)[:MESSAGE_CHARS_MAX]),
        _storable(text[-TRACEBACK_CHARS_MAX:]),
        crashed=isinstance(error, errors.HandlerCrashed),
    )


def _storable(text: str) -> str:
    """The text without what no database takes: NUL, and halves of characters."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
