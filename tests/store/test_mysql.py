"""MySQL and MariaDB: the settings of a connection, and which servers are accepted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pymysql
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from ledgerstone import Ledger, errors
from ledgerstone.engine.source import Ask
from ledgerstone.store.dialects.mysql import dialect as mysql
from ledgerstone.testing.fixtures import Home, new_home
from ledgerstone.testing.servers import PrivateMariaDB
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.chores import Chores
from tests.chores.workshop import opened
from tests.contract.jobs.examples import claim
from tests.contract.store.transactions import count_up
from tests.harness.ledgers import another
from tests.harness.own_table import note, notes_kept, tables, write

pytestmark = pytest.mark.mysql


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A fresh database of MariaDB."""
    yield from new_home(request, "mysql", tmp_path)


def variable(ledger: Ledger, name: str) -> object:
    with ledger.reading() as tx:
        return tx.connection.execute(text(f"SELECT @@{name}")).scalar()


def test_the_settings_of_a_connection(home: Home) -> None:
    """READ COMMITTED, strict, all of Unicode, and waiting for locks is limited."""
    with opened(home.url, store={"lock_timeout_seconds": 7}) as ledger:
        assert variable(ledger, "tx_isolation") == "READ-COMMITTED"
        assert "STRICT_TRANS_TABLES" in str(variable(ledger, "sql_mode"))
        assert variable(ledger, "character_set_client") == "utf8mb4"
        assert variable(ledger, "innodb_lock_wait_timeout") == 7


@pytest.mark.parametrize("charset", ["latin1", "utf8mb3"])
def test_a_character_set_that_lacks_some(ledger: Ledger, home: Home, charset: str) -> None:
    """A joined connection to which the server would answer question marks is refused."""
    job = ledger.run(lambda tx: tx.jobs.enqueue("a", {"words": "🦊"}, key="🦊"))
    where = _where(home)

    with (
        closing(pymysql.connect(**where, charset=charset)) as theirs,
        pytest.raises(errors.Unsupported, match="charset=utf8mb4"),
    ):
        ledger.join(theirs)

    with closing(pymysql.connect(**where, charset="utf8mb4")) as theirs:
        again = ledger.join(theirs).jobs.enqueue("a", {"words": "🦊"}, key="🦊")
        assert again.id == job.id


def test_a_cancel_locks_one_row(home: Home) -> None:
    """In a user's REPEATABLE READ transaction a cancel locks its job, and no gap of an index."""
    with opened(home.url, store={"lock_timeout_seconds": 1}) as ledger:
        ledger.kinds.add("a", lambda: None)
        job = ledger.run(lambda tx: tx.jobs.enqueue("a"))
        claim(ledger, ledger.job_source())
        theirs = create_engine(
            make_url(home.url).set(drivername="mysql+pymysql"), isolation_level="REPEATABLE READ"
        )

        with theirs.connect() as connection, connection.begin() as transaction:
            ledger.join(connection).jobs.cancel(job.id)
            beside = ledger.run(lambda tx: tx.jobs.enqueue("a"))
            transaction.rollback()
        theirs.dispose()

        assert beside.id != job.id


@pytest.mark.parametrize("mode", ["", "ANSI_QUOTES"])
def test_a_server_that_is_not_strict(home: Home, mode: str) -> None:
    """What does not fit is refused also where the server would cut it; its other modes stay."""
    url = f"{home.url}?init_command={quote(f'SET sql_mode = {mode!r}')}"
    with opened(url) as ledger:
        tables.create_all(ledger.database.engine)
        assert mode in str(variable(ledger, "sql_mode"))

        with pytest.raises(errors.StoreError):
            ledger.run(lambda tx: write(tx, "x" * 61))

        assert notes_kept(ledger) == []


def test_the_description(ledger: Ledger) -> None:
    """A ledger can tell what it stands on."""
    with ledger.reading() as tx:
        told = ledger.database.dialect.describe(tx.connection)

    assert told["database"].startswith("MariaDB 1")
    assert told["driver"] == "pymysql"


def test_either_name_is_understood(home: Home) -> None:
    """A URL may say mariadb or mysql, and name the driver."""
    for scheme in ("mariadb", "mysql+pymysql", "mariadb+pymysql"):
        with opened(home.url.replace("mysql", scheme)) as ledger:
            assert ledger.run(lambda tx: Chores(tx).enqueue(1)).created


def test_migrations_of_two_databases(home: Home, tmp_path: Path) -> None:
    """A database is migrated while another one of the same server is being migrated."""
    with (
        opened(home.url) as ledger,
        ledger.database.engine.connect() as connection,
        ledger.database.dialect.migrating(connection, ledger.database.namespace),
        another(home, tmp_path) as other,
    ):
        migrated = other.run(lambda tx: tx.jobs.enqueue("a")).created

    assert migrated


