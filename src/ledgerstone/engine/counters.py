"""Counters of a pump, and the answer of one tick."""

from __future__ import annotations

import msgspec


class Counters(msgspec.Struct):
    """Counts of a pump since its start, and its current error."""

    claimed: int = 0
    done: int = 0
    failed: int = 0
    returned: int = 0
    refused: int = 0
    lost: int = 0
    rescued: int = 0
    trouble: str | None = None
    abandoned: int = 0
    """Handlers that were abandoned and still run."""
    stalled: str | None = None
    """Why the pump claims nothing, if too many handlers were abandoned."""


class Tick(msgspec.Struct, frozen=True):
    """The counts of one tick."""

    claimed: int
    settled: int
    refused: int
