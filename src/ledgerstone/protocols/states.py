"""The states of an item that comes in or goes out, and its moves."""

from __future__ import annotations

from enum import Enum


class ItemState(Enum):
    """queued: due or to be retried; processing: a worker has it; parked: failed for good."""

    QUEUED = "queued"
    PROCESSING = "processing"
    PARKED = "parked"


MOVES = frozenset(
    {
        (ItemState.QUEUED, ItemState.PROCESSING),
        (ItemState.PROCESSING, ItemState.QUEUED),
        (ItemState.PROCESSING, ItemState.PARKED),
        (ItemState.PARKED, ItemState.QUEUED),
    }
)
