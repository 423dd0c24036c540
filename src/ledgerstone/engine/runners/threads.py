"""Sync handlers, each in a thread; and the error that is raised into a running one.

CPython raises an error in another thread when that thread next runs bytecode: a handler that waits
in a system call notices when the call returns. Who raises an error says so in `error` before
looking at the thread's `claim`, and the thread clears its `claim` before looking at `error`: one of
the two sees the other, so an error meant for one claim never reaches the next, and a handler that
nobody interrupts takes no lock.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING

from ledgerstone.engine import outcomes
from ledgerstone.engine.runners.processes import Child

if TYPE_CHECKING:
    from ledgerstone.engine.source import Claim, Handler, Outcome
    from ledgerstone.errors import LedgerstoneError


class _Worker:
    """One thread, what it runs, and its child process if a handler needed one."""

    __slots__ = ("child", "claim", "count", "error", "ident", "lock", "spent", "started")

    def __init__(self) -> None:
        self.claim: Claim | None = None
        self.error: LedgerstoneError | None = None
        self.lock = threading.Lock()
        self.ident = 0
        self.started = 0.0
        self.spent = 0.0
        self.count = 0
        self.child = Child()


class ThreadRunner:
    """Threads that are made when needed and kept for the next claim."""

    def __init__(
        self,
        run: Callable[[Claim, Handler, Child], Outcome | None],
        begun: Callable[[], None],
        following: Callable[[Claim, Outcome | None], tuple[Claim, Handler] | None],
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

    def interrupt(self, claim: Claim, error: LedgerstoneError) -> bool:
        """Raise the error in the thread that runs this claim; False if none does."""
        with self._lock:
            workers = list(self._workers)
        for worker in workers:
            if worker.claim is not claim:
                continue
            with worker.lock:
                worker.error = error
                if worker.claim is claim:
                    worker.child.kill()
                    raise_in(worker.ident, type(error))
                    return True
                worker.error = None
        return False

    def overdue(self) -> list[Claim]:
        """Claims that run longer than they may, and were not told."""
        now = perf_counter()
        found = []
        with self._lock:
            workers = list(self._workers)
        for worker in workers:
            with worker.lock:
                claim = worker.claim
                if claim is None or claim.timeout_seconds is None or worker.error is not None:
                    continue
                if now - worker.started > claim.timeout_seconds:
                    found.append(claim)
        return found

    def longer_than(self, seconds: float) -> int:
        """How many run for longer than this."""
        since = perf_counter() - seconds
        with self._lock:
            workers = list(self._workers)
        return sum(worker.claim is not None and worker.started < since for worker in workers)

    def stop(self) -> None:
        """Idle threads end now, busy ones when their handler does."""
        with self._lock:
            for _ in range(len(self._workers)):
                self._inbox.put(None)

    def _work(self, worker: _Worker) -> None:
        worker.ident = threading.get_ident()
        try:
            while (task := self._inbox.get()) is not None:
                self._begun()
                following: tuple[Claim, Handler] | None = task
                while following is not None:
                    claim, handler = following
                    following = self._following(claim, self._attempt(worker, claim, handler))
                with self._lock:
                    self._idle += 1
        finally:
            worker.child.stop()
            with self._lock:
                self._workers.discard(worker)
                self._past = (self._past[0] + worker.spent, self._past[1] + worker.count)

    def _attempt(self, worker: _Worker, claim: Claim, handler: Handler) -> Outcome | None:
        worker.started = started = perf_counter()
        outcome: Outcome | None = None
        caught: BaseException | None = None
        try:
            worker.claim = claim
            outcome = self._run(claim, handler, worker.child)
        except BaseException as error:  # noqa: BLE001 - the raised-in error may land anywhere above
            caught = error
        while True:
            try:
                if caught is not None:
                    outcome = outcomes.of_error(claim, caught)
                worker.claim = None
                if worker.error is not None:
                    outcome = self._told(worker, claim, outcome)
                break
            except BaseException:  # noqa: BLE001, S112 - the raised-in error landed here: once more
                continue
        worker.spent += perf_counter() - started
        worker.count += 1
        return outcome

    @staticmethod
    def _told(worker: _Worker, claim: Claim, outcome: Outcome | None) -> Outcome | None:
        """What was raised into this thread is the outcome, and is not raised any more."""
        with worker.lock:
            error = worker.error
            if error is None:
                return outcome
            # In this order: until it is taken back it may be raised, and then this is repeated.
            raise_in(worker.ident, None)
            worker.error = None
        return outcomes.told(claim, error)


def raise_in(ident: int, kind: type[BaseException] | None) -> None:
    """Raise an error in another thread; None takes back one that was not raised yet."""
    argument = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), argument)
