"""From what a handler returned or raised to its outcome: pure, without any database."""

from __future__ import annotations

import pytest

from ledgerstone import errors
from ledgerstone.engine import outcomes
from ledgerstone.engine.source import Cancel, Claim, Failure, Outcome, OutcomeKind, Snooze

CLAIM = Claim("key", 1, 1)
BYTES_MAX = 1000


def of_value(value: object) -> Outcome:
    return outcomes.of_value(CLAIM, value, bytes_max=BYTES_MAX)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ValueError("no"), OutcomeKind.FAILED),
        (errors.Hopeless("no"), OutcomeKind.DEAD),
        (errors.TargetDown("shop"), OutcomeKind.RETURNED),
        (errors.StoreUnavailable("away"), OutcomeKind.FAILED),
        (errors.Interrupted("stop"), OutcomeKind.FAILED),
        (KeyboardInterrupt(), OutcomeKind.FAILED),
    ],
)
def test_what_a_handler_raised(error: BaseException, verdict: OutcomeKind) -> None:
    """An error is a failure; a hopeless one is the end; a target that is down costs nothing."""
    outcome = outcomes.of_error(CLAIM, error)

    assert outcome.verdict is verdict
    assert outcome.failure is not None
    # What is returned rests, so that asking again is no loop without a pause.
    assert outcome.delay_seconds == (
        outcomes.REST_SECONDS if verdict is OutcomeKind.RETURNED else None
    )


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (errors.Interrupted("stop"), OutcomeKind.RETURNED),
        (errors.LeaseLost("late"), OutcomeKind.RETURNED),
        (errors.HandlerTimeout("slow"), OutcomeKind.FAILED),
    ],
)
def test_what_the_engine_raised(error: errors.LedgerstoneError, verdict: OutcomeKind) -> None:
    """What the engine itself broke off is returned; a timeout is the item's own."""
    assert outcomes.told(CLAIM, error).verdict is verdict


@pytest.mark.parametrize(
    ("verdict", "code", "then"),
    [
        (OutcomeKind.FAILED, "store_unavailable", OutcomeKind.RETURNED),
        (OutcomeKind.FAILED, "commit_unknown", OutcomeKind.RETURNED),
        (OutcomeKind.FAILED, "ValueError", OutcomeKind.FAILED),
        (OutcomeKind.FAILED, "store_busy", OutcomeKind.FAILED),
        (OutcomeKind.DEAD, "store_unavailable", OutcomeKind.DEAD),
    ],
)
def test_what_an_outage_excuses(verdict: OutcomeKind, code: str, then: OutcomeKind) -> None:
    """An outage excuses those that failed of it, and nobody else."""
    outcome = Outcome(CLAIM, verdict, failure=Failure(code, "words"))

    assert outcomes.spared(outcome).verdict is then


