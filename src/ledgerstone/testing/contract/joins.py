"""The joining contract: in the user's own transaction, whatever they hold it in.

A guest is a program with a transaction of its own. The clauses are the same for every way to hold
one: SQLAlchemy's connection and session, both also asynchronous, Django's connection, and the bare
connection of a driver.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from ledgerstone import chores, errors
from ledgerstone.chores import ChoreSource, NewChore, Status
from ledgerstone.chores.chores import Enqueued
from ledgerstone.engine.source import Handler
from ledgerstone.ids import new_id
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.settings import Settings
from ledgerstone.store import leases
from ledgerstone.store.dialect import dialect_of
from ledgerstone.store.dialects.sqlite import best_driver
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.contract import (
    PATIENCE_SECONDS,
    WAIT_SECONDS_MAX,
    another,
    notes_kept,
    tables,
)
from ledgerstone.testing.contract.batches import add, change
from ledgerstone.testing.contract.batches import tables as batch_tables
from ledgerstone.testing.contract.wakeups import hung
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.processes import WorkerProcess
from ledgerstone.testing.waiting import until

T = TypeVar("T")


class Guest(Protocol):
    """A program's own transaction.

    - `joined` calls a function with the ledger's transaction inside this one.
    - `execute` runs the program's own SQL and answers its rows.
    - What was executed since `savepoint` is undone by `undo`.
    - `close` closes whatever it opened.
    """

    def begin(self) -> None: ...

    def execute(self, statement: str) -> list[tuple[Any, ...]]: ...

    def joined(self, ledger: Ledger, work: Callable[[Transaction], T]) -> T: ...

    def enqueue(self, ledger: Ledger, body: object, key: str | None = None) -> Enqueued: ...

    def savepoint(self) -> None: ...

    def undo(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class _Sync:
    """What guests have in common that call and are answered."""

    holder: Any

    def joined(self, ledger: Ledger, work: Callable[[Transaction], T]) -> T:
        return work(ledger.join(self.holder))

    def enqueue(self, ledger: Ledger, body: object, key: str | None = None) -> Enqueued:
        return self.joined(ledger, lambda tx: tx.chores.enqueue(body, key=key))


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

    def joined(self, ledger: Ledger, work: Callable[[Transaction], T]) -> T:
        return self._wait(ledger.join(self.holder).run(work))

    def enqueue(self, ledger: Ledger, body: object, key: str | None = None) -> Enqueued:
        enqueued: Enqueued = self._wait(ledger.join(self.holder).chores.enqueue(body, key=key))
        return enqueued

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
ASYNC_DRIVERS = {"sqlite": "aiosqlite", "postgresql": "asyncpg", "mysql": "asyncmy"}
STANDARD_LIBRARY = "?driver=sqlite3"
"""aiosqlite and Django open a file with the standard library's SQLite: so must the ledger."""


@contextmanager
def guest_on(name: str, url: str, **options: Any) -> Iterator[Guest]:
    """A guest on the database of a ledger."""
    named, _ = dialect_of(url.removesuffix(STANDARD_LIBRARY))
    if name.startswith("async"):
        backend = named.get_backend_name()
        named = named.set(drivername=f"{backend}+{ASYNC_DRIVERS[backend]}")
    elif name in {"connection", "session"} and named.get_backend_name() == "sqlite":
        options["module"] = best_driver()
    spelled = named.render_as_string(hide_password=False)
    opened: Guest = GUESTS[name](spelled, options)
    with closing(opened):
        yield opened


def url_for(name: str, home: Home) -> str:
    """How the ledger is opened for a guest."""
    standard = home.server is None and (name.startswith("async") or name == "django")
    return home.url + STANDARD_LIBRARY if standard else home.url


