"""When to claim, and how far ahead of the handlers."""

from __future__ import annotations

from collections.abc import Callable
from random import random
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledgerstone.engine.executor import Executor
    from ledgerstone.settings import EngineSettings

TROUBLE_SECONDS = 0.1
TROUBLE_SECONDS_MAX = 5.0
HANDLER_SECONDS_MIN = 1e-6
LOOKS_AHEAD = 4
"""How often running handlers are checked within `engine.claim_ahead_ms`."""


class PollSchedule:
    """When to claim: at once while there is more, after a wake-up, or at the next poll."""

    def __init__(self, settings: EngineSettings, prompt: Callable[[], bool]) -> None:
        self._settings = settings
        self._prompt = prompt
        self._idle = 0.0
        self._troubles = 0
        self.more = True

    def seconds(self, room: Callable[[], int]) -> float:
        """How long to wait for a wake-up."""
        if self.more:
            return 0.0 if room() > 0 else self._settings.poll_seconds_max
        return self._settings.poll_seconds_max if self._prompt() else self._idle

    def found(self, count: int, room: int) -> None:
        """A claim answered `count` items of `room` that were asked for."""
        self._troubles = 0
        self.more = count >= room
        if count or self._idle == 0.0:
            self._idle = self._settings.poll_seconds_min
        else:
            self._idle = min(self._idle * 2, self._settings.poll_seconds_max)

    def no_room(self) -> None:
        """There may be more, and no free place: the next handler that ends wakes the pump."""
        self.more = True

    def trouble(self) -> float:
        """The database is unreachable or busy: how long to wait before the next try."""
        self._troubles += 1
        wait: float = min(TROUBLE_SECONDS * 2**self._troubles, TROUBLE_SECONDS_MAX)
        return wait * (0.5 + random() / 2)  # noqa: S311 - spreads load, no secret


class ClaimAhead:
    """How many claims may wait for a place: as many as get one within `engine.claim_ahead_ms`.

    - None while no handler has ended: no other worker can begin a claim that waits here.
    - A place whose handler runs for longer than that time does not count, whatever the mean of the
      handlers that ended.
    """

    def __init__(self, settings: EngineSettings, executor: Executor) -> None:
        self._executor = executor
        self._seconds = settings.claim_ahead_ms / 1000
        self._handler_seconds: float | None = None
        self._spent = (0.0, 0)
        self._stuck = 0
        self._looked_at = float("-inf")

    def claims(self) -> int:
        """How many claims may wait now."""
        self._learn()
        if self._handler_seconds is None or self._seconds == 0:
            return 0
        moving = max(self._executor.places - self._stuck_places(), 0)
        return int(moving * self._seconds / self._handler_seconds)

    def _learn(self) -> None:
        seconds, count = self._executor.busy_seconds
        if count == self._spent[1]:
            return
        average = (seconds - self._spent[0]) / (count - self._spent[1])
        if self._handler_seconds is not None:
            average = 0.5 * self._handler_seconds + 0.5 * average
        self._handler_seconds = max(average, HANDLER_SECONDS_MIN)
        self._spent = (seconds, count)

    def _stuck_places(self) -> int:
        now = perf_counter()
        if now - self._looked_at >= self._seconds / LOOKS_AHEAD:
            self._looked_at = now
            self._stuck = self._executor.longer_than(self._seconds)
        return self._stuck
