"""Heartbeats while the database is away, by a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import pytest

from ledgerstone import Ledger
from ledgerstone.engine.pump import Pump
from ledgerstone.engine.source import Claim, Handler, NotSettled
from ledgerstone.engine.worker import Worker
from ledgerstone.errors import StoreUnavailable
from ledgerstone.testing.clock import ManualClock
from tests.chores import ChoreSource, Status
from tests.chores.work import nothing
from tests.chores.workshop import counts, enqueue

IDLE_SECONDS = 3600.0


class Cut(ChoreSource):
    """Chores whose claims cannot be extended while the database is `away`."""

    def __init__(self, call: Any) -> None:
        super().__init__(Handler(call))
        self.away = False
        self.extended: list[int] = []

    def extend(self, tx: Any, claims: Sequence[Claim], lease_seconds: float) -> NotSettled[Claim]:
        if self.away:
            raise StoreUnavailable("away")
        self.extended.append(len(claims))
        return super().extend(tx, claims, lease_seconds)


class Scene:
    """A worker whose only handler plays a scene, as a function of the worker's pump."""

    def __init__(self, ledger: Ledger, clock: ManualClock) -> None:
        self.ledger = ledger
        self.clock = clock
        self.lease = ledger.settings.engine.lease_seconds
        self.source = Cut(self._play)
        self.worker: Worker = ledger.worker(self.source)
        self.held: list[int] = []

    @property
    def pump(self) -> Pump:
        return self.worker.pumps[0]

    def play(self, *steps: float) -> list[int]:
        """While a handler runs, let so many seconds pass before each beat; how many were held."""
        self._steps = steps
        enqueue(self.ledger, 1)
        self.worker.tick()
        return self.held

    def _play(self, _: Claim) -> None:
        for seconds in self._steps:
            self.clock.advance(abs(seconds))
            self.source.away = seconds < 0
            self.worker.beat()
            self.held.append(len(self.pump.held()))


@pytest.fixture
def scene(ledger: Ledger, clock: ManualClock) -> Scene:
    return Scene(ledger, clock)


def test_away_for_a_whole_lease(scene: Scene) -> None:
    """Claims that could not be extended for longer than a lease count as lost, and not before."""
    lease = scene.lease

    held = scene.play(1, -lease / 2, -lease / 2, -0.5)

    # To the second for which the lease was taken they are the worker's own.
    assert held == [1, 1, 1, 0]
    assert (scene.pump.counters.lost, scene.source.extended) == (1, [])


def test_away_after_a_beat_that_arrived(scene: Scene) -> None:
    """A lease is counted from the last beat that arrived."""
    third = scene.lease / 3

    held = scene.play(third, third, third, third, -third, -third, third)

    assert held == [1] * 7
    assert scene.pump.counters.lost == 0
    assert scene.source.extended == [1, 1, 1, 1]
    assert counts(scene.ledger)[Status.DONE] == 1


def test_away_after_the_pump_was_idle(scene: Scene, clock: ManualClock) -> None:
    """While a pump holds nothing it loses nothing: how long that was does not count."""
    clock.advance(IDLE_SECONDS)
    scene.worker.beat()

    held = scene.play(1, -1)

    assert held == [1, 1]
    assert scene.pump.counters.lost == 0


def test_trouble_is_told_while_it_lasts(scene: Scene) -> None:
    """What keeps a worker from beating is told until it beats again."""
    seen: list[str | None] = []
    heartbeat = scene.worker._heartbeat

    def look(_: Claim) -> None:
        for away in (False, False, True, False):
            scene.source.away = away
            scene.worker.beat()
            seen.append(heartbeat.trouble)

    scene.source._handler = Handler(look)
    enqueue(scene.ledger, 1)
    scene.worker.tick()

    assert seen == [None, None, "store_unavailable: away", None]


@pytest.mark.usefixtures("clock")
def test_who_was_late_judges_nobody(ledger: Ledger) -> None:
    """A worker that could not beat for a while rescues from nobody until others had time to."""
    worker = ledger.worker(Cut(nothing))
    late = 2 * worker._beat_seconds + 1
    steady: list[bool] = []

    for beaten, last_late in ((0.0, IDLE_SECONDS), (late, IDLE_SECONDS), (0.0, 0.0), (0.0, late)):
        now = perf_counter()
        worker._beaten_at, worker._late_at = now - beaten, now - last_late
        steady.append(worker._is_steady())
    worker._beaten_at, worker._late_at = perf_counter() - late, perf_counter() - IDLE_SECONDS
    worker._beat_and_report()
    steady.append(worker._is_steady())

    assert steady == [True, False, False, True, False]


@pytest.mark.usefixtures("clock")
def test_only_what_was_held_before(ledger: Ledger) -> None:
    """A claim is extended from the second beat on, also if its item was claimed before."""
    source = Cut(nothing)
    worker = ledger.worker(source)
    source._handler = Handler(lambda _: worker.beat())
    enqueue(ledger, 3)

    for _ in range(3):
        worker.tick(limit=1)

    assert source.extended == []
    assert counts(ledger)[Status.DONE] == 3
