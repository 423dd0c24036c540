"""The tables of all protocols; each protocol has those of its `schema.sql` besides.

    incoming ──project──▶ events + the protocol's tables
        ▲  │
        │  └─waits for a key──▶ blocked ◀── recheck_queue: keys that have come
        └──fails too often: parked here, with the reason

The documented tables keep their names and columns. What is added is nullable or has a default, so
that a program that knows only the documented columns can go on inserting.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects import mysql

from ledgerstone.items.sequence import log_table, progress_table
from ledgerstone.protocols.states import ItemState
from ledgerstone.store.schema.columns import (
    MYSQL_TABLE,
    metadata,
    names_in,
    partial_index,
    serial_type,
    text_type,
)

NAME_CHARS_MAX = 60
KEY_CHARS_MAX = 190
PARTITION_CHARS_MAX = 2 * NAME_CHARS_MAX + KEY_CHARS_MAX + 2
WORKER_CHARS_MAX = 100

tables = metadata()


def _bytes() -> LargeBinary:
    return LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def _number() -> Column[int]:
    return Column("id", serial_type(), primary_key=True, autoincrement=True)


def _name(name: str = "protocol") -> Column[str]:
    return Column(name, String(NAME_CHARS_MAX), nullable=False, server_default="")


def _identity(*, default: str | None = "") -> Column[str]:
    return Column("received_by", String(KEY_CHARS_MAX), nullable=False, server_default=default)


def _event_id(*, nullable: bool = True) -> Column[str]:
    return Column("event_id", String(KEY_CHARS_MAX), nullable=nullable)


def _leased() -> list[Column[Any]]:
    return [
        Column("attempts", Integer, nullable=False, server_default="0"),
        Column("token", BigInteger, nullable=False, server_default="0"),
        Column("lease_until_ms", BigInteger),
        Column("worker", String(WORKER_CHARS_MAX)),
        Column("crashes", Integer, nullable=False, server_default="0"),
        Column("last_error", text_type()),
    ]


def _status() -> Column[str]:
    return Column("status", String(16), nullable=False, server_default=ItemState.QUEUED.value)


def _created() -> Column[int]:
    return Column("created_at_ms", BigInteger, nullable=False)


_SERIAL: dict[str, Any] = {"sqlite_autoincrement": True, **MYSQL_TABLE}

events = Table(
    "events",
    tables,
    _number(),
    Column("event_type", String(NAME_CHARS_MAX), nullable=False),
    _created(),
    Column("payload", _bytes(), nullable=False),
    _name(),
    _identity(),
    _event_id(),
    UniqueConstraint("event_id", "received_by", "protocol", name="uq_events__identity"),
    **_SERIAL,
)
"""The identity comes first in its index: it tells more than the other two."""

incoming = Table(
    "incoming",
    tables,
    _number(),
    Column("blob", _bytes(), nullable=False),
    _created(),
    _name(),
    _identity(),
    Column("enveloped", SmallInteger, nullable=False, server_default="0"),
    _status(),
    Column("available_at_ms", BigInteger, nullable=False, server_default="0"),
    *_leased(),
    Index("idx_incoming__created", "created_at_ms"),
    **_SERIAL,
)
outgoing = Table(
    "outgoing",
    tables,
    _number(),
    Column("blob", _bytes(), nullable=False),
    _created(),
    _name(),
    Column("address", String(KEY_CHARS_MAX), nullable=False, server_default=""),
    _status(),
    Column("available_at_ms", BigInteger, nullable=False, server_default="0"),
    *_leased(),
    **_SERIAL,
)
for _queue in (incoming, outgoing):
    for _index in (
        *partial_index(
            f"idx_{_queue.name}__due",
            _queue.c.available_at_ms,
            _queue.c.id,
            where=text("status = 'queued'"),  # type: ignore[arg-type]
            leading=(_queue.c.status,),
        ),
        *partial_index(
            f"idx_{_queue.name}__held",
            _queue.c.lease_until_ms,
            where=text("status = 'processing'"),  # type: ignore[arg-type]
            leading=(_queue.c.status,),
        ),
    ):
        _queue.append_constraint(_index)

deferred = Table(
    "deferred",
    tables,
    _number(),
    Column("payload", _bytes(), nullable=False),
    Column("idempotency_key", String(KEY_CHARS_MAX)),
    Column("partition_key", String(KEY_CHARS_MAX)),
    Column("available_at_ms", BigInteger, nullable=False),
    _name(),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("last_error", text_type()),
    Index("idx_deferred__partition", "protocol", "partition_key", "id"),
    Index("idx_deferred__key", "idempotency_key"),
    **_SERIAL,
)
deferred_lane = Table(
    "deferred_lane",
    tables,
    Column("protocol", String(NAME_CHARS_MAX), primary_key=True),
    Column("partition_key", String(KEY_CHARS_MAX), primary_key=True),
    Column("due_ms", BigInteger),
    Column("generation", BigInteger, nullable=False, server_default="0"),
    *_leased(),
    Index("idx_deferred_lane__due", "due_ms"),
    Index("idx_deferred_lane__held", "lease_until_ms"),
    **MYSQL_TABLE,
)

blocked = Table(
    "blocked",
    tables,
    _number(),
    Column("reason_type", String(NAME_CHARS_MAX), nullable=False),
    Column("reason_key", String(KEY_CHARS_MAX), nullable=False),
    Column("envelope", _bytes(), nullable=False),
    _created(),
    _event_id(nullable=False),
    _name(),
    _identity(),
    Column("event_type", String(NAME_CHARS_MAX), nullable=False, server_default=""),
    Column("also", text_type()),
    Column("rechecks", Integer, nullable=False, server_default="0"),
    UniqueConstraint("event_id", "received_by", "protocol", name="uq_blocked__identity"),
    Index("idx_blocked__reason", "protocol", "reason_type", "reason_key", "id"),
    **_SERIAL,
)
recheck_queue = Table(
    "recheck_queue",
    tables,
    Column("partition_key", String(PARTITION_CHARS_MAX), primary_key=True),
    Column("reason_type", String(NAME_CHARS_MAX), nullable=False),
    Column("available_at_ms", BigInteger),
    _name(),
    Column("reason_key", String(KEY_CHARS_MAX), nullable=False, server_default=""),
    Column("generation", BigInteger, nullable=False, server_default="0"),
    *_leased(),
    Index("idx_recheck_queue__due", "available_at_ms", "partition_key"),
    Index("idx_recheck_queue__held", "lease_until_ms"),
    **MYSQL_TABLE,
)

protocol_job = Table(
    "protocol_job",
    tables,
    Column("protocol", String(NAME_CHARS_MAX), primary_key=True),
    Column("name", String(NAME_CHARS_MAX), primary_key=True),
    Column("next_at_ms", BigInteger, nullable=False),
    Column("begun_at_ms", BigInteger),
    Column("succeeded_at_ms", BigInteger),
    Column("failed_at_ms", BigInteger),
    Column("runs", BigInteger, nullable=False, server_default="0"),
    Column("failures", BigInteger, nullable=False, server_default="0"),
    Column("last_error", text_type()),
    **MYSQL_TABLE,
)
protocol_value = Table(
    "protocol_value",
    tables,
    Column("protocol", String(NAME_CHARS_MAX), primary_key=True),
    Column("name", String(KEY_CHARS_MAX), primary_key=True),
    Column("value", text_type(), nullable=False),
    **MYSQL_TABLE,
)
protocol_key = Table(
    "protocol_key",
    tables,
    Column("protocol", String(NAME_CHARS_MAX), primary_key=True),
    Column("scope", String(NAME_CHARS_MAX), primary_key=True),
    Column("key", String(KEY_CHARS_MAX), primary_key=True),
    Column("content_hash", String(64), nullable=False),
    Column("answer", text_type(), nullable=False),
    Column("used_at_ms", BigInteger, nullable=False),
    Index("idx_protocol_key__used", "used_at_ms"),
    **MYSQL_TABLE,
)
protocol_schema = Table(
    "protocol_schema",
    tables,
    Column("protocol", String(NAME_CHARS_MAX), primary_key=True),
    Column("table_name", String(NAME_CHARS_MAX), primary_key=True),
    Column("definition", text_type(), nullable=False),
    Column("applied_at_ms", BigInteger, nullable=False),
    **MYSQL_TABLE,
)
event_position = log_table("event_position", tables)
protocol_progress = progress_table("protocol_progress", tables)

retention_tables = metadata()

protocol_retention = Table(
    "protocol_retention",
    retention_tables,
    Column("protocol", String(NAME_CHARS_MAX), primary_key=True),
    Column("due_ms", BigInteger),
    *_leased(),
    Index("idx_protocol_retention__due", "due_ms"),
    **MYSQL_TABLE,
)
protocol_snapshot = Table(
    "protocol_snapshot",
    retention_tables,
    Column("protocol", String(NAME_CHARS_MAX), primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("made_at_ms", BigInteger, nullable=False),
    Column("completed_at_ms", BigInteger),
    Column("removed_at_ms", BigInteger),
    Column("parts", Integer, nullable=False, server_default="0"),
    Column("row_count", BigInteger, nullable=False, server_default="0"),
    Column("parts_hash", String(64), nullable=False, server_default=""),
    **MYSQL_TABLE,
)
protocol_snapshot_part = Table(
    "protocol_snapshot_part",
    retention_tables,
    Column("protocol", String(NAME_CHARS_MAX), primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("table_name", String(NAME_CHARS_MAX), nullable=False),
    Column("body", _bytes(), nullable=False),
    **MYSQL_TABLE,
)
event_pruned = Table(
    "event_pruned",
    retention_tables,
    Column("protocol", String(NAME_CHARS_MAX), primary_key=True),
    Column("snapshot_position", BigInteger, primary_key=True, autoincrement=False),
    Column("after_position", BigInteger, nullable=False),
    Column("to_position", BigInteger, nullable=False),
    Column("events", BigInteger, nullable=False),
    Column("pruned_at_ms", BigInteger, nullable=False),
    **MYSQL_TABLE,
)
"""Which events have lost their content, and the snapshot that has what came of them."""

refusal_tables = metadata()

protocol_refusal = Table(
    "protocol_refusal",
    refusal_tables,
    _number(),
    Column("at_ms", BigInteger, nullable=False),
    Column("queue", String(NAME_CHARS_MAX), nullable=False),
    Column("item", String(KEY_CHARS_MAX), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("status", String(16)),
    Column("worker", String(WORKER_CHARS_MAX)),
    Column("reason", text_type(), nullable=False),
    Index("idx_protocol_refusal__at", "at_ms"),
    **_SERIAL,
)

ADDED = (*names_in(tables), *names_in(retention_tables), *names_in(refusal_tables))
"""All tables of the room."""
ADOPTED = {
    "events": "id event_type created_at_ms payload",
    "incoming": "id blob created_at_ms",
    "deferred": "id payload idempotency_key partition_key available_at_ms",
    "blocked": "id reason_type reason_key envelope created_at_ms event_id",
    "recheck_queue": "partition_key reason_type available_at_ms attempts",
}
"""Documented tables that another program may have made: they get what they lack."""
OURS = frozenset({*ADDED, "leases", "worker", "history_permit"})
"""Tables that no protocol has, and that no handler writes."""
