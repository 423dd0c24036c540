"""The contract of the ground floor, on every database."""

from __future__ import annotations

from ledgerstone.testing.contract.batches import BatchContract
from ledgerstone.testing.contract.forking import ForkContract
from ledgerstone.testing.contract.journals import JournalContract
from ledgerstone.testing.contract.leases import LeaseContract
from ledgerstone.testing.contract.migrations import MigrationContract
from ledgerstone.testing.contract.pages import PageContract
from tests.contract.ended import EndedContract
from tests.contract.joins import JoinContract, JoinedWorkContract
from tests.contract.measures import MeasureContract
from tests.contract.pipelines import PipelineContract
from tests.contract.transactions import TransactionContract
from tests.contract.wakeups import WakeupContract


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
    """A commit rings."""


class TestMigrations(MigrationContract):
    """The schema."""


class TestJoins(JoinContract):
    """In the user's own transaction."""


class TestJoinedWork(JoinedWorkContract):
    """What was enqueued there."""


class TestForks(ForkContract):
    """Processes that fork."""
