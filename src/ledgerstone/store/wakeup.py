"""Wake-up signals: polling finds all work, a signal only makes a waiting thread look sooner.

A thread waits for its `WakeSignal` with a time limit. Transactions of the same process notify the
signals after they commit. A watcher notifies them of commits of other processes (one module for
each kind under `wakeups/`). MySQL has no watcher, and a watcher may be cut off or miss a
notification: the next poll finds the work then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

ALL = "*"
"""Notifies the signals of every channel: something was committed, it is not known what."""


class WakeSignal:
    """Wakes one waiting thread; a notification that comes before the wait is kept."""

    __slots__ = ("_silence",)

    def __init__(self) -> None:
        # Releasing a lock is the fastest way to wake another thread.
        self._silence = threading.Lock()
        self._silence.acquire()

    def notify(self) -> None:
        """End the current wait, or the next one."""
        # A free lock means: notified already. Looked at first, since a thread may notify once an
        # item.
        if self._silence.locked():
            with suppress(RuntimeError):
                # Another thread has notified in between.
                self._silence.release()

    def wait(self, seconds: float) -> bool:
        """Wait for a notification, at most so long; answers whether there was one."""
        return self._silence.acquire(timeout=max(seconds, 0.0))


class WakeSignals:
    """The signals of one process on one database, by channel."""

    def __init__(self) -> None:
        self._wake_signals: dict[str, set[WakeSignal]] = {}
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        """Replace the lock.

        A thread of the parent may have held it, and the child has no such thread.
        """
        self._lock = threading.Lock()

    def subscribe(self, channel: str, wake_signal: WakeSignal) -> None:
        """From now on `notify` of this channel notifies the signal."""
        with self._lock:
            self._wake_signals.setdefault(channel, set()).add(wake_signal)

    def unsubscribe(self, channel: str, wake_signal: WakeSignal) -> None:
        """Undo `subscribe`."""
        with self._lock:
            self._wake_signals.get(channel, set()).discard(wake_signal)

    def notify(self, channels: Iterable[str]) -> None:
        """Notify the signals of these channels, each signal once; ALL stands for every channel."""
        with self._lock:
            names = list(channels)
            if ALL in names:
                found = {each for signals in self._wake_signals.values() for each in signals}
            else:
                found = {each for name in names for each in self._wake_signals.get(name, ())}
        for wake_signal in found:
            wake_signal.notify()


class Watcher(Protocol):
    """Notices commits of other processes, and notifies the signals of this one.

    - `start` returns when it listens; later commits are noticed.
    - `prompt` says whether it works at this moment; while it does not, waiting threads poll faster.
    - `stop` ends its thread and closes its connection.
    """

    @property
    def prompt(self) -> bool: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...
