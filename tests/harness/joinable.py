"""Guests: programs with a transaction of their own, whatever they hold it in.

SQLAlchemy's connection and session, both also asynchronous, Django's connection, and the bare
connection of a driver, all with the same few verbs.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from ledgerstone.ids import new_id
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.store.dialects.by_url import dialect_of
from ledgerstone.store.dialects.sqlite.dialect import best_driver
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

T = TypeVar("T")


class Guest(Protocol):
    """A program's own transaction.

    - `join` joins this transaction once; its result calls functions with the ledger's transaction.
    - `joined` calls one function with the ledger's transaction inside this one.
    - `execute` runs the program's own SQL and answers its rows.
    - What was executed since `savepoint` is undone by `undo`.
    - `close` closes whatever it opened.
    """

    def begin(self) -> None: ...

    def execute(self, statement: str) -> list[tuple[Any, ...]]: ...

    def join(self, ledger: Ledger) -> Callable[[Callable[[Transaction], Any]], Any]: ...

    def joined(self, ledger: Ledger, work: Callable[[Transaction], T]) -> T: ...

    def savepoint(self) -> None: ...

    def undo(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class _Sync:
    """What guests have in common that call and are answered."""

    holder: Any

    def join(self, ledger: Ledger) -> Callable[[Callable[[Transaction], Any]], Any]:
        tx = ledger.join(self.holder)
        return lambda work: work(tx)

    def joined(self, ledger: Ledger, work: Callable[[Transaction], T]) -> T:
        return work(ledger.join(self.holder))


class ConnectionGuest(_Sync):
    """SQLAlchemy's connection."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._engine = create_engine(url, **options)
        self.holder: Any = self._engine.connect()
        self._nested: Any = None

    def begin(self) -> None:
        self.holder.begin()

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        result = self.holder.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []

    def savepoint(self) -> None:
        self._nested = self.holder.begin_nested()

    def undo(self) -> None:
        self._nested.rollback()

    def commit(self) -> None:
        self.holder.commit()

    def rollback(self) -> None:
        self.holder.rollback()

    def close(self) -> None:
        self.holder.close()
        self._engine.dispose()


class SessionGuest(ConnectionGuest):
    """SQLAlchemy's session."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._engine = create_engine(url, **options)
        self.holder = Session(self._engine)


class AsyncConnectionGuest:
    """SQLAlchemy's connection under asyncio."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._runner = asyncio.Runner()
        self._engine = create_async_engine(url, **options)
        self._nested: Any = None
        self.holder: Any = self._open()

    def _open(self) -> Any:
        connection = self._engine.connect()
        self._wait(connection.start())
        return connection

    def _wait(self, awaitable: Awaitable[T]) -> T:
        async def wait() -> T:
            return await awaitable

        return self._runner.run(wait())

    def begin(self) -> None:
        self._wait(self.holder.begin())

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        result = self._wait(self.holder.execute(text(statement)))
        return [tuple(row) for row in result] if result.returns_rows else []

    def join(self, ledger: Ledger) -> Callable[[Callable[[Transaction], Any]], Any]:
        tx = ledger.join(self.holder)
        return lambda work: self._wait(tx.run(work))

    def joined(self, ledger: Ledger, work: Callable[[Transaction], T]) -> T:
        answer: T = self._wait(ledger.join(self.holder).run(work))
        return answer

    def savepoint(self) -> None:
        async def begin() -> Any:
            return await self.holder.begin_nested()

        self._nested = self._wait(begin())

    def undo(self) -> None:
        self._wait(self._nested.rollback())

    def commit(self) -> None:
        self._wait(self.holder.commit())

    def rollback(self) -> None:
        self._wait(self.holder.rollback())

    def close(self) -> None:
        self._wait(self.holder.close())
        self._wait(self._engine.dispose())
        self._runner.close()


class AsyncSessionGuest(AsyncConnectionGuest):
    """SQLAlchemy's session under asyncio."""

    def _open(self) -> Any:
        return AsyncSession(self._engine)

    def begin(self) -> None:
        """It begins at the first use."""


class DriverGuest(_Sync):
    """The bare connection of a driver."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        parsed = make_url(url)
        self.holder = CONNECT[parsed.get_backend_name()](parsed, bool(options))

    def begin(self) -> None:
        """It begins at the first statement."""

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(self.holder.cursor()) as cursor:
            cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def savepoint(self) -> None:
        self.execute("SAVEPOINT theirs")

    def undo(self) -> None:
        self.execute("ROLLBACK TO SAVEPOINT theirs")

    def commit(self) -> None:
        self.holder.commit()

    def rollback(self) -> None:
        self.holder.rollback()

    def close(self) -> None:
        self.holder.close()


class StandardLibraryGuest(DriverGuest):
    """The standard library's connection to SQLite."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        path = make_url(url).database or ""
        self.holder = sqlite3.connect(path, isolation_level=None if options else "DEFERRED")


