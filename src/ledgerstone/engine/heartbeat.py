"""Heartbeats: extend the leases of claims, and notice lost ones.

A heartbeat has its own thread and its own connections: handlers that are busy, or that hold every
connection of the pool, do not delay it. A claim is extended if it was held at the heartbeat before,
so that a quick handler costs no statement.
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
"""How many claims a worker's row names."""

_log = logging.getLogger("ledgerstone.engine")


class Heartbeat:
    """Extends the claims of pumps.

    - If a lease is lost, the pump of the claim is told.
    - If another transaction has locked an item, its claim is extended at the next heartbeat, and is
      among `locked`: the row of the worker names it, so that no rescue takes it when its lease
      expires.
    - If the database is unreachable for a whole lease, every claim counts as lost: other workers
      may have claimed the items.
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
        """One heartbeat; how many claims were extended."""
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
            # The pump ignores a claim that was settled in the meantime.
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
