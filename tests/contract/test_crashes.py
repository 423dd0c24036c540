"""The crash contract on every database, with a killed server, and behind a pooler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerstone import Ledger
from ledgerstone.settings import Settings
from ledgerstone.testing.servers import PrivateMariaDB, PrivatePgBouncer, PrivatePostgres
from tests import chores
from tests.contract.engine.crashes import CrashContract, survive_kill_and_pause
from tests.harness.shared_servers import SEARCH_PATH


def findable_postgres() -> PrivatePostgres:
    """A server on which the checker finds our tables without naming their schema."""
    return PrivatePostgres(settings={"search_path": SEARCH_PATH})


@pytest.mark.slow
class TestCrashes(CrashContract):
    """All of it."""


@pytest.fixture(
    params=[
        pytest.param(findable_postgres, id="postgres", marks=pytest.mark.postgres),
        pytest.param(PrivateMariaDB, id="mysql", marks=pytest.mark.mysql),
    ]
)
def server(request: pytest.FixtureRequest) -> Iterator[PrivatePostgres | PrivateMariaDB]:
    """A server that waits for the disk and may be killed."""
    with request.param() as started:
        yield started


@pytest.mark.torture
@pytest.mark.slow
def test_the_server_is_killed_in_between(
    server: PrivatePostgres | PrivateMariaDB, tmp_path: Path
) -> None:
    """The database server dies with -9 in mid-work and comes back: nothing is lost or doubled."""
    url = server.create_database("ledger")
    with opened(url) as ledger:

        def cut_power() -> None:
            server.kill()
            server.restart()

        survive_kill_and_pause(ledger, url, tmp_path / "gate", disturb=cut_power)


@pytest.mark.pgbouncer
@pytest.mark.postgres
@pytest.mark.torture
@pytest.mark.slow
def test_behind_a_transaction_pooler(tmp_path: Path) -> None:
    """Behind PgBouncer in transaction mode the same holds."""
    with findable_postgres() as postgres, PrivatePgBouncer(postgres) as pooler:
        url = pooler.create_database("ledger")
        with opened(url) as ledger:
            survive_kill_and_pause(ledger, url, tmp_path / "gate")


def opened(url: str) -> Ledger:
    """A ledger that is ready for chores."""
    ledger = Ledger(url, settings=Settings.load(url=url, environ={}))
    ledger.migrate()
    chores.install(ledger.database)
    return ledger
