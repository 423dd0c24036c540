"""Cursors on a caller's connection that return plain tuples and count matched rows.

The caller may have set another row type on the driver, or opened a connection to MySQL on which an
UPDATE counts only changed rows. Our statements must not depend on that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any


class PlainCursors:
    """A driver's connection whose `cursor` makes such cursors."""

    def __init__(self, driver: str, raw: Any) -> None:
        self.raw = raw
        self.cursor = _maker(driver, raw)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def _maker(driver: str, raw: Any) -> Callable[[], Any]:
    if driver == "psycopg":
        from psycopg.rows import tuple_row

        return partial(raw.cursor, row_factory=tuple_row)
    if driver == "pymysql":
        from pymysql.constants import CLIENT
        from pymysql.cursors import Cursor

        found_rows = raw.client_flag & CLIENT.FOUND_ROWS
        return partial(raw.cursor, Cursor if found_rows else _found_rows_cursor())
    if driver == "MySQLdb":
        from MySQLdb.cursors import Cursor  # type: ignore[import-untyped]

        return partial(raw.cursor, Cursor)
    return partial(_sqlite_cursor, raw)


def _sqlite_cursor(raw: Any) -> Any:
    cursor = raw.cursor()
    cursor.row_factory = None
    return cursor


@cache
def _found_rows_cursor() -> Any:
    from pymysql.cursors import Cursor

    class FoundRowsCursor(Cursor):  # type: ignore[misc]
        """Reads the count from the server's message: `Rows matched: 2  Changed: 0  Warnings: 0`."""

        def _do_get_result(self) -> None:
            super()._do_get_result()
            found = re.search(rb"\d+", self._result.message or b"")
            if found:
                self.rowcount = int(found.group())

    return FoundRowsCursor
