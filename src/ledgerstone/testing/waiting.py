"""Waiting for something to become true, with a limit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LOOK_SECONDS = 0.01
WAIT_SECONDS_MAX = float(os.environ.get("TESTS_WAIT_SECONDS_MAX", "300"))
"""The limit of every wait for what must happen. Only a test that fails ever reaches it.

It is minutes, so that no test fails because the machine is busy.
"""


def until(
    look: Callable[[], T],
    *,
    what: str = "it",
    every_seconds: float = LOOK_SECONDS,
    seconds_max: float = WAIT_SECONDS_MAX,
) -> T:
    """Look again and again until the answer is true; that answer."""
    deadline = time.monotonic() + seconds_max
    while not (answer := look()):
        if time.monotonic() > deadline:
            message = f"{what} did not happen within {seconds_max} s: {answer!r}"
            raise AssertionError(message)
        time.sleep(every_seconds)
    return answer
