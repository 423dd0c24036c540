"""Migrations: the schema is brought up to date by Alembic, one revision after the other.

The kernel has a line of revisions (`0001`, …) and a version table, and each room that brings
migrations has its own: `acme_0001`, … in `ledgerstone_revision_acme`. They are applied in this
order: the kernel's, then those of the rooms as they are listed.

`schema_version` is kept true by every step of the kernel: its highest version is the revision the
database is at. Only one process migrates at a time; the others wait and find nothing to do. On
PostgreSQL and SQLite a step happens completely or not at all. MySQL commits every DDL statement by
itself, so each step is written to be repeatable: what an interrupted one has made is found and
kept.

To look where a database stands, which every process does, takes no Alembic: the revisions are
numbered, and their numbers are the beginnings of their files' names.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import inspect

from ledgerstone.errors import BadInput, SchemaMissing, SchemaOutdated
from ledgerstone.store.connections.faults import migrate_hint, translated
from ledgerstone.store.rooms import StoredRoom
from ledgerstone.store.schema import existing_tables as present
from ledgerstone.store.schema import move_to_namespace as moving
from ledgerstone.store.schema.columns import VERSION_TABLE
from ledgerstone.store.schema.namespace import Namespace

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection
    from sqlalchemy.engine import URL

    from ledgerstone.store.database import Database

LOCATION = Path(__file__).parents[1] / "migrations"
FOLDERS_MAX = 64
"""Of how many folders the revisions are remembered."""
_alembic = threading.Lock()
"""Alembic's `op` and `context` are those of the process: it runs one upgrade at a time."""


class RevisionLine(msgspec.Struct, frozen=True):
    """The revisions of the kernel, whose name is empty, or of a room, and where they are."""

    name: str
    version_table: str
    folder: Path

    def titles(self) -> dict[str, str]:
        """Each revision that is known, in order, and what it is about."""
        prefix = f"{self.name}_" if self.name else ""
        found = _titles(self.folder, self.folder.stat().st_mtime_ns)
        return {f"{prefix}{number}": words for number, words in found}


@lru_cache(FOLDERS_MAX)
def _titles(folder: Path, _changed_at: int) -> list[tuple[str, str]]:
    """The numbers and titles of a folder; it is read once, unless its files change."""
    parts = [path.stem.partition("_") for path in sorted(folder.glob("[0-9]*_*.py"))]
    return [(number, words.replace("_", " ")) for number, _, words in parts]


class RoomSchema(msgspec.Struct, frozen=True):
    """Where the tables of a room stand: their revision, the newest one, and what lies between."""

    current: str | None
    newest: str
    pending: tuple[str, ...]


class Schema(msgspec.Struct, frozen=True):
    """Where a database stands: its revision, the newest one, and what lies between.

    `rooms` tells the same of each room that has migrations of its own, by its name.
    """

    current: str | None
    newest: str
    pending: tuple[str, ...]
    rooms: dict[str, RoomSchema] = {}
    place: str | None = None
    """Where the tables lie: a schema or a database; None where they are not there."""
    moves: bool = False
    """Whether they lie among the tables of the user, and are to be moved."""

    @property
    def up_to_date(self) -> bool:
        return not self.everything_pending

    @property
    def everything_pending(self) -> tuple[str, ...]:
        """What is to be applied, the kernel's and the rooms', in order."""
        theirs = (revision for room in self.rooms.values() for revision in room.pending)
        return (*self.pending, *theirs)


def kernel() -> RevisionLine:
    """The kernel's revisions."""
    return RevisionLine("", VERSION_TABLE, LOCATION / "versions")


def lines(rooms: Iterable[StoredRoom]) -> list[RevisionLine]:
    """The kernel's revisions, then those of each room that has some."""
    return [kernel(), *(_line(room) for room in rooms if room.migrations is not None)]


def _line(room: StoredRoom) -> RevisionLine:
    assert room.migrations is not None
    found = find_spec(room.migrations)
    if found is None or not found.submodule_search_locations:
        message = f"the migrations of the room {room.name} are no package: {room.migrations}"
        raise BadInput(message, hint="name the package of its revisions, as acme.migrations")
    line = RevisionLine(
        room.name, room.version_table, Path(next(iter(found.submodule_search_locations)))
    )
    if not line.titles():
        raise BadInput(f"the package {room.migrations} has no revision such as 0001_tables.py")
    return line


def titles(rooms: Iterable[StoredRoom] = ()) -> dict[str, str]:
    """Each revision that this version of Ledgerstone and these rooms know, in order."""
    return {name: words for line in lines(rooms) for name, words in line.titles().items()}


def newest() -> str:
    """The newest revision of the kernel."""
    return list(kernel().titles())[-1]


def nothing(rooms: Iterable[StoredRoom]) -> Schema:
    """Where a database stands that is not there yet."""
    return _schema(lines(rooms), {})


def look(connection: Connection, names: Namespace, rooms: Sequence[StoredRoom] = ()) -> Schema:
    """Where the ledger stands that has its tables in these places."""
    listed = lines(rooms)
    current = _current(connection, names.own, listed)
    if "" in current:
        return _schema(listed, current, place=names.own)
    if names.own != names.shared:
        before = _current(connection, names.shared, listed)
        if moving.is_of_before(before.get("")):
            return _schema(listed, before, place=names.shared, moves=True)
    return _schema(listed, current)


