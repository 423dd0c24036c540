"""The pump contract on every database."""

from __future__ import annotations

from ledgerstone.testing.contract.locked import LockedJobContract
from tests.contract.cancellation import (
    CancellationContract,
    JobCancellationContract,
)
from tests.contract.endings import EndingsContract, RunningEndingsContract
from tests.contract.places import JobPlacesContract, PlacesContract
from tests.contract.pumps import PumpContract
from tests.contract.running import RunningContract
from tests.contract.suspects import SuspectContract


class TestPump(PumpContract):
    """Step by step."""


class TestRunning(RunningContract):
    """In threads."""


class TestEndings(EndingsContract):
    """However a handler ends."""


class TestRunningEndings(RunningEndingsContract):
    """The same in threads."""


class TestPlaces(PlacesContract):
    """What waits for a place."""


class TestJobPlaces(JobPlacesContract):
    """Jobs that wait for one."""


class TestSuspects(SuspectContract):
    """What one more death would end."""


class TestCancellation(CancellationContract):
    """A handler that has to stop."""


class TestJobCancellation(JobCancellationContract):
    """A job that has to."""


class TestLockedJobs(LockedJobContract):
    """Beside a transaction that stays open."""
