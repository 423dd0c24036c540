"""The connection of a joined transaction, and whether that transaction is still open.

    tx = ledger.join(connection)
    connection.commit()
    tx.jobs.enqueue(…)            refused: SQLAlchemy would commit nothing of it

the caller's object                what is compared before each use, without a round trip
─────────────────────────────────  ───────────────────────────────────────────────────────
SQLAlchemy Connection, Session     its transaction: another one was not joined
Django connection                  its outermost `atomic`, and what its driver reports
psycopg, sqlite3, PyMySQL          whether the driver reports an open transaction
mysqlclient                        nothing: it reports none, and begins the next one by itself
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ledgerstone.store.connections import block_end
from ledgerstone.store.connections.faults import translated

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ledgerstone.store.sql.cursors import PlainCursors

StillOpen = Callable[[], bool]
"""Whether the transaction that was joined is still open, as far as the client knows."""
_TRANSACTION_STATUS_IDLE = 0


class JoinedConnection:
    """The caller's SQLAlchemy connection, or the one that wraps the caller's connection."""

    def __init__(self, connection: Connection, still_open: StillOpen) -> None:
        self.connection = connection
        self.dialect = connection.dialect
        self._fairy = connection.connection
        self._still_open = still_open

    def cursor(self) -> Any:
        """A cursor of the driver."""
        try:
            return self._fairy.cursor()
        except Exception as error:
            raise translated(error) from error

    own_cursor = cursor

    def check_open(self) -> None:
        """NotInTransaction if the caller has ended the transaction."""
        try:
            open_still = self._still_open()
        except Exception as error:
            raise translated(error) from error
        if not open_still:
            raise block_end.ended_by_its_owner()

    def break_off(self) -> None:
        """Nothing: the connection is the caller's."""


def of_sqlalchemy(connection: Connection) -> StillOpen:
    """Compare SQLAlchemy's transaction with the one of now."""
    joined = connection.get_transaction()

    def still_open() -> bool:
        return joined is not None and connection.get_transaction() is joined and joined.is_active

    return still_open


def of_driver(driver: str, plain: PlainCursors) -> StillOpen:
    """Ask the driver's connection."""
    raw: Any = plain.raw
    if driver == "psycopg":
        return lambda: raw.pgconn.transaction_status != _TRANSACTION_STATUS_IDLE
    if driver == "pymysql":
        # It hears of a transaction from a statement that writes, and of its end from the commit.
        return lambda: plain.in_transaction() or not plain.was_in_transaction
    if driver == "MySQLdb":
        return lambda: True
    return lambda: bool(raw.in_transaction)


def of_django(django: Any, in_driver: StillOpen) -> StillOpen:
    """Compare the outermost block of Django's connection, and ask its driver."""
    joined = _outermost(django)
    return lambda: joined is not None and _outermost(django) is joined and in_driver()


def _outermost(django: Any) -> object:
    return next(iter(django.atomic_blocks), None)
