"""PostgreSQL: LISTEN on a connection of its own.

    cut off ──connect──▶ testing ──own NOTIFY arrives──▶ prompt
       ▲                    │ does not arrive               │
       │                    ▼                               │
       └──── later ──── not prompt  ◀──connection lost──────┘

A connection through a transaction pooler accepts LISTEN and never hears what others say: so the
watcher first has another connection send it a message, and counts as prompt only when that arrives.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from ledgerstone.ids import new_id
from ledgerstone.store.connections.deadlines import Deadline, keepalives
from ledgerstone.store.dialects.postgres.connection import connect_psycopg
from ledgerstone.store.wakeup import ALL, WakeSignals

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

LISTEN_SECONDS = 0.5
"""How long one wait lasts; a stop is noticed after it at the latest."""
TEST_SECONDS_MAX = 2.0
CALL_SECONDS_MAX = 10.0
RECONNECT_SECONDS = 1.0
STOP_SECONDS_MAX = 5.0
PROBE = "probe:"

_log = logging.getLogger("ledgerstone.store")


class ListenWatcher:
    """Wakes the threads that wait for the channel that a notification names."""

    def __init__(
        self, url: URL, wake_signals: WakeSignals, *, channel: str, connect_timeout_seconds: float
    ) -> None:
        self._channel = channel
        # As arguments: in a URL a blank is a plus sign to SQLAlchemy, and not to the driver.
        named = url.translate_connect_args(username="user", database="dbname")
        self._connect_timeout = max(1, round(connect_timeout_seconds))
        self._arguments: dict[str, Any] = {
            **named,
            **url.query,
            "connect_timeout": self._connect_timeout,
            "application_name": "ledgerstone listen",
            **keepalives(url.query),
            "client_encoding": "utf8",
        }
        self._deadline = Deadline(CALL_SECONDS_MAX)
        self._wake_signals = wake_signals
        self._stop = threading.Event()
        self._tried = threading.Event()
        self._thread: threading.Thread | None = None
        self.prompt = False
        self._undelivered = False
        """Whether it was told that notifications do not arrive."""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="ledgerstone-listen", daemon=True)
        self._thread.start()
        self._tried.wait(TEST_SECONDS_MAX + self._connect_timeout)

    def stop(self) -> None:
        self._stop.set()
        self._deadline.end_within(0)
        if self._thread is not None:
            self._thread.join(STOP_SECONDS_MAX)

    def _run(self) -> None:
        import psycopg

        while not self._stop.is_set():
            try:
                with self._connected() as connection:
                    connection.execute(f'LISTEN "{self._channel}"')
                    self._listen(connection)
            except psycopg.Error as error:
                # Another one is made in a moment; an outage of the database is logged elsewhere.
                _log.debug("wake-ups by polling: the listening connection is lost: %s", error)
            self.prompt = False
            self._tried.set()
            self._stop.wait(RECONNECT_SECONDS)

    def _connected(self) -> Any:
        return connect_psycopg(
            self._deadline, **self._arguments, autocommit=True, prepare_threshold=None
        )

    def _listen(self, connection: Any) -> None:
        probe = PROBE + new_id()
        with self._connected() as other:
            other.execute("SELECT pg_notify(%s, %s)", (self._channel, probe))
        for notification in connection.notifies(timeout=TEST_SECONDS_MAX):
            if notification.payload == probe:
                self.prompt = True
                break
        if self.prompt:
            # A commit before the LISTEN woke nobody.
            self._wake_signals.notify((ALL,))
        self._tried.set()
        if not self.prompt:
            if not self._undelivered:
                self._undelivered = True
                _log.warning("wake-ups by polling: notifications do not arrive (a pooler between?)")
            return
        while not self._stop.is_set():
            for notification in connection.notifies(timeout=LISTEN_SECONDS):
                if not notification.payload.startswith(PROBE):
                    self._wake_signals.notify((notification.payload,))
                if self._stop.is_set():
                    return
