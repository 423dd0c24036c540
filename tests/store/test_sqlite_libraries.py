"""One copy of SQLite for a file in a process: two would not see each other's locks."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ledgerstone import Ledger, errors
from ledgerstone.engine import Handler
from ledgerstone.settings import Settings
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests import chores
from tests.chores import Chores, ChoreSource
from tests.chores.work import nothing


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger on a file, opened with the best copy of SQLite."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    with Ledger(url, settings=Settings.load(url=url, environ={})) as opened:
        chores.install(opened.database)
        yield opened


def test_the_users_library_is_followed(ledger: Ledger, tmp_path: Path) -> None:
    """When somebody opens the file with the standard library's copy, we use that one too."""
    before = _library(ledger)
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        connection.execute("INSERT INTO orders VALUES (7)")
        with pytest.warns(RuntimeWarning, match="WAL-reset"):
            Chores(ledger.join(connection)).enqueue("receipt")
        writing = threading.Thread(target=lambda: ledger.run(lambda tx: Chores(tx).enqueue("x")))
        writing.start()
        waits = writing.is_alive()
        connection.commit()
        writing.join(WAIT_SECONDS_MAX)

        with ledger.reading() as tx:
            assert sum(Chores(tx).counts().values()) == 2
        assert (before, _library(ledger)) == ("pysqlite3", "sqlite3")
        assert waits
        assert connection.execute("SELECT id FROM orders").fetchall() == [(7,)]


def test_another_file_changes_nothing(ledger: Ledger, tmp_path: Path) -> None:
    """A connection to another file is refused, and our library stays."""
    with (
        closing(sqlite3.connect(tmp_path / "other.db")) as connection,
        pytest.raises(errors.WrongDatabase),
    ):
        ledger.join(connection)

    assert _library(ledger) == "pysqlite3"


def test_it_need_not_be_joined(ledger: Ledger, tmp_path: Path) -> None:
    """To open the file is enough: no write of theirs may meet one of ours that it cannot see."""
    with closing(sqlite3.connect(f"file:{tmp_path}/ledger.db?mode=ro", uri=True)):
        with pytest.warns(RuntimeWarning, match="WAL-reset"):
            ledger.run(lambda tx: Chores(tx).enqueue("x"))

        assert _library(ledger) == "sqlite3"


def test_a_library_that_was_there_first(ledger: Ledger, tmp_path: Path) -> None:
    """A ledger that finds its file open in this process opens it with the standard library's."""
    ledger.close()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        connection.execute("SELECT 1 FROM chore").fetchall()

        with pytest.warns(RuntimeWarning, match="WAL-reset"):
            assert _library(ledger) == "sqlite3"


def test_a_library_that_has_gone(ledger: Ledger, tmp_path: Path) -> None:
    """Once nobody has the file open any more, the best copy is used again."""
    ledger.close()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        connection.execute("SELECT 1 FROM chore").fetchall()

    assert _library(ledger) == "pysqlite3"


def test_another_library_beside_a_worker_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    """While a worker of this process has the file open, another library is refused with a hint."""
    ledger.worker(ChoreSource(Handler(nothing))).tick()

    with pytest.raises(errors.Unsupported, match="driver=sqlite3"):
        sqlite3.connect(tmp_path / "ledger.db")


def test_a_named_library_is_kept(tmp_path: Path) -> None:
    """A ledger that was told its library keeps it, and another one is refused."""
    url = f"sqlite:///{tmp_path}/ledger.db?driver=pysqlite3"
    with (
        Ledger(url, settings=Settings.load(url=url, environ={})),
        pytest.raises(errors.Unsupported, match="driver=sqlite3"),
    ):
        sqlite3.connect(tmp_path / "ledger.db")


def test_other_files_are_not_touched(ledger: Ledger, tmp_path: Path) -> None:
    """What is done with other files is nobody's business."""
    for name in (tmp_path / "other.db", str(tmp_path / "other.db").encode(), ":memory:", ""):
        sqlite3.connect(name).close()

    assert _library(ledger) == "pysqlite3"


def _library(ledger: Ledger) -> str:
    return str(ledger.database.engine.dialect.loaded_dbapi.__name__).partition(".")[0]
