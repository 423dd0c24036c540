"""Connections of psycopg whose calls have a deadline."""

from __future__ import annotations

from functools import cache
from typing import Any

from ledgerstone.store.connections.deadlines import OVER, CallWatch, Deadline

_IDLE, _IN_TRANSACTION = 0, {2, 3}
"""Transaction statuses of libpq: none, and one that is open, also after an error."""


def connect_psycopg(deadline: Deadline, *arguments: Any, **named: Any) -> Any:
    """A connection whose calls end at the deadline."""
    import psycopg

    if deadline.over:
        raise psycopg.OperationalError(OVER)
    connection = _psycopg_class().connect(*arguments, **named)
    connection.watch = CallWatch(deadline, connection.fileno())
    return connection


@cache
def _psycopg_class() -> Any:
    import psycopg

    class WatchedConnection(psycopg.Connection[Any]):
        """A connection of psycopg, which waits for the server only in `wait`.

        `was_ended`: since `watch_open`, a statement has ended the transaction.
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
