"""The table of schedules, its rows as values, and the statements about them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    String,
    Table,
    Text,
    and_,
    bindparam,
    column,
    delete,
    null,
    select,
    update,
)
from sqlalchemy.schema import conv

from ledgerstone.jobs.schedules import cron as crons
from ledgerstone.jobs.schedules.cron import CRON_CHARS_MAX, ZONE_CHARS_MAX, Misfire
from ledgerstone.jobs.tables import QUEUE_CHARS_MAX, TYPE_CHARS_MAX, tables
from ledgerstone.store.schema.columns import MYSQL_TABLE, id_type, json_type
from ledgerstone.store.sql.batch import ClaimEach, InsertEach, UpdateEach
from ledgerstone.store.sql.expressions import as_json, beyond, json_text, now_ms
from ledgerstone.store.sql.json_body import canonical
from ledgerstone.store.sql.pages import Keyset
from ledgerstone.store.sql.statement import Row, Statement

NAME_CHARS_MAX = 190
MISFIRE_CHARS_MAX = 8

_MISFIRES = ", ".join(f"'{policy.value}'" for policy in Misfire)

job_schedule = Table(
    "job_schedule",
    tables,
    Column("name", String(NAME_CHARS_MAX), primary_key=True),
    Column("type", String(TYPE_CHARS_MAX), nullable=False),
    Column("payload", json_type(), nullable=False),
    Column("org_id", id_type(), nullable=False),
    Column("queue", String(QUEUE_CHARS_MAX)),
    Column("cron", String(CRON_CHARS_MAX), nullable=False),
    Column("time_zone", String(ZONE_CHARS_MAX), nullable=False),
    Column("misfire", String(MISFIRE_CHARS_MAX), nullable=False),
    Column("priority", Integer),
    Column("next_at_ms", BigInteger, nullable=False),
    Column("last_at_ms", BigInteger),
    Column("last_job_id", id_type()),
    Column("paused_at_ms", BigInteger),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("terms", json_type()),
    CheckConstraint(f"misfire IN ({_MISFIRES})", name=conv("ck_job_schedule__misfire")),
    **MYSQL_TABLE,
)
"""A schedule without a queue or priority of its own takes that of its kind, at each run.

