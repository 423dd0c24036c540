"""The job contract, crashes: handlers that kill their process, and workers told to end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from ledgerstone.engine import worker_rows as workers
from ledgerstone.engine.backoff import Backoff, BackoffPolicy
from ledgerstone.engine.source import OutcomeKind
from ledgerstone.jobs import JobRow, JobSource, Status
from ledgerstone.ledger import Ledger
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import until
from ledgerstone.testing.worker_reports import reported
from tests.contract.jobs.examples import (
    ADA,
    CRASHES_MAX,
    GRACE,
    assert_replayed,
    claim,
    enqueue,
    history_of,
    moves_of,
    nothing,
    rescue,
    settle,
    standing,
    statement,
    tick,
)
from tests.harness.child import Child
from tests.harness.children import ORPHAN_SECONDS_MAX, held_and_let_go
from tests.harness.own_table import notes_kept, tables
from tests.harness.workers import started

FATAL = 20
"""The place in line of the job that kills, among those that do no harm."""
ONE: dict[str, float] = {"concurrency": 1, "claim_ahead_ms": 0}
MANY = {"concurrency": 4, "claim_ahead_ms": 10_000}
AT_ONCE = Backoff(policy=BackoffPolicy.NONE)
BEYOND_MS = 2**62
"""Beyond the last moment that a calendar has."""
DAMAGED = (
    "",
    "{",
    "[]",
    "null",
    '"text"',
    '{"begun": 7, "crashes_max": 3}',
    '{"crashes_max": "three"}',
    '{"sources": []}',
    '{"types": {"jobs:default": 1}}',
    "[" * 5000,
)
"""Reports that no worker writes."""
WORKER_ROW = """
    INSERT INTO worker (id, host, pid, started_at_ms, seen_at_ms, state, report)
    VALUES (:id, 'here', 1, 0, :seen, 'running', :report)
"""
WORKER = """
import itertools
import json
import os
import signal
import threading

from sqlalchemy import insert

from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings
from tests.harness.children import orphaned
from tests.harness.own_table import note

url = sys.argv[1]
engine = {"grace_seconds": 0.1, **json.loads(sys.argv[2])}
# It is listened to: what a busy machine is slow at is not to be heard.
store = {"slow_statement_ms": 60_000}
ledger = Ledger(url, settings=Settings.load(url=url, environ={}, engine=engine, store=store))

@ledger.job("fatal")
def fatal():
    os.kill(os.getpid(), signal.SIGKILL)

@ledger.job("fine")
def fine():
    pass

@ledger.job("told")
def told():
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        pass

together = threading.Barrier(6, action=lambda: os.kill(os.getpid(), signal.SIGTERM))

@ledger.job("write")
def write(job):
    def pair(tx, number):
        name = f"{job.id} {number}"
        tx.connection.execute(insert(note).values(name=name, count=1))
        tx.jobs.enqueue("written", {"by": name})

    for number in itertools.count():
        ledger.run(lambda tx: pair(tx, number))
        if number == 3:
            together.wait()

ledger.kinds.add("orphaned", orphaned, process=True)

