"""MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Engine,
    bindparam,
    case,
    column,
    create_engine,
    event,
    func,
    null,
    select,
    text,
    update,
)
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.pool import StaticPool

from ledgerstone.errors import Duplicate, StoreBusy, Unsupported
from ledgerstone.store.connections import block_end
from ledgerstone.store.connections.drivers import load
from ledgerstone.store.dialect import NotVisible
from ledgerstone.store.dialects.mysql import implicit_commits, open_transactions
from ledgerstone.store.dialects.mysql.connection import connect_pymysql
from ledgerstone.store.dialects.mysql.groups import (
    GROUPS,
    first,
    locking_first,
    side_by_side,
    size_of,
)
from ledgerstone.store.dialects.mysql.rows import (
    by_key,
    index_of,
    insert_rows,
    removing,
    travelling,
)
from ledgerstone.store.schema.namespace import Namespace, namespace
from ledgerstone.store.sql.batch import (
    AddEach,
    AppendEach,
    ClaimEach,
    FirstEach,
    InsertEach,
    LockFirst,
    RowInsert,
    UpdateEach,
    WithRows,
    document,
)
from ledgerstone.store.sql.locked_rows import CHANGED, LockedRow
from ledgerstone.store.sql.statement import Row, Statement

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Connection
    from sqlalchemy.pool import PoolProxiedConnection

    from ledgerstone.settings import StoreSettings
    from ledgerstone.store.connections.deadlines import Deadline
    from ledgerstone.store.sql.locked_rows import ChangeEach
    from ledgerstone.store.sql.rows import InsertRows, UpsertRow
    from ledgerstone.store.transaction import Transaction
    from ledgerstone.store.wakeup import WakeSignals, Watcher

MARIADB_MIN = (10, 6)
MYSQL_MIN = (8, 0, 4)
"""The first versions with SKIP LOCKED and JSON_TABLE."""
CHARSET = "utf8mb4"
"""All of Unicode."""
_POSITION = "position"
MIGRATION_LOCK = "CONCAT('ledgerstone.migrate.', MD5(:place))"
"""GET_LOCK has one namespace for the whole server, so the name contains the database."""
MIGRATION_WAIT_SECONDS_MAX = 60
_DEADLOCK, _CHANGED_SINCE, _LOCKS_FULL, _WAITED_TOO_LONG = 1213, 1020, 1206, 1205


class MySQL:
    """READ COMMITTED on every connection; rows are locked by primary key, in key order."""

    name = "mysql"
    one_writer = False
    embedded = False
    tells = False
    recurs = False

    def open(
        self, url: URL, settings: StoreSettings, deadline: Deadline, *, routine: bool
    ) -> Engine:
        driver = url.get_driver_name()
        load("MySQLdb" if driver == "mysqldb" else driver)
        patience = max(1, round(settings.connect_timeout_seconds))
        given: dict[str, Any] = {"connect_timeout": patience}
        if driver == "pymysql":
            # Its connect_timeout ends at the TCP handshake; the server may still not answer.
            given["read_timeout"] = patience
        else:
            # The driver does not expose its sockets, but has its own timeouts.
            limit = max(1, round(deadline.seconds_max))
            given |= {"read_timeout": limit, "write_timeout": limit}
            given["cursorclass"] = implicit_commits.watched_cursor()
        engine = create_engine(
            url.update_query_dict({"charset": CHARSET}),
            isolation_level="READ COMMITTED",
            pool_size=settings.pool_size_max,
            max_overflow=0,
            pool_timeout=settings.lock_timeout_seconds,
            pool_use_lifo=True,
            pool_reset_on_return=None,
            connect_args=given,
        )
        if driver == "pymysql":
            event.listen(
                engine,
                "do_connect",
                lambda _, __, args, named: connect_pymysql(deadline, *args, **named),
            )
        event.listen(engine, "reset", _undo_quietly)
        event.listen(engine, "connect", lambda connection, _: _configure(connection, settings))
        for name in ("begin", "commit", "rollback"):
            event.listen(engine, name, _outside)
        return engine

    def describe(self, connection: Connection) -> Mapping[str, str]:
        def ask(name: str) -> str:
            return str(connection.exec_driver_sql(f"SELECT @@{name}").scalar())

        mariadb = "MariaDB" if getattr(connection.dialect, "is_mariadb", False) else "MySQL"
        return {
            "database": f"{mariadb} {ask('version')}",
            "driver": str(connection.dialect.loaded_dbapi.__name__),
            "innodb_flush_log_at_trx_commit": ask("innodb_flush_log_at_trx_commit"),
            "sql_mode": ask("sql_mode"),
            "time_zone": ask("time_zone"),
            "max_allowed_packet": ask("max_allowed_packet"),
        }

    def update_each(
        self, operation: UpdateEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]:
        # There is no UPDATE … RETURNING: lock the matching rows, then change them.
        find = operation.statements.get(f"{self.name}.find")
        if find is None:
            position, key = column(_POSITION, BigInteger()), operation.key
            table: Any = key.table
            row = travelling([position, *operation.incoming], key=[position, key])
            updating = operation.build(row)
            finding = (
                select(getattr(row, _POSITION))
                .prefix_with("STRAIGHT_JOIN")
                .select_from(getattr(row, _POSITION).table, table)
                .where(*updating._where_criteria)  # noqa: SLF001 - what the UPDATE asks
                .with_hint(table, f"FORCE INDEX ({index_of(key)})")
                .with_for_update()
            )
            find = operation.statements[f"{self.name}.find"] = Statement(
                f"{operation.name}.find", finding
            )
        sent = [(i, *rows[i]) for i in operation.in_order(rows)]
        found = {row[0] for row in find.rows(tx, rows=document(sent), **common)}
        if found:
            self.apply_each(operation, tx, [rows[i] for i in sorted(found)], common)
        return [i for i in range(len(rows)) if i not in found]

    def apply_each(
        self, operation: UpdateEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> None:
        statement = operation.statements.get(self.name)
        if statement is None:
            row = travelling(operation.incoming, key=[operation.key])
            statement = by_key(operation.name, operation.build(row), operation.key)
            operation.statements[self.name] = statement
        ordered = [rows[i] for i in operation.in_order(rows)]
        statement.run(tx, rows=document(ordered), **common)

    def change_each(
        self,
        operation: ChangeEach,
        tx: Transaction,
        rows: Sequence[Row],
        common: dict[str, Any],
        *,
        waits: bool,
    ) -> list[LockedRow | None]:
        lock, change = self._changing(operation, waits=waits)
        compared, width = len(operation.compared), len(operation.key)
        # In key order, as everywhere; SKIP LOCKED exists only for SELECT.
        order = sorted(range(len(rows)), key=lambda i: rows[i][:width])
        sent = [(i, *rows[i][:compared]) for i in order]
        found: list[LockedRow | None] = [None] * len(rows)
        taken: dict[Row, int] = {}
        for position, stands in lock.rows(tx, rows=document(sent), **common):
            key = rows[position][:width]
            if stands is not None:
                found[position] = LockedRow(False, tuple(msgspec.json.decode(stands)))
            elif taken.setdefault(key, position) == position:
                found[position] = CHANGED
            # A claim that is sent twice is changed once.
        passing = [rows[i] for i in order if found[i] is CHANGED]
        if passing:
            change.run(tx, rows=document(passing), **common)
        return found

    def _changing(self, operation: ChangeEach, *, waits: bool) -> tuple[Statement, Statement]:
        name = f"{self.name}.waits" if waits else self.name
        lock = operation.statements.get(f"{name}.lock")
        change = operation.statements.get(f"{name}.change")
        if lock is None or change is None:
            keys = operation.key
            index = index_of(keys[0])
            position = column(_POSITION, BigInteger())
            row = travelling([position, *operation.compared], key=[position, *keys])
            # The values as one column, NULL for most rows: the driver is slow with columns.
            said = func.json_array(*operation.looks)
            stands = case((operation.guard(row), null()), else_=said)
            # Forced to look rows up by key: the optimizer may scan and lock the whole table.
            locking = (
                select(getattr(row, _POSITION), stands)
                .prefix_with("STRAIGHT_JOIN")
                .select_from(getattr(row, _POSITION).table, operation.table)
                .where(*operation.matches(row))
                .with_hint(operation.table, f"FORCE INDEX ({index})")
                .with_for_update(skip_locked=not waits)
            )
            lock = operation.statements[f"{name}.lock"] = Statement(
                f"{operation.name}.lock", locking
            )
            row = travelling(operation.incoming, key=keys)
            changing = operation.change(row).where(*operation.matches(row))
            change = operation.statements[f"{name}.change"] = by_key(
                operation.name, changing, keys[0]
            )
        return lock, change

    def append_each(
        self, operation: AppendEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> None:
        self._add(operation, tx, rows, common)

    def _add(
        self, operation: RowInsert, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> None:
        statement = operation.statements.get(self.name)
        if statement is None:
            statement = Statement(operation.name, insert_rows(operation))
            operation.statements[self.name] = statement
        statement.run(tx, rows=document(rows), **common)

    def add_each(
        self, operation: AddEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]:
        statement = operation.statements.get(self.name)
        if statement is None:
            inserting = insert_rows(operation)
            if getattr(tx.driver, "is_mariadb", False):
                inserting = inserting.returning(operation.number)
            statement = operation.statements[self.name] = Statement(operation.name, inserting)
        if getattr(tx.driver, "is_mariadb", False):
            return [row[0] for row in statement.rows(tx, rows=document(rows), **common)]
        # MySQL returns only the first number, and other sessions may take numbers in between.
        return [statement.added(tx, rows=document([row]), **common) for row in rows]

    def insert_each(
        self, operation: InsertEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]:
        if operation.locks:
            self._insert_locking(operation, tx, rows, common)
            return []

        # Not INSERT IGNORE: that would also swallow values that do not fit.
        def taken(part: Sequence[Row]) -> bool:
            try:
                with tx.savepoint():
                    self._add(operation, tx, part, common)
            except Duplicate:
                return True
            return False

        if not taken(rows):
            return []
        if len(rows) == 1:
            return [0]
        return [i for i, row in enumerate(rows) if taken([row])]

    def _insert_locking(
        self, operation: InsertEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> None:
        """Exclusive locks on existing rows: two shared locks on one row would deadlock later."""
        statement = operation.statements.get(f"{self.name}.locking")
        if statement is None:
            name = f"{operation.table.name}.{operation.key.name}"
            kept = f" ON DUPLICATE KEY UPDATE {name} = {name}"
            statement = Statement(
                operation.name, insert_rows(operation), amend=lambda text: text + kept
            )
            operation.statements[f"{self.name}.locking"] = statement
        statement.run(tx, rows=document(rows), **common)

    def claim_each(
        self, operation: ClaimEach, tx: Transaction, limit: int, common: dict[str, Any]
    ) -> Callable[[], list[Row]]:
        pick, take = self._claiming(operation)
        # There is no UPDATE … RETURNING: one statement locks the rows and returns their new
        # values, the next one writes them.
        rows = pick.rows(tx, limit=limit, **common)
        width = len(operation.keys)
        # The key is not selected twice: the driver is slow with columns.
        told = 0 if _begins_with_key(operation) else width
        if rows:
            answered = [told + i for i in operation.places_set]
            sent = sorted((*row[:width], *[row[i] for i in answered]) for row in rows)
            take.run(tx, rows=document(sent), **common)
        return lambda: [row[told:] for row in rows] if told else rows

    def _claiming(self, operation: ClaimEach) -> tuple[Statement, Statement]:
        pick = operation.statements.get(f"{self.name}.pick")
        take = operation.statements.get(f"{self.name}.take")
        if pick is None or take is None:
            after = [operation.after(c) for c in operation.returning]
            picking = (
                select(*([] if _begins_with_key(operation) else operation.keys), *after)
                .where(operation.due)
                .order_by(*operation.order_by)
                .limit(bindparam("limit", type_=BigInteger()))
                .with_for_update(skip_locked=True)
            )
            if operation.index is not None:
                picking = picking.with_hint(operation.table, f"FORCE INDEX ({operation.index})")
            pick = Statement(f"{operation.name}.pick", picking)
            # Write the returned values: the clock has advanced.
            said = [operation.returning[i] for i in operation.places_set]
            row = travelling([*operation.keys, *said], key=operation.keys)
            take = by_key(
                operation.name,
                update(operation.table)
                .where(*[c == getattr(row, c.name) for c in operation.keys])
                .values({**operation.set_, **{c.name: getattr(row, c.name) for c in said}}),
                operation.keys[0],
            )
            operation.statements[f"{self.name}.pick"] = pick
            operation.statements[f"{self.name}.take"] = take
        return pick, take

    def first_each(
        self,
        operation: FirstEach,
        tx: Transaction,
        rows: Sequence[Row],
        each: int,
        common: dict[str, Any],
    ) -> list[list[Row]]:
        # MariaDB has no LATERAL join, so the groups are parts of a UNION ALL.
        groups: list[list[Row]] = []
        start = 0
        while start < len(rows):
            size = next(size for size in GROUPS if size <= len(rows) - start)
            part = rows[start : start + size]
            sent = side_by_side(operation, part)
            found: list[list[Row]] = [[] for _ in part]
            statement = first(operation, f"{self.name}.{size}", size)
            for position, *values in statement.rows(tx, each=each, **common, **sent):
                found[position].append(tuple(values))
            groups += found
            start += size
        return groups

    def lock_first(
        self,
        operation: LockFirst,
        tx: Transaction,
        rows: Sequence[Row],
        limit: int,
        common: dict[str, Any],
    ) -> list[Row]:
        found: list[Row] = []
        start = 0
        while start < len(rows) and len(found) < limit:
            room = limit - len(found)
            part = [(*group, min(most, room)) for *group, most in rows[start:]]
            size = size_of(part, rows_max=2 * room)
            statement = locking_first(operation, f"{self.name}.{size}", size)
            locked = statement.rows(tx, **common, **side_by_side(operation, part[:size]))
            found += [tuple(values) for _, *values in sorted(locked, key=itemgetter(0))][:room]
            start += size
        return found

    def with_rows(
        self, operation: WithRows, rows: Sequence[Row]
    ) -> tuple[Statement, dict[str, Any]]:
        statement = operation.statements.get(self.name)
        if statement is None:
            statement = operation.statements[self.name] = Statement(
                operation.name, operation.build(travelling(operation.incoming)), amend=removing
            )
        return statement, {"rows": document(rows)}

    def insert_rows(
        self, operation: InsertRows, tx: Transaction, rows: Sequence[dict[str, Any]]
    ) -> int:
        statement = operation.statements.get(self.name)
        if statement is None:
            inserting = insert(operation.table).values(operation.values)
            statement = operation.statements[self.name] = Statement(operation.name, inserting)

        # Not INSERT IGNORE: that would also swallow values that do not fit.
        def added(part: Sequence[dict[str, Any]]) -> bool:
            try:
                with tx.savepoint():
                    statement.run_many(tx, part)
            except Duplicate:
                return False
            return True

        if added(rows):
            return len(rows)
        return 0 if len(rows) == 1 else sum(added([row]) for row in rows)

    def put_row(self, operation: UpsertRow, tx: Transaction, values: dict[str, Any]) -> None:
        statement = operation.statements.get(self.name)
        if statement is None:
            putting = insert(operation.table).values(operation.values)
            changing = putting.on_duplicate_key_update(dict(operation.changes))
            statement = operation.statements[self.name] = Statement(operation.name, changing)
        statement.run(tx, **values)

    def pipeline(self, lent: PoolProxiedConnection) -> None:
        return None

    def begin(self, driver: Any, *, reads: bool) -> bool:
        # The server begins it with the first statement.
        implicit_commits.begin(driver)
        return True

    def commit(self, driver: Any) -> None:
        implicit_commits.end(driver)
        driver.commit()

    def would_end(self, driver: Any, text: str) -> bool:
        return block_end.ends(text) or (
            implicit_commits.commits(text) and implicit_commits.is_open(driver)
        )

    def watch_open(self, driver: Any) -> None:
        implicit_commits.begin(driver)

    def check_open(self, driver: Any, *, used: bool) -> None:
        implicit_commits.check(driver)

    def check_joined(self, driver: Any) -> None:
        charset = _charset(driver)
        if charset not in {None, CHARSET}:
            # The server replaces characters outside of this set by question marks.
            message = f"the connection has the character set {charset}"
            raise Unsupported(message, hint=f"connect with charset={CHARSET}")

    def check_unspoiled(self, connection: Any) -> None:
        """Nothing: an error rolls back one statement, or the whole transaction (`check_open`)."""

    def under_way(self, tx: Transaction) -> frozenset[int] | NotVisible:
        return open_transactions.under_way(tx)

    def announce(self, tx: Transaction, channels: Sequence[str]) -> None:
        """Nothing to write: other processes poll."""

    def watcher(
        self, url: URL, settings: StoreSettings, wake_signals: WakeSignals
    ) -> Watcher | None:
        return None

    def namespace(self, url: URL, schema: str | None, users: str | None) -> Namespace:
        return namespace(schema or url.database, url.database)

    @contextmanager
    def migrating(self, connection: Connection, names: Namespace) -> Iterator[None]:
        # DDL commits, so a lock of the transaction would be released; this one is the session's.
        got = connection.execute(
            text(f"SELECT GET_LOCK({MIGRATION_LOCK}, :wait)"),
            {"wait": MIGRATION_WAIT_SECONDS_MAX, "place": names.own},
        ).scalar()
        if got != 1:
            message = "another process has been migrating this database for too long"
            raise StoreBusy(message, hint="wait for it, or look for a session that hangs")
        try:
            yield
        finally:
            release = text(f"SELECT RELEASE_LOCK({MIGRATION_LOCK})")
            connection.execute(release, {"place": names.own})

    def make_place(self, connection: Connection, names: Namespace) -> None:
        # Checked first: IF NOT EXISTS needs the privilege CREATE also for an existing database.
        there = text("SELECT 1 FROM information_schema.schemata WHERE schema_name = :name")
        if connection.execute(there, {"name": names.own}).first() is None:
            quoted = connection.dialect.identifier_preparer.quote_schema(str(names.own))
            connection.exec_driver_sql(f"CREATE DATABASE {quoted}")

    @contextmanager
    def inside(self, connection: Connection, names: Namespace) -> Iterator[Connection]:
        if names.own == names.shared:
            yield connection
            return
        quote = connection.dialect.identifier_preparer.quote_schema
        connection.exec_driver_sql(f"USE {quote(str(names.own))}")
        try:
            with _using(connection, names.own).connect() as within:
                yield within
                within.commit()
        finally:
            connection.exec_driver_sql(f"USE {quote(str(names.shared))}")


def _using(connection: Connection, database: str | None) -> Engine:
    """The same session for SQLAlchemy, which caches the name of the current database."""
    raw: Any = connection.connection.dbapi_connection
    driver = copy(connection.dialect)
    driver.default_schema_name = database
    return Engine(StaticPool(lambda: raw, reset_on_return=None), driver, connection.engine.url)


def _begins_with_key(operation: ClaimEach) -> bool:
    """Whether `returning` begins with the key."""
    first = operation.returning[: len(operation.keys)]
    return [id(c) for c in first] == [id(c) for c in operation.keys]


def _undo_quietly(connection: Any, record: Any, state: Any) -> None:
    """Roll back a connection that returns to the pool; discard it if it is lost.

    SQLAlchemy would do the same, and log a traceback for a lost connection.
    """
    if implicit_commits.is_spoiled(connection):
        record.invalidate()
        return
    if state.transaction_was_reset or state.terminate_only:
        return
    # The pool ends the transaction, not the code in its block.
    implicit_commits.end(connection)
    try:
        connection.rollback()
    except Exception as error:  # noqa: BLE001 - any error of a driver for a lost connection
        record.invalidate(error)


def _configure(connection: Any, settings: StoreSettings) -> None:
    if hasattr(connection, "_read_timeout"):
        connection._read_timeout = None  # noqa: SLF001 - connected: a statement may take its time
    cursor = connection.cursor()
    cursor.execute("SELECT @@version, @@innodb_rollback_on_timeout")
    version, all_on_timeout = cursor.fetchone()
    _check_version(str(version))
    undoing = {_DEADLOCK, _CHANGED_SINCE, _LOCKS_FULL}
    undoing |= {_WAITED_TOO_LONG} if all_on_timeout else set()
    implicit_commits.prepare(connection, undoing)
    wait = max(1, round(settings.lock_timeout_seconds))
    cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {wait}")
    if "mariadb" in str(version).lower():
        seconds = settings.transaction_idle_seconds_max
        cursor.execute(f"SET SESSION idle_transaction_timeout = {seconds}")
    # Without strict mode MySQL truncates a value that does not fit.
    cursor.execute("SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')")
    cursor.close()


def _charset(driver: Any) -> str | None:
    """The character set of a driver's connection; None if the driver does not report it."""
    if hasattr(driver, "character_set_name"):
        return str(driver.character_set_name())
    # SQLAlchemy wraps drivers for asyncio.
    found: str | None = getattr(getattr(driver, "_connection", driver), "charset", None)
    return found


def _outside(connection: Connection) -> None:
    """SQLAlchemy begins, commits or rolls back: this is not an implicit end."""
    implicit_commits.end(connection.connection.dbapi_connection)


def _check_version(version: str) -> None:
    numbers = tuple(int(part) for part in version.split("-", maxsplit=1)[0].split(".")[:3])
    mariadb = "mariadb" in version.lower()
    if numbers < (MARIADB_MIN if mariadb else MYSQL_MIN):
        message = f"the server is {version}"
        raise Unsupported(message, hint="use MariaDB 10.6 or MySQL 8.0.4, or newer")
