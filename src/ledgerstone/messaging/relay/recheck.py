"""The recheck: resumes partitions that were parked because their target was missing.

    parked ──one is resumed──▶ refused again: another one, at the next turn
                        └────▶ delivered: all of them, a bounded number per turn, each once

Deleting a queue parks every partition that publishes to it. The recheck resumes one partition per
turn to find out whether the queue exists again, so a missing target costs one message per turn.
Each turn takes another partition, because they may wait for different queues. A partition whose
queue is still missing is parked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerstone.engine.duties import Duty
from ledgerstone.messaging.brokers.transport import MISSING
from ledgerstone.messaging.relay import parked

if TYPE_CHECKING:
    from ledgerstone.messaging.registry import MessagingRegistry
    from ledgerstone.store.transaction import Transaction

EVERY_SECONDS = 15.0
WHO = "relay"
"""The `who` of the recorded events."""
CODES = tuple(sorted(MISSING))


class Recheck:
    """Resumes one partition of a destination, and all others after that one has delivered."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._probe: str | None = None
        self._place: tuple[int, str | None] = (0, None)
        """The last probe: the index of its code, and its partition."""
        self._left: list[str] = []
        """The codes whose partitions are all being resumed."""
        self._upto: str | None = None
        """The last partition that was resumed for the first of these codes."""

    def __call__(self, tx: Transaction) -> int:
        """One turn; returns how many partitions were resumed."""
        if self._probe is not None and parked.got_through(tx, self._queue, self._probe):
            self._left, self._upto, self._probe = list(CODES), None, None
        probing = not self._left
        found = self._next(tx) if probing else self._some(tx)
        resumed = parked.resume(tx, self._queue, found, by=WHO)
        if probing:
            self._probe = resumed[0] if resumed else None
        return len(resumed)

    def _some(self, tx: Transaction) -> list[str]:
        """The next partitions of all, as many as one turn resumes."""
        found: list[str] = []
        while self._left and not found:
            found = self._found(tx, self._left[0], limit=parked.RESUME_MAX, after=self._upto)
            self._upto = found[-1] if len(found) == parked.RESUME_MAX else None
            if self._upto is None:
                del self._left[0]
        return found

    def _next(self, tx: Transaction) -> list[str]:
        """The partition after the last probe, or the first one of the next code that has any."""
        last, after = self._place
        for step in range(len(CODES) + 1):
            number = (last + step) % len(CODES)
            found = self._found(tx, CODES[number], limit=1, after=after if step == 0 else None)
            if found:
                self._place = number, found[0]
                return found
        return []

    def _found(self, tx: Transaction, code: str, *, limit: int, after: str | None) -> list[str]:
        return parked.find(tx, self._queue, code=code, limit=limit, after=after)


def duty(registry: MessagingRegistry, queue: str) -> Duty:
    """The duty of the recheck; one relay of the destination does it."""
    del registry
    return Duty(f"recheck:{queue}", EVERY_SECONDS, Recheck(queue))