def _current(
    connection: Connection, place: str | None, listed: Sequence[RevisionLine]
) -> dict[str, str]:
    """The revisions of the kernel and of rooms whose version tables lie there."""
    found = inspect(connection)
    there = [line for line in listed if found.has_table(line.version_table, schema=place)]
    if not there:
        return {}
    # As text: to compile it would take most of what it takes to open a ledger.
    selected = (_selected(connection, number, line, place) for number, line in enumerate(there))
    rows = connection.exec_driver_sql(" UNION ALL ".join(selected))
    return {there[number].name: str(revision) for number, revision in rows}


def _selected(connection: Connection, number: int, line: RevisionLine, place: str | None) -> str:
    quoted = connection.dialect.identifier_preparer
    table = quoted.quote(line.version_table)
    where = table if place is None else f"{quoted.quote_schema(place)}.{table}"
    return f"SELECT {number}, version_num FROM {where}"  # noqa: S608 - names that are quoted


def _schema(
    listed: Sequence[RevisionLine],
    current: dict[str, str],
    *,
    place: str | None = None,
    moves: bool = False,
) -> Schema:
    kernel, *others = (_standing(line, current.get(line.name)) for line in listed)
    rooms = {line.name: each for line, each in zip(listed[1:], others, strict=True)}
    return Schema(kernel.current, kernel.newest, kernel.pending, rooms, place=place, moves=moves)


def _standing(line: RevisionLine, current: str | None) -> RoomSchema:
    known = list(line.titles())
    if current is not None and current not in known:
        knows = f"the room {line.name}" if line.name else "this version"
        message = f"the database is at revision {current}, {knows} knows up to {known[-1]}"
        raise SchemaOutdated(message, hint=f"update {line.name or 'Ledgerstone'}")
    pending = known[known.index(current) + 1 :] if current in known else known
    return RoomSchema(current, known[-1], tuple(pending))


def migrate(database: Database[Any], *, to: str = "head") -> Schema:
    """Bring the database to the newest revisions; answers where it stood before.

    `to`: only the kernel, to this revision.
    """
    names, dialect = database.namespace, database.dialect
    try:
        with database.engine.connect() as connection, dialect.migrating(connection, names):
            before = look(connection, names, database.rooms)
            dialect.make_place(connection, names)
            if before.moves:
                moving.move(connection, names, database.rooms, str(before.current))
            known = list(kernel().titles())
            applied = [revision for revision in known if revision not in before.pending]
            present.check(connection, names.own, applied=applied, pending=before.pending)
            with dialect.inside(connection, names) as within:
                for line in lines(database.rooms if to == "head" else ()):
                    config = _config(line, names)
                    config.attributes["connection"] = within
                    _upgrade(config, to)
            connection.commit()
            if database.dialect.embedded:
                # SQLite writes to a table three to four times slower on the connection that made
                # it: close this one.
                connection.invalidate()
    except Exception as error:
        fault = translated(error)
        if fault is error:
            raise
        raise fault from error
    return before


def script(
    dialect_name: str,
    names: Namespace,
    *,
    since: str | None = None,
    rooms: Sequence[StoredRoom] = (),
) -> str:
    """The migrations as SQL text, for a dialect, without a database.

    `since`: only what comes after this revision of the kernel or of a room.
    """
    out = io.StringIO()
    of_before = since in kernel().titles() and moving.is_of_before(since)
    moves = moving.script(dialect_name, names, rooms, str(since)) if of_before else ""
    made, entered, left = _around(dialect_name, names)
    out.write(made + moves + entered)
    for line in lines(rooms):
        if since is not None and since not in line.titles():
            continue
        config = _config(line, names, out)
        config.attributes["dialect"] = dialect_name
        _upgrade(config, f"{since}:head" if since else "head", sql=True)
    return out.getvalue() + left


def _around(kind: str, names: Namespace) -> tuple[str, str, str]:
    """What makes the place of the tables, what enters it before them, and what leaves it after.

    On PostgreSQL each transaction enters it by itself; see `migrations/env.py`.
    """
    if kind == "postgresql":
        return f'CREATE SCHEMA IF NOT EXISTS "{names.own}";\n\n', "", ""
    if kind == "sqlite" or names.own == names.shared:
        return "", "", ""
    left = f"USE `{names.shared}`;\n\n" if names.shared else ""
    return f"CREATE DATABASE IF NOT EXISTS `{names.own}`;\n\n", f"USE `{names.own}`;\n\n", left


def check(schema: Schema, url: URL) -> None:
    """An error that says what to do, unless the schema is the one this version needs.

    `url` is that of the database, as people named it.
    """
    if schema.current is None:
        message = "Ledgerstone's tables are not in this database"
        raise SchemaMissing(message, hint=migrate_hint(url))
    if schema.pending:
        message = f"the database is at revision {schema.current}, {schema.newest} is needed"
        raise SchemaOutdated(message, hint=migrate_hint(url))
    for name, room in schema.rooms.items():
        if room.current is None:
            message = f"the tables of the room {name} are not in this database"
            raise SchemaMissing(message, hint=migrate_hint(url))
        if room.pending:
            message = f"the room {name} is at revision {room.current}, {room.newest} is needed"
            raise SchemaOutdated(message, hint=migrate_hint(url))


def _upgrade(config: Config, to: str, *, sql: bool = False) -> None:
    from alembic import command

    with _alembic:
        command.upgrade(config, to, sql=sql)


def _config(line: RevisionLine, names: Namespace, out: io.StringIO | None = None) -> Config:
    from alembic.config import Config

    config = Config(output_buffer=out) if out is not None else Config()
    config.set_main_option("script_location", str(LOCATION).replace("%", "%%"))
    config.set_main_option("version_locations", str(line.folder).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.attributes["line"] = line
    config.attributes["names"] = names
    return config
