"""Cursors on a caller's connection that return plain tuples and count matched rows.

The caller may have set another row type on the driver, or opened a connection to MySQL on which an
UPDATE counts only changed rows. Our statements must not depend on that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

_SERVER_STATUS_IN_TRANS = 1


class PlainCursors:
    """A driver's connection whose `cursor` makes such cursors."""

    def __init__(self, driver: str, raw: Any) -> None:
        self.raw = raw
        self.was_in_transaction = False
        """On PyMySQL: whether an answer of the server said that a transaction is open."""
        self.cursor = _maker(driver, self)
        if driver == "pymysql":
            self.was_in_transaction = self.in_transaction()

    def in_transaction(self) -> bool:
        """On PyMySQL: whether a transaction is open, by the last answer with a status."""
        return bool(self.raw.server_status & _SERVER_STATUS_IN_TRANS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def _maker(driver: str, plain: PlainCursors) -> Callable[[], Any]:
    raw = plain.raw
    if driver == "psycopg":
        from psycopg.rows import tuple_row

        return partial(raw.cursor, row_factory=tuple_row)
    if driver == "pymysql":
        return partial(_pymysql_cursor(), plain)
    if driver == "MySQLdb":
        from MySQLdb.cursors import Cursor  # type: ignore[import-untyped]

        return partial(raw.cursor, Cursor)
    return partial(_sqlite_cursor, raw)


def _sqlite_cursor(raw: Any) -> Any:
    cursor = raw.cursor()
    cursor.row_factory = None
    return cursor


@cache
def _pymysql_cursor() -> Any:
    from pymysql.constants import CLIENT
    from pymysql.cursors import Cursor

    class MatchedRowsCursor(Cursor):  # type: ignore[misc]
        """Reads the count from the server's message: `Rows matched: 2  Changed: 0  Warnings: 0`."""

        def __init__(self, plain: PlainCursors) -> None:
            super().__init__(plain.raw)
            self._plain = plain
            self._counts_changed = not plain.raw.client_flag & CLIENT.FOUND_ROWS

        def _do_get_result(self) -> None:
            super()._do_get_result()
            plain = self._plain
            if not plain.was_in_transaction:
                plain.was_in_transaction = plain.in_transaction()
            if self._counts_changed:
                found = re.search(rb"\d+", self._result.message or b"")
                if found:
                    self.rowcount = int(found.group())

    return MatchedRowsCursor
