"""What can be measured: pieces of work that are sent and worked off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from sqlalchemy import create_engine, make_url
from sqlalchemy.engine import Engine
from sqlalchemy.pool import NullPool

from bench.measure import Timing

LOT_MAX = 1000
"""Pieces that are sent in one transaction."""

Looked = Callable[[], bool]


class Note(Protocol):
    """What is called for a piece that begins, or for several."""

    def __call__(self, count: int = 1, /) -> None: ...


class Side(Protocol):
    """A way to do the work; each call happens in a process of its own.

    - `setting` says in a few words what was set to make it fast; nothing for its defaults.
    - `reads_when_idle`: a worker that has nothing to do never writes, and may be held at any time.
    - `prepare` makes the tables, on a new database.
    - `fill` sends so many pieces, in lots of at most `LOT_MAX`, and says how long all but the
      first, which warms up, took.
    - `work` is one worker, idle while there is nothing to do; it never returns.
    - `looking` answers whether a piece is left that is not finished in the database.
    - `recorded` raises if not so many are finished and on record, as far as there is one.
    """

    @property
    def name(self) -> str: ...

    @property
    def setting(self) -> str: ...

    @property
    def reads_when_idle(self) -> bool: ...

    def prepare(self, url: str) -> None: ...

    def fill(self, url: str, count: int) -> Timing: ...

    def work(self, url: str, note: Note) -> None: ...

    def looking(self, url: str) -> AbstractContextManager[Looked]: ...

    def recorded(self, url: str, total: int) -> None: ...


def lots(count: int) -> list[int]:
    """How many go into each transaction."""
    return [min(LOT_MAX, count - start) for start in range(0, count, LOT_MAX)]


@contextmanager
def looking_by(engine: Engine, unfinished: str) -> Iterator[Looked]:
    """Ask the database with a query that answers a row while there is something to do."""
    with engine.connect() as connection:
        free = connection.execution_options(isolation_level="AUTOCOMMIT")
        yield lambda: free.exec_driver_sql(unfinished).first() is not None


def plain_engine(url: str) -> Engine:
    """An engine for the tables of a peer."""
    drivers = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+pysqlite"}
    parsed = make_url(url)
    return create_engine(parsed.set(drivername=drivers[parsed.drivername]), poolclass=NullPool)


def expect(found: object, expected: object, who: str) -> None:
    """Refuse a run that did not do what it was measured for."""
    if found != expected:
        message = f"{who}: not everything was done and recorded: {found} instead of {expected}"
        raise RuntimeError(message)
