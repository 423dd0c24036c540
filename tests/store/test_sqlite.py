"""SQLite: how the file is opened, by which library, and who may write to it."""

from __future__ import annotations

import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event, text

from ledgerstone import Ledger, errors
from ledgerstone.settings import Settings
from ledgerstone.store.dialects.sqlite import dialect as sqlite
from tests.chores import Chores
from tests.chores.workshop import opened
from tests.harness.child import Child
from tests.harness.drivers import connect
from tests.harness.own_table import notes_kept, tables, write

WRITER = """
from sqlalchemy import insert
from ledgerstone import Ledger
from tests.harness.own_table import note

url, name = sys.argv[1:]
with Ledger(url) as ledger:
    ready()
    for i in range(100):
        row = insert(note).values(name=f"{name}{i}", count=0)
        ledger.run(lambda tx: tx.connection.execute(row))
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


def pragma(ledger: Ledger, name: str) -> object:
    with ledger.reading() as tx:
        return tx.connection.execute(text(f"PRAGMA {name}")).scalar()


def test_every_connection_has_the_settings(url: str) -> None:
    """WAL of 16 MB, NORMAL, 30 s for a writer, foreign keys, 20 MB of cache, incremental vacuum."""
    expected = {
        "journal_mode": "wal",
        "synchronous": 1,
        "busy_timeout": 30_000,
        "foreign_keys": 1,
        "cache_size": -20_000,
        "auto_vacuum": 2,
        "wal_autocheckpoint": 4000,
    }

    with opened(url) as ledger, ledger.reading():
        # Beside the first connection, so that these are of another one.
        assert {name: pragma(ledger, name) for name in expected} == expected


def test_the_settings_can_be_set(url: str) -> None:
    """What the settings say is what the connection does."""
    store = {"sqlite_synchronous": "FULL", "busy_timeout_seconds": 1.5, "cache_kib": 4096}

    with opened(url, store=store) as ledger:
        assert pragma(ledger, "synchronous") == 2
        assert pragma(ledger, "busy_timeout") == 1500
        assert pragma(ledger, "cache_size") == -4096


def test_the_description(url: str) -> None:
    """A ledger can tell what it stands on."""
    with opened(url) as ledger, ledger.reading() as tx:
        told = dict(ledger.database.dialect.describe(tx.connection))

    assert told.pop("database").startswith("SQLite 3.")
    assert told.pop("driver") in {"sqlite3", "pysqlite3.dbapi2"}
    assert told == {
        "journal_mode": "wal",
        "synchronous": "NORMAL",
        "auto_vacuum": "incremental",
        "foreign_keys": "1",
        "busy_timeout_ms": "30000",
    }


def test_only_its_owner_reads_the_file(tmp_path: Path) -> None:
    """The file, its log and its index are made with mode 600, in a folder made with mode 700."""
    path = tmp_path / "deep" / "ledger.db"

    with opened(f"sqlite:///{path}"):
        modes = {found.name: stat.S_IMODE(found.stat().st_mode) for found in path.parent.iterdir()}

    assert modes == {"ledger.db": 0o600, "ledger.db-wal": 0o600, "ledger.db-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_new_connection_waits_for_no_writer(url: str) -> None:
    """Opening a connection takes no lock: a reader that needs one begins beside a writer."""
    with opened(url, store={"busy_timeout_seconds": 0}) as ledger, ledger.transaction() as tx:
        Chores(tx).enqueue(1)

        with ledger.reading() as one, ledger.reading() as two:
            counts = [sum(Chores(reader).counts().values()) for reader in (one, two)]

    assert counts == [0, 0]


@pytest.mark.parametrize(
    "memory",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///ledger.db?mode=memory",
        "sqlite:///file::memory:?cache=shared&uri=true",
        "sqlite:///file:ledger.db?mode=memory&uri=true",
    ],
)
def test_memory_is_refused(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger in memory would lose what it accepted: BadInput, however it is spelled."""
    # If it is not refused, it becomes a file of that name where the tests are run.
    monkeypatch.chdir(tmp_path)

    with pytest.raises(errors.BadInput):
        Ledger(memory, settings=Settings.load(url=memory, environ={}))


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """A folder, a file below a file, a place that cannot be made: BadInput, with the path."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()

    for path in (tmp_path / "folder", tmp_path / "file" / "ledger.db", Path("/proc/no/ledger.db")):
        with pytest.raises(errors.BadInput) as raised:
            opened(f"sqlite:///{path}")

        assert str(path) in str(raised.value)
        assert raised.value.__cause__ is not None


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    """Another file is StoreCorrupt, and is left as it is."""
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader, " * 1000)

    with pytest.raises(errors.StoreCorrupt):
        opened(f"sqlite:///{path}")

    assert path.read_text() == "Dear reader, " * 1000


def test_a_relative_path_with_odd_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path may be relative, and hold spaces, percent signs and letters of any kind."""
    monkeypatch.chdir(tmp_path)

    with opened("sqlite:///a 100%/büch#.db") as ledger:
        watcher = ledger.database.watcher()
        assert watcher is not None
        watcher.start()
        prompt = watcher.prompt
        watcher.stop()

    assert prompt
    assert (tmp_path / "a 100%" / "büch#.db").exists()


