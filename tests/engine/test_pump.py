"""What a pump decides by itself, whatever the database is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ledgerstone import Ledger
from ledgerstone.engine.settlements import UNWRITTEN_MAX
from ledgerstone.engine.source import Ask, Claim, Handler, OutcomeKind
from ledgerstone.engine.worker import Worker
from ledgerstone.errors import StoreUnavailable, TargetDown
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.chores import ChoreSource, Status
from tests.chores.work import nothing
from tests.chores.workshop import chores, counts, enqueue, standing
from tests.harness.workers import started

TARGET = "the broker"


class Unsettled(ChoreSource):
    """Chores that cannot be settled so many times."""

    def __init__(self, call: Callable[..., Any], *, times: int = 1) -> None:
        super().__init__(Handler(call))
        self.left = times

    def settle(self, tx: Any, outcomes: Any, **how: Any) -> Any:
        if self.left:
            self.left -= 1
            raise StoreUnavailable("away")
        return super().settle(tx, outcomes, **how)


class Targeted(ChoreSource):
    """Chores that go to one target; while the database is `away` none is settled as done."""

    def __init__(self, call: Callable[..., Any], *, atomic: bool = False) -> None:
        super().__init__(Handler(call, atomic=atomic))
        self.away = False

    def claim(self, tx: Any, ask: Ask) -> list[Claim]:
        return [msgspec.structs.replace(claim, target=TARGET) for claim in super().claim(tx, ask)]

    def settle(self, tx: Any, outcomes: Any, **how: Any) -> Any:
        if self.away and any(outcome.verdict is OutcomeKind.DONE for outcome in outcomes):
            raise StoreUnavailable("away")
        return super().settle(tx, outcomes, **how)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("error", "state", "attempt"),
    [
        (ValueError("its own"), Status.DEAD, 1),
        (StoreUnavailable("away"), Status.QUEUED, 0),
    ],
    ids=["its own", "the outage"],
)
def test_failures_during_an_outage(
    ledger: Ledger, error: Exception, state: Status, attempt: int
) -> None:
    """While the database is away an item's own failure counts, and one of the outage does not."""
    (key,) = enqueue(ledger, 1, attempts=1)

    def fail(_: Claim) -> None:
        raise error

    worker = ledger.worker(Unsettled(fail))
    with pytest.raises(StoreUnavailable):
        worker.tick()
    worker.tick()

    chore = standing(ledger, key)
    assert (chore.status, chore.attempt) == (state, attempt)


@pytest.mark.usefixtures("clock")
def test_outcomes_outlast_an_outage(ledger: Ledger) -> None:
    """What could not be settled is settled later, once, in the order in which it came out."""
    keys = enqueue(ledger, 3)
    ran: list[str] = []
    settled: list[str] = []

    class Noted(Unsettled):
        def settle(self, tx: Any, outcomes: Any, **how: Any) -> Any:
            refused = super().settle(tx, outcomes, **how)
            settled.extend(outcome.claim.key for outcome in outcomes)
            return refused

    few = msgspec.structs.replace(ledger.settings.engine, unsettled_max=len(keys))
    source = Noted(lambda claim: ran.append(claim.key))
    worker = Worker(ledger.database, [source], few)
    with pytest.raises(StoreUnavailable):
        worker.tick()
    held = list(worker.pumps[0].held())
    room = worker.pumps[0]._room()
    worker.tick()

    assert sorted(held) == sorted(keys)
    assert settled == ran
    assert worker.pumps[0].held() == {}
    assert worker.pumps[0].counters.done == 3
    # As long as they are unsettled nothing is claimed, and afterwards it is.
    assert (room, worker.pumps[0]._room() > 0) == (0, True)


class Down:
    """A target that is down for all items until it is `up`; how often it was tried."""

    def __init__(self) -> None:
        self.up = False
        self.tries = 0

    def __call__(self, *_: Any) -> None:
        self.tries += 1
        if not self.up:
            raise TargetDown(TARGET)


