"""Revisions: Alembic migrates the schema, one revision after the other.

The kernel has a line of revisions (`0001`, …) and a version table, and so has each room with
migrations: `acme_0001`, … in `ledgerstone_revision_acme`. The kernel's revisions are applied first,
then those of the rooms in the order of their list.

Every revision of the kernel also writes `schema_version`. One process migrates at a time; the
others wait and find nothing to do. On PostgreSQL and SQLite a revision is applied completely or not
at all. MySQL commits every DDL statement, so each revision can be repeated and keeps what an
interrupted run has created.

Every process checks the revision of its database. That does not need Alembic: the number of a
revision is the beginning of its file name.
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
from ledgerstone.store.schema import ddl, existing_tables, move_to_namespace, parts
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
    """The revisions of the kernel (with an empty name) or of a room, and their folder."""

    name: str
    version_table: str
    folder: Path

    def titles(self) -> dict[str, str]:
        """The title of each known revision, in order."""
        prefix = f"{self.name}_" if self.name else ""
        found = _titles(self.folder, self.folder.stat().st_mtime_ns)
        return {f"{prefix}{number}": words for number, words in found}


@lru_cache(FOLDERS_MAX)
def _titles(folder: Path, _changed_at: int) -> list[tuple[str, str]]:
    """The numbers and titles of a folder; it is read once, unless its files change."""
    parts = [path.stem.partition("_") for path in sorted(folder.glob("[0-9]*_*.py"))]
    return [(number, words.replace("_", " ")) for number, _, words in parts]


class RoomSchema(msgspec.Struct, frozen=True):
    """The revision of the tables of a room, the newest one, and the pending ones."""

    current: str | None
    newest: str
    pending: tuple[str, ...]


class Schema(msgspec.Struct, frozen=True):
    """The revision of a database, the newest one, and the pending ones.

    `rooms` has the same for each room with migrations of its own, by name.
    """

    current: str | None
    newest: str
    pending: tuple[str, ...]
    rooms: dict[str, RoomSchema] = {}
    place: str | None = None
    """The schema or database of the tables; None if there are no tables."""
    moves: bool = False
    """Whether the tables lie among those of the user and are to be moved."""
    missing: tuple[str, ...] = ()
    """Indexes, triggers and functions that the tables lack, if `look_closely` was asked."""

    @property
    def up_to_date(self) -> bool:
        return not self.everything_pending and not self.missing

    @property
    def everything_pending(self) -> tuple[str, ...]:
        """The pending revisions of the kernel and the rooms, in order."""
        theirs = (revision for room in self.rooms.values() for revision in room.pending)
        return (*self.pending, *theirs)


def kernel() -> RevisionLine:
    """The kernel's revisions."""
    return RevisionLine("", VERSION_TABLE, LOCATION / "versions")


def lines(rooms: Iterable[StoredRoom]) -> list[RevisionLine]:
    """The lines of the kernel and of each room with migrations, in order."""
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
    """The title of each revision of the kernel and of these rooms, in order."""
    return {name: words for line in lines(rooms) for name, words in line.titles().items()}


def newest() -> str:
    """The newest revision of the kernel."""
    return list(kernel().titles())[-1]


def nothing(rooms: Iterable[StoredRoom]) -> Schema:
    """The state of a database that does not exist yet."""
    return _schema(lines(rooms), {})


def look(connection: Connection, names: Namespace, rooms: Sequence[StoredRoom] = ()) -> Schema:
    """The state of the ledger with its tables in these places."""
    listed = lines(rooms)
    current = _current(connection, names.own, listed)
    if "" in current:
        return _schema(listed, current, place=names.own)
    if names.own != names.shared:
        before = _current(connection, names.shared, listed)
        if move_to_namespace.is_of_before(before.get("")):
            return _schema(listed, before, place=names.shared, moves=True)
    return _schema(listed, current)


def look_closely(
    connection: Connection, names: Namespace, rooms: Sequence[StoredRoom] = ()
) -> Schema:
    """The same, and what is missing at the newest revision; SchemaMissing if tables were dropped.

    This takes a tenth of a second: for an operator, not for each process.
    """
    found = look(connection, names, rooms)
    if found.current is None or found.moves:
        return found
    _check_tables(connection, names, found)
    if found.everything_pending:
        return found
    return msgspec.structs.replace(found, missing=tuple(_missing(connection, names, rooms)))


