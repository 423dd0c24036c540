"""What can be measured of jobs: ones that do nothing, sent and worked off."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from bench.side import Side

JOB = "noop"

Note = Callable[[], None]
"""What the job that does nothing calls, and all that it does."""
Sent = tuple[int, int]
"""When a job was handed in, and when it was committed, by the monotonic clock in nanoseconds."""


class Prompt(Side, Protocol):
    """A side whose latency is measured: `sending` sends one job at a time."""

    def sending(self, url: str) -> AbstractContextManager[Callable[[], Sent]]: ...
