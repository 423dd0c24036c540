"""Joining: what is particular to one driver, and what is refused."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pymysql
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import (
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from ledgerstone import Ledger, errors
from ledgerstone.jobs.states import Status as JobStatus
from ledgerstone.ledger import Transaction
from ledgerstone.store import leases
from ledgerstone.store.dialects.sqlite.dialect import best_driver
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home, new_home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.chores import Chores
from tests.chores.workshop import opened
from tests.contract.store.joins import JoinContract
from tests.harness.joinable import CONNECT, STANDARD_LIBRARY, async_url
from tests.harness.own_table import notes_kept, tables
from tests.harness.threads import aside, still_waits

OTHER = {"sqlite": "postgres", "postgres": "mysql", "mysql": "sqlite"}
DICTS: dict[str, Callable[[Any], None]] = {
    "sqlite": lambda raw: setattr(raw, "row_factory", sqlite_dict),
    "postgres": lambda raw: setattr(raw, "row_factory", dict_row),
    "mysql": lambda raw: setattr(raw, "cursorclass", pymysql.cursors.DictCursor),
}
postgres_only = pytest.mark.parametrize(
    "home", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
mysql_only = pytest.mark.parametrize(
    "home", [pytest.param("mysql", marks=pytest.mark.mysql)], indirect=True
)
sqlite_only = pytest.mark.parametrize("home", ["sqlite"], indirect=True)


@sqlite_only
class TestStandardLibrary(JoinContract):
    """The whole contract, for the standard library's connection to SQLite."""

    @pytest.fixture
    def name(self) -> str:
        """The guest."""
        return "sqlite3"


@postgres_only
class TestAsyncPsycopg(JoinContract):
    """The whole contract, for psycopg under asyncio."""

    @pytest.fixture
    def name(self) -> str:
        """The guest."""
        return "async-psycopg"


@pytest.fixture(autouse=True)
def own_table(request: pytest.FixtureRequest) -> None:
    """A table of the user's own, where there is a ledger."""
    if "ledger" in request.fixturenames:
        tables.create_all(request.getfixturevalue("ledger").database.engine)


@contextmanager
def connected(url: str, *, autocommit: bool = False) -> Iterator[Any]:
    """The bare driver's connection."""
    parsed = make_url(url)
    with closing(CONNECT[parsed.get_backend_name()](parsed, autocommit)) as raw:
        yield raw


