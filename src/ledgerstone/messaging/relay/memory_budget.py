"""How much a relay holds in memory: so many bytes of messages, whatever their number.

read ──share──▶ sent, answered ──▶ settled: the share is given back
"""

from __future__ import annotations

from threading import Lock

LANE_SHARES = 8
"""No lane gets more than this part of it, unless its first message alone is larger."""


class Budget:
    """Bytes that may be in memory.

    - `fits` says whether so many more may be taken. The first message may always be, however large
      it is: it is carried alone.
    - What is taken is given back when its `Share` is, or when nobody refers to that any more.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._taken = 0
        self._lock = Lock()

    @property
    def left(self) -> int:
        """How many bytes are free."""
        return max(0, self.bytes_max - self._taken)

    @property
    def is_low(self) -> bool:
        """Whether so little is free that it is better to wait for more."""
        return self._taken > self.bytes_max * 3 // 4

    def fits(self, taken: int, more: int) -> bool:
        """Whether `more` may be taken beside `taken`, which is not counted yet."""
        return taken + more <= self.left or taken + self._taken == 0

    def share(self, taken: int) -> Share:
        """Take so many bytes."""
        self.count(taken)
        return Share(self, taken)

    def count(self, by: int) -> None:
        with self._lock:
            self._taken += by


class Share:
    """Bytes that were taken."""

    __slots__ = ("_budget", "_lock", "taken")

    def __init__(self, budget: Budget, taken: int) -> None:
        self._budget = budget
        self._lock = Lock()
        self.taken = taken

    def shrink(self, taken: int) -> None:
        """Keep no more than so many; giving back what was given back changes nothing."""
        with self._lock:
            less = max(0, self.taken - taken)
            self.taken -= less
        if less:
            self._budget.count(-less)

    def __del__(self) -> None:
        self.shrink(0)
