"""A thread beside an event loop, for what would hold the loop up."""

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
    """Does what it is given in one thread, one after the other, while the loop goes on.

    - The thread is started by the first call; `close` ends it when all that was given is done.
    - Who waits and is interrupted hears of it when what has begun is over, so that nothing goes on
      behind their back. What has not begun by then is left out.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox: SimpleQueue[Given | None] | None = None
        self._closed = False

    async def run(self, call: Callable[[], T], *, surely: bool = False) -> T:
        """What the call answers or raises; `surely`: it is not left out, come what may."""
        given = self.give(call)
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        given.add_done_callback(lambda _: _tell(loop, over))
        interruption: BaseException | None = None
        while not over.is_set():
            try:
                await over.wait()
            except GeneratorExit:
                # The loop is gone: nobody will ever be told.
                raise
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised below
                interruption = interruption or error
                if not surely and given.cancel():
                    break
        if interruption is not None:
            raise interruption
        return given.result()

    def give(self, call: Callable[[], T]) -> Future[T]:
        """Have it done, without waiting for it."""
        if self._closed:
            message = "the handler that asks for this has ended"
            raise NotAllowedNow(message, hint="await every task that it starts before it returns")
        if self._inbox is None:
            self._inbox = SimpleQueue()
            # One that hangs in the database must not keep the process from ending.
            threading.Thread(
                target=_work, args=(self._inbox,), name=self._name, daemon=True
            ).start()
        given: Future[T] = Future()
        self._inbox.put((given, partial(copy_context().run, call)))
        return given

    def close(self) -> None:
        """Take nothing more."""
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
        # Until the next one comes, what was answered must not be kept alive from here.
        del task, given, call
        answer = None


def _tell(loop: asyncio.AbstractEventLoop, over: asyncio.Event) -> None:
    # A loop that is closed meanwhile has nobody left who waits.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(over.set)
