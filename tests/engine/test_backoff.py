"""Back-off: pure, so proven by drawn numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerstone import Backoff, BackoffPolicy
from ledgerstone.engine.backoff import WAIT_SECONDS_MAX
from ledgerstone.errors import BadInput
from ledgerstone.jobs.tables import MAX_ATTEMPTS

SECONDS = st.floats(0.001, 1000)
FAILURES = st.integers(-1, 10_000)


@given(seconds=SECONDS, seconds_max=SECONDS, jitter=st.floats(0, 1), failures=FAILURES)
def test_bounded(seconds: float, seconds_max: float, jitter: float, failures: int) -> None:
    """No wait is negative or longer than its maximum, after however many failures."""
    backoff = Backoff(seconds=seconds, seconds_max=seconds_max, jitter=jitter)

    assert 0 <= backoff.after(failures) <= seconds_max


@given(seconds=SECONDS, failures=st.integers(1, 100))
def test_never_shorter_than_before(seconds: float, failures: int) -> None:
    """Without its jitter, each wait is at least as long as the one before."""
    backoff = Backoff(seconds=seconds)

    assert backoff.after(failures + 1, chance=0) >= backoff.after(failures, chance=0)


def test_exponential() -> None:
    """Policy exp multiplies after each failure up to the maximum."""
    backoff = Backoff(seconds=1, multiplier=2, seconds_max=10, jitter=0)

    assert [backoff.after(n) for n in range(1, 7)] == [1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize(
    ("policy", "waits"), [(BackoffPolicy.NONE, [0, 0, 0]), (BackoffPolicy.FIXED, [5, 5, 5])]
)
def test_other_policies(policy: BackoffPolicy, waits: list[float]) -> None:
    """Policy none does not wait, fixed always waits the same."""
    backoff = Backoff(policy=policy, seconds=5, jitter=0)

    assert [backoff.after(n) for n in (1, 2, 30)] == waits


def test_jitter_takes_off() -> None:
    """Jitter shortens the wait by at most its part."""
    backoff = Backoff(policy=BackoffPolicy.FIXED, seconds=10, jitter=0.2)

    assert (backoff.after(1, chance=0), backoff.after(1, chance=1)) == (10, 8)


ANY = st.floats()


@given(seconds=ANY, seconds_max=ANY, multiplier=ANY, jitter=ANY, failures=FAILURES)
def test_always_a_wait(
    seconds: float, seconds_max: float, multiplier: float, jitter: float, failures: int
) -> None:
    """Whatever the numbers are, the wait is one that can be written."""
    for policy in BackoffPolicy:
        backoff = Backoff(
            policy=policy,
            seconds=seconds,
            seconds_max=seconds_max,
            multiplier=multiplier,
            jitter=jitter,
        )

        assert 0 <= backoff.after(failures) <= WAIT_SECONDS_MAX


@pytest.mark.parametrize("name", ["seconds", "seconds_max", "multiplier", "jitter"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 1e18, "3", None])
def test_what_cannot_be_waited_for(name: str, value: object) -> None:
    """A number that is none, without end, negative or too large is refused by its name."""
    with pytest.raises(BadInput, match=f"^{name} "):
        Backoff(**{name: value}).check()  # type: ignore[arg-type]


def test_a_policy_is_one_of_three() -> None:
    """A policy in words is refused, and the right ones are named."""
    with pytest.raises(BadInput, match=r"BackoffPolicy\.FIXED"):
        Backoff(policy="fixed").check()  # type: ignore[arg-type]


def test_what_is_fine() -> None:
    """The limits themselves are allowed."""
    Backoff().check()
    Backoff(seconds=0, seconds_max=WAIT_SECONDS_MAX, multiplier=1, jitter=0).check()


def test_the_default() -> None:
    """The waits of the default between five attempts span about an hour, whatever the jitter."""
    longest = sum(Backoff().after(n, chance=0) for n in range(1, MAX_ATTEMPTS))
    shortest = sum(Backoff().after(n, chance=1) for n in range(1, MAX_ATTEMPTS))

    assert 0.8 * 3600 <= shortest < longest <= 1.2 * 3600
