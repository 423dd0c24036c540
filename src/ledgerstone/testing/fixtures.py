"""Fixtures: every test that asks for `ledger` runs on SQLite, PostgreSQL and MariaDB.

A plugin: `pytest_plugins = ["ledgerstone.testing.fixtures"]`. Each test gets a database of its own
on private servers that are started at the first need and stopped at the end of the run. When a
server cannot be had the test fails and says what to install; nothing is skipped.

    home      a fresh, empty database: its URL, and what it is kept on
    ledger    a ledger on it, migrated, with what `installs` adds
    clock     the clock of that ledger, moved by hand, if the test asks for it
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings
from ledgerstone.store.database import Database
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.server import DatabaseServer
from ledgerstone.testing.servers import PrivateMariaDB, PrivatePostgres

KINDS = [
    pytest.param("sqlite", id="sqlite"),
    pytest.param("postgres", id="postgres", marks=pytest.mark.postgres),
    pytest.param("mysql", id="mysql", marks=pytest.mark.mysql),
]
FILE = "ledger.db"
MIGRATED = "migrated"
Installs = Sequence[Callable[[Database[Any]], None]]
_numbers = itertools.count(1)


class Home(msgspec.Struct, frozen=True):
    """A database of a test: which kind, where, and on which server (SQLite has none).

    It is empty unless it is a copy of one that was `migrated`.
    """

    kind: str
    url: str
    server: DatabaseServer | None
    migrated: bool = False


@pytest.fixture(scope="session")
def quick_postgres() -> Iterator[PrivatePostgres]:
    """A PostgreSQL that is never killed, so it need not wait for the disk.

    Nor does it clean up by itself: what it then learns of a table that is empty for a moment would
    give a test another plan each time.
    """
    with PrivatePostgres(fsync=False, settings={"autovacuum": "off"}) as server:
        yield server


@pytest.fixture(scope="session")
def quick_mariadb() -> Iterator[PrivateMariaDB]:
    """A MariaDB that is never killed, so it need not wait for the disk."""
    with PrivateMariaDB(fsync=False) as server:
        yield server


# A ledger that is ready is copied from one that is never used itself: to migrate each takes longer
# than most tests.


@pytest.fixture(scope="session")
def installs() -> Installs:
    """The additions to each ledger: none, unless a `conftest.py` says otherwise."""
    return ()


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory, installs: Installs) -> Path:
    """The file of one."""
    file = tmp_path_factory.mktemp("migrated") / FILE
    prepare(f"sqlite:///{file}", installs)
    return file


@pytest.fixture(scope="session")
def migrated_postgres(quick_postgres: PrivatePostgres, installs: Installs) -> str:
    """The name of one on the server."""
    prepare(quick_postgres.create_database(MIGRATED), installs)
    return MIGRATED


@pytest.fixture(scope="session")
def migrated_mysql(quick_mariadb: PrivateMariaDB, installs: Installs) -> str:
    """The name of one on the server."""
    prepare(quick_mariadb.create_database(MIGRATED), installs)
    return MIGRATED


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
    if not home.migrated:
        prepare(home.url, request.getfixturevalue("installs"))
    with _opened(home.url, moved) as opened:
        yield opened


def new_home(
    request: pytest.FixtureRequest, kind: str, folder: Path, *, migrated: bool = False
) -> Iterator[Home]:
    """A fresh database of this kind, removed at the end of the iteration.

    If it is to be `migrated`, or the test asks for `ledger`, it is a copy of one that is ready.
    """
    wanted = migrated or "ledger" in request.fixturenames
    copied = request.getfixturevalue(f"migrated_{kind}") if wanted else None
    if kind == "sqlite":
        file = folder / FILE
        if copied is not None:
            shutil.copy(copied, file)
        yield Home(kind, f"sqlite:///{file}", None, copied is not None)
        return
    fixture = {"postgres": "quick_postgres", "mysql": "quick_mariadb"}[kind]
    server: DatabaseServer = request.getfixturevalue(fixture)
    name = f"test_{os.getpid()}_{next(_numbers)}"
    yield Home(kind, server.create_database(name, template=copied), server, copied is not None)
    server.drop_database(name)


def prepare(url: str, installs: Installs) -> None:
    """Make an empty database ready: migrated, with what these add."""
    with _opened(url) as ledger:
        ledger.migrate()
        for install in installs:
            install(ledger.database)


def _opened(url: str, clock: ManualClock | None = None) -> Ledger:
    return Ledger(url, settings=Settings.load(url=url, environ={}), clock=clock)
