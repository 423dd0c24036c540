"""What differs between databases, asked by name. One file each under `dialects/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy.engine import make_url

from ledgerstone.errors import BadInput

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sqlalchemy import Engine
    from sqlalchemy.engine import URL, Connection
    from sqlalchemy.pool import PoolProxiedConnection

    from ledgerstone.settings import StoreSettings
    from ledgerstone.store.connections.deadlines import Deadline
    from ledgerstone.store.dialects.postgres.pipeline import Pipeline
    from ledgerstone.store.schema.namespace import Namespace
    from ledgerstone.store.sql.batch import (
        AddEach,
        AppendEach,
        ClaimEach,
        FirstEach,
        InsertEach,
        LockFirst,
        UpdateEach,
        WithRows,
    )
    from ledgerstone.store.sql.locked_rows import ChangeEach, LockedRow
    from ledgerstone.store.sql.rows import InsertRows, PutRow
    from ledgerstone.store.sql.statement import Row, Statement
    from ledgerstone.store.transaction import Transaction
    from ledgerstone.store.wakeup import WakeSignals, Watcher


class NotVisible(Enum):
    """Why it is not known which transactions are under way."""

    ALWAYS = "always"
    NOW = "now"


class Dialect(Protocol):
    """One kind of database.

    - `open` answers an engine whose connections have the documented settings.
    - `one_writer` says that a second writer waits for the first, wherever it writes: claims and
      settlements are then worth one transaction, elsewhere two connections.
    - `tells` says that what changes rows can also add to a journal, in one statement.
    - `recurs` says that a recursive statement looks each of its steps up in an index.
    - `change_each` locks rows, waiting for none unless told to, and changes those that pass.
    - `update_each`, `apply_each`, `append_each`, `add_each`, `insert_each`, `claim_each`,
      `first_each` and `lock_first` carry out a batch, `with_rows` answers the statement of one and
      what travels with it, see `batch`. What `claim_each` answers reads the rows.
    - `insert_rows` and `put_row` send rows by themselves, see `rows`.
    - `pipeline` answers what sends the statements of a transaction of ours together, or None where
      each goes by itself.
    - `begin` begins a transaction without a pipeline on the driver's connection, and `commit` ends
      it; False where SQLAlchemy has to begin it. One that `reads` holds off no writer.
    - `would_end` is asked before each statement of the caller's: whether this text, sent now on the
      driver's connection, would end the transaction.
    - `watch_open` is told that a transaction of ours has begun, on the driver's connection: from
      now on it is remembered there if something ends it.
    - `check_open` is asked before a statement of ours, and before a commit, on the driver's
      connection: an error if it shows that the transaction that was begun is open no more. `used`
      says that the caller has sent statements of their own.
    - `check_joined` is asked when a driver's connection is joined: Unsupported if its session has
      settings with which text or moments would be read or written wrongly.
    - `check_unspoiled` is asked before a commit: StoreError if the database has given up the
      transaction over an error that was caught, and would keep nothing of it.
    - `under_way` answers the transactions of others that have written and are not over, as numbers;
      `NotVisible` where that cannot be known. One that ends is never answered again.
    - `announce` wakes waiting threads of other processes when the transaction commits.
    - `watcher` answers what listens for them, or None where only polling can tell.
    - `namespace` answers where the tables of a ledger lie, of its URL, `store.schema`, and the
      schema in which a new connection finds the tables of the user.
    - `migrating` holds off every other process that migrates the same ledger.
    - `make_place` makes the place of the own tables if it is not there. In the block of `inside`
      tables without a place are the own ones, for what is done on the connection that it answers.
    """

    name: str
    one_writer: bool
    embedded: bool
    tells: bool
    recurs: bool

    def open(
        self, url: URL, settings: StoreSettings, deadline: Deadline, *, routine: bool
    ) -> Engine: ...

    def describe(self, connection: Connection) -> Mapping[str, str]: ...

    def update_each(
        self, operation: UpdateEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]: ...

    def apply_each(
        self, operation: UpdateEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> None: ...

    def change_each(
        self,
        operation: ChangeEach,
        tx: Transaction,
        rows: Sequence[Row],
        common: dict[str, Any],
        *,
        waits: bool,
    ) -> list[LockedRow | None]: ...

    def append_each(
        self, operation: AppendEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> None: ...

    def add_each(
        self, operation: AddEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]: ...

    def insert_each(
        self, operation: InsertEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]: ...

    def claim_each(
        self, operation: ClaimEach, tx: Transaction, limit: int, common: dict[str, Any]
    ) -> Callable[[], list[Row]]: ...

    def first_each(
        self,
        operation: FirstEach,
        tx: Transaction,
        rows: Sequence[Row],
        each: int,
        common: dict[str, Any],
    ) -> list[list[Row]]: ...

    def lock_first(
        self,
        operation: LockFirst,
        tx: Transaction,
        rows: Sequence[Row],
        limit: int,
        common: dict[str, Any],
    ) -> list[Row]: ...

    def with_rows(
        self, operation: WithRows, rows: Sequence[Row]
    ) -> tuple[Statement, dict[str, Any]]: ...

    def insert_rows(
        self, operation: InsertRows, tx: Transaction, rows: Sequence[dict[str, Any]]
    ) -> int: ...

    def put_row(self, operation: PutRow, tx: Transaction, values: dict[str, Any]) -> None: ...

    def pipeline(self, lent: PoolProxiedConnection) -> Pipeline | None: ...

    def begin(self, driver: Any, *, reads: bool) -> bool: ...

    def commit(self, driver: Any) -> None: ...

    def would_end(self, driver: Any, text: str) -> bool: ...

    def watch_open(self, driver: Any) -> None: ...

    def check_open(self, driver: Any, *, used: bool) -> None: ...

    def check_joined(self, driver: Any) -> None: ...

    def check_unspoiled(self, connection: Any) -> None: ...

    def under_way(self, tx: Transaction) -> frozenset[int] | NotVisible: ...

    def announce(self, tx: Transaction, channels: Sequence[str]) -> None: ...

    def watcher(
        self, url: URL, settings: StoreSettings, wake_signals: WakeSignals
    ) -> Watcher | None: ...

    def namespace(self, url: URL, schema: str | None, users: str | None) -> Namespace: ...

    def migrating(
        self, connection: Connection, names: Namespace
    ) -> AbstractContextManager[None]: ...

    def make_place(self, connection: Connection, names: Namespace) -> None: ...

    def inside(
        self, connection: Connection, names: Namespace
    ) -> AbstractContextManager[Connection]: ...


def dialect_of(url: str | URL) -> tuple[URL, Dialect]:
    """The dialect for a URL, and the URL with its driver named."""
    from ledgerstone.store.dialects.mysql import dialect as mysql
    from ledgerstone.store.dialects.postgres import dialect as postgres
    from ledgerstone.store.dialects.sqlite import dialect as sqlite

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


def names_of_kind(kind: str, url: URL, schema: str | None) -> Namespace:
    """Where the tables lie on a kind of database; `url` is looked at if it is of this kind."""
    found, dialect = dialect_of(url)
    if dialect.name != kind:
        found, dialect = dialect_of(f"{kind}://")
    return dialect.namespace(found, schema, None)


def _driver(url: URL, drivername: str) -> URL:
    return url.set(drivername=drivername)
