"""The database of a call, opened without writing to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ledgerstone.console import output
from ledgerstone.errors import SchemaMissing
from ledgerstone.ledger import Transaction, opened_database, rooms_for
from ledgerstone.room import Rooms
from ledgerstone.settings import Settings
from ledgerstone.store.connections.faults import migrate_hint
from ledgerstone.store.database import Database
from ledgerstone.store.dialects.sqlite import dialect

_ELSEWHERE = (
    "{}; another database is named by --url, LEDGERSTONE_URL or your code: -A MODULE:LEDGER"
)


@contextmanager
def opened(
    settings: Settings, rooms: Rooms | None = None, *, tell: bool = True
) -> Iterator[Database[Transaction]]:
    """The database; closed at the end. Unlike a `Ledger` it never migrates by itself.

    `tell`: the command does not say by itself which database that is.
    """
    output.on_database(settings.url_masked, tell=tell)
    database = opened_database(settings, rooms or rooms_for(settings))
    try:
        yield database
    finally:
        database.close()


def file_of(database: Database[Transaction]) -> Path | None:
    """The file of an embedded database; a server has none that we could look at."""
    return dialect.file_of(database.url) if database.dialect.embedded else None


def must_exist(database: Database[Transaction]) -> None:
    """SchemaMissing if connecting would make a new, empty file."""
    file = file_of(database)
    if file is not None and not file.exists():
        hint = _ELSEWHERE.format(migrate_hint(database.url))
        raise SchemaMissing(f"there is no file {file}", hint=hint)
