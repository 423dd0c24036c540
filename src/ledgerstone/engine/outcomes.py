"""From what a handler returned or raised to the outcome of its claim.

Whatever that is, there is an outcome: a handler's answer that cannot be read must not keep its
claim from being settled.
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
"""Of a longer one the beginning and the end are kept: where it came from and what it was."""
TRACEBACK_LINE_CHARS_MAX = 2000
"""So that the frames are kept also beside a message of any length."""
GAP_CHARS_MAX = 50
CODE_CHARS_MAX = 64
SNOOZE_SECONDS_MAX = 10 * 366 * 86_400
SNOOZE_SECONDS_MIN = 1.0
"""How long something rests that was put off until now or a moment that has passed: if it were due
again at once, a handful of them would do nothing but begin and end."""
REST_SECONDS = 1.0
"""How long something rests that met a database or a target out of reach."""

REPLACED_TYPES = "__ledgerstone_types__"
"""Where an error that replaces one from another process names the types of the original."""


class ResultNotStorable(Exception):
    """What an atomic handler returned cannot be kept: so is nothing that it wrote."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


def of_value(claim: Claim, value: Any, *, bytes_max: int) -> Outcome:
    """The handler returned; a value that cannot be kept is a failure."""
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
    """Whatever the reason is: that it need not be done any more is clear."""
    words = "" if reason is None else _words(reason)[:MESSAGE_CHARS_MAX]
    return Outcome(claim, OutcomeKind.CANCELED, failure=Failure("canceled", _storable(words)))


def of_error(claim: Claim, error: BaseException) -> Outcome:
    """The handler raised.

    An error of the database counts like any other, and so does Interrupted: only the engine knows
    whether they were the handler's own (`told`, `spared`).
    """
    if isinstance(error, errors.TargetDown):
        # Not the item's doing: it keeps its attempt.
        return returned(claim, error, delay_seconds=REST_SECONDS)
    verdict = OutcomeKind.DEAD if isinstance(error, errors.Hopeless) else OutcomeKind.FAILED
    return Outcome(claim, verdict, failure=failure_of(error))


def told(claim: Claim, error: errors.LedgerstoneError) -> Outcome:
    """The engine raised it into the handler: it is the outcome, whatever the handler made of it."""
    if isinstance(error, errors.Interrupted | errors.LeaseLost):
        # A lease is also taken to be lost while the database is out of reach. If another has the
        # item, this is refused; if not, it was not the item's doing.
        return returned(claim, error)
    return of_error(claim, error)


def may_be_of_one(error: BaseException) -> bool:
    """Whether it may be the doing of a single outcome, and none of the database's or of a table."""
    if isinstance(error, errors.LedgerstoneError):
        return type(error) in {errors.StoreError, errors.Duplicate}
    return isinstance(error, Exception)


def spared(outcome: Outcome) -> Outcome:
    """The engine's own database is out of reach: who failed of that keeps its attempt."""
    failure = outcome.failure
    if outcome.verdict is not OutcomeKind.FAILED or failure is None:
        return outcome
    if failure.code not in {errors.StoreUnavailable.code, errors.CommitUnknown.code}:
        return outcome
    return msgspec.structs.replace(
        outcome, verdict=OutcomeKind.RETURNED, delay_seconds=REST_SECONDS
    )


def unwritable(outcome: Outcome, error: Exception) -> Outcome:
    """The database refused the outcome: that is written in its place, in words that it takes."""
    verdict = OutcomeKind.DEAD if outcome.verdict is OutcomeKind.DEAD else OutcomeKind.FAILED
    message = f"its outcome ({outcome.verdict.value}) cannot be written: {_words(error)}"
    failure = Failure(_code_of(error), _storable(message[:MESSAGE_CHARS_MAX]))
    return Outcome(outcome.claim, verdict, failure=failure)


def returned(
    claim: Claim, error: errors.LedgerstoneError, *, delay_seconds: float = 0.0
) -> Outcome:
    """Back to the source, as if it had not been claimed."""
    # A class of a user's own may have no message.
    message = _words(getattr(error, "message", error))[:MESSAGE_CHARS_MAX]
    failure = Failure(_code_of(error), _storable(message))
    return Outcome(claim, OutcomeKind.RETURNED, failure=failure, delay_seconds=delay_seconds)


def failure_of(error: BaseException) -> Failure:
    """What is kept of an error."""
    return Failure(
        _code_of(error),
        _storable(_words(error)[:MESSAGE_CHARS_MAX]),
        _storable(traceback_of(error)),
        crashed=isinstance(error, errors.HandlerCrashed),
    )


def is_of(error: BaseException, types: tuple[type[BaseException], ...]) -> bool:
    """Whether the error, or the one that it replaces, is of one of these types."""
    if isinstance(error, types):
        return True
    replaced: tuple[str, ...] = getattr(type(error), REPLACED_TYPES, ())
    return any(type_names(each)[0] in replaced for each in types)


def type_names(kind: type[BaseException]) -> tuple[str, ...]:
    """The full names of a type of error and of its base types."""
    return tuple(f"{each.__module__}.{each.__qualname__}" for each in kind.__mro__)


def traceback_of(error: BaseException) -> str:
    """Its traceback as text, shortened where it is too long."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - an error's own code may raise anything
        return f"{type(error).__name__}: its traceback cannot be read"
    if len(text) > TRACEBACK_LINE_CHARS_MAX:
        lines = (_shortened(line, TRACEBACK_LINE_CHARS_MAX) for line in text.split("\n"))
        text = "\n".join(lines)
    return _shortened(text, TRACEBACK_CHARS_MAX)


def _shortened(text: str, chars_max: int) -> str:
    """At most so many characters: its beginning, its end, and how much is missing between."""
    if len(text) <= chars_max:
        return text
    half = (chars_max - GAP_CHARS_MAX) // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters left out … {text[-half:]}"


def _code_of(error: BaseException) -> str:
    if isinstance(error, errors.LedgerstoneError):
        return _storable(_words(error.code)[:CODE_CHARS_MAX])
    return _storable(type(error).__name__[:CODE_CHARS_MAX])


def _words(value: object) -> str:
    """The value as text, also if it does not want to."""
    try:
        return str(value)
    except BaseException as error:  # noqa: BLE001 - a value's own code may raise anything
        return f"{type(value).__name__}, whose words cannot be read: {type(error).__name__}"


def _storable(text: str) -> str:
    """The text without what no database takes: NUL, and halves of characters."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
