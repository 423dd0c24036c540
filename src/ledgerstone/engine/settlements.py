"""Outcomes on their way into the database, in batches.

    add ──▶ waiting ──take──▶ under way ──committed──▶ settled: the claim is not held any more
               ▲                  │
               ├── kept ◀─────────┤ the database is out of reach
               └── later ◀────────┘ another transaction has locked the item

No batch waits for one row: a locked item is tried again later. No batch fails because of one
outcome: what the database refuses is settled by itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ledgerstone.engine import outcomes as outcome_of
from ledgerstone.engine.locked_outcomes import LockedOutcomes
from ledgerstone.engine.source import Batch, NotSettled, OutcomeKind
from ledgerstone.errors import StoreUnavailable
from ledgerstone.failpoints import hit

if TYPE_CHECKING:
    from ledgerstone.engine.counters import Counters
    from ledgerstone.engine.held_claims import HeldClaims
    from ledgerstone.engine.pump_signals import PumpSignals
    from ledgerstone.engine.quarantine import Quarantine
    from ledgerstone.engine.source import Ask, Claim, Outcome, Work

UNWRITTEN_MAX = 5
"""After so many outcomes in a row that cannot be written at all, the error is not an item's."""

_log = logging.getLogger("ledgerstone.engine")


class Settlements:
    """The outcomes of one pump, and what follows when they are settled.

    - `add` takes an outcome from any thread; one thread at a time takes and settles batches.
    - A settled claim is not held any more, has left the quarantine, and is counted.
    - A claim whose outcome cannot be written at all is not held either: its lease runs out, and the
      item is rescued.
    """

    def __init__(
        self,
        work: Work,
        held: HeldClaims,
        quarantine: Quarantine,
        counters: Counters,
        signals: PumpSignals,
        *,
        batch_max: int,
    ) -> None:
        self._work = work
        self._held = held
        self._quarantine = quarantine
        self._counters = counters
        self._signals = signals
        self._batch_max = batch_max
        self._waiting: deque[Outcome] = deque()
        self._locked = LockedOutcomes()
        self._under_way = 0
        self._unwritten = 0

    def __len__(self) -> int:
        """How many are not settled yet."""
        return len(self._waiting) + len(self._locked) + self._under_way

    @property
    def waiting(self) -> int:
        """How many could be settled now."""
        return len(self._waiting)

    @property
    def locked(self) -> int:
        """How many wait because another transaction has locked their item."""
        return len(self._locked)

    def add(self, outcome: Outcome, waiting: int = 0) -> None:
        """Queue an outcome; that of a batch counts for each of its items that is still open.

        The settling thread is woken by the first outcome, by a full batch, and if no claim waits
        for a place (`waiting`): then no other outcome will come along.
        """
        if isinstance(outcome.claim, Batch):
            for each in outcome.claim.rest(outcome):
                self.add(each, waiting)
            return
        self._waiting.append(outcome)
        count = len(self._waiting)
        if count == 1 or count >= self._batch_max or not waiting:
            self._signals.settle_now()

    def settled_by_handler(self, outcome: Outcome, waiting: int) -> None:
        """The transaction of the handler has settled this claim."""
        self._release([outcome])
        self._count([outcome], 1)
        self._signals.place_free(waiting)

    def seconds(self) -> float:
        """How long until an outcome whose item was locked is tried again."""
        return self._locked.seconds()

    def take(self) -> list[Outcome]:
        """A batch of outcomes that are to be settled."""
        waiting = self._waiting
        waiting.extend(self._locked.due())
        taken = [waiting.popleft() for _ in range(min(len(waiting), self._batch_max))]
        self._under_way += len(taken)
        return taken

    def settle(self, finished: Sequence[Outcome]) -> int:
        """Settle a batch; how many were settled."""
        if not finished:
            return 0
        try:
            left = self._work.exchange(finished, None).left
        except BaseException as error:
            if outcome_of.may_be_of_one(error):
                return self._settle_each(finished)
            self._keep(finished, error)
            raise
        return self._note(finished, left)

    def exchange(self, finished: Sequence[Outcome], ask: Ask | None) -> Sequence[Claim] | None:
        """Settle a batch and claim in one call, where there is one writer.

        None if nothing was asked for, or if the batch had to be settled one by one.
        """
        try:
            claims, left = self._work.exchange(finished, ask)
        except BaseException as error:
            if finished and outcome_of.may_be_of_one(error):
                self._settle_each(finished)
                return None
            self._keep(finished, error)
            raise
        self._note(finished, left)
        return claims if ask is not None else None

    def _settle_each(self, finished: Sequence[Outcome]) -> int:
        """Settle them one at a time, so that one that cannot be written harms no other."""
        for i, outcome in enumerate(finished):
            try:
                self._settle_alone(outcome)
            except BaseException as error:
                self._keep(finished[i:], error)
                raise
        return len(finished)

    def _settle_alone(self, outcome: Outcome) -> None:
        """Settle this one; if it cannot be written, settle a failure instead; else drop it."""
        name, key = self._work.name, outcome.claim.key
        try:
            self._settle_as(outcome)
        except Exception as error:
            if not outcome_of.may_be_of_one(error):
                raise
            _log.warning("%s: cannot write how %s came out: %s", name, key, error)
            failed = outcome_of.unwritable(outcome, error)
        else:
            return
        try:
            self._settle_as(failed)
        except Exception as error:
            self._unwritten += 1
            if not outcome_of.may_be_of_one(error) or self._unwritten >= UNWRITTEN_MAX:
                raise
            _log.warning("%s: nor that %s failed: %s", name, key, error)
            self._release([outcome])
            self._under_way -= 1

    def _settle_as(self, outcome: Outcome) -> None:
        left = self._work.exchange([outcome], None).left
        self._unwritten = 0
        self._note([outcome], left)

    def _note(self, finished: Sequence[Outcome], left: NotSettled[Outcome]) -> int:
        """Put off what was locked, and finish the rest; how many were settled."""
        self._under_way -= len(finished)
        if left.locked:
            self._locked.put_off(left.locked)
            locked = set(map(id, left.locked))
            finished = [outcome for outcome in finished if id(outcome) not in locked]
        if finished:
            self._settled(finished, left.lost)
        return len(finished)

    def _settled(self, finished: Sequence[Outcome], refused: Sequence[Outcome]) -> None:
        hit("pump.settled")
        self._release(finished)
        self._count(finished, 1)
        self._count(refused, -1)
        # Claiming may have stopped because too much was unsettled.
        self._signals.claim_more()
        self._counters.refused += len(refused)
        self._counters.trouble = None
        for outcome in refused:
            _log.warning(
                "%s: refused the late settlement of %s: the claim was lost",
                self._work.name,
                outcome.claim.title,
            )

    def _release(self, settled: Sequence[Outcome]) -> None:
        for outcome in settled:
            claim = outcome.claim
            self._held.remove(claim)
            if claim.crashes:
                self._quarantine.leave(claim)

    def _count(self, settled: Sequence[Outcome], by: int) -> None:
        verdicts = [outcome.verdict for outcome in settled]
        done = verdicts.count(OutcomeKind.DONE)
        returned = verdicts.count(OutcomeKind.RETURNED) + verdicts.count(OutcomeKind.SNOOZED)
        self._counters.done += by * done
        self._counters.returned += by * returned
        self._counters.failed += by * (len(verdicts) - done - returned)

    def _keep(self, finished: Sequence[Outcome], error: BaseException) -> None:
        """They could not be settled: they come first at the next try."""
        if isinstance(error, StoreUnavailable):
            finished = [outcome_of.spared(outcome) for outcome in finished]
        self._waiting.extendleft(reversed(finished))
        self._under_way -= len(finished)
