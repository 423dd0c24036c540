"""Deadlines: no call to a server waits for ever, also when packets vanish.

A server that is slow and one that is gone look the same from inside a call. So one thread of the
process looks at the calls that are under way, and shuts down the socket of one that takes too long:

    call ──since──▶ Watch ◀──looks── watchdog ──too long──▶ shutdown(2) ──▶ the call fails as lost

The blocked call ends with the error of a lost connection, and the connection is discarded.
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
"""How often the watchdog looks at the calls."""
KEEPALIVE_IDLE_SECONDS, KEEPALIVE_SECONDS, KEEPALIVES_MAX = 10, 5, 3
UNACKNOWLEDGED_MS_MAX = 25_000
"""How long the system waits for a host that answers nothing, before it gives the connection up."""


class Deadline:
    """How long a call may take, for all connections of one database.

    `end_within` is for a worker that stops: from then on no call goes on for longer than that, and
    a new one is given up at once.
    """

    def __init__(self, seconds_max: float) -> None:
        self.seconds_max = seconds_max
        self._ends_at = float("inf")

    def end_within(self, seconds: float) -> None:
        """Give up every call that is under way so many seconds from now."""
        self._ends_at = min(self._ends_at, monotonic() + seconds)

    @property
    def over(self) -> bool:
        """Whether no call may begin any more."""
        return monotonic() >= self._ends_at

    def within(self, seconds: float) -> float:
        """So many seconds, or what is left of them before the end."""
        return max(0.0, min(seconds, self._ends_at - monotonic()))

    def passed(self, since: float) -> bool:
        """Whether a call that began then has to end now."""
        now = monotonic()
        return now - since > self.seconds_max or now >= self._ends_at


class CallWatch:
    """Looks after the calls of one connection: `with watch:` around each of them."""

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
        # Under the lock: while it is held the number still belongs to this connection.
        with self._lock:
            self._since = None

    @property
    def words(self) -> str:
        """What is said of a call that was given up."""
        if self._deadline.over:
            return "the database did not answer before the worker had to end"
        return f"the database did not answer within {self._deadline.seconds_max:g} s"

    def look(self) -> None:
        """Give the call up if it takes too long."""
        with self._lock:
            if self._since is None or self.expired or not self._deadline.passed(self._since):
                return
            self.expired = True
            # A copy of the number: the driver closes its own.
            with suppress(OSError), socket.socket(fileno=os.dup(self._fileno)) as copy:
                copy.shutdown(socket.SHUT_RDWR)


class _Watchdog:
    """The thread that looks; it is started with the first connection."""

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
        """Threads are not copied, and the connections are the parent's."""
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
    """Parameters of libpq that notice a host that is gone, unless the URL has its own."""
    ours = {
        "keepalives": 1,
        "keepalives_idle": KEEPALIVE_IDLE_SECONDS,
        "keepalives_interval": KEEPALIVE_SECONDS,
        "keepalives_count": KEEPALIVES_MAX,
        "tcp_user_timeout": UNACKNOWLEDGED_MS_MAX,
    }
    return {name: value for name, value in ours.items() if name not in given}


def keep_alive(connected: socket.socket) -> None:
    """The same for a socket, where the system has it."""
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
