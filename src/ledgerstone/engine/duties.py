"""Duties: periodic work that happens once per cluster.

The lease of a duty is its schedule. The worker that acquires the lease does the duty and keeps the
lease until it expires, by the database's clock; then the first worker to ask acquires it. A worker
that dies delays a duty by one turn at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ledgerstone.engine.duty_schedule import DutySchedule
from ledgerstone.errors import Interrupted, LeaseLost, LedgerstoneError
from ledgerstone.failpoints import hit
from ledgerstone.ids import new_id
from ledgerstone.store import leases

if TYPE_CHECKING:
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

LONGEST_SECONDS = 3600.0
"""The longest lease that is trusted: another version may have a duty with longer turns."""


class Duty(msgspec.Struct, frozen=True):
    """Periodic work: one bounded step at each turn.

    - `every_seconds`: the time between two turns.
    - `do`: one step, in a transaction that holds the lease of the duty; answers how much it did.
    - `rounds`: a step that opens and fences its own transactions, in place of `do`. It may be long:
      a worker runs it in a thread of its own, and interrupts it when the worker stops.
    - `needed`: called first, in a transaction that only reads. If it answers False, nothing is
      written and the lease is not acquired.
    """

    name: str
    every_seconds: float
    do: Callable[[Transaction], int] = lambda _: 0
    rounds: Callable[[], int] | None = None
    needed: Callable[[Transaction], bool] | None = None


class Duties:
    """Does each duty when it is due and no other worker holds its lease.

    - The transaction of a duty fences its lease: a worker that was paused cannot commit it.
    - A duty that fails is reported, and has its next turn like any other.
    """

    def __init__(self, database: Database[Any], duties: Sequence[Duty]) -> None:
        self._database = database
        self._duties = duties
        self._turns = DutySchedule((duty.name for duty in duties), database.clock.monotonic)

    @property
    def done(self) -> dict[str, int]:
        """How much each duty has done so far."""
        return self._turns.done

    @property
    def trouble(self) -> dict[str, str]:
        """By duty, the error of its last turn, if that failed."""
        return self._turns.trouble

    def tick(self) -> dict[str, int]:
        """Do what is due now; how much each duty did in this worker."""
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
        # Each turn has a holder of its own: holding the last turn gives no right to the next one.
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
                    # A long turn of another worker holds up no other duty here.
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
        except (Interrupted, LeaseLost):
            return None
        except LedgerstoneError as error:
            self._turns.failed(duty.name, error)
            return None
        self._turns.did(duty.name, amount)
        return amount
