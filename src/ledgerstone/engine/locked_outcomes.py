"""Outcomes whose item another transaction has locked: no batch waits for one row.

They are kept here and tried again: often at first, rarely if the item stays locked. Skipped is not
lost: the claim is still held, and its worker names it (`WorkerReport.locked`).

Most locks are short. A publisher holds the row of its lane for one commit; with several publishers
the row is free between two commits, and only a try at such a moment settles it. A pause that grew
from the first try on would let a busy lane stand still.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledgerstone.engine.source import Outcome

AGAIN_SECONDS = 0.02
AGAIN_SECONDS_MAX = 1.0
"""The pause before a locked item is tried again: for the first tries, and for those after them."""
SOON_TRIES_MAX = 50
"""How often a locked item is tried again after the short pause."""
TRIES_MAX = 1000
"""Claims whose tries are remembered when none of them waits any more."""


class LockedOutcomes:
    """Outcomes that are tried again later, by claim."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, Outcome]] = []
        # By the mark: a claim may hold much, and is gone when it is settled.
        self._tries: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put_off(self, outcomes: Sequence[Outcome]) -> None:
        """Their items are locked now."""
        now = monotonic()
        if not self._waiting and len(self._tries) > TRIES_MAX:
            self._tries.clear()
        for outcome in outcomes:
            mark = outcome.claim.mark
            tries = self._tries.get(mark, 0)
            self._tries[mark] = tries + 1
            pause = AGAIN_SECONDS if tries < SOON_TRIES_MAX else AGAIN_SECONDS_MAX
            self._waiting.append((now + pause, outcome))

    def due(self) -> list[Outcome]:
        """Take those whose pause is over."""
        if not self._waiting:
            return []
        now = monotonic()
        due = [outcome for at, outcome in self._waiting if at <= now]
        self._waiting = [each for each in self._waiting if each[0] > now]
        return due

    def seconds(self) -> float:
        """How long until one of them is due; without end if there is none."""
        if not self._waiting:
            return float("inf")
        return max(0.0, min(at for at, _ in self._waiting) - monotonic())
