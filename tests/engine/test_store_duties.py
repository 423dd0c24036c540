"""Duties of a store that is not the ledger's database."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import pytest

from ledgerstone import Ledger
from ledgerstone.engine.store_duties import StoreDuties, StoreDuty
from ledgerstone.engine.worker import Worker
from ledgerstone.errors import StoreLocked, Unsupported
from ledgerstone.store.wakeup import WakeSignal
from ledgerstone.testing.waiting import until

R = TypeVar("R")

EVERY_SECONDS = 10.0


class Shelf:
    """A store that notes what is asked of it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.one_writer = True
        self.locked = False
        self.rests = 0
        self.channels: list[str] = []
        self.wake_signal = WakeSignal()

    def monotonic(self) -> float:
        return self.now

    def signal(self, channel: str) -> WakeSignal:
        self.channels.append(channel)
        return self.wake_signal

    def run(self, work: Callable[[list[str]], R]) -> R:
        if self.locked:
            raise StoreLocked("another process has it")
        return work(self.channels)

    def rest(self) -> None:
        self.rests += 1


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def steady(shelf: Shelf) -> StoreDuties[list[str]]:
    """Two duties, of which one is prompt."""
    duties: list[StoreDuty[list[str]]] = [
        StoreDuty("slow", EVERY_SECONDS, len),
        StoreDuty("prompt", EVERY_SECONDS, len, prompt=True),
    ]
    return StoreDuties(shelf, duties, channel="commits")


def test_turns(shelf: Shelf) -> None:
    """A duty is done when its turn has come by the store's clock, and then the store rests."""
    duties = steady(shelf)

    first = duties.tick()
    again = duties.tick()
    shelf.now += EVERY_SECONDS
    later = duties.tick()

    assert (first, again, later) == ({"slow": 1, "prompt": 1}, {}, {"slow": 1, "prompt": 1})
    assert duties.done == {"slow": 2, "prompt": 2}
    assert shelf.rests == 2
    assert shelf.channels == ["commits"]


def test_a_wake_up(shelf: Shelf) -> None:
    """A wake-up makes a prompt duty due, and no other one."""
    duties = steady(shelf)
    duties.tick()
    shelf.wake_signal.notify()

    duties.wait(0)
    woken = duties.tick()
    duties.wait(0)

    assert woken == {"prompt": 1}
    assert duties.tick() == {}


def test_a_store_that_is_locked(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    """It is reported and logged once, tried again at each turn, and its end is logged."""
    duties = steady(shelf)
    shelf.locked = True

    with caplog.at_level(logging.INFO, "ledgerstone.engine"):
        for _ in range(3):
            assert duties.tick() == {}
            shelf.now += EVERY_SECONDS
        trouble = dict(duties.trouble)
        shelf.locked = False
        duties.tick()

    words = "store_locked: another process has it"
    assert trouble == {"slow": words, "prompt": words}
    assert duties.trouble == {}
    assert [record.message for record in caplog.records] == [
        f"duty slow: {words}",
        f"duty prompt: {words}",
        "duty slow: the trouble is over",
        "duty prompt: the trouble is over",
    ]
    assert shelf.rests == 4


def test_several_writers(shelf: Shelf) -> None:
    """A store that several processes write is refused: two would do the same duty."""
    shelf.one_writer = False

    with pytest.raises(Unsupported):
        steady(shelf)


def test_a_worker(ledger: Ledger, shelf: Shelf) -> None:
    """A worker does them beside its own duties, reports them, and stops."""
    worker = Worker(ledger.database, [], ledger.settings.engine, stores=[steady(shelf)])

    worker.start()
    until(lambda: worker.report().duties.get("prompt") == 1, what="the first turn")
    shelf.locked = True
    shelf.wake_signal.notify()
    until(lambda: "prompt" in worker.report().duty_troubles, what="the locked store")
    worker.stop()
    shelf.locked = False
    shelf.wake_signal.notify()

    assert worker.report().duties["prompt"] == 1
    assert worker.failure is None
