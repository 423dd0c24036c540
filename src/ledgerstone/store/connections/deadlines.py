"""Deadlines: every call to a server ends, also when the network drops packets.

A client cannot tell a slow server from one that is gone. So a watchdog thread checks the running
calls and shuts down the socket of a call that takes too long:

    call ──since──▶ CallWatch ◀──checks── watchdog ──too long──▶ shutdown(2) ──▶ connection lost

The blocked call fails with the error of a lost connection, and the connection is discarded.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from weakref import WeakSet

LOOK_SECONDS = 0.2
"""The interval of the watchdog."""
KEEPALIVE_IDLE_SECONDS, KEEPALIVE_SECONDS, KEEPALIVES_MAX = 10, 5, 3
UNACKNOWLEDGED_MS_MAX = 25_000
"""The time after which the system gives up a connection whose host does not answer."""
OVER = "the worker has stopped: no connection is made any more"


class Deadline:
    """The longest duration of a call, for all connections of one database.

    `end_within` is for a worker that stops: every running call ends after that time, and every
    later call fails at once.
    """

    def __init__(self, seconds_max: float) -> None:
        self.seconds_max = seconds_max
        self._ends_at = float("inf")

    def end_within(self, seconds: float) -> None:
        """End every call within this time from now."""
        self._ends_at = min(self._ends_at, monotonic() + seconds)

    @property
    def over(self) -> bool:
        """Whether the time of `end_within` has passed."""
        return monotonic() >= self._ends_at

    def within(self, seconds: float) -> float:
        """`seconds`, or the time that `end_within` leaves, if that is less."""
        return max(0.0, min(seconds, self._ends_at - monotonic()))

    def passed(self, since: float) -> bool:
        """Whether a call that began at `since` has to end now."""
        now = monotonic()
        return now - since > self.seconds_max or now >= self._ends_at


class CallWatch:
    """Watches the calls of one connection: `with watch:` around each call."""

    __slots__ = ("__weakref__", "_deadline", "_fileno", "_lock", "_since", "expired")

    def __init__(self, deadline: Deadline, fileno: int) -> None:
        self.expired = False
        self._deadline = deadline
        self._fileno = fileno
        self._since: float | None = None
        self._lock = threading.Lock()
        _watchdog.add(self)

    def __enter__(self) -> None:
        self._since = monotonic()

    def __exit__(self, *_: object) -> None:
        # Under the lock, so that `look` does not use the number of a closed socket.
        with self._lock:
            self._since = None

    @property
    def words(self) -> str:
        """The message for a call that was ended."""
        if self._deadline.over:
            return "the database did not answer before the worker had to end"
        return f"the database did not answer within {self._deadline.seconds_max:g} s"

    def look(self) -> None:
        """End the call if it takes too long."""
        with self._lock:
            if self._since is None or self.expired or not self._deadline.passed(self._since):
                return
            self.expired = True
            # On a duplicate, since the driver closes its own socket.
            with suppress(OSError), socket.socket(fileno=os.dup(self._fileno)) as copy:
                copy.shutdown(socket.SHUT_RDWR)


class _Watchdog:
    """The thread that checks all watches; the first connection starts it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: WeakSet[CallWatch] = WeakSet()
        self._thread: threading.Thread | None = None

    def add(self, watch: CallWatch) -> None:
        with self._lock:
            self._watches.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._look, name="ledgerstone-deadlines", daemon=True
                )
                self._thread.start()

    def after_fork(self) -> None:
        """Start over in a child process, which has none of the threads and connections."""
        self.__init__()  # type: ignore[misc]

    def _look(self) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_SECONDS):
            with self._lock:
                watches = list(self._watches)
            for watch in watches:
                watch.look()


_watchdog = _Watchdog()
os.register_at_fork(after_in_child=_watchdog.after_fork)


def keepalives(given: Mapping[str, object]) -> dict[str, int]:
    """Keepalive parameters for libpq, without those that the URL sets."""
    ours = {
        "keepalives": 1,
        "keepalives_idle": KEEPALIVE_IDLE_SECONDS,
        "keepalives_interval": KEEPALIVE_SECONDS,
        "keepalives_count": KEEPALIVES_MAX,
        "tcp_user_timeout": UNACKNOWLEDGED_MS_MAX,
    }
    return {name: value for name, value in ours.items() if name not in given}


def keep_alive(connected: socket.socket) -> None:
    """Set the same keepalive options on a socket, as far as the system has them."""
    if connected.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {
        "TCP_KEEPIDLE": KEEPALIVE_IDLE_SECONDS,
        "TCP_KEEPINTVL": KEEPALIVE_SECONDS,
        "TCP_KEEPCNT": KEEPALIVES_MAX,
        "TCP_USER_TIMEOUT": UNACKNOWLEDGED_MS_MAX,
    }
    for name, value in wanted.items():
        option = getattr(socket, name, None)
        if option is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
