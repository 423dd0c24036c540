"""The harness's own connection to a database server: one for each process, kept open.

A client program for each statement would cost more than most tests do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from ledgerstone.testing.server import ServerFailed


class Administration:
    """Runs statements that make and remove databases.

    - The connection is opened by the first statement, and again in a process that was forked.
    - `forget` drops it: the server is about to be killed or stopped.
    - A copy for another process opens its own.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._connection: Any = None
        self._process = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Administration, (self._connect,)

    def run(self, statements: str) -> list[tuple[Any, ...]]:
        """The rows of the first of these statements; `ServerFailed` in the server's words."""
        with self._lock:
            if self._connection is None or self._process != os.getpid():
                self._connection, self._process = self._connect(), os.getpid()
            try:
                with self._connection.cursor() as cursor:
                    cursor.execute(statements)
                    rows = list(cursor.fetchall()) if cursor.description else []
                    while cursor.nextset():
                        pass
                    return rows
            except Exception as refused:
                self._drop()
                raise ServerFailed(str(refused)) from refused

    def forget(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():
            connection.close()
