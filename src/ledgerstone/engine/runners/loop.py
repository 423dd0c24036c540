"""Async handlers: tasks on one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from ledgerstone.engine import outcomes

if TYPE_CHECKING:
    from ledgerstone.engine.source import Claim, Handler, Outcome
    from ledgerstone.errors import LedgerstoneError

STOP_SECONDS_MAX = 5.0


class _Interruptible:
    """Awaits a handler; a cancellation with a reason reaches it as that error."""

    def __init__(self, coroutine: Any) -> None:
        self._coroutine = coroutine
        self.reason: LedgerstoneError | None = None
        self.started = perf_counter()
        self.begun = False

    def __await__(self) -> Generator[Any, Any, Any]:
        self.begun = True
        inner = self._coroutine.__await__()
        step: Callable[[], Any] = inner.__next__
        if self.reason is not None:
            step = _throwing(inner, self.reason)
        while True:
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            try:
                sent = yield waits_for
            except asyncio.CancelledError as cancelled:
                error = self.reason or cancelled
                step = _throwing(inner, error)
            except BaseException as error:  # noqa: BLE001 - handed to the handler as it came
                step = _throwing(inner, error)
            else:
                step = _sending(inner, sent)


def _throwing(inner: Any, error: BaseException) -> Callable[[], Any]:
    return lambda: inner.throw(error)


def _sending(inner: Any, value: Any) -> Callable[[], Any]:
    return lambda: inner.send(value)


class LoopRunner:
    """Starts a task for each claim; the loop is started with the first."""

    def __init__(
        self,
        came_out: Callable[[Claim, Any], Outcome | None],
        finished: Callable[[Claim, Outcome | None], None],
    ) -> None:
        self._came_out = came_out
        self._finished = finished
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: dict[str, tuple[Claim, asyncio.Task[None], _Interruptible]] = {}
        self.spent: tuple[float, int] = (0.0, 0)

    def start(self, claim: Claim, handler: Handler) -> None:
        """Run this claim as a task."""
        self._running_loop().call_soon_threadsafe(self._begin, claim, handler)

    def interrupt(self, claim: Claim, error: LedgerstoneError) -> None:
        """Raise the error where the handler of this claim waits.

        It counts from now on: also if the handler keeps the loop busy until its end.
        """
        found = self._tasks.get(claim.key)
        if found is not None and found[0] is claim:
            found[2].reason = error
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._raise, claim, error)

    def overdue(self) -> list[Claim]:
        """Claims that run longer than they may, and were not told."""
        now = perf_counter()
        return [
            claim
            for claim, _, waiting in list(self._tasks.values())
            if claim.timeout_seconds is not None
            and waiting.reason is None
            and now - waiting.started > claim.timeout_seconds
        ]

    def longer_than(self, seconds: float) -> int:
        """How many run for longer than this."""
        since = perf_counter() - seconds
        return sum(waiting.started < since for _, _, waiting in list(self._tasks.values()))

    def stop(self) -> None:
        """Cancel what is left and end the loop."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(STOP_SECONDS_MAX)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._turn, args=(self._loop,), name="ledgerstone-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            for _, task, _ in self._tasks.values():
                task.cancel()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
            self._let_go()

    def _let_go(self) -> None:
        """Whoever still waits for something will never be told: what they hold is given back."""
        for _, task, _ in list(self._tasks.values()):
            # As asyncio itself does with what it leaves behind: nobody has to hear of it.
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
            with suppress(RuntimeError):
                cast("Coroutine[Any, Any, None]", task.get_coro()).close()

    def _begin(self, claim: Claim, handler: Handler) -> None:
        try:
            waiting = _Interruptible(handler.call(claim))
        except BaseException as error:  # noqa: BLE001 - not even its call succeeded
            self._finished(claim, outcomes.of_error(claim, error))
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._attempt(claim, waiting))
        self._tasks[claim.key] = (claim, task, waiting)

    def _raise(self, claim: Claim, error: LedgerstoneError) -> None:
        found = self._tasks.get(claim.key)
        if found is None or found[0] is not claim:
            return
        _, task, waiting = found
        waiting.reason = error
        if waiting.begun:
            # One that has not begun finds the reason; canceled, it would end without a word.
            task.cancel()

    async def _attempt(self, claim: Claim, waiting: _Interruptible) -> None:
        waiting.started = started = perf_counter()
        outcome: Outcome | None
        try:
            outcome = self._came_out(claim, await waiting)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the item's outcome
            outcome = outcomes.of_error(claim, error)
        if waiting.reason is not None:
            # It was told: also if it took no notice.
            outcome = outcomes.told(claim, waiting.reason)
        if (found := self._tasks.get(claim.key)) is not None and found[0] is claim:
            # Else the job was claimed anew since, and that one runs.
            del self._tasks[claim.key]
        seconds, count = self.spent
        self.spent = (seconds + perf_counter() - started, count + 1)
        self._finished(claim, outcome)
