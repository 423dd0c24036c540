"""Joined transactions: a SQLAlchemy connection for whatever object the caller has.

the caller's object                the connection used
─────────────────────────────────  ─────────────────────────────────────────────────
SQLAlchemy Connection              itself
SQLAlchemy Session                 the connection of its transaction
Django connection (inside atomic)  the driver's connection under it
psycopg, sqlite3, PyMySQL, …       a SQLAlchemy connection laid over it

This module never commits, rolls back or closes the connection, and never returns it to a pool. A
driver's connection is wrapped in a pool of one connection without a reset, and in cursors that
return plain tuples, whichever row type the caller has set on the driver.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, inspect, select
from sqlalchemy import exc as sa_exc
from sqlalchemy.pool import StaticPool

from ledgerstone.errors import (
    BadInput,
    NotInTransaction,
    SchemaMissing,
    StoreDenied,
    WrongDatabase,
)
from ledgerstone.store.connections.commit_hooks import CommitHooks, hooks_of
from ledgerstone.store.connections.faults import translated
from ledgerstone.store.connections.joined import (
    JoinedConnection,
    StillOpen,
    of_django,
    of_driver,
    of_sqlalchemy,
)
from ledgerstone.store.dialects.sqlite.library import library_of
from ledgerstone.store.schema.tables import ledger_identity
from ledgerstone.store.sql.cursors import PlainCursors

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import Dialect as DriverDialect

    from ledgerstone.store.database import Database

DRIVERS = {
    "sqlite3": "sqlite",
    "pysqlite3": "sqlite",
    "sqlcipher3": "sqlite",
    "psycopg": "postgresql",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
}
_SERVER_STATUS_IN_TRANS = 1
_TRANSACTION_STATUS_IDLE = 0


class DriverConnection(Protocol):
    """A connection of psycopg, sqlite3, PyMySQL or Django."""

    def cursor(self) -> object: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...


class Joiner:
    """Makes SQLAlchemy connections for joined transactions on one database."""

    def __init__(self, database: Database[Any]) -> None:
        self._database = database
        self._engines_known: WeakKeyDictionary[Engine, str] = WeakKeyDictionary()
        self._drivers: dict[str, DriverDialect] = {}

    def hooks_of(self, connection: Connection) -> CommitHooks | None:
        """The hooks before the caller's commit; None if the commit is not visible."""
        wraps_driver = isinstance(connection.engine.pool, StaticPool)
        return None if wraps_driver else hooks_of(connection)

    def connection_of(self, joined: object) -> JoinedConnection:
        """A SQLAlchemy connection inside the caller's transaction."""
        try:
            return self._checked(joined)
        except sa_exc.InvalidRequestError as error:
            message = f"cannot join this {type(joined).__name__}: {error}"
            raise BadInput(message) from error
        except Exception as error:
            fault = translated(error)
            if fault is error:
                raise
            raise fault from error

    def _checked(self, joined: object) -> JoinedConnection:
        # Not imported here: a caller with a session has imported it.
        orm = sys.modules.get("sqlalchemy.orm")
        if orm is not None and isinstance(joined, orm.Session):
            joined = joined.connection()
        if isinstance(joined, Connection):
            connection = joined
            if not connection.in_transaction():
                connection.begin()
            self._check_kind(connection.dialect.name)
            self._check_library(connection.connection.dbapi_connection)
            still_open = of_sqlalchemy(connection)
        else:
            driver_connection = self._driver_connection(joined)
            connection, still_open = self._wrapped(driver_connection)
            if driver_connection is not joined:
                still_open = of_django(joined, still_open)
        raw: Any = connection.connection.dbapi_connection
        _check_open_transaction(raw, self._database.dialect.name)
        self._database.dialect.check_joined(raw)
        self._check_identity(connection)
        return JoinedConnection(connection, still_open)

    def _driver_connection(self, joined: object) -> Any:
        if hasattr(joined, "in_atomic_block") and hasattr(joined, "connection"):
            if not joined.in_atomic_block:
                message = "the Django connection is not inside a transaction"
                raise NotInTransaction(message, hint="open `with transaction.atomic():` first")
            joined.ensure_connection()  # type: ignore[attr-defined]
            return joined.connection
        if set(_names(joined)) & set(DRIVERS) and hasattr(joined, "cursor"):
            return joined
        message = f"cannot join a {type(joined).__module__}.{type(joined).__name__}"
        raise BadInput(
            message,
            hint="give a SQLAlchemy connection or session, a Django connection,"
            " or a psycopg, sqlite3 or PyMySQL connection",
        )

    def _wrapped(self, raw: Any) -> tuple[Connection, StillOpen]:
        driver = _driver_of(raw)
        self._check_kind(DRIVERS[driver])
        self._check_library(raw)
        plain = PlainCursors(driver, raw)
        made: Any = plain
        pool = StaticPool(lambda: made, reset_on_return=None)
        engine = Engine(pool, self._driver_dialect(driver), self._database.engine.url)
        return engine.connect(), of_driver(driver, plain)

    def _driver_dialect(self, driver: str) -> DriverDialect:
        """SQLAlchemy's dialect for this driver; our engine's own if the driver is the same."""
        known = self._drivers.get(driver)
        if known is not None:
            return known
        ours = self._database.engine.dialect
        if self._library == driver:
            # SQLAlchemy completes a dialect at the first connection.
            with self._database.reading():
                dialect = ours
        else:
            dialect = _other_driver(driver, ours)
        self._drivers[driver] = dialect
        return dialect

    @property
    def _library(self) -> str:
        """The driver of our own connections."""
        return library_of(self._database.engine)

    def _check_library(self, raw: Any) -> None:
        """Use one copy of SQLite for the file: two copies do not see each other's locks."""
        if self._database.dialect.name != "sqlite":
            return
        theirs = _driver_of(_innermost(raw))
        if theirs == self._library:
            return
        if not self._same_file(raw):
            raise _another_database()
        self._database.share_library(theirs)
        self._drivers.clear()

    def _same_file(self, raw: Any) -> bool:
        cursor = raw.cursor()
        cursor.execute("PRAGMA database_list")
        files = {row[1]: row[2] for row in cursor.fetchall()}
        cursor.close()
        ours = Path(self._database.url.database or "")
        return Path(files["main"] or "").resolve() == ours.resolve()

    def _check_kind(self, kind: str) -> None:
        kind = "mysql" if kind == "mariadb" else kind
        if kind != self._database.dialect.name:
            message = f"the connection is to {kind}, the ledger is on {self._database.dialect.name}"
            raise WrongDatabase(message, hint="join a connection to the ledger's own database")

    def _check_identity(self, connection: Connection) -> None:
        """Refuse a connection to another database, without aborting its transaction."""
        ours = self._database.identity
        theirs = self._engines_known.get(connection.engine)
        if theirs is None:
            theirs = _identity_seen_by(connection, self._database)
            if theirs == ours:
                self._engines_known[connection.engine] = theirs
        if theirs != ours:
            raise _another_database()


