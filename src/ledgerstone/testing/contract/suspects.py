"""The contract of suspects: what one more death would end runs by itself, and is on record."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import select, update

from ledgerstone.chores import Status
from ledgerstone.chores.tables import chore
from ledgerstone.engine import workers
from ledgerstone.engine.source import Claim
from ledgerstone.engine.suspects import WAIT_SECONDS_MAX
from ledgerstone.ledger import Ledger
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.waiting import until
from ledgerstone.testing.workshop import (
    PROMPTLY,
    Gauge,
    chores,
    counts,
    enqueue,
    standing,
    started,
)


class SuspectContract:
    """Step by step and in threads, with a clock that is moved by hand."""

    def test_on_record_before_they_begin(self, ledger: Ledger, clock: ManualClock) -> None:
        """A suspect that begins is named by its worker's row, whoever looks."""
        enqueue(ledger, 5)
        suspect(ledger)
        named: list[tuple[str, str]] = []
        worker = ledger.worker(chores(lambda claim: named.append((observed(ledger), claim.mark))))

        worker.tick()

        assert counts(ledger)[Status.DONE] == 5
        assert [row for row, _ in named] == [mark for _, mark in named]

    @pytest.mark.parametrize("pumps", [1, 2])
    def test_one_at_a_time(self, ledger: Ledger, clock: ManualClock, pumps: int) -> None:
        """In one process never two at once, over all its sources; others run beside them."""
        suspects = set(enqueue(ledger, 6))
        suspect(ledger)
        enqueue(ledger, 6)
        inside, beside = Gauge(), threading.Event()
        named: list[bool] = []

        def work(claim: Claim) -> None:
            if claim.key not in suspects:
                beside.set()
                return
            with inside:
                beside.wait(PROMPTLY)
                named.append(observed(ledger) == claim.mark)

        worker = ledger.worker(*[chores(work) for _ in range(pumps)])
        with started(worker):
            until(lambda: counts(ledger)[Status.DONE] == 12)

        assert beside.is_set()
        assert inside.most == 1
        assert named == [True] * 6

    def test_those_that_wait_are_returned(self, ledger: Ledger, clock: ManualClock) -> None:
        """When the worker stops, suspects that wait go back, their attempt not counted."""
        keys = enqueue(ledger, 3)
        suspect(ledger)
        stage = _Stage()
        worker = ledger.worker(chores(stage))

        with started(worker):
            begun = stage.begun()
            worker.pumps[0].stop_claiming()
            until(lambda: counts(ledger)[Status.QUEUED] == 2)
            stage.over.set()

        assert standing(ledger, begun).status is Status.DONE
        assert [standing(ledger, key).attempt for key in keys if key != begun] == [0, 0]

    def test_late_ones_are_returned(self, ledger: Ledger, clock: ManualClock) -> None:
        """Behind one that takes long they go back for another worker, and are due a while later."""
        keys = enqueue(ledger, 2)
        suspect(ledger)
        stage = _Stage()
        worker = ledger.worker(chores(stage))

        with started(worker):
            begun = stage.begun()
            (late,) = set(keys) - {begun}
            until(lambda: standing(ledger, late).status is Status.RUNNING)
            clock.advance(WAIT_SECONDS_MAX + 1)
            until(lambda: standing(ledger, late).status is Status.QUEUED)
            returned = standing(ledger, late)
            with ledger.reading() as tx:
                due = select(chore.c.available_at_ms).where(chore.c.id == late)
                due_ms = tx.connection.execute(due).scalar_one()
            stage.over.set()

        assert (returned.attempt, returned.crashes) == (0, 2)
        assert due_ms - clock.now_ms() == WAIT_SECONDS_MAX * 1000

    def test_a_lost_one_does_not_begin(self, ledger: Ledger, clock: ManualClock) -> None:
        """A suspect whose lease was lost while it waited is not run here."""
        keys = enqueue(ledger, 2)
        suspect(ledger)
        stage = _Stage()
        worker = ledger.worker(chores(stage))

        with started(worker):
            begun = stage.begun()
            (lost,) = set(keys) - {begun}
            pump = worker.pumps[0]
            until(lambda: lost in pump.held())
            pump.lose(pump.held()[lost])
            until(lambda: standing(ledger, lost).status is Status.QUEUED)
            stage.over.set()
            until(lambda: standing(ledger, begun).status is Status.DONE)

        assert stage.seen == [begun]
        assert "lease_lost" in (standing(ledger, lost).error or "")


class _Stage:
    """A handler that ends when it is told to, and notes which chores it was called with."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.over = threading.Event()

    def __call__(self, claim: Claim) -> None:
        self.seen.append(claim.key)
        self.over.wait(PROMPTLY)

    def begun(self) -> str:
        """The first that was begun."""
        return until(lambda: self.seen)[0]


def suspect(ledger: Ledger) -> None:
    """As if workers had died with all that there are, so that one more death is the end."""
    crashes = ledger.settings.engine.crashes_max - 1
    with ledger.transaction() as tx:
        tx.connection.execute(update(chore).values(crashes=crashes))


def observed(ledger: Ledger) -> str:
    """Which claim is on record as begun, by the row of the only worker."""
    with ledger.reading() as tx:
        (seen,) = workers.listed(tx)
    return str(seen.report["observed"])
