"""Calls in threads of their own: all at one moment, beside the test, or waiting for something."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

T = TypeVar("T")

PATIENCE_SECONDS = 0.15
"""How long a test watches that something does not happen."""


def together(*calls: Callable[[], T]) -> list[T]:
    """What the calls answer, each made in a thread of its own, all at the same moment."""
    start = threading.Barrier(len(calls))

    def begin(call: Callable[[], T]) -> T:
        start.wait(WAIT_SECONDS_MAX)
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        futures = [threads.submit(begin, call) for call in calls]
        return [future.result(WAIT_SECONDS_MAX) for future in futures]


@contextmanager
def aside(call: Callable[[], T]) -> Iterator[Future[T]]:
    """A call in a thread of its own, for what has to wait for something."""
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(call)
        yield future
        future.result(WAIT_SECONDS_MAX)


def signaled(event: threading.Event) -> None:
    """Wait for a signal that another thread gives."""
    assert event.wait(WAIT_SECONDS_MAX), "the signal was not given"


def still_waits(future: Future[Any]) -> bool:
    """Whether the call has not come back, also after a moment."""
    try:
        future.exception(PATIENCE_SECONDS)
    except TimeoutError:
        return True
    return False
