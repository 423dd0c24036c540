"""Duties: periodic work that happens once per cluster.

The lease of a duty is its schedule: whoever takes the lease does the duty and does not give it
back, so the next turn comes when it runs out, by the database's clock, for whoever is there first.
A worker that dies delays a duty by one turn at the most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ledgerstone.engine.duty_schedule import DutySchedule
from ledgerstone.errors import LeaseLost, LedgerstoneError
from ledgerstone.failpoints import hit
from ledgerstone.ids import new_id
from ledgerstone.store import leases

if TYPE_CHECKING:
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

LONGEST_SECONDS = 3600.0
"""Another version of a duty may take its turn less often, but not less than this."""


class Duty(msgspec.Struct, frozen=True):
    """Something to be done every so often, a bounded piece at a time; answers how much it did.

    `do` is done in a transaction that holds the lease of the duty. `rounds` opens transactions of
    its own, and fences them itself. `needed` is asked first, in a transaction that only reads:
    where nothing is to be done, nothing is written and the lease is left alone.
    """

    name: str
    every_seconds: float
    do: Callable[[Transaction], int] = lambda _: 0
    rounds: Callable[[], int] | None = None
    needed: Callable[[Transaction], bool] | None = None


class Duties:
    """Does each duty when its turn has come and no other worker was first.

    - A duty is done in one transaction, which holds its lease: one that was paused cannot commit.
      One with `rounds` is done in several, which it fences itself.
    - A duty that fails is reported and has its next turn like any other.
    """

    def __init__(self, database: Database[Any], duties: Sequence[Duty]) -> None:
        self._database = database
        self._duties = duties
        self._turns = DutySchedule((duty.name for duty in duties), database.clock.monotonic)

    @property
    def done(self) -> dict[str, int]:
        """How much each did so far."""
        return self._turns.done

    @property
    def trouble(self) -> dict[str, str]:
        """Why a duty could not be done at its last turn."""
        return self._turns.trouble

    def tick(self) -> dict[str, int]:
        """Do what is due now; how much each did that was ours to do."""
        did: dict[str, int] = {}
        for duty in self._duties:
            if not self._turns.is_due(duty.name):
                continue
            amount = self._try(duty)
            if amount is not None:
                did[duty.name] = amount
        return did

    def _try(self, duty: Duty) -> int | None:
        self._turns.take(duty.name, seconds=duty.every_seconds / 2)
        # A holder of its own for each turn: the turn is not ours again because the last one was.
        turn = new_id()
        try:
            if duty.needed is not None:
                with self._database.reading() as tx:
                    if not duty.needed(tx):
                        return None
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
            hit("duty.leased")

            def work(tx: Transaction) -> int:
                leases.fence(tx, lease)
                return duty.do(tx)

            amount = self._database.run(work) if duty.rounds is None else duty.rounds()
        except LeaseLost:
            return None
        except LedgerstoneError as error:
            self._turns.failed(duty.name, error)
            return None
        self._turns.did(duty.name, amount)
        return amount
