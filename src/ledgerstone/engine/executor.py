"""The executor: runs claims in threads, on an event loop or in child processes, so many at once.

A place is passed from the handler that ends to the next claim that waits, so the limit
is exact over all three kinds, and a waiting claim costs one look into a deque:

    start(claims) ─▶ waiting ─▶ ┌ places ─────────────┐ ─▶ done(outcome)
                                │ thread thread task … │
                                └──────────▲───────────┘
                                           └ the one that ends takes the next
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ledgerstone.engine import outcomes
from ledgerstone.engine.atomic import run_coroutine
from ledgerstone.engine.attempt import Attempt
from ledgerstone.engine.executors.event_loop import LoopRunner
from ledgerstone.engine.executors.threads import ThreadRunner
from ledgerstone.engine.source import Batch, Claim, ExecutorKind, Handler, Outcome
from ledgerstone.errors import HandlerTimeout, Interrupted

if TYPE_CHECKING:
    from ledgerstone.engine.executors.processes import Child
    from ledgerstone.errors import LedgerstoneError


class Executor:
    """Runs claims and reports how each came out.

    - At most `places` handlers run at once.
    - Every claim that was started is reported once, unless it was `dropped` while waiting.
    - `cancel` tells the handler of a claim to stop; a claim that waits is dropped and answered.
    - A handler that was told and goes on for too long is abandoned: it is reported, and its place
      is free.
    """

    def __init__(
        self,
        places: int,
        *,
        handler: Callable[[Claim], Handler],
        atomic: Callable[[Claim, Handler], Any],
        came_out: Callable[[Claim, Any], Outcome | None],
        done: Callable[[Claim, Outcome | None], None],
    ) -> None:
        self.places = places
        self.running = 0
        self.waiting: deque[tuple[Claim, Handler, float]] = deque()
        """With the moment since when each waits; who came first stands first."""
        self._calling = False
        self._handler = handler
        self._atomic = atomic
        self._came_out = came_out
        self._done = done
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._threads = ThreadRunner(self._run, self._begun, self._next_for_thread)
        self._loop = LoopRunner(self._finish)
        self._abandoned_ever = False

    @property
    def busy_seconds(self) -> tuple[float, int]:
        """Time spent in handlers and how many ended, both ever growing."""
        threads, tasks = self._threads.spent, self._loop.spent
        return threads[0] + tasks[0], threads[1] + tasks[1]

    def start(self, claims: Sequence[Claim], *, first: bool = False) -> None:
        """Take these on: at once where a place is free, the rest wait (`first`: before others)."""
        tasks = []
        since = perf_counter()
        for claim in claims:
            try:
                tasks.append((claim, self._handler(claim), since))
            except Exception as error:  # noqa: BLE001 - nothing can run it: that is its outcome
                self._done(claim, outcomes.of_error(claim, error))
        with self._lock:
            if first:
                self.waiting.extendleft(reversed(tasks))
            else:
                self.waiting.extend(tasks)
            self._fill_places()

    def drop_waiting(self) -> list[Claim]:
        """Take back what has not begun."""
        with self._lock:
            dropped = [claim for claim, _, _ in self.waiting]
            self.waiting.clear()
            return dropped

    def drop_late(self, seconds: float) -> list[Claim]:
        """Take back what has waited for a place for longer than this."""
        since = perf_counter() - seconds
        dropped: list[Claim] = []
        with self._lock:
            while True:
                # Not a look and then a step: threads take from the left without the lock.
                try:
                    task = self.waiting.popleft()
                except IndexError:
                    return dropped
                if task[2] >= since:
                    self.waiting.appendleft(task)
                    return dropped
                dropped.append(task[0])

    def longer_than(self, seconds: float) -> int:
        """How many handlers run for longer than this."""
        since = perf_counter() - seconds
        return sum(attempt.started < since for attempt in self._running())

    @property
    def abandoned(self) -> int:
        """How many handlers run on though they were given up."""
        if not self._abandoned_ever:
            return 0
        return sum(attempt.abandoned for attempt in self.attempts)

    def cancel(self, claim: Claim, reason: LedgerstoneError) -> bool:
        """Tell the handler of this claim to stop; True if it only waited and is dropped."""
        with self._lock:
            # A copy: threads take from the left without the lock.
            for task in list(self.waiting):
                if task[0] is claim:
                    try:
                        self.waiting.remove(task)
                    except ValueError:
                        break
                    return True
        for runner in (self._threads, self._loop):
            for attempt in runner.attempts:
                if _has(attempt.claim, claim):
                    runner.cancel(attempt, reason)
        return False

    def cancel_overdue(self) -> None:
        """Tell handlers that ran past their limit, once each."""
        now = perf_counter()
        for runner in (self._threads, self._loop):
            for attempt in runner.attempts:
                if attempt.is_overdue(now):
                    limit = attempt.claim.timeout_seconds
                    runner.cancel(attempt, HandlerTimeout(f"ran longer than {limit} s"))

    def abandon_late(self, notice_seconds: float) -> None:
        """Give up handlers that were told to stop so long ago and take no notice."""
        late = perf_counter() - notice_seconds
        for attempt in self._running():
            if attempt.told_at is not None and attempt.told_at < late:
                self._abandon(attempt)

    def abandon_all(self) -> None:
        """Give up every handler that still runs: the worker stops without them."""
        for attempt in self._running():
            self._abandon(attempt)

    def wait_idle(self, seconds: float) -> bool:
        """Until no handler runs, or the time is up."""
        with self._lock:
            return self._idle.wait_for(lambda: self.running == 0, seconds)

    def stop(self) -> None:
        """Let the threads, the loop and the child processes go."""
        self._threads.stop()
        self._loop.stop()

    def run_here(self, claim: Claim) -> Outcome | None:
        """Run one in the calling thread (for a step by step drive)."""
        try:
            attempt = Attempt(claim, self._handler(claim))
        except Exception as error:  # noqa: BLE001 - nothing can run it: that is its outcome
            return outcomes.of_error(claim, error)
        try:
            attempt.value = self._run(claim, attempt.handler, None)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the item's outcome
            attempt.error = error
        return attempt.judged(self._came_out)

    @property
    def attempts(self) -> list[Attempt]:
        """What runs, abandoned handlers included."""
        return [*self._threads.attempts, *self._loop.attempts]

    def _running(self) -> list[Attempt]:
        """What runs and was not abandoned."""
        return [attempt for attempt in self.attempts if not attempt.abandoned]

    def _abandon(self, attempt: Attempt) -> None:
        if not attempt.abandon():
            return
        self._abandoned_ever = True
        reason = attempt.cancellation.given or Interrupted("the worker is stopping")
        self._report_and_pass_on(attempt.claim, attempt.told(reason))

    def _fill_places(self) -> None:
        """Begin what waits; threads are called one at a time, and each calls the next.

        While handlers are quick, the first thread is through with all of them before a second has
        woken up: waking every thread for every batch would cost more than the handlers.
        """
        while self.waiting and self.running < self.places and not self._calling:
            self.running += 1
            claim, handler, _ = self.waiting.popleft()
            self._place(claim, handler)

    def _begun(self) -> None:
        """The thread that was called is there."""
        with self._lock:
            self._calling = False
            self._fill_places()

    def _place(self, claim: Claim, handler: Handler) -> None:
        if handler.where is ExecutorKind.LOOP and not handler.atomic:
            self._loop.start(claim, handler)
        else:
            self._calling = True
            self._threads.start(claim, handler)

    def _run(self, claim: Claim, handler: Handler, child: Child | None) -> Any:
        if handler.atomic:
            return self._atomic(claim, handler)
        if handler.where is ExecutorKind.THREAD:
            return handler.call(claim)
        if handler.where is ExecutorKind.PROCESS and child is not None:
            return child.call(handler.call, claim)
        if handler.where is ExecutorKind.LOOP:
            return run_coroutine(handler.call, claim)
        return handler.call(claim)

    def _next_for_thread(self, attempt: Attempt) -> tuple[Claim, Handler] | None:
        """A thread's handler ended: report it, and answer the next claim for that thread."""
        self._done(attempt.claim, attempt.judged(self._came_out))
        while True:
            try:
                following, handler, _ = self.waiting.popleft()
            except IndexError:
                if self._leave():
                    return None
                continue
            if handler.where is not ExecutorKind.LOOP or handler.atomic:
                return following, handler
            self._loop.start(following, handler)
            return None

    def _finish(self, attempt: Attempt) -> None:
        """A task of the loop ended: report it and pass its place on."""
        self._report_and_pass_on(attempt.claim, attempt.judged(self._came_out))

    def _report_and_pass_on(self, claim: Claim, outcome: Outcome | None) -> None:
        self._done(claim, outcome)
        while True:
            try:
                following, handler, _ = self.waiting.popleft()
            except IndexError:
                if self._leave():
                    return
                continue
            self._place(following, handler)
            return

    def _leave(self) -> bool:
        """Give the place up, unless something came to wait in the meantime."""
        with self._lock:
            if self.waiting:
                return False
            self.running -= 1
            if self.running == 0:
                self._idle.notify_all()
            return True


def _has(run: Claim, claim: Claim) -> bool:
    """Whether what runs is this claim, or a batch in which it is open."""
    return run is claim or (isinstance(run, Batch) and run.open.get(claim.key) is claim)