`terms` are those of its kind as it was put (see `kinds.Terms`), for whoever does not know the kind.
"""
Index(
    "idx_job_schedule__due",
    job_schedule.c.paused_at_ms,
    job_schedule.c.next_at_ms,
    job_schedule.c.name,
)


class Schedule(msgspec.Struct, frozen=True):
    """A schedule as it stands; a paused one has no next moment."""

    name: str
    type: str
    payload: dict[str, object]
    org_id: str
    queue: str | None
    cron: str
    time_zone: str
    misfire: Misfire
    priority: int | None
    next_at: datetime | None
    last_at: datetime | None
    last_job_id: str | None
    paused_at: datetime | None
    created_at: datetime


class Content(msgspec.Struct, frozen=True):
    """The columns that tell schedules apart, as stored; payload and terms as JSON text."""

    type: str
    payload: str
    org_id: str
    queue: str | None
    cron: str
    time_zone: str
    misfire: str
    priority: int | None
    terms: str | None

    def same_times(self, other: Content) -> bool:
        return (self.cron, self.time_zone) == (other.cron, other.time_zone)

    def read(self) -> crons.Cron:
        """When it is due; BadInput if that cannot be read here."""
        return crons.parsed(self.cron, self.time_zone)


_content_columns: tuple[Any, ...] = (
    job_schedule.c.type,
    json_text(job_schedule.c.payload).label("payload"),
    job_schedule.c.org_id,
    job_schedule.c.queue,
    job_schedule.c.cron,
    job_schedule.c.time_zone,
    job_schedule.c.misfire,
    job_schedule.c.priority,
    json_text(job_schedule.c.terms).label("terms"),
)
WIDTH = 1 + len(_content_columns)
_columns: tuple[Any, ...] = (
    job_schedule.c.name,
    *_content_columns,
    job_schedule.c.next_at_ms,
    job_schedule.c.last_at_ms,
    job_schedule.c.last_job_id,
    job_schedule.c.paused_at_ms,
    job_schedule.c.created_at_ms,
)
_named = job_schedule.c.name == bindparam("name_", type_=job_schedule.c.name.type)
_next = bindparam("next_", type_=BigInteger())
now = Statement("schedules.now", select(now_ms()))
get = Statement("schedules.get", select(*_columns).where(_named))
hold = Statement("schedules.hold", select(*_columns).where(_named).with_for_update())
add = InsertEach(
    "schedules.add",
    job_schedule,
    incoming=(
        job_schedule.c.name,
        job_schedule.c.type,
        column("payload", Text()),
        job_schedule.c.org_id,
        job_schedule.c.queue,
        job_schedule.c.cron,
        job_schedule.c.time_zone,
        job_schedule.c.misfire,
        job_schedule.c.priority,
        column("terms", Text()),
        job_schedule.c.next_at_ms,
    ),
    values=lambda row: {
        "payload": as_json(row.payload),
        "terms": as_json(row.terms),
        "created_at_ms": now_ms(),
    },
)
replace = Statement(
    "schedules.replace",
    update(job_schedule)
    .where(_named)
    .values(
        type=bindparam("type_", type_=job_schedule.c.type.type),
        payload=as_json(bindparam("payload_", type_=Text())),
        org_id=bindparam("org_id_", type_=job_schedule.c.org_id.type),
        queue=bindparam("queue_", type_=job_schedule.c.queue.type),
        cron=bindparam("cron_", type_=job_schedule.c.cron.type),
        time_zone=bindparam("time_zone_", type_=job_schedule.c.time_zone.type),
        misfire=bindparam("misfire_", type_=job_schedule.c.misfire.type),
        priority=bindparam("priority_", type_=job_schedule.c.priority.type),
        terms=as_json(bindparam("terms_", type_=Text())),
        next_at_ms=_next,
    ),
)
remove = Statement("schedules.remove", delete(job_schedule).where(_named))
pause = Statement(
    "schedules.pause",
    update(job_schedule)
    .where(_named, job_schedule.c.paused_at_ms.is_(None))
    .values(paused_at_ms=now_ms()),
)
resume = Statement(
    "schedules.resume",
    update(job_schedule).where(_named).values(paused_at_ms=null(), next_at_ms=_next),
)
triggered = Statement(
    "schedules.triggered",
    update(job_schedule)
    .where(_named)
    .values(
        last_at_ms=now_ms(),
        last_job_id=bindparam("job_id_", type_=job_schedule.c.last_job_id.type),
    ),
)
due = ClaimEach(
    "schedules.due",
    job_schedule,
    key=job_schedule.c.name,
    due=and_(
        job_schedule.c.paused_at_ms.is_(None),
        job_schedule.c.next_at_ms <= now_ms(),
        beyond(
            (job_schedule.c.next_at_ms, job_schedule.c.name),
            (
                bindparam("after_ms_", type_=BigInteger()),
                bindparam("after_name_", type_=job_schedule.c.name.type),
            ),
        ),
    ),
    order_by=(job_schedule.c.next_at_ms, job_schedule.c.name),
    # Nothing is changed yet: what is wanted is the lock. Where it moves to is known only then.
    set_={"next_at_ms": job_schedule.c.next_at_ms},
    returning=(
        job_schedule.c.name,
        *_content_columns,
        job_schedule.c.next_at_ms,
        now_ms().label("looked_at_ms"),
    ),
    index="idx_job_schedule__due",
)
ran = UpdateEach(
    "schedules.ran",
    key=job_schedule.c.name,
    incoming=(job_schedule.c.name, job_schedule.c.next_at_ms, job_schedule.c.last_job_id),
    build=lambda row: (
        update(job_schedule)
        .where(job_schedule.c.name == row.name)
        .values(next_at_ms=row.next_at_ms, last_at_ms=now_ms(), last_job_id=row.last_job_id)
    ),
)
passed = UpdateEach(
    "schedules.passed",
    key=job_schedule.c.name,
    incoming=(job_schedule.c.name, job_schedule.c.next_at_ms),
    build=lambda row: (
        update(job_schedule)
        .where(job_schedule.c.name == row.name)
        .values(next_at_ms=row.next_at_ms)
    ),
)


def content_of(row: Row) -> Content:
    """The content of a row of `_columns`."""
    type_, payload, org_id, *rest = row[1:WIDTH]
    rest[-1] = None if rest[-1] is None else canonical(rest[-1])
    return Content(type_, canonical(payload), str(org_id), *rest)


def schedule_of(row: Row) -> Schedule:
    """The schedule of a row of `_columns`."""
    content = content_of(row)
    next_ms, last_ms, job_id, paused_ms, created_ms = row[WIDTH:]
    created_at = _moment(created_ms)
    assert created_at is not None
    return Schedule(
        name=row[0],
        type=content.type,
        payload=msgspec.json.decode(content.payload),
        org_id=content.org_id,
        queue=content.queue,
        cron=content.cron,
        time_zone=content.time_zone,
        misfire=Misfire(content.misfire),
        priority=content.priority,
        next_at=_moment(next_ms) if paused_ms is None else None,
        last_at=_moment(last_ms),
        last_job_id=None if job_id is None else str(job_id),
        paused_at=_moment(paused_ms),
        created_at=created_at,
    )


listing = Keyset(
    "schedules.list", select(*_columns), order=(job_schedule.c.name,), make=schedule_of
)


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