def _check_tables(connection: Connection, names: Namespace, found: Schema) -> None:
    applied = [revision for revision in kernel().titles() if revision not in found.pending]
    existing_tables.check_not_dropped(connection, names.own, applied)


def _missing(
    connection: Connection, names: Namespace, rooms: Sequence[StoredRoom]
) -> dict[str, ddl.DdlStep]:
    """The missing parts of the newest revision, and how they are made."""
    scripts = []
    for line in lines(rooms):
        try:
            scripts.append(_printed(line, connection.dialect.name, names))
        except Exception:
            # A migration of a room that asks the database cannot be printed: its parts are unknown.
            if not line.name:
                raise
    lacking = parts.missing(connection, names.own, "".join(scripts))
    gone = sorted(name for name, step in lacking.items() if step.words == parts.TABLE)
    if gone:
        raise existing_tables.dropped(newest(), gone)
    return lacking


def _current(
    connection: Connection, place: str | None, listed: Sequence[RevisionLine]
) -> dict[str, str]:
    """The current revisions, by the name of the line, from the version tables in `place`."""
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
    """Apply the pending revisions, and make what is missing of earlier ones.

    Returns the state before. `to`: a revision of the kernel or of a room; no revision after it is
    applied.
    """
    names, dialect = database.namespace, database.dialect
    try:
        with database.engine.connect() as connection, dialect.migrating(connection, names):
            before = look(connection, names, database.rooms)
            dialect.make_place(connection, names)
            if before.moves:
                move_to_namespace.move(connection, names, database.rooms, str(before.current))
            known = list(kernel().titles())
            applied = [revision for revision in known if revision not in before.pending]
            existing_tables.check(connection, names.own, applied=applied, pending=before.pending)
            with dialect.inside(connection, names) as within:
                for line in lines(database.rooms):
                    config = _config(line, names)
                    config.attributes["connection"] = within
                    last = to in line.titles()
                    _upgrade(config, to if last else "head")
                    if last:
                        break
                if before.current is not None and to == "head":
                    lacking = _missing(within, names, database.rooms)
                    ddl.run(within, list(lacking.values()))
                    before = msgspec.structs.replace(before, missing=tuple(lacking))
            connection.commit()
            if database.dialect.embedded:
                # On the connection that created a table, SQLite's writes to it are three to four
                # times slower: close the connection.
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
    """The migrations as SQL text for a dialect, without a database.

    `since`: only the revisions after this one, of the kernel or of a room.
    """
    out = io.StringIO()
    of_before = since in kernel().titles() and move_to_namespace.is_of_before(since)
    moves = move_to_namespace.script(dialect_name, names, rooms, str(since)) if of_before else ""
    made, entered, left = _around(dialect_name, names)
    out.write(made + moves + entered)
    for line in lines(rooms):
        if since is not None and since not in line.titles():
            continue
        out.write(_printed(line, dialect_name, names, since=since))
    return out.getvalue() + left


def _printed(
    line: RevisionLine, dialect_name: str, names: Namespace, *, since: str | None = None
) -> str:
    """The migrations of one line as SQL text."""
    out = io.StringIO()
    config = _config(line, names, out)
    config.attributes["dialect"] = dialect_name
    _upgrade(config, f"{since}:head" if since else "head", sql=True)
    return out.getvalue()


def _around(kind: str, names: Namespace) -> tuple[str, str, str]:
    """The SQL that creates the place of the tables, that enters it, and that leaves it.

    On PostgreSQL each transaction sets its `search_path`; see `migrations/env.py`.
    """
    if kind == "postgresql":
        return f'CREATE SCHEMA IF NOT EXISTS "{names.own}";\n\n', "", ""
    if kind == "sqlite" or names.own == names.shared:
        return "", "", ""
    left = f"USE `{names.shared}`;\n\n" if names.shared else ""
    return f"CREATE DATABASE IF NOT EXISTS `{names.own}`;\n\n", f"USE `{names.own}`;\n\n", left


def check(schema: Schema, url: URL) -> None:
    """SchemaMissing or SchemaOutdated unless the schema has the newest revisions.

    `url` is the URL of the database, for the hint.
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
