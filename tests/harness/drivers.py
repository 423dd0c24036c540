"""The bare driver's connection to a database, for checks that share no code with the ledger."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from ledgerstone.testing.waiting import WAIT_SECONDS_MAX


def connect(url: str) -> Any:
    """The bare driver's connection."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return _sqlite().connect(parts.path[1:], timeout=WAIT_SECONDS_MAX)
    if parts.scheme == "postgresql":
        import psycopg

        return psycopg.connect(url, prepare_threshold=None)
    import pymysql

    return pymysql.connect(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 3306,
        user=unquote(parts.username or "root"),
        password=unquote(parts.password or ""),
        database=parts.path[1:],
        charset="utf8mb4",
        connect_timeout=WAIT_SECONDS_MAX,
    )


def _sqlite() -> Any:
    """The copy of SQLite that the rest of a test uses: two in one process would not do."""
    import sqlite3

    if sqlite3.sqlite_version_info >= (3, 51, 3):
        return sqlite3
    import pysqlite3.dbapi2

    return pysqlite3.dbapi2
