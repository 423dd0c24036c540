"""A thread beside an event loop, for calls that would block the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from ledgerstone.errors import NotAllowedNow

T = TypeVar("T")
Given = tuple[Future[Any], Callable[[], Any]]


class AsyncBridge:
    """Runs calls in one thread, one after the other, while the event loop goes on.

    - The first call starts the thread; `close` ends it after the last call.
    - A task that is canceled while it waits gets the cancellation when its call has returned: no
      call goes on unseen. A call that has not begun by then is left out.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox: SimpleQueue[Given | None] | None = None
        self._closed = False

    async def run(self, call: Callable[[], T], *, surely: bool = False) -> T:
        """The answer of the call; `surely`: a cancellation does not leave it out."""
        given = self.give(call)
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        given.add_done_callback(lambda _: _tell(loop, over))
        interruption: BaseException | None = None
        while not over.is_set():
            try:
                await over.wait()
            except GeneratorExit:
                # The loop is closed, and will not resume this task.
                raise
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised below
                interruption = interruption or error
                if not surely and given.cancel():
                    break
        if interruption is not None:
            raise interruption
        return given.result()

    def give(self, call: Callable[[], T]) -> Future[T]:
        """Queue the call, without waiting for it."""
        if self._closed:
            message = "the handler that asks for this has ended"
            raise NotAllowedNow(message, hint="await every task that it starts before it returns")
        if self._inbox is None:
            self._inbox = SimpleQueue()
            # A daemon: a call that waits for the database must not keep the process alive.
            threading.Thread(
                target=_work, args=(self._inbox,), name=self._name, daemon=True
            ).start()
        given: Future[T] = Future()
        self._inbox.put((given, partial(copy_context().run, call)))
        return given

    def close(self) -> None:
        """Refuse further calls, and end the thread after the queued ones."""
        self._closed = True
        if self._inbox is not None:
            self._inbox.put(None)


def _work(inbox: SimpleQueue[Given | None]) -> None:
    while (task := inbox.get()) is not None:
        given, call = task
        if not given.set_running_or_notify_cancel():
            continue
        try:
            answer = call()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            given.set_exception(error)
        else:
            given.set_result(answer)
        # Keep no reference to the answer while waiting for the next call.
        del task, given, call
        answer = None


def _tell(loop: asyncio.AbstractEventLoop, over: asyncio.Event) -> None:
    # RuntimeError: the loop was closed meanwhile, and no task waits.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(over.set)
