"""The job contract, crashes: handlers that kill their process, and workers told to end."""

from __future__ import annotations

import os
import signal

from ledgerstone.engine.backoff import Backoff, BackoffPolicy
from ledgerstone.engine.source import Verdict
from ledgerstone.jobs import JobRow, Status
from ledgerstone.ledger import Ledger
from ledgerstone.testing.contract import Child
from ledgerstone.testing.contract.job_workshop import (
    CRASHES_MAX,
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
)
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import until
from ledgerstone.testing.workshop import started

AT_ONCE = Backoff(policy=BackoffPolicy.NONE)
WORKER = """
import os
import signal

from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings

url = sys.argv[1]
engine = {"grace_seconds": 0.1, "concurrency": 1, "claim_ahead_ms": 0}
ledger = Ledger(url, settings=Settings.load(url=url, environ={}, engine=engine))

@ledger.job("fatal")
def fatal():
    os.kill(os.getpid(), signal.SIGKILL)

@ledger.job("told")
def told():
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        pass

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

    def test_sigterm_refunds(self, ledger: Ledger, home: Home) -> None:
        """A job whose worker is told to end goes back, its attempt not counted."""
        ledger.kinds.add("told", nothing, backoff=AT_ONCE)
        source = ledger.job_source()
        job_id = enqueue(ledger, "told")
        (taken,) = claim(ledger, source)
        settle(ledger, source, taken, Verdict.FAILED)

        code = _worked(home)

        row = standing(ledger, job_id)
        assert code == 0
        assert (row.status, row.attempt, row.crashes) == (Status.QUEUED, 1, 0)
        assert moves_of(ledger, job_id)[-1] == ("running", "queued")
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


def _worked(home: Home) -> int:
    """A worker in a process of its own, until it ends; its exit code."""
    with Child(WORKER, home.url) as worker:
        worker.go()
        code, _ = worker.ended()
        return code


def _found_out(ledger: Ledger, job_id: str) -> None:
    """Its lease has run out, and somebody notices."""
    statement(ledger, "UPDATE job SET lease_until_ms = 0 WHERE id = :id", id=job_id)
    assert rescue(ledger, ledger.job_source()) == 1
