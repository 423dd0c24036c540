"""Wake-ups: polling is the truth, a bell only makes it prompt.

A pump waits for its bell with a time limit. Bells are rung by transactions of the same process
after they commit, and by a watcher, which sees what other processes committed: one file each under
`wakeups/`. A watcher may be missing (MySQL), cut off or lose a ring; work is then found at the next
poll.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

ALL = "*"
"""A ring for every channel: something was committed, it is not known what."""


class WakeSignal:
    """Rings for one waiter; a ring before the wait is kept."""

    __slots__ = ("_silence",)

    def __init__(self) -> None:
        # A lock that is free for a moment is the shortest way from one thread to another.
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        # If it is free it rings already. Asked first: a thread may ring once for each item.
        if self._silence.locked():
            with suppress(RuntimeError):
                # Somebody else rang in between.
                self._silence.release()

    def wait(self, seconds: float) -> bool:
        """Until it rings or the time is up; says which, and is silent again."""
        return self._silence.acquire(timeout=max(seconds, 0.0))


class WakeSignals:
    """The bells of one process on one database, by channel."""

    def __init__(self) -> None:
        self._wake_signals: dict[str, set[WakeSignal]] = {}
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        """Another thread of the parent may have held the lock: here it would for ever."""
        self._lock = threading.Lock()

    def hang(self, channel: str, wake_signal: WakeSignal) -> None:
        """From now on `wake_signal` rings for this channel."""
        with self._lock:
            self._wake_signals.setdefault(channel, set()).add(wake_signal)

    def take_down(self, channel: str, wake_signal: WakeSignal) -> None:
        with self._lock:
            self._wake_signals.get(channel, set()).discard(wake_signal)

    def ring(self, channels: Iterable[str]) -> None:
        with self._lock:
            names = list(channels)
            if ALL in names:
                wake_signals = {
                    wake_signal for hung in self._wake_signals.values() for wake_signal in hung
                }
            else:
                wake_signals = {
                    wake_signal
                    for name in names
                    for wake_signal in self._wake_signals.get(name, ())
                }
        for wake_signal in wake_signals:
            wake_signal.ring()


class Watcher(Protocol):
    """Sees what other processes commit and rings.

    - `start` returns when it listens; what commits after that rings.
    - `prompt` says whether it works at this moment; while not, its waiters poll faster.
    - `stop` ends its thread and closes its connection.
    """

    @property
    def prompt(self) -> bool: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...
