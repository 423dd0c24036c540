"""Rechecking: partitions that were parked because their target was missing go on by themselves.

    parked ──one is resumed──▶ refused again: another one, at the next turn
                        └────▶ delivered: all of them, so many at each turn, each once

A queue that was deleted parks every partition that publishes to it. One of them tells whether it is
back, so that a target that stays away costs one message a turn. It is another one at each turn, for
they may wait for different queues, and those whose queue is still missing are parked again.
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
"""Who resumes them, on record."""
CODES = tuple(sorted(MISSING))


class Recheck:
    """Resumes one partition of a destination, and all others once that one has got through."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._probe: str | None = None
        self._place: tuple[int, str | None] = (0, None)
        """The last probe: the number of its code, and its partition."""
        self._left: list[str] = []
        """The codes whose partitions are being resumed, all of them."""
        self._upto: str | None = None
        """How far that is with the first of these codes."""

    def __call__(self, tx: Transaction) -> int:
        """One turn; how many partitions go on."""
        if self._probe is not None and parked.got_through(tx, self._queue, self._probe):
            self._left, self._upto, self._probe = list(CODES), None, None
        probing = not self._left
        found = self._next(tx) if probing else self._some(tx)
        resumed = parked.resume(tx, self._queue, found, by=WHO)
        if probing:
            self._probe = resumed[0] if resumed else None
        return len(resumed)

    def _some(self, tx: Transaction) -> list[str]:
        """The next of all, as many as one turn resumes."""
        found: list[str] = []
        while self._left and not found:
            found = self._found(tx, self._left[0], limit=parked.RESUME_MAX, after=self._upto)
            self._upto = found[-1] if len(found) == parked.RESUME_MAX else None
            if self._upto is None:
                del self._left[0]
        return found

    def _next(self, tx: Transaction) -> list[str]:
        """The one behind the last probe, or the first of the next code that has one."""
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
    """Rechecks every so often, one relay of all."""
    del registry
    return Duty(f"recheck:{queue}", EVERY_SECONDS, Recheck(queue))
