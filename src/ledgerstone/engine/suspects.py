"""Suspects: items with which workers died, and that are given up if one more does.

When a process dies, nobody knows which of its claims was the cause: each counts as one, also if it
only waited for a place. So an item for which one more death is the end runs alone among its like,
and that it is about to begin is on record before it does:

    claimed ──▶ waits ──▶ on record (its worker's row) ──▶ runs ──▶ settled, the next one's turn

If the process dies now, the one on record is given up. Those that waited go back with their attempt
refunded (`LastWord.waited`): an item that kills its workers takes none of its neighbours along.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from ledgerstone.engine.source import Claim
from ledgerstone.store.wakeup import Bell

WAIT_SECONDS_MAX = 10.0
"""A suspect that has waited here for so long goes back, and is due again after as long."""


def is_suspect(crashes: int, crashes_max: int, *, last: bool) -> bool:
    """Whether workers died with an item, and it is given up with the next (`last`: by attempts)."""
    return crashes > 0 and (last or crashes + 1 >= crashes_max)


class Ward:
    """The place of a worker for one suspect at a time, whichever of its pumps has claimed it."""

    def __init__(self, record: Callable[[], None]) -> None:
        self.observed = ""
        """The mark of the last one that was let in."""
        self._record = record
        self._inside: Claim | None = None
        self._lock = threading.Lock()
        self._bells: list[Bell] = []

    def hang(self, bell: Bell) -> None:
        """From now on `bell` rings when the place is free again."""
        self._bells.append(bell)

    def enter(self, claim: Claim) -> bool:
        """Let it in and put that on record; False if another one is inside."""
        with self._lock:
            if self._inside is not None:
                return False
            self._inside = claim
            self.observed = claim.mark
        try:
            self._record()
        except BaseException:
            self.leave(claim)
            raise
        return True

    def leave(self, claim: Claim) -> None:
        """It is settled, if it was inside."""
        if self._inside is not claim:
            return
        with self._lock:
            self._inside = None
        for bell in self._bells:
            bell.ring()


class Suspects:
    """Those of one pump, in the order in which they were claimed."""

    def __init__(
        self, ward: Ward, *, crashes_max: int, bell: Bell, monotonic: Callable[[], float]
    ) -> None:
        ward.hang(bell)
        self.ward = ward
        self._crashes_max = crashes_max
        self._monotonic = monotonic
        self._waiting: deque[tuple[Claim, float]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, claim: Claim) -> bool:
        return is_suspect(claim.crashes, self._crashes_max, last=claim.is_last)

    def kept_back(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Let the suspects among these wait; the others."""
        if not any(claim.crashes for claim in claims):
            return claims
        since = self._monotonic()
        self._waiting.extend((claim, since) for claim in claims if claim in self)
        return [claim for claim in claims if claim not in self]

    def admitted(self) -> Claim | None:
        """The next one, if it may begin now; that is on record then."""
        try:
            task = self._waiting.popleft()
        except IndexError:
            return None
        entered = False
        try:
            entered = self.ward.enter(task[0])
        finally:
            if not entered:
                self._waiting.appendleft(task)
        return task[0] if entered else None

    def drop(self) -> list[Claim]:
        """Take back all that wait."""
        return self._drop_before(float("inf"))

    def drop_late(self) -> list[Claim]:
        """Take back what has waited too long."""
        return self._drop_before(self._monotonic() - WAIT_SECONDS_MAX)

    def remove(self, claim: Claim) -> bool:
        """Take this one back; False if it does not wait."""
        for task in list(self._waiting):
            if task[0] is claim:
                try:
                    self._waiting.remove(task)
                except ValueError:
                    return False
                return True
        return False

    def _drop_before(self, moment: float) -> list[Claim]:
        dropped: list[Claim] = []
        while True:
            # Not a look and then a step: other threads take from it too.
            try:
                task = self._waiting.popleft()
            except IndexError:
                return dropped
            if task[1] >= moment:
                self._waiting.appendleft(task)
                return dropped
            dropped.append(task[0])
