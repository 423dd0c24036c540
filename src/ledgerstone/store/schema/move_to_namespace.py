"""Moves an older ledger, whose tables lie among those of the user, to its namespace.

Up to the revision `LAST_AMONG_USERS` every table was created in the default schema. The next
revision is applied in the namespace: so a ledger is moved once, with its rows, indexes, rights,
policies and triggers. A ledger that stays among the user's tables (`store.schema` names their
schema) has a later revision and is not moved.

PostgreSQL moves everything in one transaction. MySQL renames all tables in one statement, but a
table with triggers cannot be renamed into another database: its triggers are dropped before and
created again after it. After an interrupted run the next revision creates those of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, inspect, text

from ledgerstone.errors import NotAllowedNow
from ledgerstone.store.rooms import StoredRoom
from ledgerstone.store.schema.columns import VERSION_TABLE
from ledgerstone.store.schema.existing_tables import CREATED, TYPES
from ledgerstone.store.schema.namespace import Namespace

if TYPE_CHECKING:
    from sqlalchemy import Connection

LAST_AMONG_USERS = "0013"
GUARD, GUARDED_SINCE = "history_guard", "0006"
"""Only MySQL needs it."""
FUNCTIONS = ("ledgerstone_keep", "ledgerstone_refuse", "ledgerstone_sees")
_KERNEL_TRIGGERS = (
    "tg_job__moves",
    "tg_job__kept_delete",
    "tg_job_event__kept_update",
    "tg_job_event__kept_delete",
    "tg_message_event__kept_update",
    "tg_message_event__kept_delete",
)
_TRIGGERS = text(
    "SELECT trigger_name, action_timing, event_manipulation, event_object_table, action_statement "
    "FROM information_schema.triggers "
    "WHERE event_object_schema = :place AND event_object_table IN :tables ORDER BY trigger_name"
).bindparams(bindparam("tables", expanding=True))
_MOVE = """\
DO $ledgerstone$
DECLARE
    users text := COALESCE(current_schema(), 'public');
    revision text;
    each record;
BEGIN
    IF users = '{own}' OR to_regclass(format('%I.{version}', users)) IS NULL
    OR to_regclass('"{own}".{version}') IS NOT NULL THEN
        RETURN;
    END IF;
    EXECUTE format('SELECT version_num FROM %I.{version}', users) INTO revision;
    IF revision > '{last}' THEN
        RETURN;
    END IF;
    FOR each IN
        SELECT DISTINCT COALESCE(quote_ident(rolname), 'PUBLIC') AS name
        FROM pg_class CROSS JOIN aclexplode(relacl) LEFT JOIN pg_roles ON pg_roles.oid = grantee
        WHERE pg_class.oid = to_regclass(format('%I.{version}', users)) AND grantee <> relowner
    LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA "{own}" TO %s', each.name);
    END LOOP;
    FOR each IN
        SELECT name FROM (VALUES {tables}) AS kernels (name, since) WHERE since <= revision
        UNION ALL
        SELECT name FROM (VALUES {rooms}) AS theirs (name, version)
        WHERE to_regclass(format('%I.%I', users, version)) IS NOT NULL
        ORDER BY name
    LOOP
        EXECUTE format('ALTER TABLE IF EXISTS %I.%I SET SCHEMA "{own}"', users, each.name);
    END LOOP;
    FOR each IN
        SELECT typname AS name FROM pg_type JOIN pg_namespace ON pg_namespace.oid = typnamespace
        WHERE nspname = users AND typname IN ({types})
    LOOP
        EXECUTE format('ALTER TYPE %I.%I SET SCHEMA "{own}"', users, each.name);
    END LOOP;
    FOR each IN
        SELECT pg_proc.oid::regprocedure AS name
        FROM pg_proc JOIN pg_namespace ON pg_namespace.oid = pronamespace
        WHERE nspname = users AND proname IN ({functions})
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET SCHEMA "{own}"', each.name);
    END LOOP;
