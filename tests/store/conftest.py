"""Servers that these tests may kill, and a pooler in front of one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.servers import PrivateMariaDB, PrivatePgBouncer, PrivatePostgres
from tests.harness.shared_servers import SEARCH_PATH

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def mortal_postgres() -> Iterator[PrivatePostgres]:
    """A PostgreSQL that keeps its commits when it is killed, though not when the machine dies."""
    with PrivatePostgres(settings={"fsync": "off", "search_path": SEARCH_PATH}) as server:
        yield server


@pytest.fixture(scope="session")
def mortal_mariadb() -> Iterator[PrivateMariaDB]:
    """A MariaDB that keeps its commits when it is killed, though not when the machine dies."""
    settings = {
        "innodb-flush-log-at-trx-commit": "2",
        "innodb-flush-method": "nosync",
        "debug-no-sync": "ON",
    }
    with PrivateMariaDB(settings=settings) as server:
        yield server


@pytest.fixture(
    params=[
        pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.xdist_group("mortal-p")]),
        pytest.param("mariadb", marks=[pytest.mark.mysql, pytest.mark.xdist_group("mortal-m")]),
    ]
)
def mortal(request: pytest.FixtureRequest) -> Home:
    """A fresh database on a server that may be killed; it is running when the test begins."""
    server = request.getfixturevalue(f"mortal_{request.param}")
    return Home(request.param, server.create_database(f"mortal_{next(_numbers)}"), server)


@pytest.fixture(scope="session")
def pooler(quick_postgres: PrivatePostgres) -> Iterator[PrivatePgBouncer]:
    """PgBouncer in transaction mode."""
    with PrivatePgBouncer(quick_postgres) as server:
        yield server
