"""Connections of the drivers whose calls have a deadline."""

from __future__ import annotations

from functools import cache
from typing import Any

from ledgerstone.store.connections.deadlines import CallWatch, Deadline, keep_alive
from ledgerstone.store.dialects.mysql.implicit_commits import ImplicitCommitGuard

_IDLE, _IN_TRANSACTION = 0, {2, 3}
"""What libpq says of a connection that is in no transaction, and in one, also after an error."""
OVER = "the worker has stopped: no connection is made any more"


def connect_psycopg(deadline: Deadline, *arguments: Any, **named: Any) -> Any:
    """A connection of psycopg."""
    import psycopg

    if deadline.over:
        raise psycopg.OperationalError(OVER)
    connection = _psycopg_class().connect(*arguments, **named)
    connection.watch = CallWatch(deadline, connection.fileno())
    return connection


def connect_pymysql(deadline: Deadline, *arguments: Any, **named: Any) -> Any:
    """A connection of PyMySQL."""
    import pymysql

    if deadline.over:
        raise pymysql.OperationalError(2003, OVER)
    connection = _pymysql_class()(*arguments, **named)
    socket = connection._sock  # noqa: SLF001 - there is no other way to it
    keep_alive(socket)
    connection.watch = CallWatch(deadline, socket.fileno())
    return connection


@cache
def _psycopg_class() -> Any:
    import psycopg

    class WatchedConnection(psycopg.Connection[Any]):
        """Every wait of psycopg for the server goes through `wait`.

        `was_ended`: a wait that began in a transaction has ended outside, since `watch_open`.
        """

        watch: CallWatch | None = None
        was_ended = False

        def watch_open(self) -> None:
            self.was_ended = False

        def wait(self, *arguments: Any, **named: Any) -> Any:
            begun = self.pgconn.transaction_status in _IN_TRANSACTION
            try:
                return self._watched(*arguments, **named)
            finally:
                if begun and self.pgconn.transaction_status == _IDLE:
                    self.was_ended = True

        def _watched(self, *arguments: Any, **named: Any) -> Any:
            watch = self.watch
            if watch is None:
                return super().wait(*arguments, **named)
            try:
                with watch:
                    return super().wait(*arguments, **named)
            except psycopg.OperationalError as error:
                if watch.expired:
                    raise psycopg.OperationalError(watch.words) from error
                raise

    return WatchedConnection


@cache
def _pymysql_class() -> Any:
    import pymysql
    from pymysql.connections import Connection

    class WatchedConnection(ImplicitCommitGuard, Connection):  # type: ignore[misc]
        """Every wait of PyMySQL for the server is a read or a write of bytes."""

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
