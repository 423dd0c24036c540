"""The executor: runs attempts in threads, on an event loop or in child processes.

At most `places` handlers run at once. A handler that ends gives its place to the next attempt that
waits, so the limit is exact over all three kinds of executors:

    start(claims) ─▶ waiting ─▶ ┌ places ──────────────┐ ─▶ record
                                │ thread thread task … │
                                └──────────▲───────────┘
                                           └ the one that ends takes the next
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from ledgerstone.engine import outcomes
from ledgerstone.engine.executors.event_loop import LoopRunner
from ledgerstone.engine.executors.threads import ThreadRunner
from ledgerstone.engine.source import Batch, Claim, ExecutorKind
from ledgerstone.errors import HandlerTimeout, Interrupted

if TYPE_CHECKING:
    from ledgerstone.engine.attempt import Attempt
    from ledgerstone.engine.attempt_steps import AttemptSteps
    from ledgerstone.errors import LedgerstoneError


class Executor:
    """Runs the attempts of one pump.

    - At most `places` handlers run at once.
    - Every attempt that was started is recorded once, unless it was dropped while it waited.
    - `cancel` tells the handler of a claim to stop; a claim that waits is dropped instead.
    - A handler that was told to stop and goes on for too long is abandoned: its attempt is
      recorded, and its place is free.
    """

    def __init__(self, places: int, steps: AttemptSteps) -> None:
        self.places = places
        self.running = 0
        self.waiting: deque[Attempt] = deque()
        """Attempts that wait for a place, the oldest first."""
        self._steps = steps
        self._waking = False
        """Whether a thread was woken and has not come yet."""
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._threads = ThreadRunner(self, steps)
        self._loop = LoopRunner(self)
        self._abandoned_ever = False

    @property
    def busy_seconds(self) -> tuple[float, int]:
        """Seconds spent in handlers and how many ended, since the start."""
        threads, tasks = self._threads.spent, self._loop.spent
        return threads[0] + tasks[0], threads[1] + tasks[1]

    def start(self, claims: Sequence[Claim], *, first: bool = False) -> None:
        """Run these claims: at once where a place is free, the others wait.

        `first`: they wait in front of the others.
        """
        attempts = []
        for claim in claims:
            try:
                attempts.append(self._steps.begin(claim))
            except Exception as error:  # noqa: BLE001 - nothing can run it: that is its outcome
                failed = outcomes.of_error(claim, error)
                self._steps.record(claim, failed, len(self.waiting))
        with self._lock:
            if first:
                self.waiting.extendleft(reversed(attempts))
            else:
                self.waiting.extend(attempts)
            self._fill_places()

    def drop_waiting(self) -> list[Claim]:
        """Drop what has not begun; its claims."""
        with self._lock:
            dropped = [attempt.claim for attempt in self.waiting]
            self.waiting.clear()
            return dropped

    def drop_late(self, seconds: float) -> list[Claim]:
        """Drop what has waited for a place for longer than this; its claims."""
        since = perf_counter() - seconds
        dropped: list[Claim] = []
        with self._lock:
            while True:
                # Taken first, then looked at: threads take from the left without the lock.
                try:
                    attempt = self.waiting.popleft()
                except IndexError:
                    return dropped
                if attempt.waiting_since >= since:
                    self.waiting.appendleft(attempt)
                    return dropped
                dropped.append(attempt.claim)

    def longer_than(self, seconds: float) -> int:
        """How many handlers run for longer than this."""
        since = perf_counter() - seconds
        return sum(attempt.started < since for attempt in self._running())

    @property
    def abandoned(self) -> int:
        """How many abandoned handlers still run."""
        if not self._abandoned_ever:
            return 0
        return sum(attempt.abandoned for attempt in self.attempts)

    def cancel(self, claim: Claim, reason: LedgerstoneError) -> bool:
        """Tell the handler of this claim to stop; True if the claim only waited and was dropped."""
        with self._lock:
            # A copy: threads take from the left without the lock.
            for waiting in list(self.waiting):
                if waiting.claim is claim:
                    try:
                        self.waiting.remove(waiting)
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
        """Abandon handlers that were told to stop so long ago and take no notice."""
        late = perf_counter() - notice_seconds
        for attempt in self._running():
            if attempt.told_at is not None and attempt.told_at < late:
                self._abandon(attempt)

    def abandon_all(self) -> None:
        """Abandon every handler that still runs: the worker stops without them."""
        for attempt in self._running():
            self._abandon(attempt)

    def wait_idle(self, seconds: float) -> bool:
        """Until no handler runs, or the time is up."""
        with self._lock:
            return self._idle.wait_for(lambda: self.running == 0, seconds)

    def stop(self) -> None:
        """End the threads, the loop and the child processes."""
        self._threads.stop()
        self._loop.stop()

    @property
    def attempts(self) -> list[Attempt]:
        """The running attempts, abandoned handlers included."""
        return [*self._threads.attempts, *self._loop.attempts]

    def _running(self) -> list[Attempt]:
        """The running attempts that were not abandoned."""
        return [attempt for attempt in self.attempts if not attempt.abandoned]

    def begun(self) -> None:
        """A thread that was woken runs its attempt: another one may be woken."""
        with self._lock:
            self._waking = False
            self._fill_places()

    def ended(self, attempt: Attempt) -> Attempt | None:
        """A handler has ended in a thread: record it; the next attempt for this thread, if any."""
        self._record(attempt)
        while True:
            try:
                following = self.waiting.popleft()
            except IndexError:
                if self._leave():
                    return None
                continue
            if not _is_task(following):
                return following
            self._loop.start(following)
            return None

    def task_ended(self, attempt: Attempt) -> None:
        """A task of the loop has ended: record it, and give its place to the next attempt."""
        self._record(attempt)
        self._pass_on()

    def _record(self, attempt: Attempt) -> None:
        self._steps.record(attempt.claim, self._steps.judge(attempt), len(self.waiting))

    def _abandon(self, attempt: Attempt) -> None:
        if not attempt.abandon():
            return
        self._abandoned_ever = True
        reason = attempt.cancellation.given or Interrupted("the worker is stopping")
        self._steps.record(attempt.claim, attempt.told(reason), len(self.waiting))
        self._pass_on()

    def _fill_places(self) -> None:
        """Begin attempts that wait; threads are woken one at a time, and each wakes the next.

        While handlers are quick, the first thread runs all attempts before a second one has woken
        up: waking every thread for every batch would cost more than the handlers.
        """
        while self.waiting and self.running < self.places and not self._waking:
            self.running += 1
            self._place(self.waiting.popleft())

    def _place(self, attempt: Attempt) -> None:
        if _is_task(attempt):
            self._loop.start(attempt)
        else:
            self._waking = True
            self._threads.start(attempt)

    def _pass_on(self) -> None:
        """Give a place that is free to the next attempt, or leave it."""
        while True:
            try:
                following = self.waiting.popleft()
            except IndexError:
                if self._leave():
                    return
                continue
            self._place(following)
            return

    def _leave(self) -> bool:
        """Free the place; False if another attempt has begun to wait in the meantime."""
        with self._lock:
            if self.waiting:
                return False
            self.running -= 1
            if self.running == 0:
                self._idle.notify_all()
            return True


def _is_task(attempt: Attempt) -> bool:
    """Whether it runs as a task of the event loop; an atomic handler runs in a thread."""
    return attempt.handler.where is ExecutorKind.LOOP and not attempt.handler.atomic


def _has(run: Claim, claim: Claim) -> bool:
    """Whether the running claim is this one, or a batch in which this one is open."""
    return run is claim or (isinstance(run, Batch) and run.open.get(claim.key) is claim)
