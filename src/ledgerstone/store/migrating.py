"""Migrations: the schema is brought up to date by Alembic, one revision after the other.

`schema_version` is kept true by every step: its highest version is the revision the database is at.
Only one process migrates at a time; the others wait and find nothing to do. On PostgreSQL and
SQLite a step happens completely or not at all. MySQL commits every DDL statement by itself, so each
step is written to be repeatable: what an interrupted one has made is found and kept.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from ledgerstone.errors import SchemaMissing, SchemaOutdated
from ledgerstone.store.faults import translated

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ledgerstone.store.database import Database

VERSION_TABLE = "ledgerstone_revision"
"""Not `alembic_version`: that one is the user's own."""
LOCATION = Path(__file__).with_name("migrations")


class Schema(msgspec.Struct, frozen=True):
    """Where a database stands: its revision, the newest one, and what lies between."""

    current: str | None
    newest: str
    pending: tuple[str, ...]

    @property
    def up_to_date(self) -> bool:
        return self.current == self.newest


def newest() -> str:
    """The newest revision that this version of Ledgerstone knows."""
    head = _scripts().get_current_head()
    assert head is not None
    return head


def look(connection: Connection) -> Schema:
    """Where the database stands."""
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    current = context.get_current_revision()
    scripts = _scripts()
    known = [script.revision for script in scripts.walk_revisions()][::-1]
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
            command.upgrade(config, to)
            connection.commit()
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
    command.upgrade(config, f"{since}:head" if since else "head", sql=True)
    return out.getvalue()


def check(connection: Connection) -> None:
    """An error that says what to do, unless the schema is the one this version needs."""
    schema = look(connection)
    if schema.current is None:
        message = "Ledgerstone's tables are not in this database"
        raise SchemaMissing(message, hint="run `ledgerstone migrate`")
    if not schema.up_to_date:
        message = f"the database is at revision {schema.current}, {schema.newest} is needed"
        raise SchemaOutdated(message, hint="run `ledgerstone migrate`")


def _config(out: io.StringIO | None = None) -> Config:
    config = Config(output_buffer=out) if out is not None else Config()
    config.set_main_option("script_location", str(LOCATION).replace("%", "%%"))
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())
