"""Eight threads that begin together."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

THREADS = 8


def race(work: Callable[[int], object]) -> None:
    """`work(number)` in eight threads that begin together."""
    began = threading.Barrier(THREADS)
    failed: list[BaseException] = []

    def run(number: int) -> None:
        began.wait(WAIT_SECONDS_MAX)
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test tells it
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS_MAX)
    assert failed == [], [repr(error) for error in failed]
