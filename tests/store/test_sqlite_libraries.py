"""One copy of SQLite for a file in a process: two would not see each other's locks."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ledgerstone import Ledger, chores, errors
from ledgerstone.chores import ChoreSource
from ledgerstone.engine import Handler
from ledgerstone.settings import Settings
from ledgerstone.testing.work import nothing


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger on a file, opened with the best copy of SQLite."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    with Ledger(url, settings=Settings.load(url=url, environ={})) as opened:
        chores.install(opened.database)
        yield opened


def test_the_users_library_is_followed(ledger: Ledger, tmp_path: Path) -> None:
    """A connection of another SQLite library is joined, and from then on we use that one too."""
    path = str(tmp_path / "ledger.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        before = _library(ledger)
        connection.execute("INSERT INTO orders VALUES (7)")
        with pytest.warns(RuntimeWarning, match="WAL-reset"):
            ledger.join(connection).chores.enqueue("receipt")
        writing = threading.Thread(target=lambda: ledger.run(lambda tx: tx.chores.enqueue("x")))
        writing.start()
        waits = writing.is_alive()
        connection.commit()
        writing.join(30)

        with ledger.reading() as tx:
            assert sum(tx.chores.counts().values()) == 2
        assert (before, _library(ledger)) == ("pysqlite3", "sqlite3")
        assert waits
        assert connection.execute("SELECT id FROM orders").fetchall() == [(7,)]


def test_another_library_beside_a_worker_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    """While a worker of this process has the file open, another library is refused with a hint."""
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        ledger.worker(ChoreSource(Handler(nothing))).tick()
        connection.execute("BEGIN IMMEDIATE")

        with pytest.raises(errors.Unsupported, match="driver=sqlite3"):
            ledger.join(connection)

        assert connection.in_transaction
        connection.rollback()


def test_a_named_library_is_kept(tmp_path: Path) -> None:
    """A ledger that was told its library refuses a connection of another one."""
    url = f"sqlite:///{tmp_path}/ledger.db?driver=pysqlite3"
    with (
        Ledger(url, settings=Settings.load(url=url, environ={})) as ledger,
        closing(sqlite3.connect(tmp_path / "ledger.db")) as connection,
        pytest.raises(errors.Unsupported, match="driver=sqlite3"),
    ):
        ledger.join(connection)


def _library(ledger: Ledger) -> str:
    return str(ledger.database.engine.dialect.loaded_dbapi.__name__).partition(".")[0]
