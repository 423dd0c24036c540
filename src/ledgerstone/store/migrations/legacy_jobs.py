"""The table `jobs` of before the job ledger: its rows become jobs, the table becomes `jobs_legacy`.

    jobs                     job
    pending, queued      ──▶ queued
    processing, running  ──▶ running, its lease run out: whoever serves the queue rescues it
    completed, succeeded ──▶ succeeded
    canceled, cancelled  ──▶ canceled
    failed, anything else ─▶ dead_letter, with the reason

Every row is a job of type `legacy` in the queue `legacy`, of the organisation of those who have
only one, with one event that says where it came from. Other columns stay empty.
Its progress was in percent where its column holds whole numbers or more than 1; ours is 0 to 1, and
what lay beyond is 0 or 1. Retention counts from the day of the migration, whenever a row ended.

The database copies, row by row and in one statement, so memory does not grow with the table. The
copy leaves out what is there already: where DDL commits by itself, an interrupted run is taken up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from ledgerstone.errors import NotAllowedNow
from ledgerstone.store.migrations import steps

OLD, KEPT = "jobs", "jobs_legacy"
COLUMNS = frozenset(
    {"id", "status", "stage", "progress", "result", "error", "created_at", "updated_at"}
)
NAME = "legacy"
"""The type and the queue of what is taken over, and the code of its errors."""
UNKNOWN = "legacy_status"
ORG = "00000000-0000-0000-0000-000000000000"
STAGE_CHARS_MAX, MESSAGE_CHARS_MAX = 100, 2048
STATUSES = {
    "queued": ("pending", "queued"),
    "running": ("processing", "running"),
    "succeeded": ("completed", "succeeded"),
    "canceled": ("canceled", "cancelled"),
    "dead_letter": ("failed", "dead_letter"),
}


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)


KNOWN = _listed(word for words in STATUSES.values() for word in words)
FAILED = _listed(STATUSES["dead_letter"])
SOME_ID = "-".join("_" * chars for chars in (8, 4, 4, 4, 12))
OFFLINE = f"""\
-- A table {OLD} of before the job ledger is taken over only by `ledgerstone migrate` itself:
-- this script leaves it as it is."""


class SqlWords(msgspec.Struct, frozen=True, kw_only=True):
    """How a database says what the copy needs; {} is where an expression goes."""

    id: str
    now: str
    ms: str
    text: str
    joined: str
    between: str
    status: str
    document: str
    facts: str
    fact: str


POSTGRESQL = SqlWords(
    id="jobs.id",
    now="statement_timestamp()",
    ms="CAST(FLOOR(EXTRACT(EPOCH FROM {}) * 1000) AS BIGINT)",
    text="CAST({} AS TEXT)",
    joined="({})",
    between=" || ",
    status="CAST({} AS job_status)",
    document="CAST(jobs.result AS JSONB)",
    facts="jsonb_strip_nulls(jsonb_build_object({}))",
    fact="{}",
)
SQLITE = SqlWords(
    # Without the cast a column of another affinity would be compared without the index.
    id="CAST(jobs.id AS TEXT)",
    now="strftime('%Y-%m-%d %H:%M:%f', 'now')",
    ms="CAST(ROUND((julianday({}) - 2440587.5) * 86400000.0) AS INTEGER)",
    text="CAST({} AS TEXT)",
    joined="({})",
    between=" || ",
    status="{}",
    document="CASE WHEN json_valid(CAST(jobs.result AS TEXT)) THEN CAST(jobs.result AS TEXT) "
    "WHEN jobs.result IS NOT NULL THEN json_quote(CAST(jobs.result AS TEXT)) END",
    # A patch leaves out what is NULL.
    facts="json_patch('{{}}', json_object({}))",
    fact="json({})",
)
MYSQL = SqlWords(
    id="CONVERT(CAST(jobs.id AS CHAR) USING ascii)",
    now="UTC_TIMESTAMP(6)",
    ms="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {}) DIV 1000",
    text="CAST({} AS CHAR)",
    joined="CONCAT({})",
    between=", ",
    status="{}",
    document="IF(JSON_VALID(jobs.result), jobs.result, JSON_QUOTE(jobs.result))",
    facts="JSON_MERGE_PATCH('{{}}', JSON_OBJECT({}))",
    # Otherwise MariaDB takes what a CASE answers for a text.
    fact="JSON_EXTRACT({}, '$')",
)
Types = Mapping[str, Any]


def take_over() -> None:
    """Rename the old table and make jobs of its rows; a table of another shape is left alone."""
    migration = op.get_context()
    if migration.as_sql:
        migration.impl.static_output(OFFLINE)
        return
    connection = op.get_bind()
    found = sa.inspect(connection)
    users = _users_place()
    tables = found.get_table_names(schema=users)
    name = OLD
    if OLD not in tables and steps.is_mysql():
        # DDL commits by itself there: a run that was interrupted may have come to the renaming.
        name = KEPT
    if name not in tables:
        return
    types = {column["name"]: column["type"] for column in found.get_columns(name, schema=users)}
    if not _is_of_that_shape(types) or _has_other_ids(connection, name):
        return
    if name == OLD:
        if KEPT in tables:
            message = f"the table {OLD} would be renamed {KEPT}, and there is a table of that name"
            raise NotAllowedNow(message, hint=f"rename {KEPT}, then migrate again")
        # First of all: whoever still writes to it is waited for, and then finds it gone.
        op.rename_table(OLD, KEPT, schema=users)
    words = _words()
    op.execute(_copy(words, types))
    op.execute(_tell(words))


def _users_place() -> str | None:
    """Where the tables of the user lie, if that is not where ours are made."""
    place: str | None = op.get_context().opts.get(steps.USERS_PLACE)
    return place


def _spelled(table: str) -> str:
    """A table of the user, as it is written."""
    place = _users_place()
    quote = op.get_context().dialect.identifier_preparer.quote_schema
    return table if place is None else f"{quote(place)}.{table}"


def _words() -> SqlWords:
    if steps.is_mysql():
        return MYSQL
    return POSTGRESQL if steps.dialect() == "postgresql" else SQLITE


def _is_of_that_shape(types: Types) -> bool:
    """Whether these are its columns, and hold what can be copied."""
    if set(types) != COLUMNS or isinstance(types["id"], sa.Integer):
        return False
    if steps.dialect() == "sqlite":
        # The type of a column is only a word there.
        return True
    native = {
        "id": (sa.Uuid,),
        "progress": (sa.Integer, sa.Numeric, sa.Float),
        "result": (sa.JSON,),
        "created_at": (sa.DateTime,),
        "updated_at": (sa.DateTime,),
    }
    # MariaDB's JSON is a text that is checked, and ids are texts on most of its tables.
    spelled = (sa.String,) if steps.is_mysql() else ()
    return all(
        isinstance(types[name], kinds + (spelled if name in {"id", "result"} else ()))
        for name, kinds in native.items()
    )


def _has_other_ids(connection: sa.Connection, name: str) -> bool:
    """Whether an id is not spelled like a UUID."""
    words = _words()
    spelled = words.text.format(words.id)
    query = f"SELECT 1 FROM {_spelled(name)} AS jobs WHERE {spelled} NOT LIKE '{SOME_ID}' LIMIT 1"  # noqa: S608 - names of ours
    return connection.execute(sa.text(query)).first() is not None


def _copy(words: SqlWords, types: Types) -> str:
    status = _status(words)
    created, updated = (_moment(words, name, types[name]) for name in ("created_at", "updated_at"))
    created = f"COALESCE({created}, {updated}, {words.now})"
    updated = f"COALESCE({updated}, {created})"
    columns = {
        "id": words.id,
        "org_id": f"'{ORG}'",
        "type": f"'{NAME}'",
        "queue": f"'{NAME}'",
        "status": words.status.format(status),
        "attempt": f"CASE WHEN {status} IN ('queued', 'canceled') THEN 0 ELSE 1 END",
        "token": f"CASE WHEN {status} = 'running' THEN 1 ELSE 0 END",
        "lease_until_ms": f"CASE WHEN {status} = 'running' THEN 0 END",
        "created_at": created,
        "updated_at": updated,
        "finished_at": f"CASE WHEN {status} NOT IN ('queued', 'running') THEN {updated} END",
        "run_at_ms": words.ms.format(created),
        "stage": f"SUBSTR(jobs.stage, 1, {STAGE_CHARS_MAX})",
        "progress": _progress(types["progress"]),
        "payload": "'{}'",
        "result": words.document,
        "last_error_code": _error_code(words),
        "last_error_message": f"SUBSTR({_error_message(words)}, 1, {MESSAGE_CHARS_MAX})",
    }
    return (
        f"INSERT INTO job ({', '.join(columns)}) SELECT {', '.join(columns.values())} "  # noqa: S608 - names of ours
        f"FROM {_spelled(KEPT)} AS jobs "
        f"WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = {words.id})"
    )


def _tell(words: SqlWords) -> str:
    """One event for each: where it came from, and what it holds."""
    error = {
        "code": "job.last_error_code",
        "message": "job.last_error_message",
        # The message may have been cut.
        "traceback": words.text.format("jobs.error"),
    }
    known = f"CASE WHEN job.last_error_code IS NOT NULL THEN {_facts(words, error)} END"
    facts = {
        "reason": f"'taken over from the table {OLD}'",
        "legacy_status": words.text.format("jobs.status"),
        "attempt": "job.attempt",
        "stage": "job.stage",
        "progress": "job.progress",
        "error": words.fact.format(known),
    }
    return (
        "INSERT INTO job_event (job_id, ts, next_status, detail_json) "  # noqa: S608 - names of ours
        f"SELECT job.id, {words.now}, {words.text.format('job.status')}, {_facts(words, facts)} "
        f"FROM {_spelled(KEPT)} AS jobs JOIN job ON job.id = {words.id} "
        "WHERE NOT EXISTS (SELECT 1 FROM job_event WHERE job_event.job_id = job.id)"
    )


def _facts(words: SqlWords, facts: Mapping[str, str]) -> str:
    return words.facts.format(", ".join(f"'{name}', {value}" for name, value in facts.items()))


def _said(words: SqlWords) -> str:
    """The status in the old table, in lower case."""
    return f"LOWER(COALESCE({words.text.format('jobs.status')}, ''))"


def _status(words: SqlWords) -> str:
    said = _said(words)
    whens = [f"WHEN {said} IN ({_listed(some)}) THEN '{at}'" for at, some in STATUSES.items()]
    return f"CASE {' '.join(whens)} ELSE 'dead_letter' END"


def _error_code(words: SqlWords) -> str:
    return (
        f"CASE WHEN {_said(words)} NOT IN ({KNOWN}) THEN '{UNKNOWN}' "
        f"WHEN {_said(words)} IN ({FAILED}) OR {_error(words)} IS NOT NULL THEN '{NAME}' END"
    )


def _error_message(words: SqlWords) -> str:
    status = f"COALESCE({words.text.format('jobs.status')}, 'NULL')"
    rest = words.joined.format(words.between.join(("': '", _error(words))))
    parts = (f"'the table {OLD} had it as '", status, f"COALESCE({rest}, '')")
    unknown = words.joined.format(words.between.join(parts))
    return (
        f"CASE WHEN {_said(words)} NOT IN ({KNOWN}) THEN {unknown} "
        f"WHEN {_said(words)} IN ({FAILED}) "
        f"THEN COALESCE({_error(words)}, 'it failed, and no reason was kept') "
        f"ELSE {_error(words)} END"
    )


def _error(words: SqlWords) -> str:
    return f"NULLIF({words.text.format('jobs.error')}, '')"


def _progress(kind: Any) -> str:
    told = "jobs.progress"
    percent = f"{told} / 100.0"
    if not isinstance(kind, sa.Integer):
        percent = f"CASE WHEN {told} > 1 THEN {percent} ELSE {told} END"
    return f"CASE WHEN {told} < 0 THEN 0 WHEN {told} > 100 THEN 1 ELSE {percent} END"


def _moment(words: SqlWords, name: str, kind: Any) -> str:
    """A moment in UTC; one that names no zone is taken to be in UTC."""
    column = f"jobs.{name}"
    if words is POSTGRESQL:
        return column if kind.timezone else f"({column} AT TIME ZONE 'UTC')"
    if words is MYSQL:
        # It is answered in the session's zone.
        shifted = f"CONVERT_TZ({column}, @@session.time_zone, '+00:00')"
        return shifted if isinstance(kind, mysql.TIMESTAMP) else column
    spelled = f"strftime('%Y-%m-%d %H:%M:%f', {column})"
    counted = f"strftime('%Y-%m-%d %H:%M:%f', {column}, 'auto')"
    plain = f"{column} GLOB '????-??-?? ??:??:??*' AND {column} NOT GLOB '*[Zz+]*'"
    plain += f" AND SUBSTR({column}, 20) NOT LIKE '%-%'"
    return (
        f"CASE WHEN {plain} THEN {column} "
        f"WHEN typeof({column}) IN ('integer', 'real') THEN {counted} ELSE {spelled} END"
    )
