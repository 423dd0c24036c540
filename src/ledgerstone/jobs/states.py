"""The states of a job and the moves between them, for the code, the database and the documents.

    queued ──▶ running ──▶ succeeded
       │  ▲      │ │ └───▶ canceled ◀── queued
       │  └──────┘ ▼
       │  ▲      failed ──▶ dead_letter
       │  └────────┘            │
       └◀───── an operator ─────┘

No committed job is `failed`: the same transaction goes on to `queued` (another attempt) or to
`dead_letter` (no attempt left), and both moves are on record.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class Status(Enum):
    """The state of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    DEAD_LETTER = "dead_letter"


class Gate(IntEnum):
    """The condition that a queued job waits for."""

    OPEN = 0
    """A worker."""
    SCHEDULED = 1
    """Its time."""
    BLOCKED = 2
    """Another job with the same limit key."""


FINISHED = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.DEAD_LETTER})
"""States in which `finished_at` is set."""

MOVES: frozenset[tuple[Status, Status]] = frozenset(
    {
        (Status.QUEUED, Status.RUNNING),
        (Status.QUEUED, Status.CANCELED),
        (Status.RUNNING, Status.SUCCEEDED),
        (Status.RUNNING, Status.FAILED),
        (Status.RUNNING, Status.CANCELED),
        (Status.RUNNING, Status.QUEUED),
        (Status.FAILED, Status.QUEUED),
        (Status.FAILED, Status.DEAD_LETTER),
        (Status.DEAD_LETTER, Status.QUEUED),
    }
)
