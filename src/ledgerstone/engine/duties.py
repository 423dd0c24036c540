"""Duties: periodic work that happens once per cluster.

The lease of a duty is its schedule: whoever takes the lease does the duty and does not give it
back, so the next turn comes when it runs out, by the database's clock, for whoever is there first.
A worker that dies delays a duty by one turn at the most.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ledgerstone.errors import LeaseLost, LedgerstoneError, StoreUnavailable
from ledgerstone.ids import new_id
from ledgerstone.store import leases

if TYPE_CHECKING:
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

LONGEST_SECONDS = 3600.0
"""Another version of a duty may take its turn less often, but not less than this."""

_log = logging.getLogger("ledgerstone.engine")


class Duty(msgspec.Struct, frozen=True):
    """Something to be done every so often, a bounded piece at a time; answers how much it did."""

    name: str
    every_seconds: float
    do: Callable[[Transaction], int]


class Duties:
    """Does each duty when its turn has come and no other worker was first.

    - A duty is done in one transaction, which holds its lease: one that was paused cannot commit.
    - A duty that fails is reported and has its next turn like any other.
    """

    def __init__(self, database: Database[Any], duties: Sequence[Duty]) -> None:
        self._database = database
        self._duties = duties
        self._next = dict.fromkeys((duty.name for duty in duties), 0.0)
        self.done: dict[str, int] = {}
        self.trouble: dict[str, str] = {}

    def tick(self) -> dict[str, int]:
        """Do what is due now; how much each did that was ours to do."""
        did: dict[str, int] = {}
        for duty in self._duties:
            if self._database.clock.monotonic() < self._next[duty.name]:
                continue
            amount = self._try(duty)
            if amount is not None:
                did[duty.name] = amount
        return did

    def _try(self, duty: Duty) -> int | None:
        self._next[duty.name] = self._database.clock.monotonic() + duty.every_seconds / 2
        # A holder of its own for each turn: the turn is not ours again because the last one was.
        turn = new_id()
        try:
            lease = self._database.run(
                lambda tx: leases.acquire(
                    tx,
                    f"duty:{duty.name}",
                    turn,
                    seconds=duty.every_seconds,
                    longest=max(duty.every_seconds, LONGEST_SECONDS),
                    # Whoever does it for long keeps nobody else from what they have to do.
                    wait=False,
                )
            )
            if lease is None:
                return None

            def work(tx: Transaction) -> int:
                leases.fence(tx, lease)
                return duty.do(tx)

            amount = self._database.run(work)
        except LeaseLost:
            return None
        except LedgerstoneError as error:
            # An outage of the database is logged once, by the store.
            if duty.name not in self.trouble and not isinstance(error, StoreUnavailable):
                _log.warning("duty %s: %s: %s", duty.name, error.code, error)
            self.trouble[duty.name] = f"{error.code}: {error.message}"
            return None
        self.trouble.pop(duty.name, None)
        self.done[duty.name] = self.done.get(duty.name, 0) + amount
        return amount