@pytest.mark.filterwarnings("ignore:SQLite .* has the WAL-reset bug:RuntimeWarning")
class JoinContract:
    """What holds in a joined transaction. Fixtures: `home`, `clock`."""

    @pytest.fixture(params=list(GUESTS))
    def name(self, request: pytest.FixtureRequest) -> str:
        """Every way to hold a transaction."""
        return str(request.param)

    @pytest.fixture
    def ledger(self, home: Home, clock: ManualClock, name: str) -> Iterator[Ledger]:
        """A ledger that the guest can join."""
        url = url_for(name, home)
        settings = Settings.load(url=url, environ={})
        with Ledger(url, settings=settings, clock=clock) as ledger:
            ledger.migrate()
            chores.install(ledger.database)
            tables.create_all(ledger.database.engine)
            yield ledger

    @pytest.fixture
    def guest(self, name: str, ledger: Ledger, home: Home) -> Iterator[Guest]:
        """A program with a transaction of its own on the same database."""
        with guest_on(name, home.url) as guest:
            guest.begin()
            yield guest

    def test_a_commit_keeps_both(self, ledger: Ledger, guest: Guest) -> None:
        """When the user commits, their rows and ours are kept; until then nobody sees either."""
        add_note(guest, "mine")
        enqueued = guest.enqueue(ledger, {"order": 7})
        inside = guest.execute("SELECT COUNT(*) FROM chore")
        before = kept(ledger)

        guest.commit()

        assert enqueued.created
        assert inside == [(1,)]
        assert before == ([], 0)
        assert kept(ledger) == (["mine"], 1)
        with ledger.reading() as tx:
            assert tx.chores.get(enqueued.id).body == {"order": 7}

    def test_a_rollback_keeps_neither(self, ledger: Ledger, guest: Guest) -> None:
        """When the user rolls back, neither is kept, whoever wrote first."""
        guest.enqueue(ledger, 1)
        add_note(guest, "mine")

        guest.rollback()

        assert kept(ledger) == ([], 0)

    def test_a_savepoint_takes_ours_with_it(self, ledger: Ledger, guest: Guest) -> None:
        """Back to the user's savepoint, what we wrote since is gone, and what came before stays."""
        add_note(guest, "before")
        first = guest.enqueue(ledger, "before")
        guest.savepoint()
        add_note(guest, "inside")
        second = guest.enqueue(ledger, "inside")

        guest.undo()

        add_note(guest, "after")
        guest.enqueue(ledger, "after")
        guest.commit()
        assert kept(ledger) == (["after", "before"], 2)
        with ledger.reading() as tx:
            assert tx.chores.get(first.id).body == "before"
            with pytest.raises(errors.NotFound):
                tx.chores.get(second.id)

    def test_it_stays_the_users(self, ledger: Ledger, guest: Guest) -> None:
        """We never commit, roll back, close or reset it, also not when our objects are collected."""
        add_note(guest, "mine")
        for number in range(3):
            guest.enqueue(ledger, number)
            gc.collect()
        ledger.close()
        gc.collect()

        inside = guest.execute("SELECT COUNT(*) FROM chore")
        outside = kept(ledger)
        guest.commit()

        assert inside == [(3,)]
        assert outside == ([], 0)
        assert kept(ledger) == (["mine"], 3)

    def test_it_can_be_joined_again(self, ledger: Ledger, guest: Guest) -> None:
        """The same connection is joined in one transaction after the other."""
        for number in range(3):
            if number:
                guest.begin()
            guest.enqueue(ledger, number)
            guest.commit()

        assert kept(ledger) == ([], 3)

    def test_a_conflict_leaves_it_usable(self, ledger: Ledger, guest: Guest) -> None:
        """A refused key costs the user nothing: their transaction goes on and commits."""
        add_note(guest, "before")
        first = guest.enqueue(ledger, 1, key="order-7")

        again = guest.enqueue(ledger, 1, key="order-7")
        with pytest.raises(errors.KeyConflict):
            guest.enqueue(ledger, 2, key="order-7")

        add_note(guest, "after")
        guest.commit()
        assert (again.id, again.created) == (first.id, False)
        assert kept(ledger) == (["after", "before"], 1)

    def test_everything_works_in_it(self, ledger: Ledger, guest: Guest) -> None:
        """Batches, refusals, savepoints and leases do in a joined transaction what they always do."""
        batch_tables.create_all(ledger.database.engine)

        def work(tx: Transaction) -> list[Any]:
            lease = leases.acquire(tx, "door", "ann", seconds=5)
            assert lease is not None
            # Nothing changes by it: the row is found all the same.
            leases.renew(tx, lease, seconds=5)
            with pytest.raises(errors.Duplicate), tx.savepoint():
                tx.command("INSERT INTO note (name, count) VALUES ('mine', 0)")
            tx.chores.enqueue_many([NewChore(body=f"'{i}\\%🦊") for i in range(50)])
            return [
                add(tx, [(1, "a", "%s"), (2, "b", None), (1, "c", None)]),
                change.run(tx, [(1, 1, "🦊"), (2, 7, None)], extra_="%"),
                leases.release(tx, lease),
                tx.chores.counts()[Status.QUEUED],
            ]

        add_note(guest, "mine")
        answers = guest.joined(ledger, work)
        guest.commit()

        assert answers == [[2], [1], True, 50]
        assert kept(ledger) == (["mine"], 50)

    def test_another_database_is_refused(
        self, name: str, ledger: Ledger, home: Home, tmp_path: Path
    ) -> None:
        """A connection to another database is WrongDatabase, and its transaction goes on."""
        with another(home, tmp_path) as other:
            tables.create_all(other.database.engine)
            other.close()

            with guest_on(name, url_of(other)) as stranger:
                stranger.begin()
                add_note(stranger, "before")
                with pytest.raises(errors.WrongDatabase):
                    stranger.enqueue(ledger, 1)
                add_note(stranger, "after")
                stranger.commit()

            assert notes_kept(other) == ["after", "before"]
        assert kept(ledger) == ([], 0)

    def test_a_database_without_a_ledger_is_refused(
        self, name: str, ledger: Ledger, home: Home, tmp_path: Path
    ) -> None:
        """So is a connection to a database that has none of our tables."""
        with another(home, tmp_path) as other:
            tables.create_all(other.database.engine)
            other.run(lambda tx: tx.connection.execute(text("DROP TABLE ledger_identity")))
            other.close()

            with guest_on(name, url_of(other)) as stranger:
                stranger.begin()
                add_note(stranger, "before")
                with pytest.raises(errors.WrongDatabase):
                    stranger.enqueue(ledger, 1)
                add_note(stranger, "after")
                stranger.commit()

            assert notes_kept(other) == ["after", "before"]

    def test_without_a_transaction_it_is_refused(
        self, name: str, ledger: Ledger, home: Home
    ) -> None:
        """Where every statement commits by itself there is nothing to join: NotInTransaction."""
        with guest_on(name, home.url, isolation_level="AUTOCOMMIT") as guest:
            with pytest.raises(errors.NotInTransaction) as raised:
                guest.enqueue(ledger, 1)
            add_note(guest, "mine")

        assert raised.value.hint
        assert kept(ledger) == (["mine"], 0)


