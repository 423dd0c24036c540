"""How many items a pump may claim now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerstone.engine.claim_size import ClaimAhead
from ledgerstone.engine.source import LONG_CALL_SECONDS, Batches, Work

if TYPE_CHECKING:
    from ledgerstone.engine.executor import Executor
    from ledgerstone.engine.held_claims import HeldClaims
    from ledgerstone.engine.settlements import Settlements
    from ledgerstone.settings import EngineSettings


class Capacity:
    """The free places of an executor, and as many claims ahead as handlers are quick.

    - No more than `engine.batch_max` at once, and nothing while `engine.unsettled_max` outcomes are
      not settled.
    - For a source that is handled in `batches`, items are counted, and not calls.
    """

    def __init__(
        self,
        settings: EngineSettings,
        work: Work,
        *,
        batches: Batches | None,
        executor: Executor,
        held: HeldClaims,
        settlements: Settlements,
    ) -> None:
        self._settings = settings
        self._work = work
        self._batches = batches
        self._executor = executor
        self._held = held
        self._settlements = settlements
        self._ahead = ClaimAhead(settings, executor)

    def free(self) -> int:
        """How many items to claim now; 0 or less if none."""
        if self._batches is not None:
            return self._free_in_batches(self._batches)
        if self._work.local:
            waiting = len(self._executor.waiting)
            # While every place has a next one there is no hurry: few large claims cost less.
            return self._settings.batch_max if waiting <= self._executor.places else 0
        # In this order: a handler that ends in between is counted twice, and not overlooked.
        taken = self._executor.running + len(self._executor.waiting)
        unsettled = len(self._settlements)
        if unsettled >= self._settings.unsettled_max:
            return 0
        places, batch, ahead = self._executor.places, self._settings.batch_max, self._ahead.claims()
        # Two batches: the pump claims the next one while handlers work on this one. No more than
        # their outcomes have space for.
        capacity = places + min(ahead, 2 * batch, batch + self._settings.unsettled_max - unsettled)
        free = min(capacity - taken, batch)
        if self._executor.waiting and free * 2 < min(ahead, batch):
            # Every place is taken, so there is no hurry: few large claims cost less.
            return 0
        return free

    def _free_in_batches(self, batches: Batches) -> int:
        calls = self._executor.running + len(self._executor.waiting)
        if calls >= batches.calls_max:
            long = min(self._executor.longer_than(LONG_CALL_SECONDS), batches.long_calls_max)
            if calls - long >= batches.calls_max:
                return 0
        return min(batches.items_max - len(self._held), batches.call_items_max)
