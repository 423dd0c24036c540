"""MySQL and MariaDB."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Engine,
    Insert,
    Text,
    UniqueConstraint,
    Update,
    bindparam,
    column,
    create_engine,
    event,
    insert,
    select,
    text,
    update,
)
from sqlalchemy import types as sqltypes
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from ledgerstone.errors import Duplicate, StoreBusy, Unsupported
from ledgerstone.store import ended, mysql_ends
from ledgerstone.store.batch import (
    AddEach,
    Adding,
    AppendEach,
    ClaimEach,
    FirstEach,
    Incoming,
    InsertEach,
    LockEach,
    LockFirst,
    UpdateEach,
    WithRows,
    document,
)
from ledgerstone.store.dialects.mysql_groups import (
    GROUPS,
    first,
    locking_first,
    side_by_side,
    size_of,
)
from ledgerstone.store.drivers import load
from ledgerstone.store.statement import Row, Statement
from ledgerstone.store.transaction import SomeRefused
from ledgerstone.store.watched import connect_pymysql

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Connection
    from sqlalchemy.pool import PoolProxiedConnection

    from ledgerstone.settings import StoreSettings
    from ledgerstone.store.deadlines import Deadline
    from ledgerstone.store.transaction import Transaction
    from ledgerstone.store.wakeup import Bells, Watcher

MARIADB_MIN = (10, 6)
MYSQL_MIN = (8, 0, 4)
"""SKIP LOCKED and JSON_TABLE."""
BIGINT_DIGITS = 19
CHARSET = "utf8mb4"
"""All of Unicode."""
_UPDATE = re.compile(r"^UPDATE (\S+), (JSON_TABLE\(.*\) AS incoming) SET ", re.DOTALL)
_DELETE = re.compile(
    r"^DELETE FROM (\S+) WHERE (\S+) IN \(SELECT (\S+) \nFROM (JSON_TABLE\(.*\) AS incoming)\)$",
    re.DOTALL,
)
MIGRATION_LOCK = "CONCAT('ledgerstone.migrate.', MD5(DATABASE()))"
"""A lock of this kind belongs to the whole server: its name tells the databases apart."""
MIGRATION_WAIT_SECONDS_MAX = 60
_DEADLOCK, _CHANGED_SINCE, _LOCKS_FULL, _WAITED_TOO_LONG = 1213, 1020, 1206, 1205


class MySQL:
    """READ COMMITTED throughout; rows are found by primary key, in key order."""

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
            # Its connect_timeout ends when the port answers; a server may still say nothing.
            given["read_timeout"] = patience
        else:
            # Its sockets are out of reach: it has limits of its own.
            limit = max(1, round(deadline.seconds_max))
            given |= {"read_timeout": limit, "write_timeout": limit}
            given["cursorclass"] = mysql_ends.watched_cursor()
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
        statement = operation.statements.get(self.name)
        if statement is None:
            row = _travelling(operation.incoming, key=operation.key)
            statement = _by_key(operation.name, operation.build(row), operation.key)
            operation.statements[self.name] = statement
        # In key order, so that two batches over the same rows wait for each other, not in a circle.
        position = operation.key_position
        ordered = sorted(range(len(rows)), key=lambda i: rows[i][position])
        changed = 0
        try:
            with tx.trial():
                changed = statement.run(tx, rows=document([rows[i] for i in ordered]), **common)
                if changed == len(rows):
                    return []
                raise SomeRefused
        except SomeRefused:
            tx.database.measure.take_back(statement.name, written=changed)
            if tx.hopeful:
                raise
            return [
                i
                for i, row in enumerate(rows)
                if not statement.run(tx, rows=document([row]), **common)
            ]

    def lock_each(self, operation: LockEach, tx: Transaction, rows: Sequence[Row]) -> Sequence[Row]:
        statement = operation.statements.get(self.name)
        if statement is None:
            key = operation.key
            travelling = getattr(_travelling([key], key=key), key.name)
            # One by one, by the key: left to itself the server reads, and locks, the whole table.
            locking = (
                select(key)
                .prefix_with("STRAIGHT_JOIN")
                .select_from(travelling.table, operation.table)
                .where(key == travelling)
                .with_hint(operation.table, f"FORCE INDEX ({_index_of(key)})")
                .with_for_update(skip_locked=True)
            )
            statement = operation.statements[self.name] = Statement(operation.name, locking)
        return statement.rows(tx, rows=document(rows))

    def append_each(
        self, operation: AppendEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> None:
        self._add(operation, tx, rows, common)

    def _add(
        self, operation: Adding, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> None:
        statement = operation.statements.get(self.name)
        if statement is None:
            statement = Statement(operation.name, _inserting(operation))
            operation.statements[self.name] = statement
        statement.run(tx, rows=document(rows), **common)

    def add_each(
        self, operation: AddEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]:
        statement = operation.statements.get(self.name)
        if statement is None:
            inserting = _inserting(operation)
            if getattr(tx.driver, "is_mariadb", False):
                inserting = inserting.returning(operation.number)
            statement = operation.statements[self.name] = Statement(operation.name, inserting)
        if getattr(tx.driver, "is_mariadb", False):
            return [row[0] for row in statement.rows(tx, rows=document(rows), **common)]
        # MySQL answers only the first number of several, and others may take some in between.
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
        """Several that find a row taken would share a lock on it, and none could get it alone."""
        statement = operation.statements.get(f"{self.name}.locking")
        if statement is None:
            name = f"{operation.table.name}.{operation.key.name}"
            kept = f" ON DUPLICATE KEY UPDATE {name} = {name}"
            statement = Statement(
                operation.name, _inserting(operation), amend=lambda text: text + kept
            )
            operation.statements[f"{self.name}.locking"] = statement
        statement.run(tx, rows=document(rows), **common)

    def claim_each(
        self, operation: ClaimEach, tx: Transaction, limit: int, common: dict[str, Any]
    ) -> Callable[[], list[Row]]:
        pick, take = self._claiming(operation)
        # One statement answers what the rows will hold, the next writes it: there is no
        # UPDATE … RETURNING. The lock of the first lasts until the second has run.
        rows = pick.rows(tx, limit=limit, **common)
        if rows:
            keys = sorted(row[0] for row in rows)
            take.run(tx, rows=document([(key,) for key in keys]), **common)
        return lambda: [row[1:] for row in rows]

    def _claiming(self, operation: ClaimEach) -> tuple[Statement, Statement]:
        pick = operation.statements.get(f"{self.name}.pick")
        take = operation.statements.get(f"{self.name}.take")
        if pick is None or take is None:
            after = [operation.after(c) for c in operation.returning]
            picking = (
                select(operation.key, *after)
                .where(operation.due)
                .order_by(*operation.order_by)
                .limit(bindparam("limit", type_=BigInteger()))
                .with_for_update(skip_locked=True)
            )
            if operation.index is not None:
                picking = picking.with_hint(operation.table, f"FORCE INDEX ({operation.index})")
            pick = Statement(f"{operation.name}.pick", picking)
            row = _travelling([operation.key], key=operation.key)
            take = _by_key(
                operation.name,
                update(operation.table)
                .where(operation.key == getattr(row, operation.key.name))
                .values(dict(operation.set_)),
                operation.key,
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
        # MariaDB joins with no subquery that refers to another table of the join, and with a limit
        # for each group there is no other way: so they are asked for side by side.
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
                operation.name, operation.build(_travelling(operation.incoming)), amend=_removing
            )
        return statement, {"rows": document(rows)}

    def pipeline(self, lent: PoolProxiedConnection) -> None:
        return None

    def begin(self, driver: Any, *, reads: bool) -> bool:
        # The server begins it with the first statement.
        mysql_ends.begin(driver)
        return True

    def commit(self, driver: Any) -> None:
        mysql_ends.end(driver)
        driver.commit()

    def would_end(self, driver: Any, text: str) -> bool:
        return ended.ends(text) or (mysql_ends.commits(text) and mysql_ends.is_open(driver))

    def watch_open(self, driver: Any) -> None:
        mysql_ends.begin(driver)

    def check_open(self, driver: Any, *, used: bool) -> None:
        mysql_ends.check(driver)

    def check_joined(self, driver: Any) -> None:
        charset = _charset(driver)
        if charset not in {None, CHARSET}:
            # What such a session cannot tell, the server answers as question marks.
            message = f"the connection has the character set {charset}"
            raise Unsupported(message, hint=f"connect with charset={CHARSET}")

    def check_unspoiled(self, connection: Any) -> None:
        """Nothing: an error undoes one statement, or all of them, see `check_open`."""

    def announce(self, tx: Transaction, channels: Sequence[str]) -> None:
        """Nothing to write: other processes poll."""

    def watcher(self, url: URL, settings: StoreSettings, bells: Bells) -> Watcher | None:
        return None

    @contextmanager
    def migrating(self, connection: Connection) -> Iterator[None]:
        # Each DDL statement commits by itself here, so a lock of the transaction would be gone
        # after the first; this one is the session's and is given back at the end.
        got = connection.execute(
            text(f"SELECT GET_LOCK({MIGRATION_LOCK}, :wait)"),
            {"wait": MIGRATION_WAIT_SECONDS_MAX},
        ).scalar()
        if got != 1:
            message = "another process has been migrating this database for too long"
            raise StoreBusy(message, hint="wait for it, or look for a session that hangs")
        try:
            yield
        finally:
            connection.execute(text(f"SELECT RELEASE_LOCK({MIGRATION_LOCK})"))


def _undo_quietly(connection: Any, record: Any, state: Any) -> None:
    """Undo what is open on a connection that goes back to the pool; throw it away if it is lost.

    SQLAlchemy would do the same, and log a lost one with a traceback.
    """
    if mysql_ends.is_spoiled(connection):
        record.invalidate()
        return
    if state.transaction_was_reset or state.terminate_only:
        return
    # The pool ends it, not the code in its block.
    mysql_ends.end(connection)
    try:
        connection.rollback()
    except Exception as error:  # noqa: BLE001 - whatever a driver says of one that is gone
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
    mysql_ends.prepare(connection, undoing)
    wait = max(1, round(settings.lock_timeout_seconds))
    cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {wait}")
    if "mariadb" in str(version).lower():
        seconds = settings.transaction_idle_seconds_max
        cursor.execute(f"SET SESSION idle_transaction_timeout = {seconds}")
    # Without strictness a value that does not fit is cut short in silence.
    cursor.execute("SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')")
    cursor.close()


def _charset(driver: Any) -> str | None:
    """The character set that a driver has told the server; None if the driver does not say."""
    if hasattr(driver, "character_set_name"):
        return str(driver.character_set_name())
    # SQLAlchemy wraps drivers for asyncio.
    found: str | None = getattr(getattr(driver, "_connection", driver), "charset", None)
    return found


def _outside(connection: Connection) -> None:
    """SQLAlchemy's own begin, commit and rollback are seen where they are made."""
    mysql_ends.end(connection.connection.dbapi_connection)