END $ledgerstone$"""


def is_of_before(revision: str | None) -> bool:
    """Whether the tables of a ledger at this revision lie among those of the user."""
    return revision is not None and revision <= LAST_AMONG_USERS


def move(
    connection: Connection, names: Namespace, rooms: Sequence[StoredRoom], revision: str
) -> None:
    """Move the tables of a ledger at this revision to its namespace."""
    found = inspect(connection)
    there = set(found.get_table_names(schema=names.shared))
    tables = [name for name in (*_kernels(revision), *_of_rooms(rooms, there)) if name in there]
    taken = sorted(set(tables) & set(found.get_table_names(schema=names.own)))
    if taken:
        message = f"there is a table {taken[0]} in {names.own}, and one in {names.shared}"
        hint = f"rename the one in {names.own}, or name another place in store.schema"
        raise NotAllowedNow(message, hint=hint)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_on_postgresql(names, rooms).replace("%", "%%"))
    else:
        _move_on_mysql(connection, names, tables)


def script(kind: str, names: Namespace, rooms: Sequence[StoredRoom], since: str) -> str:
    """The same as SQL text."""
    if kind == "postgresql":
        return f"{_on_postgresql(names, rooms)};\n\n"
    if kind == "sqlite" or names.own == names.shared:
        return ""
    lines = [
        "-- Tables of rooms of others are moved only by `ledgerstone migrate` itself.",
        *(f"DROP TRIGGER IF EXISTS {_before(names)}{name};" for name in _KERNEL_TRIGGERS),
        f"{_renaming(names, _kernels(since))};",
    ]
    return "".join(f"{line}\n\n" for line in lines)


def _kernels(revision: str) -> list[str]:
    """The kernel's tables at this revision; a later name belongs to the user."""
    made = [table for table, created in CREATED.items() if created.revision <= revision]
    guard = [GUARD] if revision >= GUARDED_SINCE else []
    return sorted([VERSION_TABLE, *made, *guard])


def _of_rooms(rooms: Iterable[StoredRoom], there: set[str]) -> Iterator[str]:
    """The tables of the rooms whose version table is among these tables."""
    for room in rooms:
        if room.migrations is not None and room.version_table in there:
            yield from (*room.tables, room.version_table)


def _on_postgresql(names: Namespace, rooms: Sequence[StoredRoom]) -> str:
    tables = [(VERSION_TABLE, ""), *((name, made.revision) for name, made in CREATED.items())]
    theirs = [
        (table, room.version_table)
        for room in rooms
        if room.migrations is not None
        for table in (*room.tables, room.version_table)
    ]
    return _MOVE.format(
        own=names.own,
        version=VERSION_TABLE,
        last=LAST_AMONG_USERS,
        tables=_pairs(tables),
        rooms=_pairs(theirs or [("", "")]),
        types=", ".join(f"'{name}'" for name in TYPES),
        functions=", ".join(f"'{name}'" for name in FUNCTIONS),
    )


def _pairs(values: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"('{a}', '{b}')" for a, b in values)


def _move_on_mysql(connection: Connection, names: Namespace, tables: Sequence[str]) -> None:
    place = {"place": names.shared, "tables": list(tables)}
    triggers = connection.execute(_TRIGGERS, place).all()
    for name, *_ in triggers:
        connection.exec_driver_sql(f"DROP TRIGGER {_before(names)}`{name}`")
    connection.exec_driver_sql(_renaming(names, tables))
    for name, timing, verb, table, action in triggers:
        made = f"CREATE TRIGGER `{names.own}`.`{name}` {timing} {verb} ON `{names.own}`.`{table}`"
        connection.exec_driver_sql(f"{made} FOR EACH ROW {action}".replace("%", "%%"))


def _renaming(names: Namespace, tables: Iterable[str]) -> str:
    """One statement for all tables, which is atomic."""
    pairs = (f"{_before(names)}`{name}` TO `{names.own}`.`{name}`" for name in tables)
    return f"RENAME TABLE {', '.join(pairs)}"


def _before(names: Namespace) -> str:
    """The database prefix of a name on MySQL; empty if the database is not known."""
    return f"`{names.shared}`." if names.shared else ""
