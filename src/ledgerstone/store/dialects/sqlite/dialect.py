"""SQLite: one file, one writer at a time."""

from __future__ import annotations

import importlib
import os
import sqlite3
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Engine,
    Integer,
    Text,
    bindparam,
    column,
    create_engine,
    event,
    func,
    literal_column,
    select,
    true,
    tuple_,
    type_coerce,
    update,
)
from sqlalchemy.dialects.sqlite import Insert, insert

from ledgerstone.errors import BadInput, Unsupported
from ledgerstone.store.connections import block_end
from ledgerstone.store.connections.faults import refused
from ledgerstone.store.schema.namespace import Namespace, namespace
from ledgerstone.store.sql.batch import (
    AddEach,
    AppendEach,
    ClaimEach,
    FirstEach,
    Incoming,
    InsertEach,
    LockFirst,
    RowInsert,
    UpdateEach,
    WithRows,
    document,
    missed,
)
from ledgerstone.store.sql.locked_rows import CHANGED, LockedRow
from ledgerstone.store.sql.statement import Row, Statement
from ledgerstone.store.wakeups.data_version import DataVersionWatcher

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Connection
    from sqlalchemy.pool import PoolProxiedConnection

    from ledgerstone.settings import StoreSettings
    from ledgerstone.store.connections.deadlines import Deadline
    from ledgerstone.store.sql.locked_rows import ChangeEach
    from ledgerstone.store.sql.rows import InsertRows, UpsertRow
    from ledgerstone.store.transaction import Transaction
    from ledgerstone.store.wakeup import WakeSignals, Watcher

VERSION_MIN = (3, 38, 0)
"""The first version with built-in JSON functions, and RETURNING."""
VERSION_SOUND = (3, 51, 3)
"""The first version without the WAL-reset bug, which corrupts a file with several writers."""
DRIVERS = {"sqlite3": "sqlite3", "pysqlite3": "pysqlite3.dbapi2"}
DRIVER_OPTION = "driver"
"""Names the driver in the URL: `sqlite:///shop.db?driver=sqlite3`."""
CHECKPOINT_PAGES = 4000
"""The size of the WAL (16 MiB) at which it is synced and written to the file. Batches change the
same pages repeatedly: with SQLite's default of 1000 a worker needed an eighth of its time for
checkpoints. With `NORMAL` a power cut may lose the part of the WAL that was not synced."""
FILE_MODE = 0o600
FOLDER_MODE = 0o700
MAIN = "main"
"""SQLite's schema name of the opened file."""
WRITE = "BEGIN IMMEDIATE"
READ = "BEGIN"
_SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
_POSITION, _TRY = "position", "ledgerstone_try"
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1