def _check_version(version: str) -> None:
    numbers = tuple(int(part) for part in version.split("-", maxsplit=1)[0].split(".")[:3])
    mariadb = "mariadb" in version.lower()
    if numbers < (MARIADB_MIN if mariadb else MYSQL_MIN):
        message = f"the server is {version}"
        raise Unsupported(message, hint="use MariaDB 10.6 or MySQL 8.0.4, or newer")


class _JsonTable(FunctionElement[Any]):
    """The rows of a JSON document as a table."""

    inherit_cache = False
    name = "json_table"

    def __init__(self, columns: Sequence[Any], key: Any) -> None:
        super().__init__(bindparam("rows", type_=Text()))
        self.travelling = columns
        self.key = key


@compiles(_JsonTable, "mysql")
@compiles(_JsonTable, "mariadb")
def _render_json_table(element: _JsonTable, compiler: Any, **kw: Any) -> str:
    def kind(of: Any) -> str:
        concrete = _roomier(of.type.dialect_impl(compiler.dialect), compared=of.key == element.key)
        rendered: str = compiler.dialect.type_compiler_instance.process(concrete)
        textual = isinstance(concrete, sqltypes.String) and "COLLATE" not in rendered
        return f"{rendered} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" if textual else rendered

    quote = compiler.preparer.quote
    listed = ", ".join(
        f"{quote(c.name)} {kind(c)} PATH '$[{i}]'" for i, c in enumerate(element.travelling)
    )
    document = compiler.process(element.clause_expr.element, **kw)
    return f"JSON_TABLE({document}, '$[*]' COLUMNS({listed}))"


