"""A clock that tests move by hand."""

from __future__ import annotations

import math

from ledgerstone.errors import BadInput


class ManualClock:
    """Stands still until it is moved; every statement of a ledger that has it uses its moment."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Let time pass; BadInput for time that would run backwards."""
        if not (math.isfinite(seconds) and seconds >= 0):
            message = f"time passes by 0 seconds or more, not by {seconds}"
            raise BadInput(message, hint="jump() sets the clock back")
        self._now_ms += round(seconds * 1000)
        self._elapsed += seconds

    def jump(self, seconds: float) -> None:
        """Set the clock, forward or back, as an operator would: the watch does not notice."""
        self._now_ms += round(seconds * 1000)
