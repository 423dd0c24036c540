"""Duties and the rows of workers, by a clock that is moved by hand."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Event

import pytest

from ledgerstone import Ledger
from ledgerstone.engine import worker_rows as workers
from ledgerstone.engine.duties import Duties, Duty
from ledgerstone.engine.worker_rows import WorkerReport
from ledgerstone.errors import Interrupted, StoreBusy, StoreError
from ledgerstone.ids import new_id
from ledgerstone.settings import Settings
from ledgerstone.store.transaction import Transaction
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until

EVERY_SECONDS = 10.0
DAY_SECONDS = 86_400.0


class Work:
    """A duty that counts, or fails with an error."""

    def __init__(self) -> None:
        self.done = 0
        self.error: Exception | None = None

    def __call__(self, _: Transaction) -> int:
        if self.error is not None:
            raise self.error
        self.done += 1
        return 1


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def duties(ledger: Ledger, work: Work) -> Duties:
    return Duties(ledger.database, [Duty("count", EVERY_SECONDS, work)])


def test_a_turn_lasts(duties: Duties, work: Work, clock: ManualClock) -> None:
    """Who has done a duty does it again when its turn is over, and not before."""
    turns = []

    for seconds in (0, EVERY_SECONDS * 0.6, EVERY_SECONDS * 0.6):
        clock.advance(seconds)
        turns.append(duties.tick())

    assert turns == [{"count": 1}, {}, {"count": 1}]
    assert (work.done, duties.done) == (2, {"count": 2})


@pytest.mark.parametrize("error", [StoreBusy("later"), StoreError("no")])
def test_a_duty_that_fails(
    duties: Duties, work: Work, clock: ManualClock, error: StoreError
) -> None:
    """A duty that fails is reported, ends nobody, and has its next turn like any other."""
    work.error = error

    failed = duties.tick()
    trouble = dict(duties.trouble)
    work.error = None
    clock.advance(EVERY_SECONDS)
    after = duties.tick()

    assert (failed, trouble) == ({}, {"count": f"{error.code}: {error.message}"})
    assert (after, duties.trouble) == ({"count": 1}, {})


class Running(ManualClock):
    """A clock that runs on by a turn whenever it is looked at."""

    def now_ms(self) -> int:
        self.jump(EVERY_SECONDS)
        return super().now_ms()


def test_a_turn_that_was_missed(ledger: Ledger, work: Work) -> None:
    """A worker that was paused past its turn does not do the duty: it may be another's by now."""
    ledger.database.clock = Running()
    duties = Duties(ledger.database, [Duty("count", EVERY_SECONDS / 2, work)])

    assert duties.tick() == {}
    assert work.done == 0


def test_who_is_remembered(ledger: Ledger, clock: ManualClock) -> None:
    """Who ended in good order is forgotten after a day, who died after a week."""
    report = WorkerReport(sources={}, running=0, waiting=0, prompt=True, duties={})
    ended, died = new_id(), new_id()
    ledger.run(lambda tx: workers.sign_in(tx, ended, report))
    ledger.run(lambda tx: workers.sign_in(tx, died, report))
    ledger.run(lambda tx: workers.sign_off(tx, ended, report))

    seen: list[set[str]] = []
    alive: list[set[str]] = []
    for seconds in (0, DAY_SECONDS - 1, 2, 6 * DAY_SECONDS):
        clock.advance(seconds)
        ledger.run(workers.prune)
        with ledger.reading() as tx:
            seen.append({each.id for each in workers.listed(tx)})
            alive.append({each.id for each in workers.alive(tx)})

    assert seen == [{ended, died}, {ended, died}, {died}, set()]
    assert alive == [{died}, set(), set(), set()]


def test_a_long_duty_delays_no_other(ledger: Ledger, home: Home) -> None:
    """It has a thread of its own; a worker that stops interrupts it, and does not wait for it."""
    ledger.close()
    begun, go_on, ended, turns = Event(), Event(), SimpleQueue[str](), list[int]()

    def take_long() -> int:
        begun.set()
        go_on.wait(WAIT_SECONDS_MAX)
        try:
            made.run(lambda tx: tx.connection)
        except Interrupted:
            ended.put("interrupted")
        return 1

    def count(_: Transaction) -> int:
        turns.append(1)
        return 1

    engine = {"notice_seconds": 0.01}
    with Ledger(settings=Settings.load(url=home.url, environ={}, engine=engine)) as made:
        long, short = Duty("long", 0.1, rounds=take_long), Duty("short", 0.1, count)
        worker = made.worker(duties=[long, short])
        worker.start()
        assert begun.wait(WAIT_SECONDS_MAX)
        before = len(turns)

        until(lambda: len(turns) >= before + 2)
        worker.stop(grace_seconds=0)
        still_runs = ended.empty()
        go_on.set()

        assert (still_runs, ended.get(timeout=WAIT_SECONDS_MAX)) == (True, "interrupted")
