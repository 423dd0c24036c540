"""Rechecking: partitions that were parked because their target was missing go on by themselves.

    parked ──one is resumed──▶ refused again: another one, at the next turn
                        └────▶ delivered: all of them, so many at each turn

A queue that was deleted parks every partition that publishes to it. One of them tells whether it is
back, so that a target that stays away costs one message a turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerstone.engine.duties import Duty
from ledgerstone.messaging import parked
from ledgerstone.messaging.transport import MISSING

if TYPE_CHECKING:
    from ledgerstone.messaging.office import Office
    from ledgerstone.store.transaction import Transaction

EVERY_SECONDS = 15.0
WHO = "relay"
"""Who resumes them, on record."""


class Recheck:
    """Resumes one partition of a destination, and all others once that one has got through."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._probe: str | None = None

    def __call__(self, tx: Transaction) -> int:
        """One turn; how many partitions go on."""
        through = self._probe is not None and parked.got_through(tx, self._queue, self._probe)
        limit = parked.RESUME_MAX if through else 1
        found = parked.find(tx, self._queue, codes=sorted(MISSING), limit=limit)
        resumed = parked.resume(tx, self._queue, found, by=WHO)
        if not through:
            self._probe = resumed[0] if resumed else None
        return len(resumed)


def duty(office: Office, queue: str) -> Duty:
    """Rechecks every so often, one relay of all."""
    del office
    return Duty(f"recheck:{queue}", EVERY_SECONDS, Recheck(queue))