def test_the_library_is_sound(url: str) -> None:
    """The SQLite in use has the WAL-reset bug no more."""
    with opened(url) as ledger, ledger.reading() as tx:
        version = str(tx.connection.execute(text("SELECT sqlite_version()")).scalar())

    assert tuple(map(int, version.split("."))) >= sqlite.VERSION_SOUND


def test_without_a_sound_library_it_warns(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pysqlite3 is missing, an unsound standard library serves, with a warning."""
    monkeypatch.setitem(sys.modules, "pysqlite3.dbapi2", None)
    monkeypatch.setattr(sqlite, "VERSION_SOUND", (99, 0, 0))

    with pytest.warns(RuntimeWarning, match="WAL-reset bug") as warned, opened(url) as ledger:
        ledger.run(lambda tx: Chores(tx).enqueue(1))
        driver = ledger.database.engine.dialect.loaded_dbapi

    assert driver.__name__ == "sqlite3"
    assert "pysqlite3" in str(warned[0].message)


def test_a_sound_standard_library_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other code of a program uses the standard library's: if that one is sound, so do we."""
    monkeypatch.setattr(sqlite, "VERSION_SOUND", (3, 0, 0))

    assert sqlite.best_driver().__name__ == "sqlite3"


def test_a_library_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SQLite without RETURNING is Unsupported, and the hint says what to install."""
    monkeypatch.setattr(sqlite, "VERSION_MIN", (99, 0, 0))
    monkeypatch.setattr(sqlite, "VERSION_SOUND", (99, 0, 0))

    with pytest.raises(errors.Unsupported, match="pysqlite3"):
        sqlite.best_driver()


@pytest.mark.filterwarnings("ignore:SQLite .* has the WAL-reset bug:RuntimeWarning")
def test_the_url_names_the_library(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`?driver=` names the library; one that does not exist or is not installed is refused."""
    with opened(f"{url}?driver=sqlite3") as ledger:
        assert ledger.database.engine.dialect.loaded_dbapi.__name__ == "sqlite3"

    monkeypatch.setitem(sys.modules, "pysqlite3.dbapi2", None)
    with pytest.raises(errors.Unsupported, match="install pysqlite3"):
        opened(f"{url}?driver=pysqlite3")
    with pytest.raises(errors.BadInput, match="sqlite3, pysqlite3"):
        opened(f"{url}?driver=oracle")


@pytest.mark.slow
def test_two_processes_write_at_once(url: str) -> None:
    """Two processes that write as fast as they can wait for each other, and lose nothing."""
    with opened(url) as ledger:
        tables.create_all(ledger.database.engine)
        first, second = Child(WRITER, url, "a"), Child(WRITER, url, "b")
        with first, second:
            first.go()
            second.go()
            codes = [first.ended()[0], second.ended()[0]]

        assert codes == [0, 0]
        assert len(notes_kept(ledger)) == 200
        assert pragma(ledger, "integrity_check") == "ok"


@pytest.mark.parametrize(("released_at", "tries"), [(2, 2), (99, 3)], ids=["freed", "kept"])
def test_a_held_file_is_tried_again(url: str, released_at: int, tries: int) -> None:
    """While another program holds the file, `run` tries again, as often as the setting says."""
    store = {"busy_timeout_seconds": 0, "transaction_tries_max": 3}
    begun = []
    with opened(url, store=store) as ledger:
        tables.create_all(ledger.database.engine)
        holder = sqlite.best_driver().connect(ledger.database.url.database, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")

        def count(connection: object, *_: object) -> None:
            begun.append(connection)
            if len(begun) == released_at:
                holder.rollback()

        event.listen(ledger.database.engine, "checkout", count)
        try:
            ledger.run(lambda tx: write(tx, "mine"))
        except errors.StoreBusy:
            assert tries < released_at
        holder.close()
        begun_then = len(begun)

        assert begun_then == tries
        assert notes_kept(ledger) == (["mine"] if tries == released_at else [])


def test_foreign_keys_are_kept(url: str) -> None:
    """A row that refers to nothing is refused, in the user's tables too."""
    with opened(url) as ledger:
        tables.create_all(ledger.database.engine)
        make = text("CREATE TABLE child (name TEXT REFERENCES note)")
        ledger.run(lambda tx: tx.connection.execute(make))

        with pytest.raises(errors.StoreError):
            ledger.run(lambda tx: tx.connection.execute(text("INSERT INTO child VALUES ('no')")))


def test_a_commit_that_is_refused(url: str) -> None:
    """What the file refuses only at the commit is undone, and holds up nobody after that."""
    deferred = "CREATE TABLE child (name TEXT REFERENCES note DEFERRABLE INITIALLY DEFERRED)"
    with opened(url) as ledger:
        tables.create_all(ledger.database.engine)
        ledger.run(lambda tx: tx.connection.execute(text(deferred)))

        for _ in range(2):
            with pytest.raises(errors.StoreError, match="FOREIGN KEY"), ledger.transaction() as tx:
                write(tx, "mine")
                tx.connection.execute(text("INSERT INTO child VALUES ('no')"))

        ledger.run(lambda tx: write(tx, "after"))
        assert notes_kept(ledger) == ["after"]


@pytest.mark.parametrize(
    ("statement", "refused"),
    [
        ("INSERT OR REPLACE INTO job (org_id, type, idempotency_key) VALUES ({org}, 'x', 'k')", 1),
        ("INSERT OR REPLACE INTO job (rowid, org_id, type) VALUES (1, {org}, 'x')", 1),
        ("INSERT OR REPLACE INTO job (id, org_id, type) SELECT id, org_id, 'x' FROM job", 1),
        ("UPDATE OR REPLACE job SET idempotency_key = 'k' WHERE idempotency_key IS NULL", 1),
        ("UPDATE OR REPLACE job SET oid = 1 WHERE idempotency_key IS NULL", 1),
        ("UPDATE OR REPLACE job SET id = (SELECT MIN(id) FROM job) WHERE rowid = 2", 1),
        ("INSERT OR IGNORE INTO job (org_id, type, idempotency_key) VALUES ({org}, 'x', 'k')", 0),
        ("INSERT OR REPLACE INTO job (org_id, type, idempotency_key) VALUES ({org}, 'x', 'l')", 0),
    ],
)
def test_a_job_is_not_replaced(url: str, statement: str, refused: int) -> None:
    """No job takes the place of another, also by a connection that heeds no foreign keys."""
    with opened(url) as ledger, ledger.transaction() as tx:
        ids = [tx.jobs.enqueue("any", key=key).id for key in ("k", None)]
    stranger = connect(url)
    said = []

    try:
        stranger.execute(statement.format(org="'00000000-0000-0000-0000-000000000000'"))
        stranger.commit()
    except Exception as error:  # noqa: BLE001 - of whichever driver it is
        said.append(str(error))
    left = {row[0] for row in stranger.execute("SELECT id FROM job WHERE type = 'any'")}
    stranger.close()

    assert said == ["a job is removed by retention only"] * refused
    assert left == set(ids)


def test_a_writer_has_the_file_from_the_start(tmp_path: Path) -> None:
    """A transaction that may write holds other writers off before its first statement."""
    file = tmp_path / "ledger.db"
    driver = sqlite.best_driver()

    with (
        opened(f"sqlite:///{file}") as ledger,
        closing(driver.connect(str(file), timeout=0, isolation_level=None)) as other,
    ):
        with ledger.transaction() as tx, pytest.raises(driver.OperationalError):
            assert tx.connection is not None
            other.execute("BEGIN IMMEDIATE")
        with ledger.reading() as tx:
            assert tx.connection is not None
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