def opened(worker: Worker, ledger: Ledger, clock: ManualClock) -> None:
    """The breaker of the target is open, and its cool-down is over."""
    for _ in range(ledger.settings.engine.breaker_failures):
        worker.tick(limit=1)
        clock.advance(2)
    clock.advance(ledger.settings.engine.breaker_cooldown_seconds)


def test_one_probe_for_a_whole_batch(ledger: Ledger, clock: ManualClock) -> None:
    """After the cool-down one claim is let through; the others go back until it has decided."""
    ids = enqueue(ledger, 5)
    down = Down()
    worker = ledger.worker(Targeted(down))
    opened(worker, ledger, clock)
    before = down.tries

    worker.tick()
    probes = down.tries - before
    down.up = True
    clock.advance(ledger.settings.engine.breaker_cooldown_seconds)
    for _ in range(2):
        worker.tick()

    assert probes == 1
    assert {standing(ledger, key).status for key in ids} == {Status.DONE}
    assert {standing(ledger, key).attempt for key in ids} == {1}


def test_a_probe_that_never_arrived(ledger: Ledger, clock: ManualClock) -> None:
    """A probe whose transaction met an outage says nothing of its target: there is another."""
    ids = enqueue(ledger, 5)
    down = Down()
    source = Targeted(down, atomic=True)
    worker = ledger.worker(source)
    opened(worker, ledger, clock)
    before = down.tries

    down.up = True
    source.away = True
    worker.tick()
    source.away = False
    clock.advance(2)
    down.up = False
    worker.tick()
    probes = down.tries - before

    assert probes == 2
    assert {standing(ledger, key).attempt for key in ids} == {0}


@pytest.mark.usefixtures("clock")
def test_an_atomic_item_is_let_go(ledger: Ledger) -> None:
    """What an atomic handler has settled is not held any more, and counts once."""
    enqueue(ledger, 2)
    worker = ledger.worker(chores(lambda _tx, _claim: None, atomic=True))

    (step,) = worker.tick()
    (after,) = worker.tick()

    pump = worker.pumps[0]
    assert (step.claimed, after.claimed) == (2, 0)
    assert (pump.held(), pump.counters.done) == ({}, 2)


@pytest.mark.usefixtures("clock")
def test_many_that_cannot_be_written_among_others(ledger: Ledger) -> None:
    """Outcomes that cannot be written end no worker, however many, if others in between can."""
    count = 2 * (UNWRITTEN_MAX + 1)
    enqueue(ledger, count)

    class Odd(ChoreSource):
        def settle(self, tx: Any, outcomes: Any, **how: Any) -> Any:
            if any(int(outcome.claim.body) % 2 for outcome in outcomes):
                raise ZeroDivisionError
            return super().settle(tx, outcomes, **how)

    worker = ledger.worker(Odd(Handler(nothing)))
    (step,) = worker.tick()

    assert step.claimed == count
    assert worker.failure is None
    assert counts(ledger)[Status.DONE] == count // 2
    assert worker.pumps[0].held() == {}


def test_late_outcomes_beside_a_newer_claim(ledger: Ledger, clock: ManualClock) -> None:
    """What becomes of a claim that was lost takes nothing from the one that holds its item now."""
    (key,) = enqueue(ledger, 1)
    over = {1: threading.Event(), 2: threading.Event()}
    begun: list[Claim] = []

    def work(claim: Claim) -> None:
        begun.append(claim)
        over[claim.attempt].wait(WAIT_SECONDS_MAX)

    worker = ledger.worker(chores(work))
    pump = worker.pumps[0]
    with started(worker):
        until(lambda: len(begun) == 1)
        clock.advance(ledger.settings.engine.lease_seconds + 1)
        ledger.run(pump.rescue)
        until(lambda: len(begun) == 2)
        # Nor does the word of a heartbeat that the first claim was lost.
        pump.lose(begun[0])
        over[1].set()
        until(lambda: pump.counters.refused == 1)
        held = pump.held()
        over[2].set()
        until(lambda: standing(ledger, key).status is Status.DONE)

    assert held == {key: begun[1]}
    assert (pump.counters.done, pump.counters.lost, pump.held()) == (1, 0, {})
