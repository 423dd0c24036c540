"""The effect contract: what is accepted takes effect once, or is visibly dead with its reason.

For every source, also for one without claims: the competing relay holds its rows locked, and what a
receiver has taken is the broker's until it is acknowledged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from ledgerstone.errors import TargetDown

ITEMS = 12
EXECUTORS = 3


class Executed(Protocol):
    """A kind of work under test, and executors that do it.

    - `add` accepts so many items, each of a partition of its own, and answers their keys.
    - `before` is called with the key of an item before it takes effect, and may raise.
    - `effects` are the keys of items that took effect, once for each time that they did.
    - `execute` has so many executors work at the same time until nothing is left to be done,
      however long the pauses are.
    - `given_up` answers the keys of items that are dead, each with the reason.
    - `tries_max` is how often an item is tried that always fails.
    """

    before: Callable[[str], None]
    effects: list[str]

    @property
    def tries_max(self) -> int: ...

    def add(self, count: int) -> list[str]: ...

    def execute(self, executors: int = 1) -> None: ...

    def given_up(self) -> dict[str, str]: ...


class EffectContract:
    """Fixture: `work`, an `Executed` without items."""

    def test_once_however_many_execute(self, work: Executed) -> None:
        """Every item takes effect exactly once, however many executors work at the same time."""
        keys = work.add(ITEMS)

        work.execute(EXECUTORS)

        assert sorted(work.effects) == sorted(keys)
        assert work.given_up() == {}

    def test_a_failure_is_tried_again(self, work: Executed) -> None:
        """An item that fails is tried again until it takes effect; others take effect once."""
        keys = work.add(ITEMS)
        tries = _failing(work, keys[1], times=work.tries_max - 1)

        work.execute()

        assert sorted(work.effects) == sorted(keys)
        assert tries[keys[1]] == work.tries_max
        assert set(tries.values()) == {1, work.tries_max}
        assert work.given_up() == {}

    def test_what_always_fails_is_given_up(self, work: Executed) -> None:
        """An item that fails as often as it may is dead with its reason, and holds up no other."""
        keys = work.add(ITEMS)
        tries = _failing(work, keys[1], times=work.tries_max + 1)

        work.execute()

        assert sorted(work.effects) == sorted(set(keys) - {keys[1]})
        assert tries[keys[1]] == work.tries_max
        assert list(work.given_up()) == [keys[1]]
        assert "as the test wished" in work.given_up()[keys[1]]

    def test_a_target_that_is_down(self, work: Executed) -> None:
        """A target that is down costs no item an attempt, however often it was tried."""
        keys = work.add(2)
        left = work.tries_max + 1

        def before(_: str) -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                target = "shop"
                raise TargetDown(target)

        work.before = before
        work.execute()

        assert left < 0
        assert sorted(work.effects) == sorted(keys)
        assert work.given_up() == {}


def _failing(work: Executed, key: str, *, times: int) -> Counter[str]:
    """This item fails so many times; how often each one is tried."""
    tries: Counter[str] = Counter()

    def before(tried: str) -> None:
        tries[tried] += 1
        if tried == key and tries[tried] <= times:
            message = "as the test wished"
            raise ValueError(message)

    work.before = before
    return tries
