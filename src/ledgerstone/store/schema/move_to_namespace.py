"""A ledger of before the namespace: its tables lie among those of the user, and are moved.

Up to the revision `LAST_AMONG_USERS` every table lay where a new connection makes its tables. The
next revision is applied where the own tables lie now: so a ledger is moved once, with all of its
rows, indexes, rights, policies and triggers, and one that was told to stay (`store.schema` names
the schema of the user) is never taken for one of before.

PostgreSQL moves everything or nothing. MySQL renames all tables at once, but between databases none
that has triggers: these are removed before and made anew after it; those of the kernel are made by
the next revision, too, if a run was interrupted between the two.
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
    """Whether a ledger at this revision lies among the tables of the user."""
    return revision is not None and revision <= LAST_AMONG_USERS


def move(
    connection: Connection, names: Namespace, rooms: Sequence[StoredRoom], revision: str
) -> None:
    """Move a ledger that is at this revision from among the tables of the user."""
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
    """The same as SQL text, for a ledger that is at this revision."""
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
    """The kernel's tables at this revision: another one of such a name is the user's."""
    made = [table for table, created in CREATED.items() if created.revision <= revision]
    guard = [GUARD] if revision >= GUARDED_SINCE else []
    return sorted([VERSION_TABLE, *made, *guard])


def _of_rooms(rooms: Iterable[StoredRoom], there: set[str]) -> Iterator[str]:
    """The tables of rooms that have migrated where these tables are."""
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
    """All of them in one statement, which happens completely or not at all."""
    pairs = (f"{_before(names)}`{name}` TO `{names.own}`.`{name}`" for name in tables)
    return f"RENAME TABLE {', '.join(pairs)}"


def _before(names: Namespace) -> str:
    """What stands before a name of MySQL: nothing, where the database is not known."""
    return f"`{names.shared}`." if names.shared else ""
