"""The contract of suspects: what one more death would end runs by itself, and is on record."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import update

from ledgerstone.engine import worker_rows as workers
from ledgerstone.engine.quarantine import TURN_SECONDS_MAX, WAIT_SECONDS_MAX
from ledgerstone.engine.source import Claim
from ledgerstone.errors import SchemaMissing
from ledgerstone.ledger import Ledger
from ledgerstone.testing import waiting
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.waiting import until
from tests.chores import Chores, Status
from tests.chores.tables import chore
from tests.chores.workshop import chores, counts, enqueue, standing
from tests.harness.workers import Gauge, running, started

LATE = "interrupted: other crash suspects were queued ahead of it for too long"


class SuspectContract:
    """Step by step and in threads, with a clock that is moved by hand."""

    def test_on_record_before_they_begin(self, ledger: Ledger, clock: ManualClock) -> None:
        """A suspect that begins is named by its worker's row, whoever looks."""
        enqueue(ledger, 5)
        suspect(ledger)
        named: list[bool] = []
        worker = ledger.worker(chores(lambda claim: named.append(begun(ledger) == [claim.mark])))

        worker.tick()

        assert counts(ledger)[Status.DONE] == 5
        assert named == [True] * 5

    def test_a_record_that_cannot_be_written(self, ledger: Ledger, clock: ManualClock) -> None:
        """Then none of them begins, and all are there for the next step."""
        keys = enqueue(ledger, 3)
        suspect(ledger)
        seen: list[str] = []
        worker = ledger.worker(chores(lambda claim: seen.append(claim.key)))

        _rename(ledger, "worker", "elsewhere")
        with pytest.raises(SchemaMissing):
            worker.tick()
        meanwhile = list(seen)
        _rename(ledger, "elsewhere", "worker")
        worker.tick()

        assert meanwhile == []
        assert sorted(seen) == sorted(keys)
        assert {standing(ledger, key).attempt for key in keys} == {1}

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
                beside.wait(waiting.WAIT_SECONDS_MAX)
                named.append(begun(ledger) == [claim.mark])

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
        stage = _HandlingState()
        worker = ledger.worker(chores(stage))

        with started(worker):
            (first,) = stage.begun(1)
            worker.pumps[0].stop_claiming()
            until(lambda: counts(ledger)[Status.QUEUED] == 2)
            stage.over.set()

        assert standing(ledger, first).status is Status.DONE
        assert [standing(ledger, key).attempt for key in keys if key != first] == [0, 0]

    def test_one_that_takes_long(self, ledger: Ledger, clock: ManualClock) -> None:
        """It does not keep the others waiting for ever: the next begins, and both are on record."""
        keys = enqueue(ledger, 2)
        suspect(ledger)
        stage = _HandlingState()
        worker = ledger.worker(chores(stage))

        with started(worker):
            stage.begun(1)
            clock.advance(TURN_SECONDS_MAX)
            assert set(stage.begun(2)) == set(keys)
            marks = begun(ledger)
            stage.over.set()

        assert {mark.split()[0] for mark in marks} == set(keys)

    def test_late_ones_are_returned(self, ledger: Ledger, clock: ManualClock) -> None:
        """One that has waited too long goes back for another worker, its attempt not counted."""
        keys = enqueue(ledger, 3)
        suspect(ledger)
        stage = _HandlingState()
        worker = ledger.worker(chores(stage))

        with started(worker):
            stage.begun(1)
            clock.advance(TURN_SECONDS_MAX + 1)
            (late,) = set(keys) - set(stage.begun(2))
            until(lambda: standing(ledger, late).status is Status.RUNNING)
            clock.advance(WAIT_SECONDS_MAX - TURN_SECONDS_MAX - 0.5)
            until(lambda: LATE in reasons_of(ledger, late))
            stage.over.set()
            until(lambda: standing(ledger, late).status is Status.DONE)

        assert standing(ledger, late).attempt == 1

    def test_more_than_can_wait(self, ledger: Ledger, clock: ManualClock) -> None:
        """So many that they would keep all others out go back for a while, refunded."""
        suspects = enqueue(ledger, 5)
        suspect(ledger)
        (other,) = enqueue(ledger, 1)
        stage = _HandlingState()

        with running(ledger, chores(stage), batch_max=2, concurrency=2):
            until(lambda: other in stage.seen)
            stage.over.set()
            until(lambda: self._all_done(ledger, clock))

        reasons = [reason for key in suspects for reason in reasons_of(ledger, key)]
        assert "interrupted: too many other crash suspects are queued ahead of it" in reasons
        assert {standing(ledger, key).attempt for key in suspects} == {1}

    def test_a_lost_one_does_not_begin(self, ledger: Ledger, clock: ManualClock) -> None:
        """A suspect whose lease was lost while it waited is not run here."""
        keys = enqueue(ledger, 2)
        suspect(ledger)
        stage = _HandlingState()
        worker = ledger.worker(chores(stage))

        with started(worker):
            (first,) = stage.begun(1)
            (lost,) = set(keys) - {first}
            pump = worker.pumps[0]
            until(lambda: lost in pump.held())
            pump.lose(pump.held()[lost])
            until(lambda: any("lease_lost" in str(each) for each in reasons_of(ledger, lost)))
            seen = list(stage.seen)
            stage.over.set()
            until(lambda: standing(ledger, lost).status is Status.DONE)

        assert seen == [first]
        assert standing(ledger, lost).attempt == 1

    @staticmethod
    def _all_done(ledger: Ledger, clock: ManualClock) -> bool:
        """Whether they are; if none runs, those that went back are due a step further."""
        standing = counts(ledger)
        if not standing[Status.RUNNING] and standing[Status.QUEUED]:
            clock.advance(WAIT_SECONDS_MAX)
        return not standing[Status.RUNNING] and not standing[Status.QUEUED]


class _HandlingState:
    """A handler that ends when it is told to, and notes which chores it was called with."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.over = threading.Event()

    def __call__(self, claim: Claim) -> None:
        self.seen.append(claim.key)
        self.over.wait(waiting.WAIT_SECONDS_MAX)

    def begun(self, count: int) -> list[str]:
        """Those that were begun with, when there are so many."""
        return until(lambda: self.seen if len(self.seen) >= count else [])


def _rename(ledger: Ledger, before: str, after: str) -> None:
    with ledger.transaction() as tx:
        tx.connection.exec_driver_sql(f"ALTER TABLE {before} RENAME TO {after}")


def reasons_of(ledger: Ledger, key: str) -> list[str | None]:
    """Why a chore made each of its moves."""
    with ledger.reading() as tx:
        return [event.reason for event in Chores(tx).history(key)]


def suspect(ledger: Ledger) -> None:
    """As if workers had died with all that there are, so that one more death is the end."""
    crashes = ledger.settings.engine.crashes_max - 1
    with ledger.transaction() as tx:
        tx.execute(update(chore).values(crashes=crashes))


def begun(ledger: Ledger) -> list[str]:
    """The marks of those that are on record as begun, by the row of the only worker."""
    with ledger.reading() as tx:
        (seen,) = workers.listed(tx)
    marks: list[str] = seen.report["begun"]
    return marks
