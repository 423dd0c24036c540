"""The conformance suite: every clause of the promises, to be run on every database.

A module holds one class; its methods are the clauses. They run where a test module says so:

    from ledgerstone.testing.contract.leases import LeaseContract

    class TestLeases(LeaseContract):
        pass

with the fixtures of `ledgerstone.testing.fixtures`, or with a `ledger` of one's own.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest
from sqlalchemy import Column, Connection, Integer, String, Table, insert, select

from ledgerstone import failpoints
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.settings import Settings
from ledgerstone.store.clock import Clock
from ledgerstone.store.schema import MYSQL_TABLE, metadata
from ledgerstone.store.wakeup import Bell
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.forks import PipedFork
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

# They are imported after this, so that a failed assertion in them says what was compared.
pytest.register_assert_rewrite(
    *(f"{__name__}.{path.stem}" for path in Path(__file__).parent.glob("[a-z]*.py"))
)

T = TypeVar("T")

PATIENCE_SECONDS = 0.15
"""How long a test watches that something does not happen."""

_numbers = itertools.count(1)

tables = metadata()
note = Table(
    "note",
    tables,
    Column("name", String(60), primary_key=True),
    Column("count", Integer, nullable=False, default=0),
    **MYSQL_TABLE,
)
"""A table of the user's own."""


class OwnTable:
    """For clauses about what a user writes beside the ledger. Fixtures: `ledger`."""

    @pytest.fixture(autouse=True)
    def own_table(self, ledger: Ledger) -> None:
        """A table of the user's own beside the ledger's."""
        tables.create_all(ledger.database.engine)


def notes(connection: Connection) -> list[str]:
    """The names in the user's table, as this connection sees them."""
    return sorted(connection.execute(select(note.c.name)).scalars())


def notes_kept(ledger: Ledger) -> list[str]:
    """The names in the user's table that were committed."""
    with ledger.reading() as tx:
        return notes(tx.connection)


def opened(url: str, *, clock: Clock | None = None, **settings: Any) -> Ledger:
    """A ledger with settings and a clock of its own, migrated."""
    ledger = Ledger(url, settings=Settings.load(url=url, environ={}, **settings), clock=clock)
    try:
        ledger.migrate()
    except BaseException:
        ledger.close()
        raise
    return ledger


def write(tx: Transaction, name: str) -> str:
    """A row of the user's own."""
    tx.connection.execute(insert(note).values(name=name, count=0))
    return name


@contextmanager
def hung(ledger: Ledger, channel: str) -> Iterator[Bell]:
    """A bell that hangs at a channel."""
    bell = Bell()
    ledger.database.bells.hang(channel, bell)
    try:
        yield bell
    finally:
        ledger.database.bells.take_down(channel, bell)


@contextmanager
def another(home: Home, folder: Path) -> Iterator[Ledger]:
    """A ledger on another database of the same kind."""
    if home.server is None:
        with opened(f"sqlite:///{folder}/another.db") as ledger:
            yield ledger
        return
    name = f"another_{os.getpid()}_{next(_numbers)}"
    url = home.server.create_database(name)
    try:
        with opened(url) as ledger:
            yield ledger
    finally:
        home.server.drop_database(name)


class Undone(Exception):
    """Raised at the end of a transaction that shall leave nothing."""


@contextmanager
def undone(ledger: Ledger) -> Iterator[Transaction]:
    """A transaction that leaves nothing."""
    with suppress(Undone), ledger.transaction() as tx:
        yield tx
        raise Undone


def together(*calls: Callable[[], T]) -> list[T]:
    """What the calls answer, each made in a thread of its own, all at the same moment."""
    start = threading.Barrier(len(calls))

    def begin(call: Callable[[], T]) -> T:
        start.wait(WAIT_SECONDS_MAX)
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        futures = [threads.submit(begin, call) for call in calls]
        return [future.result(WAIT_SECONDS_MAX) for future in futures]


@contextmanager
def aside(call: Callable[[], T]) -> Iterator[Future[T]]:
    """A call in a thread of its own, for what has to wait for something."""
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(call)
        yield future
        future.result(WAIT_SECONDS_MAX)


def signaled(event: threading.Event) -> None:
    """Wait for a signal that another thread gives."""
    assert event.wait(WAIT_SECONDS_MAX), "the signal was not given"


def still_waits(future: Future[Any]) -> bool:
    """Whether the call has not come back, also after a moment."""
    try:
        future.exception(PATIENCE_SECONDS)
    except TimeoutError:
        return True
    return False


class Child:
    """A script in a process of its own: when it has said `ready` it waits until it is told to go.

    As a context manager it is gone at the end.
    """

    def __init__(self, script: str, *arguments: object, failpoint: str | None = None) -> None:
        environment = {
            name: value for name, value in os.environ.items() if name != failpoints.VARIABLE
        }
        if failpoint is not None:
            environment[failpoints.VARIABLE] = failpoint
        words = [str(argument) for argument in arguments]
        self._process = PipedFork(_follow, script, words, environment=environment)

    def __enter__(self) -> Self:
        line = self._process.stdout.readline()
        if line != "ready\n":
            self._process.kill()
            pytest.fail(f"the process said {line!r}:\n{self._process.stderr.read()}")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(WAIT_SECONDS_MAX)
        self._process.close()

    def go(self) -> None:
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def ended(self) -> tuple[int, str]:
        """Its exit code, negative for a signal, and what it said."""
        code = self._process.wait(WAIT_SECONDS_MAX)
        sys.stderr.write(self._process.stderr.read())
        return code, self._process.stdout.read().strip()


def _follow(script: str, words: list[str]) -> None:
    """In the new process: do what the script says."""
    sys.argv = ["-c", *words]
    exec(script, {"__name__": "__main__", "ready": _ready, "sys": sys})  # noqa: S102 - the test's own


def _ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
