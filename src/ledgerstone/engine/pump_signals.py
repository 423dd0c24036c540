"""The wake-up signals of one pump: for the thread that claims and for the one that settles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerstone.store.wakeup import WakeSignal

if TYPE_CHECKING:
    from ledgerstone.engine.claim_size import PollSchedule


class PumpSignals:
    """Wakes the threads of a pump; with one writer a single thread waits for both signals.

    `places` is how many handlers run at once, and `local` whether all work waits in this process:
    the claiming thread is then not woken while each place has another claim waiting for it.
    """

    def __init__(
        self, schedule: PollSchedule, *, one_writer: bool, places: int, local: bool
    ) -> None:
        self.claim = WakeSignal()
        self.settle = self.claim if one_writer else WakeSignal()
        self._schedule = schedule
        self._places = places
        self._local = local

    def notify_all(self) -> None:
        """Wake both threads."""
        self.claim.notify()
        self.settle.notify()

    def claim_more(self) -> None:
        """Wake the claiming thread, if the last claim has left something for it."""
        if self._schedule.more:
            self.claim.notify()

    def place_free(self, waiting: int) -> None:
        """The same after a handler has settled its own claim; `waiting` claims wait for a place."""
        if not self._local or waiting <= self._places:
            self.claim_more()

    def settle_now(self) -> None:
        """Wake the settling thread, and the claiming one: the outcome has freed a place."""
        self.settle.notify()
        self.claim_more()