def test_a_row_that_changed_since_the_snapshot(ledger: Ledger, home: Home) -> None:
    """Under snapshot isolation, MariaDB's default from 11.6 on, that is StoreBusy: run it again."""
    job = ledger.run(lambda tx: tx.jobs.enqueue("a"))
    where = _where(home)

    with closing(pymysql.connect(**where)) as theirs, closing(theirs.cursor()) as cursor:
        cursor.execute("SET SESSION innodb_snapshot_isolation = ON")
        cursor.execute("SELECT COUNT(*) FROM job")
        ledger.kinds.add("a", lambda: None)
        source = ledger.job_source()
        ledger.run(lambda tx: source.claim(tx, Ask(1, "w", 30.0)))
        with pytest.raises(errors.StoreBusy):
            ledger.join(theirs).jobs.cancel(job.id)
        theirs.rollback()
        ledger.join(theirs).jobs.cancel(job.id)
        theirs.commit()

    with ledger.reading() as tx:
        assert tx.jobs.get(job.id).cancel_requested


def test_a_changed_row_that_is_caught(ledger: Ledger, home: Home) -> None:
    """The server has undone all of the transaction for it: the block's end says so."""
    tables.create_all(ledger.database.engine)
    ledger.run(lambda tx: write(tx, "there"))
    with opened(home.url, store={"pool_size_max": 1}) as strict:
        with strict.transaction() as tx:
            for setting in ("innodb_snapshot_isolation = ON", "tx_isolation = 'REPEATABLE-READ'"):
                tx.connection.execute(text(f"SET SESSION {setting}"))

        with pytest.raises(errors.StoreBusy), strict.transaction() as tx:
            tx.connection.execute(note.select())
            write(tx, "mine")
            ledger.run(lambda other: count_up(other, "there"))
            with suppress(OperationalError):
                count_up(tx, "there")

    assert notes_kept(ledger) == ["there"]


@pytest.mark.parametrize("undoes_all", [True, False])
def test_a_wait_in_vain_that_is_caught(request: pytest.FixtureRequest, undoes_all: bool) -> None:
    """Where the server undoes all for it the end says so; elsewhere the transaction goes on."""

    def go_on(url: str) -> list[str]:
        with opened(url) as holder, opened(url, store={"lock_timeout_seconds": 1}) as waiter:
            tables.create_all(holder.database.engine)
            holder.run(lambda tx: write(tx, "held"))
            with holder.transaction() as theirs:
                count_up(theirs, "held")
                with suppress(errors.StoreBusy), waiter.transaction() as tx:
                    write(tx, "mine")
                    with pytest.raises(OperationalError):
                        count_up(tx, "held")
                    Chores(tx).enqueue(1)
            with holder.reading() as tx:
                accepted = sum(Chores(tx).counts().values())
            return [*notes_kept(holder), str(accepted)]

    if undoes_all:
        with PrivateMariaDB(fsync=False, settings={"innodb-rollback-on-timeout": "ON"}) as server:
            assert go_on(server.create_database("strict")) == ["held", "0"]
    else:
        assert go_on(request.getfixturevalue("home").url) == ["held", "mine", "1"]


@pytest.mark.parametrize(
    "version", ["10.6.0-MariaDB", "11.4.2-MariaDB-log", "8.0.4", "8.0.36-0ubuntu0.22.04.1", "9.1.0"]
)
def test_these_servers_are_accepted(version: str) -> None:
    """MariaDB from 10.6, MySQL from 8.0.4: they have SKIP LOCKED and JSON_TABLE."""
    mysql._check_version(version)


COMMITTING = (
    "CREATE TABLE made_inside (a INT)",
    "create or replace table made_inside (a INT)",
    "DROP TABLE IF EXISTS made_inside",
    "ALTER TABLE note COMMENT = 'x'",
    "/* a */ TRUNCATE other",
    "RENAME TABLE other TO others",
    "LOCK TABLES note WRITE",
    "SET autocommit=1",
    "SET SESSION autocommit = ON",
    "SET @@autocommit := 1",
    "CREATE INDEX idx_other ON other (a)",
    "ANALYZE TABLE note",
    "FLUSH TABLES",
)
HIDDEN = (
    *COMMITTING,
    "CREATE TABLE note (a INT)",
    "DROP TABLE nowhere",
    "CALL commits()",
    "CALL goes_on()",
    "CALL commits_and_answers()",
    "EXECUTE IMMEDIATE 'COMMIT'",
    "BEGIN NOT ATOMIC COMMIT; INSERT INTO note VALUES ('more', 0); END",
    "/*!50000 CREATE TABLE made_inside (a INT) */",
    "START TRANSACTION",
)
"""Also what fails and has committed, and what has begun another one since."""
HARMLESS = (
    "CREATE TEMPORARY TABLE passing (a INT)",
    "SET @x = 1",
    "SET autocommit = 0",
    "CREATE TABEL x",
    "CALL nowhere()",
    "CALL answers()",
    "PREPARE given FROM 'COMMIT'",
    "SELECT 'CREATE TABLE x'",
    "CHECKSUM TABLE note",
)