class SQLite:
    """The embedded default."""

    name = "sqlite"
    one_writer = True
    embedded = True
    tells = False
    recurs = True

    def open(
        self, url: URL, settings: StoreSettings, deadline: Deadline, *, routine: bool
    ) -> Engine:
        path = file_of(url)
        driver = driver_of(url)
        _make_private(path)
        engine = create_engine(
            url.difference_update_query([DRIVER_OPTION]),
            module=driver,
            pool_size=settings.pool_size_max,
            max_overflow=0,
            pool_timeout=settings.lock_timeout_seconds,
            connect_args={"timeout": settings.busy_timeout_seconds},
        )
        event.listen(engine, "connect", lambda connection, _: _configure(connection, settings))
        event.listen(engine, "begin", _begin)
        return engine

    def describe(self, connection: Connection) -> Mapping[str, str]:
        def ask(pragma: str) -> str:
            return str(connection.exec_driver_sql(f"PRAGMA {pragma}").scalar())

        return {
            "database": f"SQLite {connection.exec_driver_sql('SELECT sqlite_version()').scalar()}",
            "driver": str(connection.dialect.loaded_dbapi.__name__),
            "journal_mode": ask("journal_mode"),
            "synchronous": _SYNCHRONOUS[int(ask("synchronous"))],
            "auto_vacuum": {"0": "none", "1": "full", "2": "incremental"}[ask("auto_vacuum")],
            "foreign_keys": ask("foreign_keys"),
            "busy_timeout_ms": ask("busy_timeout"),
        }

    def update_each(
        self, operation: UpdateEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]:
        statement = operation.statements.get(f"{self.name}.telling")
        if statement is None:
            updating = operation.build(_travelling(operation.incoming)).returning(operation.key)
            statement = Statement(operation.name, updating)
            operation.statements[f"{self.name}.telling"] = statement
        return _by_key(operation, statement, tx, rows, common)

    def apply_each(
        self, operation: UpdateEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> None:
        # Without RETURNING: reading rows releases the GIL for each row.
        statement = operation.statements.get(self.name)
        if statement is None:
            updating = operation.build(_travelling(operation.incoming))
            statement = operation.statements[self.name] = Statement(operation.name, updating)
        statement.run(tx, rows=_document(operation, rows), **common)

    def change_each(
        self,
        operation: ChangeEach,
        tx: Transaction,
        rows: Sequence[Row],
        common: dict[str, Any],
        *,
        waits: bool,
    ) -> list[LockedRow | None]:
        # The only writer needs no row locks.
        if self._change_all(operation, tx, rows, common):
            return [CHANGED] * len(rows)
        look = operation.statements.get(f"{self.name}.look")
        if look is None:
            row = _travelling([column(_POSITION, BigInteger()), *operation.compared])
            looking = select(getattr(row, _POSITION), operation.guard(row), *operation.looks).where(
                *operation.matches(row)
            )
            look = operation.statements[f"{self.name}.look"] = Statement(
                f"{operation.name}.look", looking
            )
        compared, width = len(operation.compared), len(operation.key)
        found: list[LockedRow | None] = [None] * len(rows)
        taken: dict[Row, int] = {}
        sent = document([(i, *row[:compared]) for i, row in enumerate(rows)])
        for position, passes, *stands in look.rows(tx, rows=sent, **common):
            # A claim that is sent twice is changed once.
            first = taken.setdefault(rows[position][:width], position) if passes else None
            found[position] = CHANGED if first == position else LockedRow(False, tuple(stands))
        passing = [row for row, each in zip(rows, found, strict=True) if each is CHANGED]
        if passing:
            self._by_key(operation).run(tx, rows=_document(operation, passing), **common)
        return found

    def _change_all(
        self, operation: ChangeEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> bool:
        """Change all rows, or none if one does not pass; in most batches all pass.

        Reading the values of each row would release the GIL for each row.
        """
        if operation.deletes:
            return False
        statement = operation.statements.get(self.name)
        if statement is None:
            row = _travelling(operation.incoming)
            changing = operation.change(row).where(*operation.matches(row), operation.guard(row))
            statement = operation.statements[self.name] = Statement(operation.name, changing)
        tx.command(f"SAVEPOINT {_TRY}")
        changed = statement.run(tx, rows=_document(operation, rows), **common)
        if changed != len(rows):
            tx.database.measure.take_back(statement.name, written=changed)
            tx.command(f"ROLLBACK TO SAVEPOINT {_TRY}")
        tx.command(f"RELEASE SAVEPOINT {_TRY}")
        return changed == len(rows)

    def _by_key(self, operation: ChangeEach) -> Statement:
        """The statement that changes rows by key, without the guard."""
        name = f"{self.name}.by_key"
        statement = operation.statements.get(name)
        if statement is None:
            row = _travelling(operation.incoming)
            if operation.deletes:
                keys = [getattr(row, c.name) for c in operation.key]
                of = tuple_(*operation.key) if len(keys) > 1 else operation.key[0]
                changing: Any = operation.change(row).where(of.in_(select(*keys)))
            else:
                changing = operation.change(row).where(*operation.matches(row))
            statement = operation.statements[name] = Statement(operation.name, changing)
        return statement

    def append_each(
        self, operation: AppendEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> None:
        if len(rows) == 1:
            self._append_one(operation, tx, rows[0], common)
            return
        statement = operation.statements.get(self.name)
        if statement is None:
            statement = operation.statements[self.name] = Statement(
                operation.name, _inserting(operation)
            )
        statement.run(tx, rows=_document(operation, rows), **common)

    def _append_one(
        self, operation: AppendEach, tx: Transaction, row: Row, common: dict[str, Any]
    ) -> None:
        """Insert a single row without a JSON document, as most enqueues do."""
        name = f"{self.name}.one"
        statement = operation.statements.get(name)
        if statement is None:
            values = operation.assignments(operation.alone.incoming)
            inserting = insert(operation.table).values(values)
            statement = operation.statements[name] = Statement(operation.name, inserting)
        statement.run(tx, **operation.alone.values(row), **common)

    def add_each(
        self, operation: AddEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]:
        statement = operation.statements.get(self.name)
        if statement is None:
            statement = operation.statements[self.name] = Statement(
                operation.name, _inserting(operation).returning(operation.number)
            )
        return [row[0] for row in statement.rows(tx, rows=_document(operation, rows), **common)]

    def insert_each(
        self, operation: InsertEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]:
        statement = operation.statements.get(self.name)
        if statement is None:
            inserting = _inserting(operation).on_conflict_do_nothing().returning(operation.key)
            statement = operation.statements[self.name] = Statement(operation.name, inserting)
        return _by_key(operation, statement, tx, rows, common)

    def claim_each(
        self, operation: ClaimEach, tx: Transaction, limit: int, common: dict[str, Any]
    ) -> Callable[[], list[Row]]:
        statement = operation.statements.get(self.name)
        if statement is None:
            keys = operation.keys
            due = (
                select(*keys)
                .where(operation.due)
                .order_by(*operation.order_by)
                .limit(bindparam("limit", type_=BigInteger()))
            )
            statement = Statement(
                operation.name,
                update(operation.table)
                .where((tuple_(*keys) if len(keys) > 1 else keys[0]).in_(due))
                .values(dict(operation.set_))
                .returning(*operation.answered),
            )
            operation.statements[self.name] = statement
        rows = operation.in_order(statement.rows(tx, limit=limit, **common))
        return lambda: rows

    def first_each(
        self,
        operation: FirstEach,
        tx: Transaction,
        rows: Sequence[Row],
        each: int,
        common: dict[str, Any],
    ) -> list[list[Row]]:
        statement = operation.statements.get(self.name)
        if statement is None:
            most = bindparam("each", type_=BigInteger())
            statement = operation.statements[self.name] = _first(operation, most, tx)
        return [
            statement.rows(tx, each=each, **common, **operation.alone.values(row)) for row in rows
        ]

    def lock_first(
        self,
        operation: LockFirst,
        tx: Transaction,
        rows: Sequence[Row],
        limit: int,
        common: dict[str, Any],
    ) -> list[Row]:
        # The only writer needs no row locks.
        statement = operation.statements.get(self.name)
        if statement is None:
            most = operation.alone.incoming.most
            statement = operation.statements[self.name] = _first(operation, most, tx)
        found: list[Row] = []
        for *group, most in rows:
            if len(found) == limit:
                break
            given = operation.alone.values((*group, min(most, limit - len(found))))
            found += statement.rows(tx, **common, **given)
        return found

    def with_rows(
        self, operation: WithRows, rows: Sequence[Row]
    ) -> tuple[Statement, dict[str, Any]]:
        statement = operation.statements.get(self.name)
        if statement is None:
            statement = operation.statements[self.name] = Statement(
                operation.name, operation.build(_travelling(operation.incoming))
            )
        return statement, {"rows": _document(operation, rows)}

    def insert_rows(
        self, operation: InsertRows, tx: Transaction, rows: Sequence[dict[str, Any]]
    ) -> int:
        statement = operation.statements.get(self.name)
        if statement is None:
            inserting = insert(operation.table).values(operation.values).on_conflict_do_nothing()
            statement = operation.statements[self.name] = Statement(operation.name, inserting)
        return statement.run_many(tx, rows)

    def put_row(self, operation: UpsertRow, tx: Transaction, values: dict[str, Any]) -> None:
        statement = operation.statements.get(self.name)
        if statement is None:
            putting = (
                insert(operation.table)
                .values(operation.values)
                .on_conflict_do_update(index_elements=operation.key, set_=dict(operation.changes))
            )
            statement = operation.statements[self.name] = Statement(operation.name, putting)
        statement.run(tx, **values)

    def pipeline(self, lent: PoolProxiedConnection) -> None:
        return None

    def begin(self, driver: Any, *, reads: bool) -> bool:
        driver.execute(READ if reads else WRITE)
        return True

    def commit(self, driver: Any) -> None:
        driver.execute("COMMIT")

    def would_end(self, driver: Any, text: str) -> bool:
        return block_end.ends(text)

    def watch_open(self, driver: Any) -> None:
        """Nothing: the driver says whether one is open."""

    def check_open(self, driver: Any, *, used: bool) -> None:
        # SQLite itself ends a transaction, for example if the disk is full.
        if not driver.in_transaction:
            raise block_end.over()

    def check_joined(self, driver: Any) -> None:
        """Nothing: text is UTF-8 and moments are text, whatever the session."""

    def check_unspoiled(self, connection: Any) -> None:
        """Nothing: an error undoes one statement, or ends the transaction."""

    def under_way(self, tx: Transaction) -> frozenset[int]:
        # There is one writer.
        return frozenset()

    def announce(self, tx: Transaction, channels: Sequence[str]) -> None:
        """Nothing to write: a commit by another connection shows in `PRAGMA data_version`."""

    def watcher(
        self, url: URL, settings: StoreSettings, wake_signals: WakeSignals
    ) -> Watcher | None:
        return DataVersionWatcher(driver_of(url), file_of(url), wake_signals)

    def namespace(self, url: URL, schema: str | None, users: str | None) -> Namespace:
        if schema not in {None, MAIN}:
            message = f"a SQLite file has no schema {schema}"
            raise BadInput(message, hint="leave store.schema out, or name another file")
        # With the prefix `main`, temporary tables of the same name are ignored.
        return namespace(MAIN, MAIN)

    @contextmanager
    def migrating(self, connection: Connection, names: Namespace) -> Iterator[None]:
        # BEGIN IMMEDIATE already holds off every other writer.
        yield

    def make_place(self, connection: Connection, names: Namespace) -> None:
        """Nothing: a file is one."""

    @contextmanager
    def inside(self, connection: Connection, names: Namespace) -> Iterator[Connection]:
        yield connection


def file_of(url: URL) -> Path:
    """The file of a SQLite URL; BadInput for a database in memory."""
    if not url.database or url.database == ":memory:" or url.query.get("mode") == "memory":
        message = "a ledger in memory would lose what it accepted"
        raise BadInput(message, hint="name a file: sqlite:///ledger.db")
    if url.database.startswith("file:"):
        message = "a ledger's file is named by its path, not by a URI of SQLite's own"
        raise BadInput(message, hint="name a file: sqlite:///ledger.db")
    return Path(url.database)


def driver_of(url: URL) -> ModuleType:
    """The driver that the URL names, by default `best_driver`.

    Two copies of the SQLite library in one process do not see each other's locks and lose commits.
    If the program opens the file with the standard library, as Django and aiosqlite do, the ledger
    has to use it as well.
    """
    name = url.query.get(DRIVER_OPTION)
    if name is None:
        return best_driver()
    module = DRIVERS.get(name) if isinstance(name, str) else None
    if module is None:
        message = f"there is no SQLite driver {name!r}"
        raise BadInput(message, hint=f"use one of {', '.join(DRIVERS)}")
    try:
        driver = importlib.import_module(module)
    except ImportError as error:
        message = f"the SQLite driver {name} is not installed"
        raise Unsupported(message, hint=f"install {name}") from error
    return _examined(driver)


def best_driver() -> ModuleType:
    """The standard library's driver if its SQLite has no known bug, otherwise pysqlite3."""
    if sqlite3.sqlite_version_info >= VERSION_SOUND:
        return sqlite3
    try:
        return _examined(importlib.import_module(DRIVERS["pysqlite3"]))
    except ImportError:
        return _examined(sqlite3)


def _examined(driver: ModuleType) -> ModuleType:
    """The driver; Unsupported if its SQLite is too old, and a warning for the WAL-reset bug."""
    version: tuple[int, ...] = driver.sqlite_version_info
    if version < VERSION_MIN:
        message = f"SQLite {driver.sqlite_version} is too old"
        raise Unsupported(message, hint="install pysqlite3")
    if version < VERSION_SOUND:
        warnings.warn(
            f"SQLite {driver.sqlite_version} of {driver.__name__} has the WAL-reset bug: several "
            "connections that write at once can corrupt the file. Use a Python with SQLite 3.51.3 "
            "or newer, or pysqlite3 for everything that opens the file.",
            RuntimeWarning,
            stacklevel=3,
        )
    return driver


def _make_private(path: Path) -> None:
    """Create the file, readable only by its owner, before SQLite writes to it."""
    try:
        path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, FILE_MODE))
    except OSError as error:
        message = f"cannot open {path}: {error.strerror}"
        raise BadInput(message, hint="name a file that can be written") from error


def _configure(connection: Any, settings: StoreSettings) -> None:
    connection.isolation_level = None  # `_begin` says when a transaction starts, not the driver.
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={int(settings.busy_timeout_seconds * 1000)}")
    cursor.execute("PRAGMA page_count")
    if cursor.fetchone() == (0,):
        # Only possible for an empty file; otherwise the pragma would wait for the writer.
        cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
    for pragma in (
        "journal_mode=WAL",
        f"synchronous={settings.sqlite_synchronous}",
        "foreign_keys=ON",
        f"cache_size=-{settings.cache_kib}",
        f"wal_autocheckpoint={CHECKPOINT_PAGES}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
        cursor.fetchall()
    cursor.close()


def _begin(connection: Connection) -> None:
    driver: Any = connection.connection.dbapi_connection
    # SQLAlchemy's connection may be made inside an open transaction.
    if not driver.in_transaction:
        connection.exec_driver_sql(WRITE)


def _travelling(columns: Sequence[Any]) -> Incoming:
    row = (
        func.json_each(bindparam("rows", type_=Text()))
        .table_valued("value", name="travelling")
        .c.value
    )
    return Incoming(
        {
            c.name: type_coerce(func.json_extract(row, literal_column(f"'$[{i}]'")), c.type)
            for i, c in enumerate(columns)
        }
    )


def _first(operation: FirstEach | LockFirst, most: Any, tx: Transaction) -> Statement:
    """The statement for one group: without a server, one statement for each group is cheap."""
    first = operation.build(operation.alone.incoming).limit(most)
    # Without statistics the planner would take any index with the same first columns.
    quoted = tx.driver.identifier_preparer.format_table(operation.table)
    named = f"FROM {quoted} INDEXED BY {operation.index} "
    return Statement(
        operation.name, first, amend=lambda text: text.replace(f"FROM {quoted} ", named)
    )


def _inserting(operation: RowInsert) -> Insert:
    values = operation.assignments(_travelling(operation.incoming))
    # WHERE true: otherwise SQLite parses the ON of ON CONFLICT as that of a join.
    rows = select(*values.values()).where(true())
    return insert(operation.table).from_select(list(values), rows)


def _by_key(
    operation: UpdateEach | InsertEach,
    statement: Statement,
    tx: Transaction,
    rows: Sequence[Row],
    common: dict[str, Any],
) -> list[int]:
    def carry_out(part: Sequence[Row]) -> Sequence[Row]:
        return statement.rows(tx, rows=_document(operation, part), **common)

    return missed(rows, operation.key_position, carry_out)


def _document(
    operation: UpdateEach | ChangeEach | RowInsert | WithRows, rows: Sequence[Row]
) -> str:
    for i, c in enumerate(operation.incoming):
        if isinstance(c.type, Integer):
            _check_numbers([row[i] for row in rows])
    return document(rows)


def _check_numbers(numbers: Sequence[int | None]) -> None:
    """Refuse integers beyond 64 bits, which json_each would return as floats."""
    given = [number for number in numbers if number is not None]
    if given and not INTEGER_MIN <= min(given) <= max(given) <= INTEGER_MAX:
        raise refused(OverflowError("a number needs more than 64 bits"))
