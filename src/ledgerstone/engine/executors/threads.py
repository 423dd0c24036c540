"""Sync handlers, each in a thread.

A thread takes no orders while a handler runs in it: the handler learns of a timeout, a lost lease
or a shutdown at its next call (see `ledgerstone.cancellation`). If it makes none, it is abandoned:
another thread takes its place, and this one ends when its handler does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ledgerstone.engine.attempt import Attempt
from ledgerstone.engine.source import ExecutorKind

if TYPE_CHECKING:
    from ledgerstone.engine.executors.processes import Child
    from ledgerstone.engine.source import Claim, Handler
    from ledgerstone.errors import LedgerstoneError


class _Worker:
    """One thread, what it runs, and its child process if a handler needed one."""

    __slots__ = ("attempt", "child", "count", "lock", "spent")

    def __init__(self) -> None:
        # What runs processes takes its time to import, and most commands run no handler.
        from ledgerstone.engine.executors.processes import Child

        self.attempt: Attempt | None = None
        self.lock = threading.Lock()
        self.spent = 0.0
        self.count = 0
        self.child = Child()


class ThreadRunner:
    """Threads that are made when needed and kept for the next claim."""

    def __init__(
        self,
        run: Callable[[Claim, Handler, Child], Any],
        begun: Callable[[], None],
        following: Callable[[Attempt], tuple[Claim, Handler] | None],
    ) -> None:
        self._run = run
        self._begun = begun
        self._following = following
        self._inbox: SimpleQueue[tuple[Claim, Handler] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._workers: set[_Worker] = set()
        self._past = (0.0, 0)

    @property
    def spent(self) -> tuple[float, int]:
        """Seconds in handlers, handlers ended."""
        with self._lock:
            seconds, count = self._past
            for worker in self._workers:
                seconds += worker.spent
                count += worker.count
            return seconds, count

    @property
    def attempts(self) -> list[Attempt]:
        """What runs, abandoned ones included."""
        with self._lock:
            workers = list(self._workers)
        return [attempt for worker in workers if (attempt := worker.attempt) is not None]

    def start(self, claim: Claim, handler: Handler) -> None:
        """Run this claim in a free thread, or in a new one."""
        with self._lock:
            spawn = self._idle == 0
            if not spawn:
                self._idle -= 1
        self._inbox.put((claim, handler))
        if spawn:
            worker = _Worker()
            thread = threading.Thread(
                target=self._work, args=(worker,), name="ledgerstone-handler", daemon=True
            )
            with self._lock:
                self._workers.add(worker)
            thread.start()

    def cancel(self, attempt: Attempt, reason: LedgerstoneError) -> None:
        """Tell the handler to stop; one in a process is killed."""
        attempt.cancel(reason)
        if attempt.handler.where is not ExecutorKind.PROCESS:
            return
        with self._lock:
            workers = list(self._workers)
        for worker in workers:
            with worker.lock:
                # Else its child may be at work on the next claim.
                if worker.attempt is attempt:
                    worker.child.kill()

    def stop(self) -> None:
        """Idle threads end now, busy ones when their handler does."""
        with self._lock:
            for _ in range(len(self._workers)):
                self._inbox.put(None)

    def _work(self, worker: _Worker) -> None:
        try:
            while (task := self._inbox.get()) is not None:
                self._begun()
                if not self._run_from(worker, task):
                    return
                # An idle thread holds nothing of what it did.
                del task
                with self._lock:
                    self._idle += 1
        finally:
            worker.child.stop()
            with self._lock:
                self._workers.discard(worker)
                self._past = (self._past[0] + worker.spent, self._past[1] + worker.count)

    def _run_from(self, worker: _Worker, task: tuple[Claim, Handler]) -> bool:
        """Run this claim and those that follow; False if another thread has the place."""
        following: tuple[Claim, Handler] | None = task
        while following is not None:
            attempt = self._attempt(worker, *following)
            if not attempt.end():
                # Abandoned: another thread has its place.
                return False
            following = self._following(attempt)
        return True

    def _attempt(self, worker: _Worker, claim: Claim, handler: Handler) -> Attempt:
        worker.attempt = attempt = Attempt(claim, handler)
        token = attempt.cancellation.begin()
        try:
            attempt.value = self._run(claim, handler, worker.child)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the item's outcome
            attempt.error = error
        attempt.cancellation.leave(token)
        with worker.lock:
            worker.attempt = None
        worker.spent += perf_counter() - attempt.started
        worker.count += 1
        return attempt
