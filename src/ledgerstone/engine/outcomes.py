"""Outcomes: made from the return value or the error of a handler.

There is an outcome for every value and every error, also for those whose own code raises: each
claim is settled.
"""

from __future__ import annotations

import traceback
from typing import Any

import msgspec

from ledgerstone import errors
from ledgerstone.engine.source import Cancel, Claim, Failure, Outcome, OutcomeKind, Snooze
from ledgerstone.store.sql.json_body import encode

MESSAGE_CHARS_MAX = 2048
TRACEBACK_CHARS_MAX = 20_000
"""Of a longer traceback the beginning and the end are kept."""
TRACEBACK_LINE_CHARS_MAX = 2000
"""Longer lines are shortened, so that a long message does not push out the frames."""
GAP_CHARS_MAX = 50
CODE_CHARS_MAX = 64
SNOOZE_SECONDS_MAX = 10 * 366 * 86_400
SNOOZE_SECONDS_MIN = 1.0
"""The shortest snooze: an item that is due again at once would begin and end without a pause."""
REST_SECONDS = 1.0
"""When an item is due again whose target or database was unreachable."""

REPLACED_TYPES = "__ledgerstone_types__"
"""The attribute with which an error that replaces one of a child process names its types."""


class ResultNotStorable(Exception):
    """The result of an atomic handler cannot be stored: its transaction is rolled back."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


def of_value(claim: Claim, value: Any, *, bytes_max: int) -> Outcome:
    """The outcome of a returned value; a value that cannot be stored is a failure."""
    if value is None:
        return Outcome(claim, OutcomeKind.DONE)
    try:
        if isinstance(value, Snooze):
            return _snoozed(claim, value.seconds)
        if isinstance(value, Cancel):
            return _canceled(claim, value.reason)
        return Outcome(claim, OutcomeKind.DONE, result=encode(value, bytes_max=bytes_max))
    except Exception as error:  # noqa: BLE001 - the value's own code may raise anything
        return Outcome(claim, OutcomeKind.FAILED, failure=failure_of(error))


def _snoozed(claim: Claim, seconds: Any) -> Outcome:
    if isinstance(seconds, int | float) and seconds <= SNOOZE_SECONDS_MAX:
        rest = seconds if seconds > 0 else SNOOZE_SECONDS_MIN
        return Outcome(claim, OutcomeKind.SNOOZED, delay_seconds=rest)
    message = f"a snooze lasts at most {SNOOZE_SECONDS_MAX} s, not {seconds!r}"
    raise errors.BadInput(message)


def _canceled(claim: Claim, reason: Any) -> Outcome:
    """The item is canceled, whatever the reason is and whether or not it can be read."""
    words = "" if reason is None else _words(reason)[:MESSAGE_CHARS_MAX]
    return Outcome(claim, OutcomeKind.CANCELED, failure=Failure("canceled", _storable(words)))


def of_error(claim: Claim, error: BaseException) -> Outcome:
    """The outcome of an error that the handler raised.

    Errors of the database and Interrupted count like any other error: the engine decides whether
    they were the handler's own (`told`, `spared`).
    """
    if isinstance(error, errors.TargetDown):
        # No failure of the item: the attempt is refunded.
        return returned(claim, error, delay_seconds=REST_SECONDS)
    verdict = OutcomeKind.DEAD if isinstance(error, errors.Hopeless) else OutcomeKind.FAILED
    return Outcome(claim, verdict, failure=failure_of(error))


def told(claim: Claim, error: errors.LedgerstoneError) -> Outcome:
    """The outcome for a reason to stop, whatever the handler did with it."""
    if isinstance(error, errors.Interrupted | errors.LeaseLost):
        # A lease counts as lost also while the database is unreachable. If another worker has
        # claimed the item, the settlement is refused; if not, this is no failure of the item.
        return returned(claim, error)
    return of_error(claim, error)


def may_be_of_one(error: BaseException) -> bool:
    """Whether one outcome may have caused the error, and not the state of the database."""
    if isinstance(error, errors.LedgerstoneError):
        return type(error) in {errors.StoreError, errors.Duplicate}
    return isinstance(error, Exception)


def spared(outcome: Outcome) -> Outcome:
    """The outcome during an outage: a failure caused by the outage does not count as an attempt."""
    failure = outcome.failure
    if outcome.verdict is not OutcomeKind.FAILED or failure is None:
        return outcome
    if failure.code not in {errors.StoreUnavailable.code, errors.CommitUnknown.code}:
        return outcome
    return msgspec.structs.replace(
        outcome, verdict=OutcomeKind.RETURNED, delay_seconds=REST_SECONDS
    )


def unwritable(outcome: Outcome, error: Exception) -> Outcome:
    """The failure that replaces an outcome which the database refuses."""
    verdict = OutcomeKind.DEAD if outcome.verdict is OutcomeKind.DEAD else OutcomeKind.FAILED
    message = f"its outcome ({outcome.verdict.value}) cannot be written: {_words(error)}"
    failure = Failure(_code_of(error), _storable(message[:MESSAGE_CHARS_MAX]))
    return Outcome(outcome.claim, verdict, failure=failure)


def returned(
    claim: Claim, error: errors.LedgerstoneError, *, delay_seconds: float = 0.0
) -> Outcome:
    """The outcome that returns an item to its source, with its attempt refunded."""
    # An error class of a user may have no message.
    message = _words(getattr(error, "message", error))[:MESSAGE_CHARS_MAX]
    failure = Failure(_code_of(error), _storable(message))
    return Outcome(claim, OutcomeKind.RETURNED, failure=failure, delay_seconds=delay_seconds)


def failure_of(error: BaseException) -> Failure:
    """The code, message and traceback of an error, as they are stored."""
    return Failure(
        _code_of(error),
        _storable(_words(error)[:MESSAGE_CHARS_MAX]),
        _storable(traceback_of(error)),
        crashed=isinstance(error, errors.HandlerCrashed),
    )


def is_of(error: BaseException, types: tuple[type[BaseException], ...]) -> bool:
    """Whether the error, or the one of a child process that it replaces, has one of these types."""
    if isinstance(error, types):
        return True
    replaced: tuple[str, ...] = getattr(type(error), REPLACED_TYPES, ())
    return any(type_names(each)[0] in replaced for each in types)


def type_names(kind: type[BaseException]) -> tuple[str, ...]:
    """The full names of a type of error and of its base types."""
    return tuple(f"{each.__module__}.{each.__qualname__}" for each in kind.__mro__)


def traceback_of(error: BaseException) -> str:
    """The traceback as text, shortened if it is too long."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - an error's own code may raise anything
        return f"{type(error).__name__}: its traceback cannot be read"
    if len(text) > TRACEBACK_LINE_CHARS_MAX:
        lines = (_shortened(line, TRACEBACK_LINE_CHARS_MAX) for line in text.split("\n"))
        text = "\n".join(lines)
    return _shortened(text, TRACEBACK_CHARS_MAX)


def _shortened(text: str, chars_max: int) -> str:
    """At most `chars_max` characters: the beginning, how many are left out, the end."""
    if len(text) <= chars_max:
        return text
    half = (chars_max - GAP_CHARS_MAX) // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters left out … {text[-half:]}"


def _code_of(error: BaseException) -> str:
    if isinstance(error, errors.LedgerstoneError):
        return _storable(_words(error.code)[:CODE_CHARS_MAX])
    return _storable(type(error).__name__[:CODE_CHARS_MAX])


def _words(value: object) -> str:
    """The value as text, also if its own code raises."""
    try:
        return str(value)
    except BaseException as error:  # noqa: BLE001 - a value's own code may raise anything
        return f"{type(value).__name__}, whose words cannot be read: {type(error).__name__}"


def _storable(text: str) -> str:
    """The text without NUL and lone surrogates, which no database stores."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
