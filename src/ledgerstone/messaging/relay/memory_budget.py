"""The memory budget of a relay: the bytes of the messages that it holds, whatever their number.

read ──share──▶ sent, answered ──▶ settled: the share is released
"""

from __future__ import annotations

from threading import Lock

LANE_SHARES = 8
"""A lane gets at most this fraction of the budget, unless its first message alone is larger."""


class Budget:
    """The bytes that may be in memory.

    - `fits` says whether more bytes may be taken. A first message always fits, whatever its size:
      it is sent alone.
    - Bytes are released with their `Share`, or when nothing refers to the share any more.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._taken = 0
        self._lock = Lock()

    @property
    def left(self) -> int:
        """The free bytes."""
        return max(0, self.bytes_max - self._taken)

    @property
    def is_low(self) -> bool:
        """Whether so little is free that a claim should wait."""
        return self._taken > self.bytes_max * 3 // 4

    def fits(self, taken: int, more: int) -> bool:
        """Whether `more` bytes fit in addition to `taken`, which is not counted yet."""
        return taken + more <= self.left or taken + self._taken == 0

    def share(self, taken: int) -> Share:
        """Takes these bytes from the budget."""
        self.count(taken)
        return Share(self, taken)

    def count(self, by: int) -> None:
        with self._lock:
            self._taken += by


class Share:
    """Bytes that were taken from a budget."""

    __slots__ = ("_budget", "_lock", "taken")

    def __init__(self, budget: Budget, taken: int) -> None:
        self._budget = budget
        self._lock = Lock()
        self.taken = taken

    def shrink(self, taken: int) -> None:
        """Keeps at most `taken` bytes and releases the rest. Releasing twice has no effect."""
        with self._lock:
            less = max(0, self.taken - taken)
            self.taken -= less
        if less:
            self._budget.count(-less)

    def __del__(self) -> None:
        self.shrink(0)
