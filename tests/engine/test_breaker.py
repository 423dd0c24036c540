"""Circuit breakers, by a clock that is moved by hand."""

from __future__ import annotations

import pytest

from ledgerstone.engine.breaker import Breakers
from ledgerstone.testing.clock import ManualClock

TARGET = "the broker"


@pytest.fixture
def breakers(clock: ManualClock) -> Breakers:
    """Opens after three failures, for ten seconds."""
    return Breakers(failures=3, cooldown_seconds=10, monotonic=clock.monotonic)


def test_opens_after_so_many_failures(breakers: Breakers) -> None:
    """Failures in a row open it; before that everything goes through."""
    allowed = []
    for _ in range(3):
        allowed.append(breakers.allow(TARGET))
        breakers.failed(TARGET)

    assert allowed == [True, True, True]
    assert not breakers.allow(TARGET)
    assert breakers.open_targets() == {TARGET}
    assert breakers.wait_seconds(TARGET) == 10


def test_a_success_in_between_counts_anew(breakers: Breakers) -> None:
    """Only failures in a row count."""
    for _ in range(5):
        breakers.failed(TARGET)
        breakers.failed(TARGET)
        breakers.succeeded(TARGET)
        assert len(breakers) == 0
    breakers.failed(TARGET)
    breakers.failed(TARGET)

    assert breakers.allow(TARGET)
    assert breakers.open_targets() == frozenset()


def test_one_probe_after_the_cooldown(breakers: Breakers, clock: ManualClock) -> None:
    """After the cool-down one is let through, and only one."""
    _open(breakers)
    clock.advance(11)

    before = breakers.open_targets()
    allowed = [breakers.allow(TARGET) for _ in range(3)]

    assert allowed == [True, False, False]
    # While the probe is on its way nothing else is claimed for it.
    assert before == frozenset()
    assert breakers.open_targets() == {TARGET}


def test_the_probe_decides(breakers: Breakers, clock: ManualClock) -> None:
    """A probe that fails opens it again at once, one that succeeds closes it."""
    _open(breakers)
    clock.advance(11)
    breakers.allow(TARGET)
    breakers.failed(TARGET)
    still_open = not breakers.allow(TARGET)
    clock.advance(11)
    breakers.allow(TARGET)
    breakers.succeeded(TARGET)

    assert still_open
    assert [breakers.allow(TARGET) for _ in range(3)] == [True, True, True]


def test_a_probe_that_never_came_there(breakers: Breakers, clock: ManualClock) -> None:
    """It decides nothing: the target stays closed to the rest, and another probe is let through."""
    _open(breakers)
    clock.advance(11)
    breakers.allow(TARGET)
    meanwhile = breakers.allow(TARGET)

    breakers.undecided(TARGET)

    assert not meanwhile
    assert [breakers.allow(TARGET) for _ in range(2)] == [True, False]


def test_targets_do_not_know_each_other(breakers: Breakers) -> None:
    """One target that is down holds up no other."""
    _open(breakers)

    assert breakers.allow("another")
    assert breakers.open_targets() == {TARGET}


def _open(breakers: Breakers) -> None:
    for _ in range(3):
        breakers.failed(TARGET)
