"""Waiting for something to become true, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LOOK_SECONDS = 0.01
SECONDS_MAX = 120.0


def until(look: Callable[[], T], *, seconds_max: float = SECONDS_MAX, what: str = "it") -> T:
    """Look again and again until the answer is true; that answer."""
    deadline = time.monotonic() + seconds_max
    while not (answer := look()):
        if time.monotonic() > deadline:
            message = f"{what} did not happen within {seconds_max} s: {answer!r}"
            raise AssertionError(message)
        time.sleep(LOOK_SECONDS)
    return answer
