"""Where jobs are measured: private servers with stock settings and a folder of files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

from sqlalchemy import create_engine, make_url
from sqlalchemy.pool import NullPool

from bench.engine.databases import MARIADB_STOCK, POSTGRES_STOCK
from bench.jobs.side import Side
from bench.jobs.sides.ours import Ours
from ledgerstone.errors import StoreBusy
from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings, StoreSettings
from ledgerstone.testing.server import DatabaseServer
from ledgerstone.testing.servers import PrivateMariaDB, PrivatePostgres

BUSY_SECONDS = 0.2
HOLDER = "holder"
"""The application name of the one whose transaction is open on purpose."""
ANALYZE_POSTGRES = ("ANALYZE", "CHECKPOINT")
ANALYZE_MYSQL = ("ANALYZE TABLE job, job_event",)
BUSY_POSTGRES = f"""\
SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
AND backend_type = 'client backend' AND state <> 'idle' AND application_name <> '{HOLDER}'"""  # noqa: S608 - our own word
BUSY_MYSQL = "SELECT 1 FROM information_schema.innodb_trx"


class Place(Protocol):
    """Where databases can be made.

    - `fresh` is the URL of a database, prepared for a side, that is gone at the end of the block.
    - `level` writes out and analyzes what was filled in, so that every run starts on the same
      ground.
    - `quiet` answers whether nobody is in the middle of a transaction.
    """

    def fresh(self, side: Side) -> AbstractContextManager[str]: ...

    def level(self, url: str) -> None: ...

    def quiet(self, url: str, side: Side) -> bool: ...


class FilePlace:
    """SQLite files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count(1)

    @contextmanager
    def fresh(self, side: Side) -> Iterator[str]:
        path = self._folder / f"run{next(self._numbers)}.db"
        url = f"sqlite:///{path}"
        side.prepare(url)
        yield url
        for left in self._folder.glob(f"{path.name}*"):
            left.unlink()

    def level(self, url: str) -> None:
        """Nothing: there are no statistics, and what was written is written."""

    def quiet(self, url: str, side: Side) -> bool:
        if not isinstance(side, Ours):
            # A peer that has nothing to do only reads.
            return True
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
        self, server: DatabaseServer, driver: str, *, leveling: tuple[str, ...], busy: str
    ) -> None:
        self._server = server
        self._driver = driver
        self._leveling = leveling
        self._busy = busy
        self._numbers = count(1)

    @contextmanager
    def fresh(self, side: Side) -> Iterator[str]:
        name = f"run{next(self._numbers)}"
        url = self._server.create_database(name)
        side.prepare(url)
        yield url
        self._server.drop_database(name)

    def level(self, url: str) -> None:
        for statement in self._leveling:
            self._ask(url, statement)

    def quiet(self, url: str, side: Side) -> bool:
        return not self._ask(url, self._busy)

    def _ask(self, url: str, statement: str) -> bool:
        """Whether a statement answers a row."""
        engine = create_engine(make_url(url).set(drivername=self._driver), poolclass=NullPool)
        with engine.connect() as connection:
            free = connection.execution_options(isolation_level="AUTOCOMMIT")
            answer = free.exec_driver_sql(statement)
            return answer.returns_rows and answer.first() is not None


@contextmanager
def _sqlite() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="ledgerstone-bench-") as folder:
        yield FilePlace(Path(folder))


@contextmanager
def _postgres() -> Iterator[Place]:
    with PrivatePostgres(settings=POSTGRES_STOCK) as server:
        yield ServerPlace(
            server, "postgresql+psycopg", leveling=ANALYZE_POSTGRES, busy=BUSY_POSTGRES
        )


@contextmanager
def _mysql() -> Iterator[Place]:
    with PrivateMariaDB(settings=MARIADB_STOCK) as server:
        yield ServerPlace(server, "mysql+pymysql", leveling=ANALYZE_MYSQL, busy=BUSY_MYSQL)


PLACES: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "postgres": _postgres,
    "sqlite": _sqlite,
    "mysql": _mysql,
}
