"""The states of a chore and the moves between them."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """Where a chore stands; done, dead and canceled are the end."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    CANCELED = "canceled"


ENDED = frozenset({Status.DONE, Status.DEAD, Status.CANCELED})

MOVES: frozenset[tuple[Status, Status]] = frozenset(
    {
        (Status.QUEUED, Status.RUNNING),
        (Status.RUNNING, Status.DONE),
        (Status.RUNNING, Status.QUEUED),
        (Status.RUNNING, Status.DEAD),
        (Status.RUNNING, Status.CANCELED),
    }
)
