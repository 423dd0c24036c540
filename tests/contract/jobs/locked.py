"""The contract of a worker beside a transaction that holds one of its jobs and stays open."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from ledgerstone.engine.worker_rows import listed
from ledgerstone.jobs import Cancel, Job, Status
from ledgerstone.ledger import Ledger
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import until
from tests.contract.jobs.examples import assert_replayed, enqueue, standing
from tests.harness.ledgers import opened
from tests.harness.threads import signaled
from tests.harness.workers import started

OTHERS = 20
ENGINE = {"concurrency": 2, "heartbeat_seconds": 0.1, "rescue_seconds": 0.1}


class LockedJobContract:
    """One locked row stops nothing else. Fixtures: `home`, `clock`."""

    @pytest.fixture
    def ledger(self, home: Home, clock: ManualClock) -> Iterator[Ledger]:
        """Whose workers look for expired leases all the time."""
        with opened(home.url, clock=clock, engine=ENGINE) as ledger:
            yield ledger

    @pytest.mark.parametrize("end", ["commit", "rollback"])
    def test_a_running_job_that_is_locked(
        self, ledger: Ledger, clock: ManualClock, end: str
    ) -> None:
        """Others are settled meanwhile; it is neither rescued nor run again, and then settled."""
        begun, leave, runs = threading.Event(), threading.Event(), list[int]()

        @ledger.job("slow", max_attempts=3)
        def slow(job: Job) -> Cancel | None:
            runs.append(job.attempt)
            begun.set()
            signaled(leave)
            return Cancel("as asked") if job.canceled else None

        @ledger.job("quick")
        def quick() -> None: ...

        if ledger.database.dialect.one_writer:
            # Nothing at all is written beside an open transaction there.
            return
        stuck = enqueue(ledger, "slow")
        worker = ledger.worker()
        with started(worker):
            signaled(begun)
            with suppress(_TakenBack), ledger.transaction() as tx:
                tx.jobs.cancel(stuck, reason="not wanted")
                others = [enqueue(ledger, "quick") for _ in range(OTHERS)]
                until(lambda: {standing(ledger, i).status for i in others} == {Status.SUCCEEDED})
                clock.advance(ledger.settings.engine.lease_seconds + 1)
                until(lambda: _named(ledger), what="that its worker lives and names it")
                leave.set()
                until(lambda: worker.pumps[0].locked, what="that its settlement is put off")
                if end == "rollback":
                    raise _TakenBack
            until(lambda: standing(ledger, stuck).status is not Status.RUNNING, what="its end")

        row = standing(ledger, stuck)
        assert (runs, row.crashes, row.status) == ([1], 0, Status.SUCCEEDED)
        assert_replayed(ledger, stuck)


class _TakenBack(Exception):
    """The transaction is taken back on purpose."""


def _named(ledger: Ledger) -> list[str]:
    """The claims that workers could not extend, by what they said since the clock was moved."""
    with ledger.reading() as tx:
        spoke = [seen for seen in listed(tx) if seen.silent_ms == 0]
    return [mark for seen in spoke for mark in seen.report.get("locked", ())]
