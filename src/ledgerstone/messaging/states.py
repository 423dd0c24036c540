"""The states of a lane, and what can happen to a message beside being delivered."""

from __future__ import annotations

from enum import Enum


class LaneState(Enum):
    """Whether the messages of a partition leave."""

    OPEN = "open"
    PAUSED = "paused"
    """By an operator, until it is resumed."""
    PARKED = "parked"
    """Its first message cannot be delivered; it waits for an operator."""


class RecordKind(Enum):
    """What is put on record of a message, a lane or a destination."""

    PARKED = "parked"
    SKIPPED = "skipped"
    """Set aside into the failed table, and its partition went on."""
    FAILED = "failed"
    """A consumer could not handle it: it is in the failed table."""
    RETRIED = "retried"
    REMOVED = "removed"
    PAUSED = "paused"
    RESUMED = "resumed"
    REFUSED = "refused"
    """A relay that had lost its lease tried to mark it."""