class DjangoGuest(DriverGuest):
    """Django's connection, inside `atomic`."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._django = SimpleNamespace(**django_parts())
        self._alias = f"guest {new_id()}"
        self.holder = self._django.open(url, self._alias)
        self._atomic: Any = None
        self._savepoint: Any = None

    def begin(self) -> None:
        self._atomic = self._django.transaction.atomic(using=self._alias)
        self._atomic.__enter__()

    def savepoint(self) -> None:
        self._savepoint = self._django.transaction.savepoint(using=self._alias)

    def undo(self) -> None:
        self._django.transaction.savepoint_rollback(self._savepoint, using=self._alias)

    def commit(self) -> None:
        self._atomic.__exit__(None, None, None)
        self._atomic = None

    def rollback(self) -> None:
        self._django.transaction.set_rollback(True, using=self._alias)
        self.commit()

    def close(self) -> None:
        if self._atomic is not None:
            self.rollback()
        self.holder.close()
        del self._django.connections[self._alias]


def django_parts() -> dict[str, Any]:
    """Django, configured once for this process, with PyMySQL in the place of its usual driver."""
    import django
    import pymysql
    from django.conf import settings
    from django.db import connections, transaction

    pymysql.install_as_MySQLdb()
    if not settings.configured:
        settings.configure(USE_TZ=True, DATABASES={})
        django.setup()

    def opened(url: str, alias: str) -> Any:
        parsed = make_url(url)
        kind = {"sqlite": "sqlite3"}.get(parsed.get_backend_name(), parsed.get_backend_name())
        connections.settings[alias] = connections.configure_settings(
            {
                "default": {},
                alias: {
                    "ENGINE": f"django.db.backends.{kind}",
                    "NAME": parsed.database,
                    "USER": parsed.username or "",
                    "HOST": parsed.host or "",
                    "PORT": parsed.port or "",
                },
            }
        )[alias]
        return connections[alias]

    return {"connections": connections, "transaction": transaction, "open": opened}


def _connect_sqlite(url: URL, autocommit: bool) -> Any:
    return best_driver().connect(url.database, isolation_level=None if autocommit else "")


def _connect_postgresql(url: URL, autocommit: bool) -> Any:
    import psycopg

    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(plain, autocommit=autocommit)


def _connect_mysql(url: URL, autocommit: bool) -> Any:
    import pymysql

    return pymysql.connect(
        host=url.host,
        port=url.port or 3306,
        user=url.username,
        password=url.password or "",
        database=url.database,
        charset="utf8mb4",
        autocommit=autocommit,
        connect_timeout=WAIT_SECONDS_MAX,
    )


CONNECT = {"sqlite": _connect_sqlite, "postgresql": _connect_postgresql, "mysql": _connect_mysql}
GUESTS: dict[str, type[Any]] = {
    "connection": ConnectionGuest,
    "session": SessionGuest,
    "async-connection": AsyncConnectionGuest,
    "async-session": AsyncSessionGuest,
    "driver": DriverGuest,
    "django": DjangoGuest,
}
GUESTS_OF_ONE: dict[str, type[Any]] = {
    "sqlite3": StandardLibraryGuest,
    "async-psycopg": AsyncConnectionGuest,
}
"""Guests that only one kind of database has."""
ASYNC_DRIVERS = {"sqlite": "aiosqlite", "postgresql": "asyncpg", "mysql": "asyncmy"}
STANDARD_LIBRARY = "?driver=sqlite3"
"""aiosqlite and Django open a file with the standard library's SQLite: so must the ledger."""


@contextmanager
def guest_on(name: str, url: str, **options: Any) -> Iterator[Guest]:
    """A guest on the database of a ledger."""
    named, _ = dialect_of(url.removesuffix(STANDARD_LIBRARY))
    if name.startswith("async"):
        backend = named.get_backend_name()
        driver = "psycopg" if name == "async-psycopg" else ASYNC_DRIVERS[backend]
        named = named.set(drivername=f"{backend}+{driver}")
    elif name in {"connection", "session"} and named.get_backend_name() == "sqlite":
        options["module"] = best_driver()
    spelled = named.render_as_string(hide_password=False)
    opened: Guest = (GUESTS | GUESTS_OF_ONE)[name](spelled, options)
    with closing(opened):
        yield opened


def async_url(url: str) -> str:
    """The database of a ledger, for SQLAlchemy under asyncio."""
    named, _ = dialect_of(url)
    backend = named.get_backend_name()
    driver = f"{backend}+{ASYNC_DRIVERS[backend]}"
    return named.set(drivername=driver).render_as_string(hide_password=False)


def url_for(name: str, home: Home) -> str:
    """How the ledger is opened for a guest."""
    standard = home.server is None and name.startswith(("async", "django", "sqlite3"))
    return home.url + STANDARD_LIBRARY if standard else home.url
