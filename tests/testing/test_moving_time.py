"""The clock that tests move by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ledgerstone.errors import BadInput
from ledgerstone.ledger import Ledger
from ledgerstone.testing.clock import ManualClock


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan, math.inf, -math.inf])
def test_time_does_not_pass_backwards(seconds: float) -> None:
    """What no time can do is refused, with what sets a clock back, and nothing has moved."""
    clock = ManualClock(1000)

    with pytest.raises(BadInput, match=r"not by .*jump\(\) sets the clock back"):
        clock.advance(seconds)

    assert (clock.now_ms(), clock.monotonic()) == (1000, 0.0)


def test_time_passes_and_clocks_are_set() -> None:
    """Time passes for clock and watch; a clock that is set leaves the watch alone."""
    clock = ManualClock(1000)

    clock.advance(0)
    clock.advance(2.5)
    clock.jump(-1)

    assert (clock.now_ms(), clock.monotonic()) == (2500, 2.5)


class EarlyClock(ManualClock):
    """Its watch begins below zero: where one begins nobody says."""

    def monotonic(self) -> float:
        return super().monotonic() - 3600


def test_a_watch_may_begin_anywhere(tmp_path: Path) -> None:
    """A worker claims by a watch that begins below zero as by any other."""
    done = []
    with Ledger(f"sqlite:///{tmp_path}/early.db", clock=EarlyClock()) as ledger:

        @ledger.job("note")
        def note(word: str) -> None:
            done.append(word)

        with ledger.transaction() as tx:
            tx.jobs.enqueue(note, {"word": "a"})
        ledger.worker().tick()

    assert done == ["a"]
