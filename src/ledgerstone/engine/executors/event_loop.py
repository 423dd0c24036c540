"""Async handlers: tasks on one event loop in a thread of its own.

A handler that has to stop is canceled at an await. A store call that it awaits is not interrupted:
the cancellation arrives when the call has returned (`ledgerstone.engine.async_bridge`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import copy_context
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from ledgerstone.engine.attempt import Attempt
    from ledgerstone.errors import LedgerstoneError

STOP_SECONDS_MAX = 5.0


class Ended(Protocol):
    """Gets each attempt whose task has ended."""

    def task_ended(self, attempt: Attempt) -> None: ...


class LoopRunner:
    """Starts a task for each attempt; the loop is started with the first one."""

    def __init__(self, executor: Ended) -> None:
        self._executor = executor
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: dict[Attempt, asyncio.Task[None] | None] = {}
        """The running attempts; None for a task that is not made yet."""
        self.spent: tuple[float, int] = (0.0, 0)

    @property
    def attempts(self) -> list[Attempt]:
        """The running attempts, abandoned ones included."""
        return list(self._tasks)

    def start(self, attempt: Attempt) -> None:
        """Run this attempt as a task."""
        attempt.started = perf_counter()
        self._tasks[attempt] = None
        self._running_loop().call_soon_threadsafe(self._begin, attempt)

    def cancel(self, attempt: Attempt, reason: LedgerstoneError) -> None:
        """Cancel the handler at its next await.

        The reason counts from now on, also if the handler blocks the loop until its end.
        """
        loop = self._loop
        if attempt.cancel(reason) and loop is not None:
            loop.call_soon_threadsafe(self._cancel_task, attempt)

    def stop(self) -> None:
        """Cancel the tasks that are left and end the loop."""
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
            for task in self._begun_tasks():
                task.cancel()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
            self._close_tasks()

    def _begun_tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in list(self._tasks.values()) if task is not None]

    def _close_tasks(self) -> None:
        """Close the handlers that did not end: no loop will run them again."""
        for task in self._begun_tasks():
            # As asyncio does with its own tasks at the end: no warning that the task was destroyed.
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
            with suppress(RuntimeError):
                cast("Coroutine[Any, Any, None]", task.get_coro()).close()

    def _begin(self, attempt: Attempt) -> None:
        context = copy_context()
        context.run(attempt.cancellation.begin)
        loop = asyncio.get_running_loop()
        self._tasks[attempt] = loop.create_task(self._run(attempt), context=context)

    def _cancel_task(self, attempt: Attempt) -> None:
        task = self._tasks.get(attempt)
        # A task that has not begun finds the reason at its first step: a task that is canceled
        # before that ends without running any code of ours.
        if task is not None and attempt.begun and attempt.cancellation.reason is not None:
            attempt.cancellation.heard = True
            task.cancel()

    async def _run(self, attempt: Attempt) -> None:
        attempt.begun = True
        attempt.started = started = perf_counter()
        try:
            attempt.cancellation.check()
            called: Any = attempt.handler.call(attempt.claim)
            attempt.value = await called
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the item's outcome
            attempt.error = error
        self._tasks.pop(attempt, None)
        seconds, count = self.spent
        self.spent = (seconds + perf_counter() - started, count + 1)
        if attempt.end():
            self._executor.task_ended(attempt)
