"""The event loop in a thread of its own: answers, endings, and what is left when it closes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ledgerstone.messaging.brokers.event_loop import LoopClosed, LoopThread
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX


async def nothing() -> None:
    """What is to be done last."""


async def broken() -> None:
    raise ValueError("broken")


def test_each_gets_its_own() -> None:
    """What a coroutine returns or raises is told to the thread that waits for it."""
    loop = LoopThread("test")

    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: loop.run(double(number)), range(20)))
    with pytest.raises(ValueError, match="broken"):
        loop.run(broken())

    loop.close(nothing())
    assert answers == [2 * number for number in range(20)]


def test_close_ends_what_is_left() -> None:
    """Close does what it is given last, ends what still runs, and its thread; twice is fine."""
    loop = LoopThread("test")
    begun = threading.Event()
    done: list[str] = []

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def last() -> None:
        done.append("last")

    def wait_for_it() -> None:
        with pytest.raises(LoopClosed):
            loop.run(endless())
        done.append("told")

    # Nobody waits for this thread at the end: one that is not told would wait for ever.
    waiting = threading.Thread(target=wait_for_it, daemon=True)
    waiting.start()
    assert begun.wait(WAIT_SECONDS_MAX)
    loop.close(last())
    waiting.join(WAIT_SECONDS_MAX)
    loop.close(last())

    assert done == ["last", "told"]
    assert not loop._thread.is_alive()


@pytest.mark.filterwarnings("error")
def test_a_closed_one_runs_nothing() -> None:
    """After close nothing is begun, and no coroutine is left unawaited."""
    loop = LoopThread("test")
    loop.close(nothing())
    begun: list[str] = []

    async def begin() -> None:
        begun.append("begun")

    coroutine: Coroutine[Any, Any, None] = begin()
    with pytest.raises(LoopClosed):
        loop.run(coroutine)

    assert begun == []
    assert coroutine.cr_frame is None  # type: ignore[attr-defined]
