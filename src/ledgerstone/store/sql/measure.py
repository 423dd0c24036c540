"""The only place that times statements and counts their rows."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable

import msgspec

SLOW_LOG_SECONDS = 60.0
"""The shortest interval between two log lines about slow statements."""
SLOW_NAMES_MAX = 5
"""The most statements in such a line, those with the longest total time first."""

_log = logging.getLogger("ledgerstone.store")


class StatementCounters(msgspec.Struct):
    """The counters of one named statement."""

    calls: int = 0
    seconds: float = 0.0
    slow: int = 0
    read: int = 0
    written: int = 0
    refused: int = 0


class _Slow(msgspec.Struct):
    """The slow runs of one statement since the last log line."""

    times: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    read: int = 0
    written: int = 0
    """Rows of the longest run."""


class Measure:
    """Counts by statement name; logs slow statements by name, never with their values.

    The first slow statement is logged at once. Later ones are collected and logged in one line, at
    most once in `SLOW_LOG_SECONDS`, and at the end (`log_slow`).
    """

    def __init__(self, *, slow_ms: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._slow_seconds = slow_ms / 1000
        self._monotonic = monotonic
        self._slow: defaultdict[str, _Slow] = defaultdict(_Slow)
        self._logged_at = float("-inf")
        self._tallies: defaultdict[str, StatementCounters] = defaultdict(StatementCounters)
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        """Reset the counters, and the lock that a thread of the parent may have held."""
        self._lock = threading.Lock()
        self._tallies = defaultdict(StatementCounters)
        self._slow.clear()

    def note(
        self,
        name: str,
        seconds: float,
        *,
        read: int = 0,
        written: int = 0,
        refused: int = 0,
        together: float | None = None,
    ) -> None:
        """Count one run: its seconds, and the rows read, written and refused as duplicates.

        `together` are the seconds of its whole round trip, which may have other statements.
        """
        took = seconds if together is None else together
        slow = took > self._slow_seconds
        with self._lock:
            counters = self._tallies[name]
            counters.calls += 1
            counters.seconds += seconds
            counters.slow += slow
            counters.read += read
            counters.written += written
            counters.refused += refused
            if slow:
                self._collect(name, took, read, written)
        if slow and self._monotonic() - self._logged_at >= SLOW_LOG_SECONDS:
            self.log_slow()

    def _collect(self, name: str, took: float, read: int, written: int) -> None:
        slow = self._slow[name]
        slow.times += 1
        slow.seconds += took
        if took >= slow.longest:
            slow.longest, slow.read, slow.written = took, read, written

    def log_slow(self) -> None:
        """Log the slow statements since the last line."""
        with self._lock:
            slow = sorted(self._slow.items(), key=lambda each: -each[1].seconds)
            self._slow.clear()
            self._logged_at = self._monotonic()
        if not slow:
            return
        words = [_told(name, each) for name, each in slow[:SLOW_NAMES_MAX]]
        if len(slow) > SLOW_NAMES_MAX:
            words.append(f"and {len(slow) - SLOW_NAMES_MAX} other statements")
        limit_ms = self._slow_seconds * 1000
        _log.warning("slow statements (more than %g ms): %s", limit_ms, "; ".join(words))

    def take_back(self, name: str, *, written: int) -> None:
        """Subtract rows of a statement that a savepoint rolled back."""
        with self._lock:
            self._tallies[name].written -= written

    def by_name(self) -> dict[str, StatementCounters]:
        """A copy of the counters."""
        with self._lock:
            return {
                name: msgspec.structs.replace(counters) for name, counters in self._tallies.items()
            }

    def total(self) -> StatementCounters:
        """The sums over all statements."""
        total = StatementCounters()
        for counters in self.by_name().values():
            total.calls += counters.calls
            total.seconds += counters.seconds
            total.slow += counters.slow
            total.read += counters.read
            total.written += counters.written
            total.refused += counters.refused
        return total


def _told(name: str, slow: _Slow) -> str:
    longest, rows = f"{slow.longest * 1000:.0f} ms", f"({slow.read} read, {slow.written} written)"
    if slow.times == 1:
        return f"{name} took {longest} {rows}"
    return f"{name} {slow.times:,} times, up to {longest} {rows}"
