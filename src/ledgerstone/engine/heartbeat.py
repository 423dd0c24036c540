"""Heartbeats: leases of work that takes long are extended, and lost ones noticed.

From a thread and on connections of its own, so that neither handlers that are busy nor handlers
that hold every pooled connection keep it from beating. A claim is extended when it was already held
at the beat before, so work that is quick costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ledgerstone.errors import LedgerstoneError, StoreUnavailable

if TYPE_CHECKING:
    from ledgerstone.engine.pump import Pump
    from ledgerstone.engine.source import Claim
    from ledgerstone.settings import EngineSettings
    from ledgerstone.store.database import Database

LOCKED_MAX = 1000
"""Claims that a worker's row names at most."""

_log = logging.getLogger("ledgerstone.engine")


class Heartbeat:
    """Extends the claims of pumps.

    - A claim whose lease was lost is told to its pump.
    - A claim whose item another transaction has locked is left for the next beat, and is among
      `locked`: its worker's row names it, so that nobody rescues it when its lease runs out.
    - If the database cannot be reached for a whole lease, every claim counts as lost: others may
      have them by now.
    """

    def __init__(
        self, database: Database[Any], pumps: Sequence[Pump], settings: EngineSettings
    ) -> None:
        self._database = database
        self._settings = settings
        self._pumps = pumps
        self._before: list[dict[str, Claim]] = [{} for _ in pumps]
        self._reached = [database.clock.monotonic() for _ in pumps]
        self.trouble: str | None = None
        self._locked: list[Sequence[Claim]] = [() for _ in pumps]

    @property
    def locked(self) -> list[str]:
        """The marks of claims that could not be extended because their item was locked."""
        return [claim.mark for claims in self._locked for claim in claims][:LOCKED_MAX]

    def beat(self) -> int:
        """One beat; how many claims were extended."""
        return sum(self._beat(i, pump) for i, pump in enumerate(self._pumps))

    def _beat(self, i: int, pump: Pump) -> int:
        held = pump.held()
        old = [claim for key, claim in held.items() if self._before[i].get(key) is claim]
        self._before[i] = held
        now = self._database.clock.monotonic()
        if not old:
            self._reached[i], self._locked[i] = now, ()
            return 0
        try:
            left = pump.extend(old)
        except LedgerstoneError as error:
            self._unreached(i, pump, old, error)
            return 0
        self._reached[i] = now
        self._locked[i] = left.locked
        self.trouble = None
        for claim in left.lost:
            # If it was settled between the look and the statement, the pump holds it no more.
            pump.lose(claim)
        return len(old) - len(left.lost) - len(left.locked)

    def _unreached(self, i: int, pump: Pump, old: Sequence[Claim], error: LedgerstoneError) -> None:
        # An outage of the database is logged once, by the store.
        if self.trouble is None and not isinstance(error, StoreUnavailable):
            _log.warning("heartbeat of %s: %s: %s", pump.source.name, error.code, error)
        self.trouble = f"{error.code}: {error.message}"
        if self._database.clock.monotonic() - self._reached[i] > self._settings.lease_seconds:
            for claim in old:
                pump.lose(claim)
