"""The differences between databases: the contract of `dialects/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

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
    from ledgerstone.store.sql.rows import InsertRows, UpsertRow
    from ledgerstone.store.sql.statement import Row, Statement
    from ledgerstone.store.transaction import Transaction
    from ledgerstone.store.wakeup import WakeSignals, Watcher


class NotVisible(Enum):
    """Why the writing transactions are not listed: never on this server, or not now."""

    ALWAYS = "always"
    NOW = "now"


class Dialect(Protocol):
    """One kind of database.

    - `open` returns an engine whose connections have the documented settings.
    - `one_writer`: every writer waits for the open write transaction. Then one transaction settles
      and claims; elsewhere two connections do.
    - `tells`: a statement that changes rows can also write a journal (`Journal`).
    - `recurs`: a recursive CTE uses an index in each step.
    - `change_each` locks rows, skips locked ones unless `waits`, and changes those that pass.
    - `update_each`, `apply_each`, `append_each`, `add_each`, `insert_each`, `claim_each`,
      `first_each` and `lock_first` execute a batch; `with_rows` returns the statement of a batch
      and its parameters. See `batch`. The function that `claim_each` returns reads the rows.
    - `insert_rows` and `put_row` send rows singly; see `rows`.
    - `pipeline` sends the statements of a transaction together; None: they are sent singly.
    - `begin` begins a transaction without a pipeline on the driver's connection, and `commit`
      commits it; False: SQLAlchemy has to begin it. One that `reads` blocks no writer.
    - `would_end`: whether a statement of the caller would end the transaction.
    - `watch_open` is called when a transaction of ours begins: from then on the driver's connection
      records an end of it.
    - `check_open` is called before a statement of ours and before a commit: an error if the
      transaction is not open any more. `used`: the caller has sent statements.
    - `check_joined`: Unsupported if the session of a joined connection has settings with which
      text or timestamps would be read or written wrongly.
    - `check_unspoiled` is called before a commit: StoreError if the database has aborted the
      transaction after an error that was caught.
    - `under_way` returns the ids of other transactions that have written and not ended;
      `NotVisible` if they cannot be listed. An ended transaction is never returned again.
    - `announce` wakes other processes that wait for the channels, at the commit.
    - `watcher` answers what listens for them, or None where only polling can tell.
    - `namespace` returns the places of the tables, from the URL, `store.schema`, and the default
      schema of a new connection.
    - `migrating` excludes every other process that migrates the same ledger.
    - `make_place` creates the schema or database of the own tables. In the block of `inside`, the
      connection that it returns finds the own tables without a prefix.
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

    def put_row(self, operation: UpsertRow, tx: Transaction, values: dict[str, Any]) -> None: ...

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
