"""What a pump did: so far, and in one step."""

from __future__ import annotations

import msgspec


class Counters(msgspec.Struct):
    """What a pump did so far."""

    claimed: int = 0
    done: int = 0
    failed: int = 0
    returned: int = 0
    refused: int = 0
    lost: int = 0
    rescued: int = 0
    trouble: str | None = None
    abandoned: int = 0
    """Handlers that were told to stop, take no notice, and were given up."""
    stalled: str | None = None
    """Why nothing is claimed, if so many were."""


class Tick(msgspec.Struct, frozen=True):
    """What one step did."""

    claimed: int
    settled: int
    refused: int