def sqlite_dict(cursor: Any, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def chores_kept(ledger: Ledger) -> int:
    with ledger.reading() as tx:
        return sum(Chores(tx).counts().values())


def test_rows_of_another_kind(ledger: Ledger, home: Home) -> None:
    """A driver that was told to answer dicts is joined like any other, and stays as it was."""
    with connected(home.url) as raw:
        DICTS[home.kind](raw)

        first = Chores(ledger.join(raw)).enqueue(1, key="a")
        again = Chores(ledger.join(raw)).enqueue(1, key="a")
        chore = Chores(ledger.join(raw)).get(first.id)
        cursor = raw.cursor()
        cursor.execute("SELECT attempt FROM chore")
        theirs = cursor.fetchall()
        cursor.close()
        raw.commit()

    assert (again.id, again.created) == (first.id, False)
    assert chore.key == "a"
    assert list(theirs) == [{"attempt": 0}]


@pytest.mark.parametrize(
    "nonsense",
    [None, 1, "sqlite:///ledger.db", object(), SimpleNamespace(cursor=None), Path(), [], dict],
    ids=["None", "int", "url", "object", "no-cursor", "path", "list", "class"],
)
def test_nonsense_is_refused(tmp_path: Path, nonsense: object) -> None:
    """What is no connection is BadInput, and the hint lists what can be joined."""
    with opened(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        with pytest.raises(errors.BadInput) as raised:
            ledger.join(nonsense)  # type: ignore[call-overload]

        assert "psycopg" in str(raised.value)


def test_what_holds_no_transaction_is_refused(ledger: Ledger, home: Home) -> None:
    """An engine, a closed connection, and a session that knows no database are BadInput."""
    engine = create_engine(ledger.database.url, poolclass=NullPool, **library(home))
    with engine.connect() as closed:
        pass

    for nothing in (engine, closed, Session()):
        with pytest.raises(errors.BadInput):
            ledger.join(nothing)  # type: ignore[arg-type]


def library(home: Home) -> dict[str, Any]:
    """On SQLite, the library that the ledger uses."""
    return {"module": best_driver()} if home.server is None else {}


def test_a_closed_driver_connection(ledger: Ledger, home: Home) -> None:
    """A driver's connection that was closed gives one of Ledgerstone's errors."""
    with connected(home.url) as raw:
        pass

    with pytest.raises(errors.LedgerstoneError):
        Chores(ledger.join(raw)).enqueue(1)


@pytest.mark.parametrize(
    "home",
    [
        pytest.param("sqlite", marks=pytest.mark.postgres),
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ],
    indirect=True,
)
def test_another_kind_is_refused(
    request: pytest.FixtureRequest, ledger: Ledger, home: Home, tmp_path: Path
) -> None:
    """A connection to another kind of database is WrongDatabase, and goes on."""
    (tmp_path / "other").mkdir()
    for other in new_home(request, OTHER[home.kind], tmp_path / "other"):
        engine = create_engine(str(opened_url(other)), poolclass=NullPool, **library(other))
        with connected(other.url) as raw, engine.connect() as connection:
            for foreign in (raw, connection):
                with pytest.raises(errors.WrongDatabase):
                    ledger.join(foreign)

            cursor = raw.cursor()
            cursor.execute("SELECT 1")
            assert cursor.fetchone() == (1,)
            cursor.close()
            assert connection.execute(text("SELECT 1")).scalar() == 1


def opened_url(home: Home) -> str:
    """The URL with a driver that is installed."""
    return home.url.replace("postgresql:", "postgresql+psycopg:").replace(
        "mysql:", "mysql+pymysql:"
    )


def test_a_transaction_by_hand(ledger: Ledger, home: Home) -> None:
    """A connection that commits by itself is joined once a transaction was begun by hand."""
    with connected(home.url, autocommit=True) as raw:
        cursor = raw.cursor()
        for end in ("ROLLBACK", "COMMIT"):
            cursor.execute("BEGIN")
            Chores(ledger.join(raw)).enqueue(end)
            cursor.execute("INSERT INTO note (name, count) VALUES ('mine', 0)")
            before = chores_kept(ledger)
            cursor.execute(end)

            assert before == 0
        cursor.close()

    assert chores_kept(ledger) == 1
    assert notes_kept(ledger) == ["mine"]


def test_our_error_leaves_it_to_the_user(ledger: Ledger, home: Home) -> None:
    """What fails in a joined transaction is one of our errors; the user decides what to do."""
    with connected(home.url) as raw:
        tx = ledger.join(raw)
        Chores(tx).enqueue(1)

        with pytest.raises(errors.StoreError, match="nowhere is not a table of Ledgerstone"):
            tx.command("SELECT * FROM nowhere")
        raw.rollback()
        Chores(ledger.join(raw)).enqueue(2)
        raw.commit()

    assert chores_kept(ledger) == 1


@pytest.mark.parametrize("begun", ["session", "connection"])
def test_a_session_on_a_connection(ledger: Ledger, home: Home, begun: str) -> None:
    """A session that is bound to a connection ends the transaction only if it began it."""
    engine = create_engine(opened_url(home), poolclass=NullPool, **library(home))
    with engine.connect() as connection:
        if begun == "connection":
            connection.begin()
        with Session(bind=connection) as session:
            tx = ledger.join(session)
            Chores(tx).enqueue(1)
            session.commit()
            if begun == "session":
                with pytest.raises(errors.NotInTransaction):
                    Chores(tx).enqueue(2)
            else:
                Chores(tx).enqueue(2)
        connection.commit()
        with pytest.raises(errors.NotInTransaction):
            Chores(tx).enqueue(3)

    assert chores_kept(ledger) == (1 if begun == "session" else 2)


def test_after_its_close(ledger: Ledger, home: Home) -> None:
    """A transaction whose session or connection was closed is refused by an error of ours."""
    engine = create_engine(opened_url(home), poolclass=NullPool, **library(home))
    parsed = make_url(home.url)
    guests: list[Any] = [
        Session(engine),
        scoped_session(sessionmaker(engine)),
        engine.connect(),
        CONNECT[parsed.get_backend_name()](parsed, False),
    ]
    for guest in guests:
        tx = ledger.join(guest)
        Chores(tx).enqueue(1)
        guest.close()

        with pytest.raises(errors.LedgerstoneError):
            Chores(tx).enqueue(2)

    assert chores_kept(ledger) == 0


def test_two_joined_ones_that_meet(ledger: Ledger, home: Home) -> None:
    """One with the same key waits for the first; then it sees that one's, or is told to try again.

    StoreBusy where the user's transaction may not see what was committed after it began.
    """

    def enqueue() -> str:
        with connected(home.url) as raw:
            try:
                enqueued = Chores(ledger.join(raw)).enqueue(1, key="same")
            except errors.StoreBusy:
                raw.rollback()
                enqueued = Chores(ledger.join(raw)).enqueue(1, key="same")
            raw.commit()
            return str(enqueued.id)

    with connected(home.url) as first:
        one = Chores(ledger.join(first)).enqueue(1, key="same")
        with aside(enqueue) as waiting:
            waited = still_waits(waiting)
            first.commit()

    assert waited
    assert waiting.result() == one.id
    assert chores_kept(ledger) == 1


def test_a_lease_in_a_joined_transaction(ledger: Ledger, home: Home, clock: ManualClock) -> None:
    """Renewing twice at the same moment changes nothing and loses nothing, whatever the driver."""
    with connected(home.url) as raw:
        tx = ledger.join(raw)
        lease = leases.acquire(tx, "door", "ann", seconds=5)
        assert lease is not None

        for _ in range(3):
            leases.renew(tx, lease, seconds=5)
        clock.advance(5)
        with pytest.raises(errors.LeaseLost):
            leases.renew(tx, lease, seconds=5)
        raw.commit()


@sqlite_only
def test_the_recipe_for_sqlalchemy_on_sqlite(ledger: Ledger, home: Home) -> None:
    """An engine that begins by itself, as SQLAlchemy's documents advise, is joined too."""
    engine = create_engine(home.url, poolclass=NullPool, **library(home))
    event.listen(engine, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))

    with engine.connect() as connection:
        Chores(ledger.join(connection)).enqueue("kept")
        connection.commit()
        Chores(ledger.join(connection)).enqueue("undone")
        connection.rollback()

    assert chores_kept(ledger) == 1


def test_a_scoped_session_under_asyncio(ledger: Ledger, home: Home) -> None:
    """The session of the running task is joined, and stays the user's."""
    standard = home.server is None

    async def visit(ledger: Ledger) -> None:
        engine = create_async_engine(async_url(home.url), poolclass=NullPool)
        session = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        await ledger.join(session).jobs.enqueue("a", {})
        await session.commit()
        await ledger.join(session).jobs.enqueue("a", {})
        await session.remove()
        await engine.dispose()

    with (
        pytest.warns(RuntimeWarning, match="WAL-reset") if standard and unsound() else nothing(),
        opened(home.url + STANDARD_LIBRARY if standard else home.url) as same,
    ):
        asyncio.run(visit(same))

    with ledger.reading() as tx:
        assert tx.jobs.counts()["default"][JobStatus.QUEUED] == 1


@sqlite_only
def test_a_busy_file_is_told_at_the_join(home: Home) -> None:
    """If another writer holds the file too long, joining is StoreBusy."""
    with (
        opened(home.url) as ledger,
        closing(best_driver().connect(make_url(home.url).database, timeout=0)) as raw,
        ledger.transaction(),
        pytest.raises(errors.StoreBusy),
    ):
        ledger.join(raw)


@sqlite_only
def test_a_subclass_of_the_driver(ledger: Ledger, home: Home) -> None:
    """A program's own class of connection is known by what it was made from."""
    driver = best_driver()
    own = type("OwnConnection", (driver.Connection,), {})

    with closing(driver.connect(make_url(home.url).database, factory=own)) as raw:
        Chores(ledger.join(raw)).enqueue(1)
        raw.commit()

    assert chores_kept(ledger) == 1


@postgres_only
def test_an_aborted_transaction(ledger: Ledger, home: Home) -> None:
    """In a transaction that PostgreSQL has given up, joining is a StoreError; nothing is hidden."""
    with psycopg.connect(home.url) as raw:
        with pytest.raises(psycopg.Error):
            raw.execute("SELECT * FROM nowhere")

        with pytest.raises(errors.StoreError):
            ledger.join(raw)
        raw.rollback()
        Chores(ledger.join(raw)).enqueue(1)

    assert chores_kept(ledger) == 1


@postgres_only
def test_psycopgs_own_transaction_block(ledger: Ledger, home: Home) -> None:
    """`with connection.transaction()` is a transaction to join, also on one that commits alone."""
    with psycopg.connect(home.url, autocommit=True) as raw:
        with raw.transaction():
            Chores(ledger.join(raw)).enqueue("kept")
        with pytest.raises(ZeroDivisionError), raw.transaction():
            Chores(ledger.join(raw)).enqueue("undone")
            raise ZeroDivisionError
        with raw.transaction():
            Chores(ledger.join(raw)).enqueue("kept")
            with pytest.raises(ZeroDivisionError), raw.transaction():
                Chores(ledger.join(raw)).enqueue("undone")
                raise ZeroDivisionError

    assert chores_kept(ledger) == 2


@postgres_only
def test_a_deadlock_under_asyncpg(ledger: Ledger, home: Home) -> None:
    """Errors that SQLAlchemy has made for asyncpg are told apart like any others."""
    url = make_url(home.url).set(drivername="postgresql+asyncpg")
    with ledger.transaction() as ours:
        for name in ("a", "b"):
            ours.command(add(name))

    async def visit() -> list[type[BaseException]]:
        engine = create_async_engine(url, poolclass=NullPool)
        met = asyncio.Barrier(2)

        async def change(first: str, second: str) -> None:
            async with engine.connect() as connection:
                tx = ledger.join(connection)
                await tx.run(lambda tx: tx.command(raised(first)))
                await met.wait()
                await tx.run(lambda tx: tx.command(raised(second)))

        answers = await asyncio.gather(change("a", "b"), change("b", "a"), return_exceptions=True)
        await engine.dispose()
        return [type(answer) for answer in answers if answer is not None]

    assert asyncio.run(visit()) == [errors.StoreBusy]


def add(name: str) -> str:
    return f"INSERT INTO note (name, count) VALUES ('{name}', 0)"  # noqa: S608 - fixed names


def raised(name: str) -> str:
    return f"UPDATE note SET count = count + 1 WHERE name = '{name}'"  # noqa: S608 - fixed names


@mysql_only
def test_a_deadlock_in_a_joined_batch(ledger: Ledger, home: Home) -> None:
    """MySQL ends the whole transaction by itself: the user is told StoreBusy, and runs it again."""
    met = threading.Barrier(2)

    def visit(first: str, second: str) -> Callable[[], bool]:
        def call() -> bool:
            with connected(home.url) as raw:
                Chores(ledger.join(raw)).enqueue(1, key=first)
                met.wait(WAIT_SECONDS_MAX)
                try:
                    Chores(ledger.join(raw)).enqueue(1, key=second)
                except errors.StoreBusy:
                    raw.rollback()
                    return False
                raw.commit()
                return True

        return call

    with aside(visit("a", "b")) as one, aside(visit("b", "a")) as other:
        pass

    assert sorted([one.result(), other.result()]) == [False, True]
    assert chores_kept(ledger) == 2


def test_the_awaited_room_has_every_call(tmp_path: Path) -> None:
    """Under asyncio each call of a room is awaited, and `run` gives the transaction itself."""
    url = f"sqlite:///{tmp_path}/ledger.db?driver=sqlite3"

    async def visit(ledger: Ledger) -> tuple[int, int]:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/ledger.db")
        async with engine.begin() as connection:
            tx = ledger.join(connection)
            enqueued = await tx.jobs.enqueue("a", {"a": 1})
            job = await tx.jobs.get(enqueued.id)
            events = await tx.jobs.events(enqueued.id)
            with pytest.raises(errors.NotFound):
                await tx.jobs.get("00000000-0000-0000-0000-000000000000")

            def count(inner: Transaction) -> int:
                return sum(inner.jobs.counts()["default"].values())

            counted = await tx.run(count)
        await engine.dispose()
        assert job.payload == {"a": 1}
        return len(events.rows), counted

    with (
        pytest.warns(RuntimeWarning, match="WAL-reset") if unsound() else nothing(),
        opened(url) as ledger,
    ):
        assert asyncio.run(visit(ledger)) == (1, 1)


def unsound() -> bool:
    """Whether the standard library's SQLite makes a ledger warn."""
    return best_driver() is not sqlite3


@contextmanager
def nothing() -> Iterator[None]:
    """No warning is expected."""
    yield


def test_what_was_left_for_a_commit_that_never_came(tmp_path: Path) -> None:
    """What a transaction left for its commit is forgotten when it is rolled back."""
    did: list[str] = []

    with (
        opened(f"sqlite:///{tmp_path}/ledger.db") as ledger,
        ledger.database.engine.connect() as connection,
    ):
        tx = ledger.join(connection)
        tx.at_commit("undone", lambda: did.append("undone"))
        tx.notes["undone"] = True
        connection.rollback()
        after = ledger.join(connection)
        after.at_commit("kept", lambda: did.append("kept"))
        after.at_commit("kept", lambda: did.append("kept twice"))
        noted = dict(after.notes)
        connection.commit()

    assert did == ["kept"]
    assert noted == {}
