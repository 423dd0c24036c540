"""The crew: runs claims in threads, on an event loop or in child processes, so many at once.

A place in the crew is passed from the handler that ends to the next claim that waits, so the limit
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
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ledgerstone.engine import outcomes
from ledgerstone.engine.runners.loop import LoopRunner
from ledgerstone.engine.runners.threads import ThreadRunner
from ledgerstone.engine.source import Claim, Handler, Outcome, Where

if TYPE_CHECKING:
    from ledgerstone.errors import LedgerstoneError


class Crew:
    """Runs claims and reports how each came out.

    - At most `places` handlers run at once.
    - Every claim that was started is reported once, unless it was `dropped` while waiting.
    - `interrupt` raises an error into the handler of a claim; one that waits is dropped and
      answered.
    """

    def __init__(
        self,
        places: int,
        *,
        handler: Callable[[Claim], Handler],
        atomic: Callable[[Claim, Handler], Outcome | None],
        came_out: Callable[[Claim, Any], Outcome],
        done: Callable[[Claim, Outcome | None], None],
    ) -> None:
        self.places = places
        self.running = 0
        self.waiting: deque[Claim] = deque()
        self._handler = handler
        self._atomic = atomic
        self._came_out = came_out
        self._done = done
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._threads = ThreadRunner(self._run, self._next_for_thread)
        self._loop = LoopRunner(came_out, self._finish)

    @property
    def busy_seconds(self) -> tuple[float, int]:
        """Time spent in handlers and how many ended, both ever growing."""
        threads, tasks = self._threads.spent, self._loop.spent
        return threads[0] + tasks[0], threads[1] + tasks[1]

    def start(self, claims: Sequence[Claim]) -> None:
        """Take these on: at once where a place is free, the rest wait."""
        with self._lock:
            self.waiting.extend(claims)
            while self.waiting and self.running < self.places:
                self.running += 1
                self._place(self.waiting.popleft())

    def drop_waiting(self) -> list[Claim]:
        """Take back what has not begun."""
        with self._lock:
            dropped = list(self.waiting)
            self.waiting.clear()
            return dropped

    def interrupt(self, claim: Claim, error: LedgerstoneError) -> bool:
        """Raise the error into its handler; True if it only waited and is dropped."""
        with self._lock:
            # A copy, and perhaps in vain: threads take from the left without the lock.
            for waiting in list(self.waiting):
                if waiting is claim:
                    with suppress(ValueError):
                        self.waiting.remove(claim)
                        return True
        if not self._threads.interrupt(claim, error):
            self._loop.interrupt(claim, error)
        return False

    def overdue(self) -> list[Claim]:
        """Claims whose handler ran past its limit and was not told so yet."""
        return [*self._threads.overdue(), *self._loop.overdue()]

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
        return self._run(claim, None)

    def _place(self, claim: Claim) -> None:
        if self._for_loop(claim):
            self._loop.start(claim, self._handler(claim))
        else:
            self._threads.start(claim)

    def _run(self, claim: Claim, child: Any) -> Outcome | None:
        try:
            handler = self._handler(claim)
            if handler.atomic:
                return self._atomic(claim, handler)
            if handler.where is Where.PROCESS and child is not None:
                value = child.call(handler.call, claim)
            elif handler.where is Where.LOOP:
                value = run_coroutine(handler.call, claim)
            else:
                value = handler.call(claim)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the item's outcome
            return outcomes.of_error(claim, error)
        return self._came_out(claim, value)

    def _next_for_thread(self, claim: Claim, outcome: Outcome | None) -> Claim | None:
        """A thread's handler ended: report it, and answer the next claim for that thread."""
        self._done(claim, outcome)
        while True:
            try:
                following = self.waiting.popleft()
            except IndexError:
                if self._leave():
                    return None
                continue
            if not self._for_loop(following):
                return following
            self._place(following)
            return None

    def _for_loop(self, claim: Claim) -> bool:
        try:
            handler = self._handler(claim)
        except Exception:  # noqa: BLE001 - a thread meets it again, where it is the outcome
            return False
        return handler.where is Where.LOOP and not handler.atomic

    def _finish(self, claim: Claim, outcome: Outcome | None) -> None:
        """A task of the loop ended: report it and pass its place on."""
        self._done(claim, outcome)
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
        """Give the place up, unless something came to wait in the meantime."""
        with self._lock:
            if self.waiting:
                return False
            self.running -= 1
            if self.running == 0:
                self._idle.notify_all()
            return True


def run_coroutine(call: Callable[..., Any], *arguments: Any) -> Any:
    """Run an async handler to its end on a loop of its own."""
    import asyncio

    return asyncio.run(call(*arguments))
