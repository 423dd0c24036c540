"""Connections of PyMySQL whose calls have a deadline."""

from __future__ import annotations

from functools import cache
from typing import Any

from ledgerstone.store.connections.deadlines import OVER, CallWatch, Deadline, keep_alive
from ledgerstone.store.dialects.mysql.implicit_commits import ImplicitCommitGuard


def connect_pymysql(deadline: Deadline, *arguments: Any, **named: Any) -> Any:
    """A connection whose calls end at the deadline."""
    import pymysql

    if deadline.over:
        raise pymysql.OperationalError(2003, OVER)
    connection = _pymysql_class()(*arguments, **named)
    socket = connection._sock  # noqa: SLF001 - no public way
    keep_alive(socket)
    connection.watch = CallWatch(deadline, socket.fileno())
    return connection


@cache
def _pymysql_class() -> Any:
    import pymysql
    from pymysql.connections import Connection

    class WatchedConnection(ImplicitCommitGuard, Connection):  # type: ignore[misc]
        """A connection of PyMySQL, which waits for the server only when it reads or writes."""

        watch: CallWatch | None = None

        def _read_bytes(self, count: int) -> Any:
            return self._watched(super()._read_bytes, count)

        def _write_bytes(self, data: Any) -> Any:
            return self._watched(super()._write_bytes, data)

        def _watched(self, call: Any, argument: Any) -> Any:
            watch = self.watch
            if watch is None:
                return call(argument)
            try:
                with watch:
                    return call(argument)
            except pymysql.OperationalError as error:
                if watch.expired:
                    raise pymysql.OperationalError(2013, watch.words) from error
                raise

    return WatchedConnection
