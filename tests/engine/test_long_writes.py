"""A file that somebody writes to for longer than a lease: nobody could renew, so nobody is dead."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pysqlite3.dbapi2 as sqlite3

from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings
from ledgerstone.testing.contract.job_workshop import enqueue, standing
from ledgerstone.testing.waiting import until
from ledgerstone.testing.workshop import started

ENGINE = {"lease_seconds": 3, "rescue_seconds": 0.2, "concurrency": 4}
STORE = {"busy_timeout_seconds": 0.1}


def test_a_long_write_makes_nobody_crash(tmp_path: Path) -> None:
    """Two workers whose leases ran out because a third wrote all the while lose no attempt."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    over = threading.Event()

    def wait() -> None:
        while not over.wait(0.01):
            pass

    with ExitStack() as stack:
        settings = Settings.load(url=url, environ={}, engine=ENGINE, store=STORE)
        ledgers = [stack.enter_context(Ledger(url, settings=settings)) for _ in range(2)]
        for ledger in ledgers:
            ledger.migrate()
            ledger.kinds.add("wait", wait)
        jobs = [enqueue(ledgers[0], "wait") for _ in range(8)]
        for ledger in ledgers:
            stack.enter_context(started(ledger.worker()))
        until(lambda: {standing(ledgers[0], each).status.value for each in jobs} == {"running"})
        other = sqlite3.connect(f"{tmp_path}/ledger.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        until(lambda: expired(other) == len(jobs))
        other.execute("COMMIT")
        until(lambda: expired(other) == 0)
        over.set()
        until(lambda: {standing(ledgers[0], each).status.value for each in jobs} == {"succeeded"})

        rows = [standing(ledgers[0], each) for each in jobs]
    assert [(row.attempt, row.crashes) for row in rows] == [(1, 0)] * len(jobs)


def expired(connection: sqlite3.Connection) -> int:
    """How many jobs run whose lease has run out."""
    query = (
        "SELECT COUNT(*) FROM job WHERE status = 'running'"
        " AND lease_until_ms < (julianday('now') - 2440587.5) * 86400000"
    )
    return int(connection.execute(query).fetchone()[0])
