"""The pump contract on every database."""

from __future__ import annotations

from tests.contract.engine.cancellation import (
    CancellationContract,
    JobCancellationContract,
)
from tests.contract.engine.endings import EndingsContract, RunningEndingsContract
from tests.contract.engine.places import JobPlacesContract, PlacesContract
from tests.contract.engine.pumps import PumpContract
from tests.contract.engine.quarantine import SuspectContract
from tests.contract.engine.running import RunningContract
from tests.contract.jobs.locked import LockedJobContract


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
