"""How many rows a piece of work reads, counted by the database: an amount, and no time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

if TYPE_CHECKING:
    from ledgerstone.ledger import Transaction

ROW_STEPS = 10
"""What SQLite does for a row, about."""
_FETCHED = """\
SELECT COALESCE(SUM(seq_tup_read), 0) + COALESCE(SUM(idx_tup_fetch), 0)
FROM pg_stat_xact_user_tables"""
_HANDLED = "SHOW SESSION STATUS LIKE 'Handler_read%'"


def rows_read(kind: str, tx: Transaction, work: Callable[[], object]) -> int:
    """How many rows a database of this kind reads for this work, in this transaction.

    On SQLite about as many.
    """
    if kind == "sqlite":
        return _steps(tx, work) // ROW_STEPS
    count = {"postgres": _fetched, "mysql": _handled}[kind]
    before = count(tx)
    work()
    return count(tx) - before


def _fetched(tx: Transaction) -> int:
    return int(tx.connection.exec_driver_sql(_FETCHED).scalar_one())


def _handled(tx: Transaction) -> int:
    return sum(int(value) for _, value in tx.connection.execute(text(_HANDLED)))


def _steps(tx: Transaction, work: Callable[[], object]) -> int:
    """Steps of SQLite's machine, as it reports them itself."""
    seen = [0]

    def progress() -> int:
        seen[0] += 1
        return 0

    driver: Any = tx.connection.connection.dbapi_connection
    driver.set_progress_handler(progress, 1)
    try:
        work()
    finally:
        driver.set_progress_handler(None, 0)
    return seen[0]
