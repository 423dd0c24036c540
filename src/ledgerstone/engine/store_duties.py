"""Duties on a store that is not the ledger's database, such as one of RocksDB.

    worker ──▶ keeper: duties of the database, one lease a turn
           └─▶ keeper of each such store: its duties, in a thread of their own

The engine needs little from the store: `DutyStore`. A slow disk of one store delays neither leases
nor the duties of another store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from ledgerstone.engine.duty_schedule import DutySchedule
from ledgerstone.errors import LedgerstoneError, Unsupported
from ledgerstone.store.wakeup import WakeSignal

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")


class DutyStore(Protocol[T_co]):
    """The contract of a store with duties.

    - `monotonic` never goes back; turns are counted by it.
    - `one_writer` says that one process at a time can write: a turn needs no lease then.
    - `signal` answers a signal that commits of this process in the channel notify.
    - `run` calls `work` with what the store lends for it, and answers what `work` does.
    - `rest` gives back what others may wait for: nothing is due for now. `run` may follow.
    - What cannot be had now is raised as an error of the one tree, and tried again a turn later.
    """

    @property
    def one_writer(self) -> bool: ...

    def monotonic(self) -> float: ...

    def signal(self, channel: str) -> WakeSignal: ...

    def run(self, work: Callable[[T_co], R], /) -> R: ...

    def rest(self) -> None: ...


class StoreDuty(msgspec.Struct, Generic[T], frozen=True):
    """Periodic work on a store: `do` is one bounded step, and answers how much it did.

    One that is `prompt` is also due after a wake-up of the store.
    """

    name: str
    every_seconds: float
    do: Callable[[T], int]
    prompt: bool = False


class StoreDuties(Generic[T]):
    """Does each duty of a store when it is due.

    - A duty that fails is reported, and has its next turn like any other.
    - After the last one that was due the store rests.
    """

    def __init__(
        self, store: DutyStore[T], duties: Sequence[StoreDuty[T]], *, channel: str
    ) -> None:
        if not store.one_writer:
            raise Unsupported("duties of a store with several writers need leases")
        self._store = store
        self._duties = duties
        self._wake_signal = store.signal(channel)
        self._turns = DutySchedule((duty.name for duty in duties), store.monotonic)

    @property
    def done(self) -> dict[str, int]:
        """How much each duty has done so far."""
        return self._turns.done

    @property
    def trouble(self) -> dict[str, str]:
        """By duty, the error of its last turn, if that failed."""
        return self._turns.trouble

    def wait(self, seconds: float) -> None:
        """Wait for a wake-up of the store, at most so long; `prompt` duties are due after one."""
        if self._wake_signal.wait(seconds):
            for duty in self._duties:
                if duty.prompt:
                    self._turns.advance(duty.name)

    def tick(self) -> dict[str, int]:
        """Do the duties that are due now; how much each did."""
        due = [duty for duty in self._duties if self._turns.is_due(duty.name)]
        if not due:
            return {}
        did: dict[str, int] = {}
        try:
            for duty in due:
                self._turns.take(duty.name, seconds=duty.every_seconds)
                try:
                    did[duty.name] = self._store.run(duty.do)
                except LedgerstoneError as error:
                    self._turns.failed(duty.name, error)
                else:
                    self._turns.did(duty.name, did[duty.name])
        finally:
            self._store.rest()
        return did
