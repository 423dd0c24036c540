"""The schedule contract on every database."""

from __future__ import annotations

from ledgerstone.testing.contract.schedules import ScheduleContract


class TestSchedules(ScheduleContract):
    """Each moment once."""
