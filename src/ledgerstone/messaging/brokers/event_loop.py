"""An event loop in a thread, for a transport with an asynchronous client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

T = TypeVar("T")

END_SECONDS_MAX = 5.0


class LoopClosed(Exception):
    """The loop was closed before or while the coroutine ran; its result is unknown."""


class LoopThread:
    """Runs coroutines for threads that wait for the result.

    - Several threads may call `run` at the same time; each gets the result of its own coroutine.
    - `close` runs the coroutine that it is given, cancels all others and ends the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._turn, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Returns or raises what the coroutine does. Raises LoopClosed if it could not finish."""
        with self._lock:
            if self._closed:
                coroutine.close()
                raise LoopClosed
            running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return running.result()
        except CancelledError as error:
            raise LoopClosed from error

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        with self._lock:
            if self._closed:
                last.close()
                return
            self._closed = True
        ending = asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        try:
            ending.result(END_SECONDS_MAX * 2)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(END_SECONDS_MAX)

    async def _end(self, last: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(last, END_SECONDS_MAX)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=END_SECONDS_MAX)

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            # A name lookup may hang in the executor of the loop: do not wait for it.
            self._loop.close()
