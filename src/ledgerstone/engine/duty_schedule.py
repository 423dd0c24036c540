"""For each duty: when it is due, how much it has done, and its last error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from ledgerstone.errors import LedgerstoneError, StoreUnavailable

_log = logging.getLogger("ledgerstone.engine")


class DutySchedule:
    """The turns of some duties in this process, by name.

    - A failure is logged once, when it begins, and its end too. An outage of the ledger's database
      is not: the store logs it.
    """

    def __init__(self, names: Iterable[str], monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._next = dict.fromkeys(names, 0.0)
        self.done: dict[str, int] = {}
        self.trouble: dict[str, str] = {}
        self._logged: set[str] = set()

    def is_due(self, name: str) -> bool:
        return self._monotonic() >= self._next[name]

    def take(self, name: str, *, seconds: float) -> None:
        """The duty has its turn now, and its next one after so many seconds."""
        self._next[name] = self._monotonic() + seconds

    def advance(self, name: str) -> None:
        """The duty is due now."""
        self._next[name] = 0.0

    def did(self, name: str, amount: int) -> None:
        """The duty was done."""
        self.done[name] = self.done.get(name, 0) + amount
        self.trouble.pop(name, None)
        if name in self._logged:
            self._logged.discard(name)
            _log.info("duty %s: the trouble is over", name)

    def failed(self, name: str, error: LedgerstoneError) -> None:
        """The duty could not be done."""
        if name not in self._logged and not isinstance(error, StoreUnavailable):
            self._logged.add(name)
            _log.warning("duty %s: %s: %s", name, error.code, error)
        self.trouble[name] = f"{error.code}: {error.message}"
