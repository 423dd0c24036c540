"""Sync handlers, each in a thread.

Nothing is raised into a thread while a handler runs in it. The handler learns of a timeout, a lost
lease or a shutdown at its next call (see `ledgerstone.cancellation`). A handler that makes no such
call is abandoned: another thread takes its place, and its own thread ends when the handler does.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING

from ledgerstone.engine.source import ExecutorKind

if TYPE_CHECKING:
    from ledgerstone.engine.attempt import Attempt
    from ledgerstone.engine.attempt_steps import AttemptSteps
    from ledgerstone.engine.executor import Executor
    from ledgerstone.errors import LedgerstoneError


class _HandlerThread:
    """One thread, the attempt that it runs, and its child process if a handler needed one."""

    __slots__ = ("attempt", "child", "count", "lock", "spent")

    def __init__(self) -> None:
        # Not at the top: multiprocessing is slow to import, and most commands run no handler.
        from ledgerstone.engine.executors.processes import Child

        self.attempt: Attempt | None = None
        self.lock = threading.Lock()
        self.spent = 0.0
        self.count = 0
        self.child = Child()


class ThreadRunner:
    """Threads that are made when needed and kept for the next attempt."""

    def __init__(self, executor: Executor, steps: AttemptSteps) -> None:
        self._executor = executor
        self._steps = steps
        self._inbox: SimpleQueue[Attempt | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads: set[_HandlerThread] = set()
        self._past = (0.0, 0)

    @property
    def spent(self) -> tuple[float, int]:
        """Seconds spent in handlers, and how many handlers ended."""
        with self._lock:
            seconds, count = self._past
            for thread in self._threads:
                seconds += thread.spent
                count += thread.count
            return seconds, count

    @property
    def attempts(self) -> list[Attempt]:
        """The running attempts, abandoned ones included."""
        with self._lock:
            threads = list(self._threads)
        return [attempt for thread in threads if (attempt := thread.attempt) is not None]

    def start(self, attempt: Attempt) -> None:
        """Run this attempt in an idle thread, or in a new one."""
        with self._lock:
            spawn = self._idle == 0
            if not spawn:
                self._idle -= 1
        self._inbox.put(attempt)
        if spawn:
            thread = _HandlerThread()
            with self._lock:
                self._threads.add(thread)
            threading.Thread(
                target=self._work, args=(thread,), name="ledgerstone-handler", daemon=True
            ).start()

    def cancel(self, attempt: Attempt, reason: LedgerstoneError) -> None:
        """Tell the handler to stop; the process of a handler that runs in one is killed."""
        attempt.cancel(reason)
        if attempt.handler.where is not ExecutorKind.PROCESS:
            return
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            with thread.lock:
                # Otherwise its child may run the next attempt already.
                if thread.attempt is attempt:
                    thread.child.kill()

    def stop(self) -> None:
        """Idle threads end now, others when their handler does."""
        with self._lock:
            for _ in range(len(self._threads)):
                self._inbox.put(None)

    def _work(self, thread: _HandlerThread) -> None:
        try:
            while (attempt := self._inbox.get()) is not None:
                self._executor.begun()
                if not self._run_from(thread, attempt):
                    return
                # An idle thread keeps no reference to its last attempt.
                del attempt
                with self._lock:
                    self._idle += 1
        finally:
            thread.child.stop()
            with self._lock:
                self._threads.discard(thread)
                self._past = (self._past[0] + thread.spent, self._past[1] + thread.count)

    def _run_from(self, thread: _HandlerThread, first: Attempt) -> bool:
        """Run this attempt and those that follow it; False if it was abandoned meanwhile."""
        attempt: Attempt | None = first
        while attempt is not None:
            self._run(thread, attempt)
            if not attempt.end():
                # Another thread has the place.
                return False
            attempt = self._executor.ended(attempt)
        return True

    def _run(self, thread: _HandlerThread, attempt: Attempt) -> None:
        attempt.started = perf_counter()
        thread.attempt = attempt
        token = attempt.cancellation.begin()
        self._steps.run(attempt, thread.child)
        attempt.cancellation.leave(token)
        with thread.lock:
            thread.attempt = None
        thread.spent += perf_counter() - attempt.started
        thread.count += 1