def _another_database() -> WrongDatabase:
    message = "the connection is to another database than the ledger's"
    return WrongDatabase(message, hint="join a connection to the ledger's own database")


def _identity_seen_by(connection: Connection, ours: Database[Any]) -> str | None:
    names = ours.namespace
    kind = connection.dialect.name
    if kind == "postgresql":
        # Look first: a statement that fails would abort the transaction.
        if not inspect(connection).has_table(ledger_identity.name, schema=names.own):
            return None
    elif kind != "sqlite" and _used_database(connection) != ours.url.database:
        # Our tables are visible from every database of the server; compare the current one.
        return None
    try:
        found = connection.execute(select(ledger_identity.c.id), execution_options=names.options)
    except sa_exc.DBAPIError as error:
        if isinstance(translated(error), SchemaMissing | StoreDenied):
            return None
        raise
    value = found.scalar()
    return None if value is None else str(value)


def _used_database(connection: Connection) -> str | None:
    """The current database of a MySQL session."""
    name: str | None = connection.exec_driver_sql("SELECT DATABASE()").scalar()
    return name


def _other_driver(driver: str, ours: DriverDialect) -> DriverDialect:
    """The dialect for the other driver of MySQL, with the server facts of our own dialect."""
    if driver == "pymysql":
        from sqlalchemy.dialects.mysql.pymysql import dialect as mysql
    else:
        from sqlalchemy.dialects.mysql.mysqldb import dialect as mysql  # type: ignore[assignment]
    other = mysql(dbapi=mysql.import_dbapi())
    for fact in ("server_version_info", "is_mariadb", "_server_ansiquotes", "_backslash_escapes"):
        if hasattr(ours, fact):
            setattr(other, fact, getattr(ours, fact))
    return other


def _check_open_transaction(raw: Any, kind: str) -> None:
    """Refuse a connection without an open transaction, on which each statement would commit."""
    if kind == "postgresql":
        _check_postgresql(raw)
    elif kind == "mysql":
        _check_mysql(raw)
    else:
        _check_sqlite(raw)


def _check_postgresql(raw: Any) -> None:
    # Only psycopg reports a transaction that was begun by hand in autocommit mode.
    info = getattr(raw, "info", None)
    idle = info is None or info.transaction_status == _TRANSACTION_STATUS_IDLE
    if idle and raw.autocommit:
        raise _alone("leave autocommit off, or open `with connection.transaction():`")


def _check_mysql(raw: Any) -> None:
    status = getattr(raw, "server_status", None)
    autocommit = raw.get_autocommit() if hasattr(raw, "get_autocommit") else False
    if autocommit and not (isinstance(status, int) and status & _SERVER_STATUS_IN_TRANS):
        raise _alone("call `connection.begin()` first")


def _check_sqlite(raw: Any) -> None:
    inner = _innermost(raw)
    if inner.in_transaction:
        return
    if getattr(inner, "isolation_level", "") is None or getattr(inner, "autocommit", -1) is True:
        raise _alone("execute BEGIN IMMEDIATE first")
    # The driver begins a transaction at the first INSERT, UPDATE or DELETE, not at a savepoint.
    cursor = raw.cursor()
    cursor.execute("BEGIN IMMEDIATE")
    cursor.close()


def _innermost(raw: Any) -> Any:
    """The connection of the driver inside an async connection or another wrapper."""
    for name in ("raw", "_connection", "_conn"):
        raw = getattr(raw, name, raw)
    return raw


def _driver_of(raw: Any) -> str:
    """The driver of a connection, also of a subclass of its connection."""
    return next(name for name in _names(raw) if name in DRIVERS)


def _names(thing: object) -> list[str]:
    """The packages of the class and its bases."""
    return [base.__module__.partition(".")[0] for base in type(thing).__mro__]


def _alone(hint: str) -> NotInTransaction:
    message = "the connection commits every statement by itself: there is no transaction to join"
    return NotInTransaction(message, hint=hint)
