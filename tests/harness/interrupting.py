"""Statements in the middle of which an error is raised, as a signal's handler may."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import text

from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.harness.threads import aside

CUT = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
    "mysql": ("SELECT CONNECTION_ID()", "KILL {}"),
}
"""What a server calls a connection, and how it is told to end it."""
UNTIL_SENT = (
    "WITH RECURSIVE each(n) AS (SELECT begun() UNION ALL SELECT n FROM each WHERE sent() = 0)"
    " SELECT COUNT(*) FROM each"
)
PAUSES = {
    "postgresql": (
        "SELECT pg_sleep(600)",
        "SELECT COUNT(*) FROM pg_stat_activity WHERE pid = {} AND query = 'SELECT pg_sleep(600)'",
    ),
    "mysql": (
        "SELECT SLEEP(600)",
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = {} AND INFO LIKE '%SLEEP%'",
    ),
}
"""A statement of a server that lasts, and whether a connection runs it."""


@contextmanager
def interrupting(ledger: Ledger, tx: Transaction, error: type[BaseException]) -> Iterator[str]:
    """A statement for this transaction; once it runs, the error is raised in this thread.

    `ledger` has other connections to the database.
    """

    def interrupt(*_: object) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, interrupt)
    kind = ledger.database.url.get_backend_name()
    try:
        with _in_sqlite(tx) if kind == "sqlite" else _on_a_server(ledger, tx, kind) as statement:
            yield statement
    finally:
        signal.signal(signal.SIGALRM, before)


def _tell_the_main_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGALRM)


@contextmanager
def _in_sqlite(tx: Transaction) -> Iterator[str]:
    # Both functions are built in: a handler runs in Python code alone, so not before the call ends.
    begun, sent = threading.Lock(), list[int]()
    begun.acquire()
    driver: Any = tx.connection.connection.dbapi_connection
    driver.create_function("begun", 0, begun.release)
    driver.create_function("sent", 0, sent.__len__)

    def tell() -> None:
        assert begun.acquire(timeout=WAIT_SECONDS_MAX)
        _tell_the_main_thread()
        sent.append(1)

    with aside(tell):
        yield UNTIL_SENT


@contextmanager
def _on_a_server(ledger: Ledger, tx: Transaction, kind: str) -> Iterator[str]:
    which, end = CUT[kind]
    number = tx.connection.execute(text(which)).scalar()
    statement, runs = PAUSES[kind]

    def is_running() -> bool:
        with ledger.reading() as other:
            return bool(other.connection.execute(text(runs.format(number))).scalar())

    def tell() -> None:
        until(is_running, what="the statement")
        _tell_the_main_thread()

    try:
        with aside(tell):
            yield statement
    finally:
        with ledger.reading() as other:
            other.connection.execute(text(end.format(number)))