@pytest.mark.parametrize(
    ("error", "may"),
    [
        (errors.StoreError("too long"), True),
        (errors.Duplicate("taken"), True),
        (ZeroDivisionError(), True),
        (errors.StoreBusy("later"), False),
        (errors.StoreUnavailable("away"), False),
        (errors.StoreFull("full"), False),
        (errors.SchemaMissing("gone"), False),
        (errors.LeaseLost("late"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_whose_doing_it_may_be(error: BaseException, may: bool) -> None:
    """What the database says of a value may be one outcome's doing; its own trouble is none's."""
    assert outcomes.may_be_of_one(error) is may


@pytest.mark.parametrize(
    ("verdict", "then"),
    [
        (OutcomeKind.DONE, OutcomeKind.FAILED),
        (OutcomeKind.CANCELED, OutcomeKind.FAILED),
        (OutcomeKind.DEAD, OutcomeKind.DEAD),
    ],
)
def test_what_cannot_be_written(verdict: OutcomeKind, then: OutcomeKind) -> None:
    """An outcome that is refused becomes a failure that says so; what was dead stays dead."""
    outcome = outcomes.unwritable(Outcome(CLAIM, verdict, result="1"), errors.StoreError("no"))

    assert (outcome.verdict, outcome.result) == (then, None)
    assert outcome.failure is not None
    assert outcome.failure.message == f"its outcome ({verdict.value}) cannot be written: no"


@pytest.mark.parametrize(
    ("seconds", "rest"),
    [
        (60, 60),
        (0.5, 0.5),
        (0, outcomes.SNOOZE_SECONDS_MIN),
        (-5, outcomes.SNOOZE_SECONDS_MIN),
        (float("-inf"), outcomes.SNOOZE_SECONDS_MIN),
        (outcomes.SNOOZE_SECONDS_MAX, outcomes.SNOOZE_SECONDS_MAX),
    ],
)
def test_snoozes(seconds: float, rest: float) -> None:
    """A snooze lasts as long as was asked for; one of nothing lasts a moment."""
    outcome = of_value(Snooze(seconds))

    assert (outcome.verdict, outcome.delay_seconds) == (OutcomeKind.SNOOZED, rest)


@pytest.mark.parametrize(
    "value",
    [
        Snooze(outcomes.SNOOZE_SECONDS_MAX + 1),
        Snooze(float("inf")),
        Snooze(float("nan")),
        Snooze("long"),  # type: ignore[arg-type]
        object(),
        float("nan"),
        "x" * BYTES_MAX,
    ],
    ids=["too long", "for ever", "no number", "a word", "no JSON", "NaN", "too large"],
)
def test_values_that_cannot_be_kept(value: object) -> None:
    """A value that cannot be kept is a failure, whatever is wrong with it."""
    assert of_value(value).verdict is OutcomeKind.FAILED


def test_values_that_can_be_kept() -> None:
    """None is done without a result; a value is the result; a cancellation has its reason."""
    nothing, some, canceled = of_value(None), of_value({"a": [1]}), of_value(Cancel("not needed"))

    assert (nothing.verdict, nothing.result) == (OutcomeKind.DONE, None)
    assert (some.verdict, some.result) == (OutcomeKind.DONE, '{"a":[1]}')
    assert canceled.verdict is OutcomeKind.CANCELED
    assert canceled.failure == Failure("canceled", "not needed")


def test_words_that_are_kept() -> None:
    """What is kept of an error is bounded, and is text that every database takes."""
    long, odd = ValueError("x" * 100_000), ValueError("a\0b half \ud800 of one")

    kept, storable = outcomes.failure_of(long), outcomes.failure_of(odd)

    assert len(kept.message) == outcomes.MESSAGE_CHARS_MAX
    assert kept.traceback is not None
    assert len(kept.traceback) <= outcomes.TRACEBACK_CHARS_MAX
    assert storable.message == "a\ufffdb half ? of one"
    assert "\0" not in str(storable.traceback)
    str(storable.traceback).encode()
    named = type("E" * 500, (Exception,), {})
    assert len(outcomes.failure_of(named()).code) == outcomes.CODE_CHARS_MAX


def test_a_long_traceback() -> None:
    """Of a traceback of any length its beginning and its end are kept, and how much is missing."""

    # Two that call each other: the same line again and again would be told once.
    def even(depth: int) -> None:
        odd(depth - 1)

    def odd(depth: int) -> None:
        if depth < 0:
            message = "the end"
            raise ValueError(message)
        even(depth)

    with pytest.raises(ValueError, match="the end") as raised:
        even(300)
    text = outcomes.traceback_of(raised.value)

    assert len(text) <= outcomes.TRACEBACK_CHARS_MAX
    assert text.startswith("Traceback")
    assert text.rstrip().endswith("ValueError: the end")
    assert "characters left out" in text


def test_a_crash_is_told_apart() -> None:
    """A child process that died is a crash, any other failure is not."""
    assert outcomes.failure_of(errors.HandlerCrashed("died")).crashed
    assert not outcomes.failure_of(ValueError()).crashed
