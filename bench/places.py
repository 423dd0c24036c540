"""Where benchmarks run: private servers with stock settings, and a folder of files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

from sqlalchemy import create_engine, make_url
from sqlalchemy.pool import NullPool

from ledgerstone.errors import StoreBusy
from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings, StoreSettings
from ledgerstone.testing.server import DatabaseServer
from ledgerstone.testing.servers import PrivateMariaDB, PrivatePostgres

BUSY_SECONDS = 0.2
HOLDER = "holder"
"""The application name of the one whose transaction is open on purpose."""
# What the servers have when nobody sets anything; the tests' private ones are kept smaller.
# The driver's side names no schema.
POSTGRES_STOCK = {"shared_buffers": "128MB", "search_path": "public, ledgerstone"}
MARIADB_STOCK = {"innodb-buffer-pool-size": "128M", "innodb-log-file-size": "96M"}
LEVEL_POSTGRES = ("ANALYZE", "CHECKPOINT")
BUSY_POSTGRES = f"""\
SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
AND backend_type = 'client backend' AND state <> 'idle' AND application_name <> '{HOLDER}'"""  # noqa: S608 - our own word
BUSY_MYSQL = "SELECT 1 FROM information_schema.innodb_trx"

Prepare = Callable[[str], None]
"""Makes the tables, on a new database."""


class Place(Protocol):
    """Where databases can be made.

    - `fresh` is the URL of a prepared database that is gone at the end of the block.
    - `level` writes out and analyzes what was filled in, so that every run starts on the same
      ground.
    - `quiet` answers whether nobody is in the middle of a transaction.
    """

    def fresh(self, prepare: Prepare) -> AbstractContextManager[str]: ...

    def level(self, url: str) -> None: ...

    def quiet(self, url: str) -> bool: ...


Opener = Callable[[], AbstractContextManager[Place]]


class FilePlace:
    """SQLite files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count(1)

    @contextmanager
    def fresh(self, prepare: Prepare) -> Iterator[str]:
        path = self._folder / f"run{next(self._numbers)}.db"
        url = f"sqlite:///{path}"
        prepare(url)
        yield url
        for left in self._folder.glob(f"{path.name}*"):
            left.unlink()

    def level(self, url: str) -> None:
        """Nothing: there are no statistics, and what was written is written."""

    def quiet(self, url: str) -> bool:
        store = StoreSettings(busy_timeout_seconds=BUSY_SECONDS, auto_migrate="never")
        with Ledger(url, settings=Settings(url=url, store=store)) as ledger:
            try:
                with ledger.database.transaction():
                    return True
            except StoreBusy:
                return False


class ServerPlace:
    """Databases on a private server."""

    def __init__(
        self, server: DatabaseServer, driver: str, *, leveling: Sequence[str], busy: str
    ) -> None:
        self._server = server
        self._driver = driver
        self._leveling = leveling
        self._busy = busy
        self._numbers = count(1)

    @contextmanager
    def fresh(self, prepare: Prepare) -> Iterator[str]:
        name = f"run{next(self._numbers)}"
        url = self._server.create_database(name)
        prepare(url)
        yield url
        self._server.drop_database(name)

    def level(self, url: str) -> None:
        for statement in self._leveling:
            self._ask(url, statement)

    def quiet(self, url: str) -> bool:
        return not self._ask(url, self._busy)

    def _ask(self, url: str, statement: str) -> bool:
        """Whether a statement answers a row."""
        engine = create_engine(make_url(url).set(drivername=self._driver), poolclass=NullPool)
        with engine.connect() as connection:
            free = connection.execution_options(isolation_level="AUTOCOMMIT")
            answer = free.exec_driver_sql(statement)
            return answer.returns_rows and answer.first() is not None


@contextmanager
def sqlite() -> Iterator[Place]:
    """Files that are gone at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="ledgerstone-bench-") as folder:
        yield FilePlace(Path(folder))


@contextmanager
def postgres() -> Iterator[Place]:
    """A PostgreSQL that is gone at the end of the block."""
    with PrivatePostgres(settings=POSTGRES_STOCK) as server:
        yield ServerPlace(server, "postgresql+psycopg", leveling=LEVEL_POSTGRES, busy=BUSY_POSTGRES)


def mysql(*tables: str) -> Opener:
    """What opens a MariaDB that is gone at the end of the block; `level` analyzes the tables."""

    @contextmanager
    def opened() -> Iterator[Place]:
        leveling = (f"ANALYZE TABLE {', '.join(tables)}",)
        with PrivateMariaDB(settings=MARIADB_STOCK) as server:
            yield ServerPlace(server, "mysql+pymysql", leveling=leveling, busy=BUSY_MYSQL)

    return opened
