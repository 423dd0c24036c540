"""The contract of places: what waits in one worker for a place may be begun by another."""

from __future__ import annotations

import threading

import msgspec

from ledgerstone.engine.source import Claim
from ledgerstone.engine.worker import Worker
from ledgerstone.jobs import Status as JobStatus
from ledgerstone.ledger import Ledger
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.chores import Status
from tests.chores.workshop import chores, counts, enqueue, standing
from tests.contract.jobs import examples as jobs
from tests.harness.workers import running, started

LEARNED = 50
"""After so many quick ones a worker claims ahead."""


class PlacesContract:
    """Workers in threads, by the database's own clock. Fixtures: `ledger`."""

    def test_nothing_waits_for_the_unknown(self, ledger: Ledger) -> None:
        """While a worker does not know how long its handlers take it claims what it can begin."""
        enqueue(ledger, 6)
        begun, go = threading.Semaphore(0), threading.Event()

        def block(_: Claim) -> None:
            begun.release()
            go.wait(WAIT_SECONDS_MAX)

        with running(ledger, chores(block), concurrency=2, claim_ahead_ms=10_000) as first:
            assert begun.acquire(timeout=WAIT_SECONDS_MAX)
            assert begun.acquire(timeout=WAIT_SECONDS_MAX)
            with running(ledger, chores(block), concurrency=4):
                others = [begun.acquire(timeout=WAIT_SECONDS_MAX / 2) for _ in range(4)]
                claimed = first.pumps[0].counters.claimed
                go.set()
                until(lambda: counts(ledger)[Status.DONE] == 6)

        assert all(others)
        assert claimed == 2

    def test_what_waits_too_long_goes_back(self, ledger: Ledger) -> None:
        """Quick items behind slow ones go to a worker that has a place, their attempts refunded."""
        slow, go = threading.Event(), threading.Event()
        begun = threading.Semaphore(0)

        def block(_: Claim) -> None:
            if slow.is_set():
                begun.release()
                go.wait(WAIT_SECONDS_MAX)

        with running(ledger, chores(block), concurrency=2) as first:
            enqueue(ledger, LEARNED)
            until(lambda: counts(ledger)[Status.DONE] == LEARNED)
            slow.set()
            ids = enqueue(ledger, 30)
            assert begun.acquire(timeout=WAIT_SECONDS_MAX)
            assert begun.acquire(timeout=WAIT_SECONDS_MAX)
            with running(ledger, chores(lambda _: None), concurrency=2):
                until(
                    lambda: counts(ledger)[Status.DONE] == LEARNED + 28,
                    seconds_max=WAIT_SECONDS_MAX / 2,
                )
            waiting = first.pumps[0].waiting
            go.set()
            until(lambda: counts(ledger)[Status.DONE] == LEARNED + 30)

        assert waiting == 0
        assert {standing(ledger, key).attempt for key in ids} == {1}


class JobPlacesContract:
    """The same of jobs, for those who pause and cancel. Fixtures: `ledger`."""

    def test_pause_and_cancel_reach_what_waits(self, ledger: Ledger) -> None:
        """A job that was claimed and has not begun is canceled, or kept in a paused queue."""
        begun, go = threading.Event(), threading.Event()
        ran: list[str] = []

        @ledger.job("slow")
        def slow() -> None:
            begun.set()
            go.wait(WAIT_SECONDS_MAX)

        @ledger.job("quick")
        def quick(name: str) -> None:
            ran.append(name)

        settings = msgspec.structs.replace(ledger.settings.engine, concurrency=1)
        with started(Worker(ledger.database, [ledger.job_source()], settings)):
            for _ in range(LEARNED):
                jobs.enqueue(ledger, quick, {"name": "first"})
            until(lambda: len(ran) == LEARNED)
            with ledger.transaction() as tx:
                blocker = tx.jobs.enqueue(slow, priority=1).id
                unwanted, kept = (
                    tx.jobs.enqueue(quick, {"name": name}).id for name in ("unwanted", "kept")
                )
            assert begun.wait(WAIT_SECONDS_MAX)
            with ledger.transaction() as tx:
                tx.jobs.cancel(unwanted)
                tx.jobs.pause("default")
            until(
                lambda: (
                    jobs.standing(ledger, unwanted).status is JobStatus.CANCELED
                    and jobs.standing(ledger, kept).status is JobStatus.QUEUED
                ),
                seconds_max=WAIT_SECONDS_MAX / 2,
            )
            go.set()
            until(lambda: jobs.standing(ledger, blocker).status is JobStatus.SUCCEEDED)

        row = jobs.standing(ledger, kept)
        assert ran == ["first"] * LEARNED
        assert (row.status, row.attempt) == (JobStatus.QUEUED, 0)
        for job_id in (unwanted, kept):
            jobs.assert_replayed(ledger, job_id)