class JoinedWorkContract:
    """How what was enqueued in a user's transaction is found. Fixtures: `ledger`, `home`."""

    @pytest.fixture
    def guest(self, ledger: Ledger, home: Home) -> Iterator[Guest]:
        """A program with a connection of its own."""
        with guest_on("driver", home.url) as guest:
            yield guest

    def test_the_users_commit_rings(self, ledger: Ledger, guest: Guest) -> None:
        """Where there is a watcher it rings at the user's commit, and neither before nor without."""
        watcher = ledger.database.watcher()
        if watcher is not None:
            watcher.start()
        with hung(ledger) as bell:
            bell.wait(0)
            guest.enqueue(ledger, 1)
            guest.rollback()
            guest.enqueue(ledger, 2)
            early = bell.wait(PATIENCE_SECONDS)
            guest.commit()
            rang = bell.wait(WAIT_SECONDS_MAX) if watcher is not None else True
        if watcher is not None:
            watcher.stop()

        assert not early
        assert rang

    def test_a_worker_finds_it_after_the_commit(
        self, ledger: Ledger, guest: Guest, home: Home
    ) -> None:
        """A worker in this process and one in another see it only when the user has committed."""
        done: list[str] = []
        here = ledger.worker(ChoreSource(Handler(lambda claim: done.append(claim.body))))
        elsewhere = WorkerProcess(home.url, settings={"engine_poll_seconds_max": 0.2})

        with elsewhere:
            elsewhere.ready()
            chore = guest.enqueue(ledger, 1)
            # Where there is one writer, a worker cannot even look before the user is done.
            if not ledger.database.dialect.one_writer:
                here.tick()
            before = kept_chores(ledger)
            guest.commit()
            here.tick()
            until(lambda: finished(ledger, chore.id), what="the chore")
        here.stop()

        assert before == 0
        assert done in ([], ["1"])


def finished(ledger: Ledger, chore: str) -> bool:
    """Whether the chore was done."""
    with ledger.reading() as tx:
        return tx.chores.get(chore).status is Status.DONE


def kept_chores(ledger: Ledger) -> int:
    """How many chores everyone sees."""
    with ledger.reading() as tx:
        return sum(tx.chores.counts().values())


def add_note(guest: Guest, name: str) -> None:
    """A row of the user's own."""
    guest.execute(f"INSERT INTO note (name, count) VALUES ('{name}', 0)")  # noqa: S608 - fixed names


def kept(ledger: Ledger) -> tuple[list[str], int]:
    """What everyone sees: the user's rows, and how many chores."""
    return notes_kept(ledger), kept_chores(ledger)


def url_of(ledger: Ledger) -> str:
    """Its URL."""
    return ledger.database.url.set(
        drivername=ledger.database.url.get_backend_name()
    ).render_as_string(hide_password=False)
