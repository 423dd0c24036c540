"""The room of jobs, as a ledger takes it in."""

from __future__ import annotations

import msgspec

from ledgerstone.engine.duties import Duty
from ledgerstone.engine.source import Source
from ledgerstone.jobs import retention
from ledgerstone.jobs.handlers.kinds import Kinds
from ledgerstone.jobs.jobs import Jobs
from ledgerstone.jobs.read import checks
from ledgerstone.jobs.read.status import JobFacts, jobs_of
from ledgerstone.jobs.schedules import schedules
from ledgerstone.jobs.schedules.schedules import Declared
from ledgerstone.jobs.source import JobSource
from ledgerstone.jobs.tables import tables
from ledgerstone.room import Opened, Room
from ledgerstone.settings import Settings
from ledgerstone.store.rooms import ChildTable, RowSecurity
from ledgerstone.store.schema.columns import names_in
from ledgerstone.store.transaction import Transaction

MOVING = (
    "status",
    "attempt",
    "updated_at",
    "started_at",
    "finished_at",
    "last_error_code",
    "last_error_message",
    "result",
    "run_at_ms",
    "gate",
    "token",
    "lease_until_ms",
    "worker",
    "crashes",
    "stage",
    "progress",
    "cancel_requested",
)
"""The columns that moves of a job change; the others never change."""
SECURITY = RowSecurity(
    owned=("job", "job_key", "job_schedule"),
    children=tuple(
        ChildTable(table=table, parent="job", column="job_id", seen_by="ledgerstone_sees")
        for table in ("job_event", "job_step")
    ),
    shared=("job_queue",),
    grants={
        "job": f"SELECT, INSERT, UPDATE ({', '.join(MOVING)})",
        "job_key": "SELECT, INSERT",
        "job_event": "SELECT, INSERT",
        "job_step": "SELECT, INSERT",
        "job_schedule": "SELECT, INSERT, UPDATE",
        # A limit is kept by locking the row of its queue, which takes the right to change it; the
        # policies of this table let nobody use that right.
        "job_queue": "SELECT, INSERT (name), UPDATE (name)",
    },
)


class JobsState(msgspec.Struct, frozen=True):
    """The types of jobs and the schedules that the code of a ledger declares."""

    kinds: Kinds
    declared: Declared


def _open(_: Settings) -> JobsState:
    return JobsState(Kinds(), Declared())


def _calls(tx: Transaction, state: JobsState) -> Jobs:
    return Jobs(tx, state.kinds)


def _sources(opened: Opened[JobsState]) -> list[Source]:
    """Each queue of the jobs that are declared."""
    kinds, crashes_max = opened.state.kinds, opened.settings.engine.crashes_max
    queues = sorted({kind.queue for kind in kinds.all().values()})
    return [JobSource(queue, kinds, opened.database, crashes_max=crashes_max) for queue in queues]


def _duties(opened: Opened[JobsState], _: object) -> list[Duty]:
    return [retention.duty(opened.settings.jobs), schedules.duty(opened.state.kinds)]


def _put_schedules(opened: Opened[JobsState]) -> None:
    if opened.state.declared:
        opened.database.run(lambda tx: opened.state.declared.put(tx, opened.state.kinds))


def _facts(_: object, tx: Transaction | None) -> JobFacts | None:
    return None if tx is None else jobs_of(tx)


def _waits(_: object, tx: Transaction) -> bool:
    return jobs_of(tx).queued > 0


JOBS: Room[Jobs, JobsState] = Room(
    name="jobs",
    open=_open,
    calls=_calls,
    tables=names_in(tables),
    sources=_sources,
    duties=_duties,
    begin=_put_schedules,
    status={"jobs": _facts},
    doctor={"round trip": checks.round_trip, "jobs": checks.jobs},
    waiting=_waits,
    security=SECURITY,
    history=("job_event",),
    cli={
        "jobs": "ledgerstone.jobs.cli.jobs:app",
        "queues": "ledgerstone.jobs.cli.queues:app",
        "schedules": "ledgerstone.jobs.cli.schedules:app",
    },
)
