"""MySQL and MariaDB: the settings of a connection, and which servers are accepted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from ledgerstone import Ledger, errors
from ledgerstone.store.dialects import mysql
from ledgerstone.testing.contract import notes_kept, opened, tables
from ledgerstone.testing.contract.transactions import count_up, write
from ledgerstone.testing.fixtures import Home, new_home
from ledgerstone.testing.servers import PrivateMariaDB

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
            assert ledger.run(lambda tx: tx.chores.enqueue(1)).created


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
                    tx.chores.enqueue(1)
            with holder.reading() as tx:
                accepted = sum(tx.chores.counts().values())
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
