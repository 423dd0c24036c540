"""The states of a signing request and the moves between them.

    pending ──▶ approved ──▶ finalized
       │           ├───────▶ expired
       │           └───────▶ aborted
       ├──▶ rejected
       ├──▶ expired
       └──▶ aborted

A request is never finalized without having been approved: the approval reserves its volume.
"""

from __future__ import annotations

from enum import Enum

from ledgerstone.errors import MoveNotAllowed


class Status(Enum):
    """Where a request stands."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    FINALIZED = "finalized"
    ABORTED = "aborted"


MOVES: frozenset[tuple[Status, Status]] = frozenset(
    {
        (Status.PENDING, Status.APPROVED),
        (Status.PENDING, Status.REJECTED),
        (Status.PENDING, Status.EXPIRED),
        (Status.PENDING, Status.ABORTED),
        (Status.APPROVED, Status.FINALIZED),
        (Status.APPROVED, Status.EXPIRED),
        (Status.APPROVED, Status.ABORTED),
    }
)

FINISHED = frozenset({Status.REJECTED, Status.EXPIRED, Status.FINALIZED, Status.ABORTED})
"""States that no move leaves."""


def check_move(current: Status, to: Status) -> None:
    """MoveNotAllowed unless the table has the move."""
    if (current, to) not in MOVES:
        raise MoveNotAllowed(f"a request that is {current.value} cannot become {to.value}")
