"""Checks of the existing tables before a migration creates anything.

A migration does not create a table that exists, so a table of another program with one of our names
would be used as ours. Each table that a pending revision creates is therefore inspected first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import inspect, text

from ledgerstone.errors import NotAllowedNow, SchemaMissing

if TYPE_CHECKING:
    from sqlalchemy import Connection


class CreatedTable(msgspec.Struct, frozen=True):
    """The revision that creates a table, and the columns that the table then has."""

    revision: str
    columns: str


CREATED = {
    "ledger_identity": CreatedTable("0001", "id created_at_ms"),
    "schema_version": CreatedTable("0001", "version applied_at"),
    "leases": CreatedTable("0001", "lease owner expires_at_ms token"),
    "worker": CreatedTable("0001", "id host pid started_at_ms seen_at_ms state report"),
    "history_permit": CreatedTable("0002", "id"),
    "job": CreatedTable(
        "0002",
        "id org_id type status attempt max_attempts backoff_policy priority idempotency_key"
        " requested_by created_at updated_at started_at finished_at last_error_code"
        " last_error_message queue payload result run_at_ms urgency gate limit_key limit_max token"
        " lease_until_ms worker crashes stage progress cancel_requested correlation_id"
        " trace_context",
    ),
    "job_event": CreatedTable("0002", "id job_id ts prev_status next_status detail_json"),
    "job_key": CreatedTable("0002", "org_id idempotency_key job_id content_hash used_at_ms"),
    "job_queue": CreatedTable("0002", "name paused_at_ms paused_by concurrency_max"),
    "job_step": CreatedTable("0002", "job_id name attempt finished_at_ms result"),
    "job_schedule": CreatedTable(
        "0003",
        "name type payload org_id queue cron time_zone misfire priority next_at_ms last_at_ms"
        " last_job_id paused_at_ms created_at_ms",
    ),
    "message_event": CreatedTable(
        "0004", "id at_ms message_id what queue_name partition_key who code reason"
    ),
    "outbox_key": CreatedTable("0004", "key message_id content_hash used_at_ms"),
    "outbox_lane": CreatedTable(
        "0004",
        "id queue_name partition_key state last_id due_at_ms token lease_until_ms worker attempts"
        " crashes code reason changed_at_ms",
    ),
    "outbox_pause": CreatedTable("0004", "queue_name paused_at_ms who"),
    "delivery_crash": CreatedTable("0013", "message_id consumer begun begun_at_ms"),
}
"""Frozen with the revisions; a test compares the two."""
HINT = "rename it, or name a place for Ledgerstone's tables in store.schema"
TYPES = {"job_status": "0002", "job_backoff_policy": "0002"}
"""Enum types of PostgreSQL and the revisions that create them."""


def check(
    connection: Connection, schema: str | None, *, applied: Sequence[str], pending: Sequence[str]
) -> None:
    """Check the tables in `schema` before the `pending` revisions run.

    - NotAllowedNow for an existing table that a pending revision creates with other columns.
    - SchemaMissing for a missing table of an `applied` revision.
    - An enum type of a pending revision is dropped, or NotAllowedNow if a table uses it.
    """
    check_not_dropped(connection, schema, applied)
    found = inspect(connection)
    there = set(found.get_table_names(schema=schema))
    for table in sorted(there & CREATED.keys()):
        created = CREATED[table]
        if created.revision in pending:
            check_table(table, created.columns, found.get_columns(table, schema=schema))
    _drop_types(connection, schema, found, pending)


def check_not_dropped(connection: Connection, schema: str | None, applied: Sequence[str]) -> None:
    """SchemaMissing if a table that one of these revisions has created does not exist."""
    made = {table for table, created in CREATED.items() if created.revision in applied}
    gone = sorted(made.difference(inspect(connection).get_table_names(schema=schema)))
    if gone:
        raise dropped(applied[-1], gone)


def dropped(revision: str, tables: Sequence[str]) -> SchemaMissing:
    """These tables do not exist, although the database has the revision."""
    message = f"the database is at revision {revision} and has no {', '.join(tables)}"
    return SchemaMissing(message, hint="something dropped them: restore them from a backup")


def check_table(table: str, names: str, columns: Sequence[Any], *, hint: str = HINT) -> None:
    """NotAllowedNow unless the table has the columns `names` and requires no other value.

    Such a table is left from an interrupted run, or is adopted.
    """
    ours = set(names.split())
    lacking = sorted(ours - {column["name"] for column in columns})
    needed = sorted(
        column["name"]
        for column in columns
        if column["name"] not in ours
        and not column["nullable"]
        and column.get("default") is None
        and not column.get("computed")
    )
    if not lacking and not needed:
        return
    of = f"it has no column {lacking[0]}" if lacking else f"it has a column {needed[0]}"
    message = f"the table {table} is there already and is not Ledgerstone's: {of}"
    raise NotAllowedNow(message, hint=hint)


def _drop_types(
    connection: Connection, schema: str | None, found: Any, pending: Sequence[str]
) -> None:
    # Only on PostgreSQL an enum type outlives its tables.
    enums = getattr(found, "get_enums", None)
    if enums is None:
        return
    for name in [
        enum["name"] for enum in enums(schema=schema) if TYPES.get(enum["name"]) in pending
    ]:
        query = "SELECT attrelid::regclass FROM pg_attribute WHERE atttypid = to_regtype(:name)"
        place = f'"{schema}".{name}'
        used = connection.execute(text(query), {"name": place}).scalars().all()
        if used:
            message = f"the type {name} is there already and is used by {used[0]}"
            raise NotAllowedNow(message, hint=HINT)
        connection.execute(text(f"DROP TYPE {place}"))
