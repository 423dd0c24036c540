"""A file that somebody writes to for longer than a lease: nobody could renew, so nobody is dead."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pysqlite3.dbapi2 as sqlite3
import pytest

from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.contract.jobs.examples import enqueue, standing
from tests.harness.workers import started

LEASE_SECONDS = 3600.0
STEP_SECONDS = 0.1
"""How far the clock moves at each look, so that rescues have their turns."""
ENGINE = {
    "lease_seconds": LEASE_SECONDS,
    "heartbeat_seconds": 1,
    "rescue_seconds": STEP_SECONDS,
    "concurrency": 4,
}
STORE = {"busy_timeout_seconds": 0.1}


@pytest.mark.slow
def test_a_long_write_makes_nobody_crash(tmp_path: Path) -> None:
    """Two workers whose leases ran out because a third wrote all the while lose no attempt."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    clock, over = ManualClock(), threading.Event()

    def wait() -> None:
        over.wait(WAIT_SECONDS_MAX)

    with ExitStack() as stack:
        settings = Settings.load(url=url, environ={}, engine=ENGINE, store=STORE)
        ledgers = [
            stack.enter_context(Ledger(url, settings=settings, clock=clock)) for _ in range(2)
        ]
        for ledger in ledgers:
            ledger.migrate()
            ledger.kinds.add("wait", wait)
        jobs = [enqueue(ledgers[0], "wait") for _ in range(8)]
        workers = [ledger.worker() for ledger in ledgers]
        for worker in workers:
            stack.enter_context(started(worker))
        until(lambda: {standing(ledgers[0], each).status.value for each in jobs} == {"running"})
        other = sqlite3.connect(f"{tmp_path}/ledger.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        until(lambda: not any(worker._is_steady() for worker in workers), what="beats in vain")
        clock.advance(LEASE_SECONDS + 1)
        assert expired(other, clock) == len(jobs)
        other.execute("COMMIT")
        until(lambda: expired(other, clock) == 0, what="their renewal")
        until(lambda: all(worker._is_steady() for worker in workers), what="the next rescues")
        over.set()
        until(lambda: {standing(ledgers[0], each).status.value for each in jobs} == {"succeeded"})

        rows = [standing(ledgers[0], each) for each in jobs]
    assert [(row.attempt, row.crashes) for row in rows] == [(1, 0)] * len(jobs)


def expired(connection: sqlite3.Connection, clock: ManualClock) -> int:
    """How many jobs run whose lease has run out, a moment later."""
    clock.advance(STEP_SECONDS)
    query = "SELECT COUNT(*) FROM job WHERE status = 'running' AND lease_until_ms < ?"
    return int(connection.execute(query, (clock.now_ms(),)).fetchone()[0])
