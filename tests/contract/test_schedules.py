"""The schedule contract on every database."""

from __future__ import annotations

from tests.contract.jobs.schedule_places import (
    SchedulePlacesContract,
    ScheduleTroubleContract,
)
from tests.contract.jobs.schedules import ScheduleContract


class TestSchedules(ScheduleContract):
    """Each moment once."""


class TestSchedulePlaces(SchedulePlacesContract):
    """Where its kind says."""


class TestScheduleTrouble(ScheduleTroubleContract):
    """The others go on."""
