"""The tables of messaging.

Three tables are shared with Symfony Messenger and keep its columns; their names are settings. The
other tables belong to Ledgerstone: the position of each partition, the keys of messages, pauses,
crash counts, and the record of events.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    literal_column,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import conv
from sqlalchemy.types import TypeEngine

from ledgerstone.messaging.message import KEY_CHARS_MAX, NAME_CHARS_MAX, PARTITION_CHARS_MAX
from ledgerstone.messaging.states import LaneState
from ledgerstone.messaging.symfony.time_zone import ZONE
from ledgerstone.settings import MessagingSettings
from ledgerstone.store.schema.columns import (
    MYSQL_TABLE,
    binary_id_type,
    id_type,
    metadata,
    partial_index,
    second_type,
    serial_type,
    shared_metadata,
    text_type,
)

QUEUE_CHARS_MAX = 190
CONSUMER_CHARS_MAX = 190
WORKER_CHARS_MAX = 100
CODE_CHARS_MAX = 64
REASON_CHARS_MAX = 2048
WHO_CHARS_MAX = 255
OWN_FAILED_QUEUE = "ledgerstone_failed"
"""The queue of failed messages. Symfony Messenger must not read it: it deletes unreadable rows."""
SYMFONY_FAILED_QUEUE = "failed"
"""The queue that the failure transport of Symfony usually uses."""
SYMFONY_DELETED = "9999-12-31 23:59:59"
"""The value that Symfony writes into `delivered_at` on MySQL to delete the row at its next read."""
NAME_OF_INDEX_CHARS_MAX = 63
"""The limit of PostgreSQL; the limit of MySQL is one higher."""
DIGEST_CHARS = 8

_SYMFONY: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_unicode_ci",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_unicode_ci",
}

_DOCUMENTED = {"messenger_outbox", "messenger_messages", "message_broker_deduplication"}

tables = metadata()

lane = Table(
    "outbox_lane",
    tables,
    # Derived from queue and partition, so that a publisher knows the id without a query.
    Column("id", id_type(), primary_key=True),
    Column("queue_name", String(QUEUE_CHARS_MAX), nullable=False),
    Column("partition_key", String(PARTITION_CHARS_MAX), nullable=False),
    Column("state", String(8), nullable=False),
    # The highest committed place. A transaction that commits later moves its rows above it.
    Column("last_id", BigInteger, nullable=False),
    Column("due_at_ms", BigInteger),
    Column("token", BigInteger, nullable=False),
    Column("lease_until_ms", BigInteger),
    Column("worker", String(WORKER_CHARS_MAX)),
    Column("attempts", Integer, nullable=False),
    Column("crashes", Integer, nullable=False),
    Column("code", String(CODE_CHARS_MAX)),
    Column("reason", String(REASON_CHARS_MAX)),
    Column("changed_at_ms", BigInteger, nullable=False),
    UniqueConstraint("queue_name", "partition_key"),
    CheckConstraint(
        "state IN ({})".format(", ".join(f"'{state.value}'" for state in LaneState)),
        name=conv("ck_outbox_lane__state"),
    ),
    **MYSQL_TABLE,
)
lane_due_indexes = partial_index(
    "idx_outbox_lane__due",
    lane.c.queue_name,
    lane.c.due_at_ms,
    lane.c.id,
    where=(lane.c.state == LaneState.OPEN.value)
    & lane.c.lease_until_ms.is_(None)
    & lane.c.due_at_ms.is_not(None),
    leading=(lane.c.state, lane.c.lease_until_ms),
)
lane_held_indexes = partial_index(
    "idx_outbox_lane__held",
    lane.c.queue_name,
    lane.c.lease_until_ms,
    where=lane.c.lease_until_ms.is_not(None),
    leading=(),
)

lane_idle_indexes = partial_index(
    "idx_outbox_lane__idle",
    lane.c.changed_at_ms,
    where=lane.c.due_at_ms.is_(None),
    leading=(lane.c.due_at_ms,),
)

STANDING = lane.c.state != literal_column(f"'{LaneState.OPEN.value}'")
"""Written as a literal, so that the planner uses the partial index of lanes that are not open."""
lane_standing_indexes = partial_index(
    "idx_outbox_lane__standing",
    lane.c.queue_name,
    lane.c.state,
    lane.c.partition_key,
    where=STANDING,
    leading=(),
)

lane_code_indexes = partial_index(
    "idx_outbox_lane__code",
    lane.c.queue_name,
    lane.c.state,
    lane.c.code,
    lane.c.partition_key,
    where=STANDING,
    leading=(),
)

pause = Table(
    "outbox_pause",
    tables,
    Column("queue_name", String(QUEUE_CHARS_MAX), primary_key=True),
    Column("paused_at_ms", BigInteger, nullable=False),
    Column("who", String(WHO_CHARS_MAX)),
    **MYSQL_TABLE,
)

key = Table(
    "outbox_key",
    tables,
    Column("key", String(KEY_CHARS_MAX), primary_key=True),
    Column("message_id", id_type(), nullable=False),
    Column("content_hash", String(64), nullable=False),
    Column("used_at_ms", BigInteger, nullable=False),
    Index("idx_outbox_key__used_at", "used_at_ms"),
    **MYSQL_TABLE,
)

event = Table(
    "message_event",
    tables,
    Column("id", serial_type(), primary_key=True, autoincrement=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("message_id", id_type()),
    Column("what", String(32), nullable=False),
    Column("queue_name", String(QUEUE_CHARS_MAX), nullable=False),
    Column("partition_key", String(PARTITION_CHARS_MAX), nullable=False),
    Column("who", String(WHO_CHARS_MAX)),
    Column("code", String(CODE_CHARS_MAX)),
    Column("reason", String(REASON_CHARS_MAX)),
    Index("idx_message_event__message", "message_id"),
    Index("idx_message_event__at", "at_ms"),
    **MYSQL_TABLE,
)


delivery_crash = Table(
    "delivery_crash",
    tables,
    Column("message_id", id_type(), primary_key=True),
    Column("consumer", String(CONSUMER_CHARS_MAX), primary_key=True),
    # How many times a consumer began to handle it after a redelivery and did not report the end.
    Column("begun", Integer, nullable=False),
    Column("begun_at_ms", BigInteger, nullable=False),
    Index("idx_delivery_crash__begun_at", "begun_at_ms"),
    **MYSQL_TABLE,
)


class Shared(msgspec.Struct, frozen=True):
    """The tables whose names are settings."""

    outbox: Table
    failed: Table
    receipt: Table


def shared(settings: MessagingSettings) -> Shared:
    """The shared tables under the names of the settings."""
    competing = any(each.mode == "competing" for each in settings.destinations.values())
    names = (settings.outbox_table, settings.failed_table, settings.deduplication_table)
    return _shared(*names, competing=competing, zone=settings.time_zone)


@cache
def _shared(outbox: str, failed: str, receipt: str, *, competing: bool, zone: str) -> Shared:
    collection = shared_metadata()
    return Shared(
        _outbox(outbox, collection, competing=competing, zone=zone),
        _failed(failed, collection, zone=zone),
        _receipt(receipt),
    )


def _outbox(name: str, collection: MetaData, *, competing: bool, zone: str) -> Table:
    table = Table(
        name,
        collection,
        _counted(),
        *_messenger_columns(),
        Column("partition_key", partition_type(), nullable=False, server_default=text("''")),
        # An id is never used again, even after its row is deleted.
        sqlite_autoincrement=True,
        info={ZONE: zone},
        **_SYMFONY,
    )
    columns = table.c
    Index(
        _named(table, "idx_outbox_available"),
        columns.queue_name,
        columns.available_at,
        columns.delivered_at,
        columns.id,
    )
    Index(
        _named(table, "idx_outbox_partition_order"),
        columns.queue_name,
        columns.partition_key,
        columns.available_at,
        columns.delivered_at,
        columns.id,
    )
    # Added by Ledgerstone: the undelivered rows in the order in which relays send them. Without
    # this index a relay would scan all delivered rows that are kept.
    partial_index(
        _named(table, "idx_outbox_waiting"),
        columns.queue_name,
        columns.partition_key,
        columns.id,
        where=columns.delivered_at.is_(None),
        leading=(columns.delivered_at,),
    )
    if competing:
        # Added by Ledgerstone: the rows that may be sent now, in any order.
        partial_index(
            _named(table, "idx_outbox_ready"),
            columns.queue_name,
            columns.available_at,
            columns.id,
            where=columns.delivered_at.is_(None),
            leading=(columns.delivered_at,),
        )
    return table


def available_index(outbox: Table) -> str:
    """The name of the index by destination and available_at."""
    return _named(outbox, "idx_outbox_available")


def ready_index(outbox: Table) -> str:
    """The name of the index of undelivered rows, ordered by available_at."""
    return _named(outbox, "idx_outbox_ready")


def _failed(name: str, collection: MetaData, *, zone: str) -> Table:
    table = Table(
        name,
        collection,
        _counted(),
        *_messenger_columns(),
        sqlite_autoincrement=True,
        info={ZONE: zone},
        **_SYMFONY,
    )
    for column in ("queue_name", "available_at", "delivered_at"):
        Index(_named(table, f"idx_{column}"), table.c[column])
    # Added by Ledgerstone: the failed messages of a queue by time. Symfony keeps others here.
    columns = table.c
    Index(failed_index(table), columns.queue_name, columns.created_at, columns.id)
    return table


def failed_index(failed: Table) -> str:
    """The name of the index of failed messages by queue and time of failure."""
    return _named(failed, "idx_failed_at")


def _receipt(name: str) -> Table:
    table = Table(
        name,
        shared_metadata(),
        Column("message_id", binary_id_type(), primary_key=True),
        Column("consumer", String(CONSUMER_CHARS_MAX), primary_key=True, server_default=text("''")),
        Column("message_name", String(NAME_CHARS_MAX), nullable=False),
        Column("processed_at", second_type(), nullable=False),
        **_SYMFONY,
    )
    Index(_named(table, "idx_dedup_processed_at"), table.c.processed_at)
    return table


def _named(table: Table, index: str) -> str:
    """The documented name of the index; a table with another name gets an index name of its own."""
    if table.name in _DOCUMENTED:
        return index
    ending = index.removeprefix("idx_")
    whole = f"idx_{table.name}_{ending}"
    if len(whole) <= NAME_OF_INDEX_CHARS_MAX:
        return whole
    # Index names share a namespace in PostgreSQL: two long names with one prefix need two names.
    digest = hashlib.sha256(table.name.encode()).hexdigest()[:DIGEST_CHARS]
    begins = NAME_OF_INDEX_CHARS_MAX - len(f"idx__{digest}_{ending}")
    return f"idx_{table.name[:begins]}_{digest}_{ending}"


def partition_type() -> TypeEngine[str]:
    """Partitions are compared with case, also in a table with a case-insensitive collation."""
    exact = mysql.VARCHAR(PARTITION_CHARS_MAX, charset="utf8mb4", collation="utf8mb4_bin")
    return String(PARTITION_CHARS_MAX).with_variant(exact, "mysql", "mariadb")


def _counted() -> Column[int]:
    unsigned = serial_type().with_variant(mysql.BIGINT(unsigned=True), "mysql", "mariadb")
    return Column("id", unsigned, primary_key=True, autoincrement=True)


def _messenger_columns() -> list[Column[Any]]:
    return [
        Column("body", text_type(), nullable=False),
        Column("headers", text_type(), nullable=False),
        Column("queue_name", String(QUEUE_CHARS_MAX), nullable=False),
        Column("created_at", second_type(), nullable=False),
        Column("available_at", second_type(), nullable=False),
        Column("delivered_at", second_type()),
    ]
