"""Room on the stack: to load RocksDB and to open a database takes more than a small thread has."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

STACK_BYTES = 512 * 1024
"""Opening took less than 64 KiB; the main thread and ordinary ones have 8 MiB."""


def with_stack(call: Callable[[], T]) -> T:
    """`call()`, in a thread of its own where threads are made with less than `STACK_BYTES`."""
    size = threading.stack_size()
    if not 0 < size < STACK_BYTES or threading.current_thread() is threading.main_thread():
        return call()
    answers: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that calls
            raised.append(error)

    thread = threading.Thread(target=run, name="rocksdb-open")
    threading.stack_size(STACK_BYTES)
    try:
        thread.start()
    finally:
        threading.stack_size(size)
    thread.join()
    if raised:
        raise raised[0]
    return answers[0]
