"""Who says what time it is.

The database's clock decides leases and due times, so that two workers with different watches
agree. A test injects a clock whose `now_ms` answers a number; every statement then uses that
number instead (see `expressions.now_ms`).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The moment used by every statement, and the watch used for waiting.

    - `now_ms` answers None to leave the moment to the database, or the moment to use.
    - `monotonic` never goes back.
    """

    def now_ms(self) -> int | None: ...

    def monotonic(self) -> float: ...


class DatabaseClock:
    """The database's own clock decides; the process's watch is used for waiting only."""

    def now_ms(self) -> int | None:
        return None

    def monotonic(self) -> float:
        return time.monotonic()