def _roomier(kind: Any, *, compared: bool) -> Any:
    """A type with room for a value that does not fit the column.

    JSON_TABLE cuts in silence what does not fit its types; with room it is the column that refuses.
    A number that is only compared keeps its type, for an index is used for no other.
    """
    if isinstance(kind, sqltypes.String) and kind.length is not None:
        wider = kind.copy()
        wider.length = kind.length + 1
        return wider
    if isinstance(kind, sqltypes.Integer) and not compared:
        return mysql.DECIMAL(BIGINT_DIGITS + 1, 0)
    return kind


def _travelling(columns: Sequence[Any], *, key: Any = None) -> Incoming:
    """The columns of the travelling rows; `key` is only compared."""
    table = _JsonTable(columns, key.key if key is not None else None)
    alias = table.table_valued(*[column(c.name, c.type) for c in columns], name="incoming")
    return Incoming({c.name: alias.c[c.name] for c in columns})


def _inserting(operation: Adding) -> Insert:
    values = operation.assignments(_travelling(operation.incoming))
    return insert(operation.table).from_select(list(values), select(*values.values()))


def _removing(text: str) -> str:
    """A DELETE of rows that travel looks them up by the key, one by one.

    Left to itself the server reads, and locks, the whole table.
    """
    return _DELETE.sub(r"DELETE \1 FROM \4 STRAIGHT_JOIN \1 WHERE \2 = \3", text)


def _by_key(name: str, updating: Update, key: Any) -> Statement:
    """An UPDATE that looks its rows up by the key, one by one, in the order that they travel in.

    Left to itself the server reads all of a small table and compares it with the document: it then
    waits for rows that are another's, and locks those that others look for.
    """

    def amend(text: str) -> str:
        index = _index_of(key)
        forced = f" FORCE INDEX ({index})" if index else ""
        return _UPDATE.sub(rf"UPDATE \2 STRAIGHT_JOIN \1{forced} SET ", text)  # noqa: S608 - our own

    return Statement(name, updating, amend=amend)


def _index_of(key: Any) -> str | None:
    """The name of an index that begins with the column."""
    if next(iter(key.table.primary_key), None) is key:
        return "PRIMARY"
    unique = [c for c in key.table.constraints if isinstance(c, UniqueConstraint)]
    for index in (*unique, *key.table.indexes):
        if index.columns[0] is key:
            return str(index.name)
    return None
