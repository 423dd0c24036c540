"""Outcomes whose item another transaction has locked: no batch waits for one row.

They are tried again: often at first, rarely if the item stays locked. The claim is still held, and
the row of its worker names it (`WorkerReport.locked`), so that no rescue takes it.

Most locks are short. A publisher locks the row of its lane for one commit. With several publishers
the row is free only between two commits, and a try has to meet such a moment: pauses that grew from
the first try on would stop a busy lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledgerstone.engine.source import Outcome

AGAIN_SECONDS = 0.02
AGAIN_SECONDS_MAX = 1.0
"""The pause before a locked item is tried again: at first, and after SOON_TRIES_MAX tries."""
SOON_TRIES_MAX = 50
"""How many tries come after the short pause."""
TRIES_MAX = 1000
"""For how many claims the number of tries is kept when no outcome waits."""


class LockedOutcomes:
    """Outcomes that are tried again later, by claim."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, Outcome]] = []
        # By the mark of the claim: a claim may hold a large body, and should be freed when settled.
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
        """Remove and answer those whose pause is over."""
        if not self._waiting:
            return []
        now = monotonic()
        due = [outcome for at, outcome in self._waiting if at <= now]
        self._waiting = [each for each in self._waiting if each[0] > now]
        return due

    def seconds(self) -> float:
        """How long until one of them is due; infinity if there is none."""
        if not self._waiting:
            return float("inf")
        return max(0.0, min(at for at, _ in self._waiting) - monotonic())
