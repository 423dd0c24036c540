"""The job ledger: durable, fenced, audited jobs."""

from ledgerstone.engine.source import Cancel, Snooze
from ledgerstone.jobs.accepting import Accepted, Enqueued, NewJob
from ledgerstone.jobs.awaited import AsyncJob
from ledgerstone.jobs.cron import Misfire
from ledgerstone.jobs.history import JobEvent
from ledgerstone.jobs.jobs import Jobs
from ledgerstone.jobs.kinds import Kind, Kinds, Limit
from ledgerstone.jobs.reading import JobRow
from ledgerstone.jobs.running import Job
from ledgerstone.jobs.schedule_rows import Schedule
from ledgerstone.jobs.schedules import NewSchedule, Schedules
from ledgerstone.jobs.source import JobSource
from ledgerstone.jobs.states import Status

__all__ = [
    "Accepted",
    "AsyncJob",
    "Cancel",
    "Enqueued",
    "Job",
    "JobEvent",
    "JobRow",
    "JobSource",
    "Jobs",
    "Kind",
    "Kinds",
    "Limit",
    "Misfire",
    "NewJob",
    "NewSchedule",
    "Schedule",
    "Schedules",
    "Snooze",
    "Status",
]
