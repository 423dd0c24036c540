"""Outages of a database in the log: one line when one begins, one when it is over.

Every thread of a process notices an outage, and all of them go through the same `Database` or a
sibling of it. So the outage is noted there, once, and whoever meets StoreUnavailable logs nothing.

    reached ──a call fails──▶ out of reach ──a call succeeds, the last failure is past──▶ reached
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

CALM_SECONDS = 1.0
"""An outage is over when a call succeeds so long after the last failure: while some calls fail and
others succeed, it is one outage."""

_log = logging.getLogger("ledgerstone.store")


class Outage:
    """Whether the database is out of reach, and since when."""

    def __init__(self, name: str, monotonic: Callable[[], float]) -> None:
        self._name = name
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._began_at = self._failed_at = 0.0
        self._reached = False
        self._failures = 0
        """Calls that failed; 0 while there is no outage."""

    def after_fork(self) -> None:
        """The outage of the parent is told by the parent."""
        self._lock = threading.Lock()
        self._failures = 0

    def failed(self, error: BaseException) -> None:
        """A call failed because the database is out of reach.

        Of one that was never reached only the caller hears.
        """
        if not self._reached:
            return
        now = self._monotonic()
        with self._lock:
            self._failures += 1
            begins = self._failures == 1
            if begins:
                self._began_at = now
            self._failed_at = now
        if begins:
            words = " ".join(str(error).split())
            _log.warning("%s is out of reach: %s", self._name, words)

    def succeeded(self) -> None:
        """A call succeeded."""
        if not self._failures:
            self._reached = True
            return
        now = self._monotonic()
        with self._lock:
            failures = self._failures
            if not failures or now - self._failed_at < CALM_SECONDS:
                return
            self._failures = 0
            seconds = now - self._began_at
        calls = "1 call" if failures == 1 else f"{failures:,} calls"
        _log.warning("%s is back after %.1f s; %s failed", self._name, seconds, calls)
