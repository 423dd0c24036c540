"""Removing in steps, each a transaction of its own."""

from __future__ import annotations

import itertools

from ledgerstone.console.steps import STEPS_MAX, removed_in_steps


def test_until_nothing_is_left() -> None:
    """Steps follow one another until one removes nothing; all that they removed is counted."""
    steps = iter([1000, 1000, 7, 0, 5])

    removed = removed_in_steps(lambda: next(steps), "rows", json=True)

    assert (removed, list(steps)) == (2007, [5])


def test_it_has_an_end() -> None:
    """Where others add as fast as it removes, it ends all the same."""
    steps = itertools.count(1)

    removed = removed_in_steps(lambda: bool(next(steps)), "rows", json=True)

    assert removed == STEPS_MAX
