"""Fixtures: every test that asks for `ledger` runs on SQLite, PostgreSQL and MariaDB.

A plugin: `pytest_plugins = ["ledgerstone.testing.fixtures"]`. Each test gets a database of its own
on private servers that are started at the first need and stopped at the end of the run. When a
server cannot be had the test fails and says what to install; nothing is skipped.

    home      a fresh, empty database: its URL, and what it is kept on
    ledger    a ledger on it, migrated, with chores
    clock     the clock of that ledger, moved by hand, if the test asks for it
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import pytest

from ledgerstone import chores
from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.servers import PrivateMariaDB, PrivatePostgres

KINDS = [
    pytest.param("sqlite", id="sqlite"),
    pytest.param("postgres", id="postgres", marks=pytest.mark.postgres),
    pytest.param("mysql", id="mysql", marks=pytest.mark.mysql),
]
_numbers = itertools.count(1)


class SqlServer(Protocol):
    """A private server that databases can be made on."""

    def create_database(self, name: str) -> str: ...

    def drop_database(self, name: str) -> None: ...

    def kill(self) -> None: ...

    def restart(self) -> None: ...


class Home(msgspec.Struct, frozen=True):
    """An empty database of a test: which kind, where, and on which server (SQLite has none)."""

    kind: str
    url: str
    server: SqlServer | None


@pytest.fixture(scope="session")
def quick_postgres() -> Iterator[PrivatePostgres]:
    """A PostgreSQL that is never killed, so it need not wait for the disk.

    Nor does it clean up by itself: what it then learns of a table that is empty for a moment would
    give a test another plan each time.
    """
    with PrivatePostgres(fsync=False, settings={"autovacuum": "off"}) as server:
        yield server


@pytest.fixture(scope="session")
def migrated_postgres(quick_postgres: PrivatePostgres) -> str:
    """The name of a migrated database on it, never used itself: to copy it is quicker."""
    name = "migrated"
    with _opened(quick_postgres.create_database(name)):
        return name


@pytest.fixture(scope="session")
def quick_mariadb() -> Iterator[PrivateMariaDB]:
    """A MariaDB that is never killed, so it need not wait for the disk."""
    with PrivateMariaDB(fsync=False) as server:
        yield server


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A fresh, empty database, on each kind in turn."""
    yield from new_home(request, request.param, tmp_path)


@pytest.fixture
def clock() -> ManualClock:
    """A clock that the test moves."""
    return ManualClock()


@pytest.fixture
def ledger(request: pytest.FixtureRequest, home: Home) -> Iterator[Ledger]:
    """A ledger on a fresh database; with `clock` if the test asks for that too."""
    moved = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    with _opened(home.url, moved) as opened:
        yield opened


@contextmanager
def _opened(url: str, clock: ManualClock | None = None) -> Iterator[Ledger]:
    with Ledger(url, settings=Settings.load(url=url, environ={}), clock=clock) as opened:
        opened.migrate()
        chores.install(opened.database)
        yield opened


def new_home(request: pytest.FixtureRequest, kind: str, folder: Path) -> Iterator[Home]:
    """A fresh database of this kind, removed at the end of the iteration."""
    if kind == "sqlite":
        yield Home(kind, f"sqlite:///{folder}/ledger.db", None)
        return
    fixture = {"postgres": "quick_postgres", "mysql": "quick_mariadb"}[kind]
    server: SqlServer = request.getfixturevalue(fixture)
    name = f"test_{os.getpid()}_{next(_numbers)}"
    if isinstance(server, PrivatePostgres) and "ledger" in request.fixturenames:
        template = request.getfixturevalue("migrated_postgres")
        url = server.create_database(name, template=template)
    else:
        url = server.create_database(name)
    yield Home(kind, url, server)
    server.drop_database(name)