ready()
ledger.worker().run()
"""
"""A worker whose handlers kill it, or tell it to end and do not end themselves."""


def killed() -> None:
    """The job that kills its process."""
    os.kill(os.getpid(), signal.SIGKILL)


class JobCrashesContract:
    """What holds when a handler ends its worker. Fixtures: `ledger` and the `home` it is on."""

    def test_a_fatal_job_is_given_up(self, ledger: Ledger, home: Home) -> None:
        """A job that kills its workers is given up after so many, with the last one's words."""
        job_id = enqueue(ledger, "fatal", max_attempts=100)
        seen: list[JobRow] = []

        for _ in range(CRASHES_MAX):
            assert _worked(home) == -signal.SIGKILL
            seen.append(standing(ledger, job_id))
            _found_out(ledger, job_id)

        buried = standing(ledger, job_id)
        assert [(row.status, row.attempt, row.crashes) for row in seen] == [
            (Status.RUNNING, n + 1, n) for n in range(CRASHES_MAX)
        ]
        assert (buried.status, buried.crashes) == (Status.DEAD_LETTER, CRASHES_MAX)
        assert buried.last_error_code == "crashed"
        words = buried.last_error_message or ""
        assert f"its worker {seen[-1].worker} (pid " in words
        assert "last seen" in words
        assert words.endswith("ended without a word")
        assert_replayed(ledger, job_id)
        ledger.run(lambda tx: tx.jobs.retry(job_id))
        again = standing(ledger, job_id)
        assert (again.status, again.attempt, again.crashes) == (Status.QUEUED, 0, 0)

    def test_a_fatal_job_takes_nobody_along(self, ledger: Ledger, home: Home) -> None:
        """All that its workers held beside it, running or waiting, are done in the end."""
        jobs = [enqueue(ledger, "fatal" if n == FATAL else "fine") for n in range(50)]

        for _ in range(CRASHES_MAX):
            assert _worked(home, **MANY) == -signal.SIGKILL
            statement(ledger, "UPDATE job SET lease_until_ms = 0 WHERE status = 'running'")
            rescue(ledger, ledger.job_source())
        ledger.kinds.add("fine", nothing)
        tick(ledger)

        found = [standing(ledger, job_id).status for job_id in jobs]
        assert found.pop(FATAL) is Status.DEAD_LETTER
        assert set(found) == {Status.SUCCEEDED}
        for job_id in jobs:
            assert_replayed(ledger, job_id)

    def test_one_that_waited_keeps_its_last_attempt(self, ledger: Ledger) -> None:
        """A job that its dead worker had not begun is not at its end, though it was claimed."""
        ledger.kinds.add("fine", nothing)
        source = ledger.job_source()
        jobs = [enqueue(ledger, "fine", max_attempts=2) for _ in range(2)]
        _die_with_the_first(ledger, source, worker=GRACE)
        assert [standing(ledger, job_id).attempt for job_id in jobs] == [1, 1]

        begun = _die_with_the_first(ledger, source, worker=ADA)

        rows = {job_id: standing(ledger, job_id) for job_id in jobs}
        assert rows.pop(begun).status is Status.DEAD_LETTER
        ((waited, row),) = rows.items()
        assert (row.status, row.attempt, row.crashes) == (Status.QUEUED, 1, 1)
        assert history_of(ledger, waited)[-1].detail["reason"].endswith("before it began")
        for job_id in jobs:
            assert_replayed(ledger, job_id)

    @pytest.mark.parametrize("report", DAMAGED)
    def test_a_damaged_row_of_its_worker(self, ledger: Ledger, report: str) -> None:
        """What a worker left is rescued, and the worker listed, also if its row cannot be read."""
        ledger.kinds.add("a", nothing)
        source = ledger.job_source()
        job_id = enqueue(ledger, "a")
        row = {"id": ADA, "seen": BEYOND_MS, "report": report}
        statement(ledger, WORKER_ROW, **row)

        for _ in range(CRASHES_MAX):
            claim(ledger, source, worker=ADA)
            statement(ledger, "UPDATE job SET lease_until_ms = 0 WHERE id = :id", id=job_id)
            rescued = rescue(ledger, source)

            with ledger.reading() as tx:
                (seen,) = workers.listed(tx)
                told = tx.jobs.explain(job_id)

            assert (rescued, seen.report) == (1, {})
            assert told.summary
        assert standing(ledger, job_id).status is Status.DEAD_LETTER
        assert_replayed(ledger, job_id)

    def test_a_failure_after_crashes(self, ledger: Ledger) -> None:
        """Crashes give a job up when there are so many; a plain failure is no crash."""
        ledger.kinds.add("fine", nothing, backoff=AT_ONCE)
        source = ledger.job_source()
        job_id = enqueue(ledger, "fine", max_attempts=100)
        seen = []

        for crashed in (*[True] * (CRASHES_MAX - 1), False, True):
            (taken,) = claim(ledger, source)
            settle(ledger, source, taken, OutcomeKind.FAILED, crashed=crashed)
            row = standing(ledger, job_id)
            seen.append((row.status, row.crashes))

        again, most = Status.QUEUED, CRASHES_MAX
        assert seen[-3:] == [(again, most - 1), (again, most - 1), (Status.DEAD_LETTER, most)]

    def test_sigterm_refunds(self, ledger: Ledger, home: Home) -> None:
        """A job whose worker is told to end goes back, its attempt not counted."""
        ledger.kinds.add("told", nothing, backoff=AT_ONCE)
        source = ledger.job_source()
        job_id = enqueue(ledger, "told")
        (taken,) = claim(ledger, source)
        settle(ledger, source, taken, OutcomeKind.FAILED)

        code = _worked(home)

        row = standing(ledger, job_id)
        assert code == 0
        assert (row.status, row.attempt, row.crashes) == (Status.QUEUED, 1, 0)
        assert moves_of(ledger, job_id)[-1] == ("running", "queued")
        assert history_of(ledger, job_id)[-1].detail["error"]["code"] == "interrupted"
        assert_replayed(ledger, job_id)

    @pytest.mark.slow
    def test_sigterm_while_all_write(self, ledger: Ledger, home: Home) -> None:
        """Six handlers that write without end stop in time: each is refunded, nothing is halved."""
        tables.create_all(ledger.database.engine)
        ids = [enqueue(ledger, "write") for _ in range(6)]

        code = _worked(home, concurrency=6)

        rows = [standing(ledger, job_id) for job_id in ids]
        with ledger.reading() as tx:
            written = tx.jobs.counts()["default"][Status.QUEUED] - len(ids)
        assert code == 0
        assert [(row.status, row.attempt, row.crashes) for row in rows] == [
            (Status.QUEUED, 0, 0)
        ] * len(ids)
        assert len(notes_kept(ledger)) == written >= 4 * len(ids)
        for job_id in ids:
            assert history_of(ledger, job_id)[-1].detail["error"]["code"] == "interrupted"
            assert_replayed(ledger, job_id)

    def test_a_process_of_its_own(self, ledger: Ledger) -> None:
        """In a process of its own a crash takes nothing else along, and is counted all the same."""
        ledger.kinds.add("fatal", killed, process=True, backoff=AT_ONCE)
        ledger.kinds.add("fine", nothing)
        fatal = enqueue(ledger, "fatal", max_attempts=100)

        with started(ledger.worker()):
            until(lambda: standing(ledger, fatal).status is Status.DEAD_LETTER)
            fine = enqueue(ledger, "fine")
            until(lambda: standing(ledger, fine).status is Status.SUCCEEDED)

        row = standing(ledger, fatal)
        assert (row.attempt, row.crashes, row.last_error_code) == (
            CRASHES_MAX,
            CRASHES_MAX,
            "crashed",
        )
        assert_replayed(ledger, fatal)

    @pytest.mark.parametrize("how", ["waiting", "unyielding", "unsignaled"])
    def test_a_process_does_not_outlive_its_worker(
        self,
        ledger: Ledger,
        home: Home,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        how: str,
    ) -> None:
        """A worker that is killed takes its handlers' processes along, and they say nothing."""
        lock = tmp_path / "lock"
        enqueue(ledger, "orphaned", {"path": str(lock), "how": how})

        with Child(WORKER, home.url, json.dumps(ONE)) as worker:
            worker.go()
            seconds_max = ORPHAN_SECONDS_MAX / 2
            until(lambda: held_and_let_go(lock), seconds_max=seconds_max, what="its end")
            code, _ = worker.ended()

        assert code == -signal.SIGKILL
        assert capsys.readouterr().err == ""


def _worked(home: Home, **engine: float) -> int:
    """A worker in a process of its own, until it ends; its exit code."""
    with Child(WORKER, home.url, json.dumps(ONE | engine)) as worker:
        worker.go()
        code, _ = worker.ended()
        return code


def _die_with_the_first(ledger: Ledger, source: JobSource, *, worker: str) -> str:
    """A worker claims two, begins with one, dies, and is noticed; the one it began with."""
    begun, _ = claim(ledger, source, worker=worker)
    reported(ledger, worker, crashes_max=CRASHES_MAX, begun=[begun.mark])
    statement(ledger, "UPDATE job SET lease_until_ms = 0")
    assert rescue(ledger, source) == 2
    return begun.key


def _found_out(ledger: Ledger, job_id: str) -> None:
    """Its lease has run out, and somebody notices."""
    statement(ledger, "UPDATE job SET lease_until_ms = 0 WHERE id = :id", id=job_id)
    assert rescue(ledger, ledger.job_source()) == 1
