"""Clocks: the database's clock decides leases and due times.

So two workers whose own clocks differ agree. A test injects a clock whose `now_ms` returns a
number; every statement then uses that number (see `expressions.now_ms`).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The time used by statements, and the monotonic clock used for waits.

    - `now_ms` is the time in ms since 1970; None: use the database's clock.
    - `monotonic` never decreases.
    """

    def now_ms(self) -> int | None: ...

    def monotonic(self) -> float: ...


class DatabaseClock:
    """The database's clock for statements, the process's monotonic clock for waits."""

    def now_ms(self) -> int | None:
        return None

    def monotonic(self) -> float:
        return time.monotonic()
