"""What differs between databases, asked by name. One file each under `dialects/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy.engine import make_url

from ledgerstone.errors import BadInput

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sqlalchemy import Engine
    from sqlalchemy.engine import URL, Connection

    from ledgerstone.settings import StoreSettings
    from ledgerstone.store.batch import AppendEach, ClaimEach, InsertEach, UpdateEach
    from ledgerstone.store.statement import Row
    from ledgerstone.store.transaction import Transaction
    from ledgerstone.store.wakeup import Bells, Watcher


class Dialect(Protocol):
    """One kind of database.

    - `open` answers an engine whose connections have the documented settings.
    - `one_writer` says that a second writer waits for the first, wherever it writes: claims and
      settlements are then worth one transaction, elsewhere two connections.
    - `tells` says that what changes rows can also add to a journal, in one statement.
    - `update_each`, `append_each`, `insert_each`, `claim_each` carry out a batch, see `batch`.
    - `announce` makes channels ring in other processes when the transaction commits.
    - `watcher` answers what listens for them, or None where only polling can tell.
    - `migrating` holds off every other process that migrates the same database.
    """

    name: str
    one_writer: bool
    embedded: bool
    tells: bool

    def open(self, url: URL, settings: StoreSettings) -> Engine: ...

    def describe(self, connection: Connection) -> Mapping[str, str]: ...

    def update_each(
        self, operation: UpdateEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]: ...

    def append_each(
        self, operation: AppendEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> None: ...

    def insert_each(
        self, operation: InsertEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]: ...

    def claim_each(
        self, operation: ClaimEach, tx: Transaction, limit: int, common: dict[str, Any]
    ) -> list[Row]: ...

    def announce(self, tx: Transaction, channels: Sequence[str]) -> None: ...

    def watcher(self, url: URL, settings: StoreSettings, bells: Bells) -> Watcher | None: ...

    def migrating(self, connection: Connection) -> AbstractContextManager[None]: ...


def dialect_of(url: str | URL) -> tuple[URL, Dialect]:
    """The dialect for a URL, and the URL with its driver named."""
    from ledgerstone.store.dialects import mysql, postgres, sqlite

    try:
        parsed = make_url(url)
    except Exception as error:
        message = "the database URL cannot be read"
        hint = "write it as sqlite:///FILE, postgresql://… or mysql://…"
        raise BadInput(message, hint=hint) from error
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        return parsed, sqlite.SQLite()
    if backend == "postgresql":
        return _driver(parsed, "postgresql+psycopg"), postgres.PostgreSQL()
    if backend in {"mysql", "mariadb"}:
        driver = "mysqldb" if parsed.drivername.endswith("+mysqldb") else "pymysql"
        return _driver(parsed, f"mysql+{driver}"), mysql.MySQL()
    message = f"no ledger can be kept on {backend!r}"
    raise BadInput(message, hint="use sqlite:///FILE, postgresql://… or mysql://…")


def _driver(url: URL, drivername: str) -> URL:
    return url.set(drivername=drivername)
