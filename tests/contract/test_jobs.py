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
from ledgerstone.testing.fixtures import KINDS, Home, new_home
from tests.contract.jobs.accepting import AcceptingContract, JoinedJobsContract
from tests.contract.jobs.answers import AnswersContract
from tests.contract.jobs.async_jobs import AwaitedContract, AwaitedSessionContract
from tests.contract.jobs.claim_order import LineContract
from tests.contract.jobs.columns import JobTablesContract, NativeTypesContract
from tests.contract.jobs.crashes import JobCrashesContract
from tests.contract.jobs.histories import ATTEMPTS, WAIT_SECONDS, JobHistories
from tests.contract.jobs.inside import InsideContract
from tests.contract.jobs.interrupted import InterruptedContract
from tests.contract.jobs.keys import KeysContract
from tests.contract.jobs.logs import JobLogsContract
from tests.contract.jobs.moves import (
    HistoryContract,
    MovesContract,
    TruncateContract,
)
from tests.contract.jobs.operating import OperatingContract, ReadingContract
from tests.contract.jobs.order import OrderContract
from tests.contract.jobs.retries import RetriesContract
from tests.contract.jobs.running import RunningJobsContract, ThreadedJobsContract
from tests.harness.sizes import sized

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
