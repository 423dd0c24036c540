"""The contract of the ground floor, on every database."""

from __future__ import annotations

from tests.contract.store.batches import BatchContract
from tests.contract.store.ended import EndedContract
from tests.contract.store.forking import ForkContract
from tests.contract.store.joins import JoinContract, JoinedWorkContract
from tests.contract.store.journals import JournalContract
from tests.contract.store.leases import LeaseContract
from tests.contract.store.measures import MeasureContract
from tests.contract.store.migrations import MigrationContract
from tests.contract.store.pages import PageContract
from tests.contract.store.pipelines import PipelineContract
from tests.contract.store.transactions import TransactionContract
from tests.contract.store.wakeups import WakeupContract


class TestTransactions(TransactionContract):
    """All or nothing."""


class TestEnded(EndedContract):
    """By its block, and not inside it."""


class TestPipelines(PipelineContract):
    """What nobody waits for."""


class TestLeases(LeaseContract):
    """One holder at a time."""


class TestPages(PageContract):
    """Every row once."""


class TestBatches(BatchContract):
    """Many rows in one statement."""


class TestJournals(JournalContract):
    """What changes rows, and tells of them."""


class TestMeasures(MeasureContract):
    """Every row is counted."""


class TestWakeups(WakeupContract):
    """A commit wakes waiting threads."""


class TestMigrations(MigrationContract):
    """The schema."""


class TestJoins(JoinContract):
    """In the user's own transaction."""


class TestJoinedWork(JoinedWorkContract):
    """What was enqueued there."""


class TestForks(ForkContract):
    """Processes that fork."""
