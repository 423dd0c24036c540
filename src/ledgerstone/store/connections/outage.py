"""Outages of a database in the log: one line at the beginning, one line at the end.

All threads of a process use the same `Database` or a sibling of it. So the outage is logged there,
once, and no caller logs StoreUnavailable.

    reached ──a call fails──▶ out of reach ──a call succeeds, CALM_SECONDS later──▶ reached
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

CALM_SECONDS = 1.0
"""An outage ends with a call that succeeds this long after the last failure: failures with
successes in between are one outage."""

_log = logging.getLogger("ledgerstone.store")


class Outage:
    """The outage of one database, if there is one."""

    def __init__(self, name: str, monotonic: Callable[[], float]) -> None:
        self._name = name
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._began_at = self._failed_at = 0.0
        self._reached = False
        self._failures = 0
        """Calls that failed; 0 while there is no outage."""

    def after_fork(self) -> None:
        """Forget the outage: the parent logs it."""
        self._lock = threading.Lock()
        self._failures = 0

    def failed(self, error: BaseException) -> None:
        """Note that a call failed with StoreUnavailable.

        A database that was never reached is not logged: the caller gets the error.
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
        """Note that a call succeeded."""
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
