"""Migrations: the schema is brought up to date by Alembic, one revision after the other.

`schema_version` is kept true by every step: its highest version is the revision the database is at.
Only one process migrates at a time; the others wait and find nothing to do. On PostgreSQL and
SQLite a step happens completely or not at all. MySQL commits every DDL statement by itself, so each
step is written to be repeatable: what an interrupted one has made is found and kept.

To look where a database stands, which every process does, takes no Alembic: the revisions are
numbered, and their numbers are the beginnings of their files' names.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Column, String, Table, inspect, select

from ledgerstone.errors import SchemaMissing, SchemaOutdated
from ledgerstone.store.faults import migrate_hint, translated
from ledgerstone.store.schema import plain_metadata

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection
    from sqlalchemy.engine import URL

    from ledgerstone.store.database import Database

VERSION_TABLE = "ledgerstone_revision"
"""Not `alembic_version`: that one is the user's own."""
LOCATION = Path(__file__).with_name("migrations")

_revision = Table(
    VERSION_TABLE, plain_metadata(), Column("version_num", String(32), primary_key=True)
)


class Schema(msgspec.Struct, frozen=True):
    """Where a database stands: its revision, the newest one, and what lies between."""

    current: str | None
    newest: str
    pending: tuple[str, ...]

    @property
    def up_to_date(self) -> bool:
        return self.current == self.newest


def titles() -> dict[str, str]:
    """Each revision that this version of Ledgerstone knows, in order, and what it is about."""
    files = sorted((LOCATION / "versions").glob("[0-9]*_*.py"))
    parts = [path.stem.partition("_") for path in files]
    return {number: words.replace("_", " ") for number, _, words in parts}


def newest() -> str:
    """The newest revision that this version of Ledgerstone knows."""
    return list(titles())[-1]


def look(connection: Connection) -> Schema:
    """Where the database stands."""
    current: str | None = None
    if inspect(connection).has_table(VERSION_TABLE):
        current = connection.execute(select(_revision.c.version_num)).scalar()
    known = list(titles())
    if current is not None and current not in known:
        message = f"the database is at revision {current}, this version knows up to {known[-1]}"
        raise SchemaOutdated(message, hint="update Ledgerstone")
    pending = known[known.index(current) + 1 :] if current in known else known
    return Schema(current, known[-1], tuple(pending))


def migrate(database: Database[Any], *, to: str = "head") -> Schema:
    """Bring the database to a revision; answers where it stood before."""
    engine = database.engine
    try:
        with engine.connect() as connection, database.dialect.migrating(connection):
            before = look(connection)
            config = _config()
            config.attributes["connection"] = connection
            from alembic import command

            command.upgrade(config, to)
            connection.commit()
        # SQLite writes to a table three to four times slower on the connection that made it.
        engine.dispose()
    except Exception as error:
        fault = translated(error)
        if fault is error:
            raise
        raise fault from error
    return before


def script(dialect_name: str, *, since: str | None = None) -> str:
    """The migrations as SQL text, for a dialect, without a database."""
    out = io.StringIO()
    config = _config(out)
    config.attributes["dialect"] = dialect_name
    from alembic import command

    command.upgrade(config, f"{since}:head" if since else "head", sql=True)
    return out.getvalue()


def check(connection: Connection, url: URL) -> None:
    """An error that says what to do, unless the schema is the one this version needs.

    `url` is that of the database, as people named it.
    """
    schema = look(connection)
    if schema.current is None:
        message = "Ledgerstone's tables are not in this database"
        raise SchemaMissing(message, hint=migrate_hint(url))
    if not schema.up_to_date:
        message = f"the database is at revision {schema.current}, {schema.newest} is needed"
        raise SchemaOutdated(message, hint=migrate_hint(url))


def _config(out: io.StringIO | None = None) -> Config:
    from alembic.config import Config

    config = Config(output_buffer=out) if out is not None else Config()
    config.set_main_option("script_location", str(LOCATION).replace("%", "%%"))
    return config
