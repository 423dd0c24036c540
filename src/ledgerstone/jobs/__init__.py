"""The job ledger: durable, fenced, audited jobs."""

from ledgerstone.engine.source import Cancel, Snooze
from ledgerstone.jobs.accepting import Accepted, Enqueued, NewJob
from ledgerstone.jobs.handlers.async_job import AsyncJob
from ledgerstone.jobs.handlers.kinds import Kind, Kinds, Limit
from ledgerstone.jobs.handlers.running_job import Job
from ledgerstone.jobs.history import JobEvent
from ledgerstone.jobs.jobs import Jobs
from ledgerstone.jobs.read.jobs import JobRow
from ledgerstone.jobs.schedules.cron import Misfire
from ledgerstone.jobs.schedules.rows import Schedule
from ledgerstone.jobs.schedules.schedules import NewSchedule, Schedules
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
