"""The contract of the job ledger, on every database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from ledgerstone import Ledger
from ledgerstone.engine.backoff import Backoff, BackoffPolicy
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.contract.job_answers import AnswersContract
from ledgerstone.testing.contract.job_awaited import AwaitedContract, AwaitedSessionContract
from ledgerstone.testing.contract.job_columns import JobTablesContract, NativeTypesContract
from ledgerstone.testing.contract.job_crashes import JobCrashesContract
from ledgerstone.testing.contract.job_histories import ATTEMPTS, WAIT_SECONDS, JobHistories
from ledgerstone.testing.contract.job_inside import InsideContract
from ledgerstone.testing.contract.job_interrupted import InterruptedContract
from ledgerstone.testing.contract.job_keys import KeysContract
from ledgerstone.testing.contract.job_line import LineContract
from ledgerstone.testing.contract.job_logs import JobLogsContract
from ledgerstone.testing.contract.job_moves import (
    HistoryContract,
    MovesContract,
    TruncateContract,
)
from ledgerstone.testing.contract.job_operating import OperatingContract, ReadingContract
from ledgerstone.testing.contract.job_order import OrderContract
from ledgerstone.testing.contract.job_retries import RetriesContract
from ledgerstone.testing.contract.job_running import RunningJobsContract, ThreadedJobsContract
from ledgerstone.testing.contract.jobs import AcceptingContract, JoinedJobsContract
from ledgerstone.testing.fixtures import KINDS, Home, new_home
from ledgerstone.testing.sizes import sized

HISTORIES = sized(6, full=100)
"""How many histories are drawn on each database."""
DRAWN = settings(
    max_examples=HISTORIES,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A fresh database, ready for jobs."""
    yield from new_home(request, request.param, tmp_path, migrated=True)


class TestAccepting(AcceptingContract):
    """What is accepted."""


class TestJoinedJobs(JoinedJobsContract):
    """In the user's own transaction."""


class TestKeys(KeysContract):
    """Keys and moments of many."""


class TestTables(JobTablesContract):
    """As documented."""


class TestMoves(MovesContract):
    """One table of moves."""


class TestHistory(HistoryContract):
    """All of them on record."""


class TestRunningJobs(RunningJobsContract):
    """Step by step."""


class TestRetries(RetriesContract):
    """Again, or not."""


class TestLogs(JobLogsContract):
    """In the log."""


class TestInside(InsideContract):
    """From inside a handler."""


class TestAnswers(AnswersContract):
    """What a handler returns."""


class TestAwaited(AwaitedContract):
    """From inside an async one."""


class TestAwaitedSession(AwaitedSessionContract):
    """With a session of its own."""


class TestInterrupted(InterruptedContract):
    """Told to stop while it waits."""


class TestThreadedJobs(ThreadedJobsContract):
    """In threads."""


class TestOperating(OperatingContract):
    """What people do."""


class TestReading(ReadingContract):
    """What people see."""


class TestOrder(OrderContract):
    """Who is next."""


class TestLine(LineContract):
    """What a claim costs, and that nobody starves."""


@pytest.mark.slow
class TestCrashes(JobCrashesContract):
    """Workers that die."""


@pytest.mark.postgres
class TestNativeTypes(NativeTypesContract, TruncateContract):
    """PostgreSQL's own."""

    @pytest.fixture
    def home(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
        """A fresh database on PostgreSQL."""
        yield from new_home(request, "postgres", tmp_path)


@pytest.mark.torture
def test_histories(ledger: Ledger, clock: ManualClock) -> None:
    """Jobs agree with their model after every step of every history."""
    backoff = Backoff(policy=BackoffPolicy.FIXED, seconds=WAIT_SECONDS, jitter=0)

    @ledger.job("drawn", max_attempts=ATTEMPTS, backoff=backoff)
    def drawn(number: int = 0) -> None:
        raise AssertionError(number)

    class Jobs(JobHistories):
        pass

    Jobs.ledger, Jobs.clock, Jobs.source = ledger, clock, ledger.job_source()

    run_state_machine_as_test(Jobs, settings=DRAWN)
