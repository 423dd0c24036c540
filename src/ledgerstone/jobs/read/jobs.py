"""Reading jobs: one, or a page of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from sqlalchemy import Select, bindparam, func, select

from ledgerstone.errors import BadInput, NotFound
from ledgerstone.jobs.states import Gate, Status
from ledgerstone.jobs.tables import job, stands
from ledgerstone.store.sql.expressions import json_text
from ledgerstone.store.sql.names import check_text
from ledgerstone.store.sql.pages import Keyset, Page
from ledgerstone.store.sql.statement import Row, Statement
from ledgerstone.store.sql.timestamps import moment_at, moment_of

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction


class JobRow(msgspec.Struct, frozen=True):
    """A job as it stands."""

    id: str
    org_id: str
    type: str
    status: Status
    attempt: int
    max_attempts: int
    priority: int
    key: str | None
    requested_by: str | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    last_error_code: str | None
    last_error_message: str | None
    queue: str
    payload: dict[str, object]
    result: object
    run_at: datetime
    gate: Gate
    limit_key: str | None
    worker: str | None
    crashes: int
    stage: str | None
    progress: float | None
    cancel_requested: bool
    correlation_id: str | None
    trace_context: str | None


_columns: tuple[Any, ...] = (
    job.c.id,
    job.c.org_id,
    job.c.type,
    job.c.status,
    job.c.attempt,
    job.c.max_attempts,
    job.c.priority,
    job.c.idempotency_key,
    job.c.requested_by,
    job.c.created_at,
    job.c.updated_at,
    job.c.started_at,
    job.c.finished_at,
    job.c.last_error_code,
    job.c.last_error_message,
    job.c.queue,
    json_text(job.c.payload).label("payload"),
    json_text(job.c.result).label("result"),
    job.c.run_at_ms,
    job.c.gate,
    job.c.limit_key,
    job.c.worker,
    job.c.crashes,
    job.c.stage,
    job.c.progress,
    job.c.cancel_requested,
    job.c.correlation_id,
    job.c.trace_context,
)
_one = Statement(
    "jobs.get", select(*_columns).where(job.c.id == bindparam("id", type_=job.c.id.type))
)
_counts = Statement(
    "jobs.counts",
    select(job.c.queue, job.c.status, func.count()).group_by(job.c.queue, job.c.status),
)
_filters = {
    "org": job.c.org_id,
    "status": job.c.status,
    "type": job.c.type,
    "queue": job.c.queue,
    "key": job.c.idempotency_key,
    "correlation_id": job.c.correlation_id,
}
_INDEXED = {"org", "status", "key"}
"""Filters that lead to an index by themselves."""


def id_of(given: str | UUID) -> str:
    """An id as it is kept; of what cannot be an id there is no job."""
    try:
        return str(UUID(str(given)))
    except ValueError as error:
        message = f"no job has the id {given!r}"
        raise NotFound(message) from error


def get(tx: Transaction, job_id: str) -> JobRow:
    """The job as it stands."""
    row = _one.one(tx, id=job_id)
    if row is None:
        message = f"no job has the id {job_id}"
        raise NotFound(message)
    return _made(row)


def find(
    tx: Transaction, *, limit: int = 50, cursor: str | None = None, **filters: Any
) -> Page[JobRow]:
    """Jobs that meet the filters, newest first."""
    given = {name: value for name, value in filters.items() if value is not None}
    if "status" in given:
        given["status"] = _status_of(given["status"]).value
    for name, value in given.items():
        check_text(value, name)
    return _listing(tuple(sorted(given))).read(tx, limit=limit, cursor=cursor, **given)


def _status_of(given: Any) -> Status:
    try:
        return Status(given)
    except ValueError as error:
        message = f"a job cannot stand at {given!r}"
        known = ", ".join(status.value for status in Status)
        raise BadInput(message, hint=f"use one of {known}") from error


def counts(tx: Transaction) -> dict[str, dict[Status, int]]:
    """How many jobs stand where, by queue."""
    found: dict[str, dict[Status, int]] = {}
    for queue, status, count in _counts.rows(tx):
        found.setdefault(queue, {})[Status(status)] = int(count)
    return found


@cache
def _listing(names: Sequence[str]) -> Keyset[JobRow]:
    query: Select[Any] = select(*_columns)
    for name in names:
        held = _filters[name]
        query = query.where(held == bindparam(name, type_=held.type))
    return Keyset(
        f"jobs.find.{'.'.join(names) or 'all'}",
        query,
        order=(job.c.created_at, job.c.id),
        descending=True,
        # An index has the jobs of an organisation in this order, another one those of a status.
        split=() if _INDEXED & set(names) else [stands(status) for status in Status],
        make=_made,
    )


def _made(row: Row) -> JobRow:
    values = list(row)
    values[0], values[1] = str(row[0]), str(row[1])
    values[3] = Status(row[3])
    for i in (9, 10, 11, 12):
        values[i] = moment_of(row[i])
    for i in (16, 17):
        values[i] = msgspec.json.decode(row[i]) if row[i] is not None else None
    values[18] = moment_at(row[18])
    values[19] = Gate(row[19])
    values[25] = bool(row[25])
    return JobRow(*values)