@pytest.fixture
def shop(ledger: Ledger) -> Ledger:
    """A database with a table of the user's, another one, and procedures."""
    made = (
        "CREATE TABLE other (a INT)",
        "CREATE PROCEDURE commits() COMMIT",
        "CREATE PROCEDURE answers() SELECT 1",
        "CREATE PROCEDURE commits_and_answers() BEGIN COMMIT; SELECT 1; END",
        "CREATE PROCEDURE goes_on() BEGIN COMMIT; INSERT INTO note VALUES ('more', 0); END",
    )
    tables.create_all(ledger.database.engine)
    with ledger.database.engine.connect() as connection:
        for words in made:
            connection.execute(text(words))
    return ledger


@pytest.mark.parametrize("words", COMMITTING)
def test_a_statement_that_would_commit(shop: Ledger, words: str) -> None:
    """What commits by itself is refused before it is sent; the transaction stays as it was."""
    with shop.transaction() as tx:
        Chores(tx).enqueue(1)
        write(tx, "before")
        with pytest.raises(errors.NotAllowedNow, match="refused"):
            tx.connection.execute(text(words))
        Chores(tx).enqueue(2)

    assert notes_kept(shop) == ["before"]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "sibling"])
@pytest.mark.parametrize("words", HIDDEN)
def test_a_statement_that_commits_by_itself(shop: Ledger, words: str, elsewhere: bool) -> None:
    """What a cursor was told is noticed, on every connection of ours, also if more is written."""
    database = shop.database.sibling(connections=1) if elsewhere else shop.database
    with (
        pytest.raises(errors.NotAllowedNow, match="cannot be taken back"),
        database.transaction() as tx,
    ):
        Chores(tx).enqueue(1)
        write(tx, "before")
        cursor = tx.cursor()
        with suppress(pymysql.Error):
            cursor.execute(words)
        cursor.close()
        with suppress(OperationalError):
            write(tx, "after")

    assert set(notes_kept(shop)) - {"after"} <= {"before", "more"}
    # The session was changed, perhaps: it is not used again.
    with pytest.raises(LookupError), database.transaction() as tx:
        write(tx, "undone")
        raise LookupError
    assert "undone" not in notes_kept(shop)
    if elsewhere:
        database.close()


@pytest.mark.parametrize("words", HARMLESS)
def test_a_statement_that_commits_nothing(shop: Ledger, words: str) -> None:
    """Everything else leaves the transaction as it was, also if it fails."""
    with shop.transaction() as tx:
        Chores(tx).enqueue(1)
        write(tx, "before")
        cursor = tx.cursor()
        with suppress(pymysql.Error):
            cursor.execute(words)
        cursor.close()
        Chores(tx).enqueue(2)

    assert notes_kept(shop) == ["before"]


def test_ddl_at_the_beginning(ledger: Ledger) -> None:
    """A transaction that has written nothing may make tables: nothing is lost by the commit."""
    with ledger.transaction() as tx:
        tables.create_all(tx.connection)
        write(tx, "after")

    assert notes_kept(ledger) == ["after"]


def test_a_cursor_of_another_class(shop: Ledger) -> None:
    """The class of the cursor makes no difference, nor what is still to be read from it."""
    with (
        pytest.raises(errors.NotAllowedNow, match="cannot be taken back"),
        shop.transaction() as tx,
    ):
        write(tx, "before")
        driver: Any = tx.connection.connection.dbapi_connection
        with driver.cursor(pymysql.cursors.SSDictCursor) as cursor:
            cursor.execute("CALL commits_and_answers()")
            assert cursor.fetchall() == [{"1": 1}]


def test_rows_of_what_was_written(shop: Ledger) -> None:
    """A row that is written and answered by one statement counts as written."""
    with pytest.raises(errors.NotAllowedNow), shop.transaction() as tx:
        written = "INSERT INTO note (name, count) VALUES ('before', 0) RETURNING name"
        assert tx.connection.execute(text(written)).scalar() == "before"
        tx.connection.execute(text("CREATE TABLE made_inside (a INT)"))

    assert notes_kept(shop) == []


@pytest.mark.parametrize("version", ["10.5.23-MariaDB", "5.7.44-log", "8.0.3-rc"])
def test_these_servers_are_refused(version: str) -> None:
    """Older ones are Unsupported, and the hint says what is needed."""
    with pytest.raises(errors.Unsupported, match="or MySQL 8"):
        mysql._check_version(version)


def test_an_old_server_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is looked at when the first connection is made."""
    monkeypatch.setattr(mysql, "MARIADB_MIN", (99,))

    with pytest.raises(errors.Unsupported):
        opened(home.url)


def _where(home: Home) -> dict[str, Any]:
    """What PyMySQL needs to connect, however busy the machine is."""
    where: dict[str, Any] = make_url(home.url).translate_connect_args(username="user")
    return where | {"connect_timeout": WAIT_SECONDS_MAX}
