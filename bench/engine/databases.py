"""The databases that are measured: private servers and a file, a fresh database for each run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

from ledgerstone.chores import NewChore, install
from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings, StoreSettings
from ledgerstone.testing.server import DatabaseServer
from ledgerstone.testing.servers import PrivateMariaDB, PrivatePostgres

ENQUEUE_MAX = 1000
SILENT_MS = 600_000
# What the servers have when nobody sets anything; the tests' private ones are kept smaller.
POSTGRES_STOCK = {"shared_buffers": "128MB"}
MARIADB_STOCK = {"innodb-buffer-pool-size": "128M", "innodb-log-file-size": "96M"}


class Place(Protocol):
    """Where databases can be made.

    - `fresh` is the URL of a migrated, empty database that is gone at the end of the block.
    - `level` writes out and analyzes what was filled in, so that every run starts on the same
      ground.
    """

    def fresh(self) -> AbstractContextManager[str]: ...

    def level(self, url: str) -> None: ...


class FilePlace:
    """SQLite files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count(1)

    @contextmanager
    def fresh(self) -> Iterator[str]:
        path = self._folder / f"run{next(self._numbers)}.db"
        url = f"sqlite:///{path}"
        _furnish(url)
        yield url
        for left in self._folder.glob(f"{path.name}*"):
            left.unlink()

    def level(self, url: str) -> None:
        """Nothing: the last connection that closed has written everything into the file."""


class ServerPlace:
    """Databases on a private server."""

    def __init__(self, server: DatabaseServer, *leveling: str) -> None:
        self._server = server
        self._leveling = leveling
        self._numbers = count(1)

    @contextmanager
    def fresh(self) -> Iterator[str]:
        name = f"run{next(self._numbers)}"
        url = self._server.create_database(name)
        _furnish(url)
        yield url
        self._server.drop_database(name)

    def level(self, url: str) -> None:
        with opened(url) as ledger, ledger.database.engine.connect() as connection:
            free = connection.execution_options(isolation_level="AUTOCOMMIT")
            for statement in self._leveling:
                free.exec_driver_sql(statement)


@contextmanager
def _sqlite() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="ledgerstone-bench-") as folder:
        yield FilePlace(Path(folder))


@contextmanager
def _postgres() -> Iterator[Place]:
    with PrivatePostgres(settings=POSTGRES_STOCK) as server:
        yield ServerPlace(server, "ANALYZE", "CHECKPOINT")


@contextmanager
def _mysql() -> Iterator[Place]:
    with PrivateMariaDB(settings=MARIADB_STOCK) as server:
        yield ServerPlace(server, "ANALYZE TABLE chore, chore_event")


PLACES: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "sqlite": _sqlite,
    "postgres": _postgres,
    "mysql": _mysql,
}


def opened(url: str) -> Ledger:
    """A ledger with the documented defaults, whatever the environment says."""
    # A slow statement is in the figures; it need not be said between them.
    store = StoreSettings(slow_statement_ms=SILENT_MS)
    return Ledger(url, settings=Settings(url=url, store=store))


def fill(url: str, chores: int) -> None:
    """Enqueue so many chores."""
    with opened(url) as ledger:
        for start in range(0, chores, ENQUEUE_MAX):
            numbers = range(start, min(start + ENQUEUE_MAX, chores))
            with ledger.transaction() as tx:
                tx.chores.enqueue_many([NewChore(body={"number": number}) for number in numbers])


def standing(url: str) -> dict[str, int]:
    """How many chores stand where, and how many of each move are on record."""
    chores = "SELECT status, COUNT(*) FROM chore GROUP BY status"
    events = (
        "SELECT COALESCE(prev_status, ''), next_status, COUNT(*) FROM chore_event"
        " GROUP BY prev_status, next_status"
    )
    with opened(url) as ledger, ledger.reading() as tx:
        moves = {
            f"{prev}>{after}": int(number)
            for prev, after, number in tx.connection.exec_driver_sql(events)
        }
        return moves | {
            str(status): int(number) for status, number in tx.connection.exec_driver_sql(chores)
        }


def described(url: str) -> dict[str, str]:
    """What the database says of itself."""
    with opened(url) as ledger, ledger.reading() as tx:
        return dict(ledger.database.dialect.describe(tx.connection))


def _furnish(url: str) -> None:
    with opened(url) as ledger:
        ledger.migrate()
        install(ledger.database)
