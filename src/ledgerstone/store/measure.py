"""The one place that times every statement and counts the rows that went through it."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict

import msgspec

_log = logging.getLogger("ledgerstone.store")


class Tally(msgspec.Struct):
    """What one named statement did so far."""

    calls: int = 0
    seconds: float = 0.0
    slow: int = 0
    read: int = 0
    written: int = 0
    refused: int = 0


class Measure:
    """Counts per statement name; a slow statement is logged by its name, never with its values."""

    def __init__(self, *, slow_ms: float) -> None:
        self._slow_seconds = slow_ms / 1000
        self._tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        """Count anew: the parent's figures are its own, and its threads may have held the lock."""
        self._lock = threading.Lock()
        self._tallies = defaultdict(Tally)

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
        """One run of a statement: how long, rows read, rows written, rows refused as duplicates.

        `together` are the seconds of all that travelled with it: which was slow is not known.
        """
        took = seconds if together is None else together
        slow = took > self._slow_seconds
        with self._lock:
            tally = self._tallies[name]
            tally.calls += 1
            tally.seconds += seconds
            tally.slow += slow
            tally.read += read
            tally.written += written
            tally.refused += refused
        if slow:
            _log.warning(
                "slow statement %s took %.0f ms (%d read, %d written)",
                name,
                took * 1000,
                read,
                written,
            )

    def take_back(self, name: str, *, written: int) -> None:
        """A savepoint has undone so many rows of a statement."""
        with self._lock:
            self._tallies[name].written -= written

    def by_name(self) -> dict[str, Tally]:
        """A copy of all tallies."""
        with self._lock:
            return {name: msgspec.structs.replace(tally) for name, tally in self._tallies.items()}

    def total(self) -> Tally:
        """All statements together."""
        total = Tally()
        for tally in self.by_name().values():
            total.calls += tally.calls
            total.seconds += tally.seconds
            total.slow += tally.slow
            total.read += tally.read
            total.written += tally.written
            total.refused += tally.refused
        return total
