"""The states of a lane, and the events of a message other than its delivery."""

from __future__ import annotations

from enum import Enum


class LaneState(Enum):
    """Whether relays send the messages of a partition."""

    OPEN = "open"
    PAUSED = "paused"
    """An operator paused the partition. It stays paused until an operator resumes it."""
    PARKED = "parked"
    """Its first message cannot be delivered. It stays parked until an operator resumes it."""


class RecordKind(Enum):
    """The kinds of events that are recorded for a message, a lane or a destination."""

    PARKED = "parked"
    SKIPPED = "skipped"
    """The message was moved to the failed table, and its partition continued."""
    FAILED = "failed"
    """A consumer failed to handle the message, and the message was moved to the failed table."""
    RETRIED = "retried"
    REMOVED = "removed"
    PAUSED = "paused"
    RESUMED = "resumed"
    REFUSED = "refused"
    """A relay tried to mark the message after it had lost its lease."""
