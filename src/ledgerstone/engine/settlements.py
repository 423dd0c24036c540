"""Outcomes on their way into the database, in batches.

    add ──▶ waiting ──take──▶ under way ──committed──▶ settled
               ▲                  │
               ├── kept ◀─────────┤ the database is out of reach
               └── later ◀────────┘ another transaction has locked the item

No batch waits for one row, and none fails for one outcome: what is locked is put off, and what the
database refuses is settled by itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ledgerstone.engine import outcomes as outcome_of
from ledgerstone.engine.locked_outcomes import LockedOutcomes
from ledgerstone.engine.source import NotSettled
from ledgerstone.errors import StoreUnavailable

if TYPE_CHECKING:
    from ledgerstone.engine.source import Ask, Claim, Outcome, Work

UNWRITTEN_MAX = 5
"""Outcomes in a row that cannot be written in any words: it is no single item's doing then."""

_log = logging.getLogger("ledgerstone.engine")


class Settlements:
    """The outcomes of one pump.

    - `settled` is told what was settled, and which of it was refused.
    - `let_go` is told of an outcome that cannot be written in any words: its lease runs out.
    """

    def __init__(
        self,
        work: Work,
        *,
        batch_max: int,
        settled: Callable[[Sequence[Outcome], Sequence[Outcome]], None],
        let_go: Callable[[Outcome], None],
    ) -> None:
        self._work = work
        self._batch_max = batch_max
        self._settled = settled
        self._let_go = let_go
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
        """How many wait for another transaction."""
        return len(self._locked)

    def add(self, outcome: Outcome) -> int:
        """One more; how many wait now."""
        self._waiting.append(outcome)
        return len(self._waiting)

    def seconds(self) -> float:
        """How long until one that was locked is tried again."""
        return self._locked.seconds()

    def take(self) -> list[Outcome]:
        """A batch of what is to be settled."""
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
        """Settle this one; if it cannot be written, it has failed; if not even that, let it go."""
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
            self._let_go(outcome)
            self._under_way -= 1

    def _settle_as(self, outcome: Outcome) -> None:
        left = self._work.exchange([outcome], None).left
        self._unwritten = 0
        self._note([outcome], left)

    def _note(self, finished: Sequence[Outcome], left: NotSettled[Outcome]) -> int:
        """Tell what was settled, and put off what was locked; how many were settled."""
        self._under_way -= len(finished)
        if left.locked:
            self._locked.put_off(left.locked)
            locked = set(map(id, left.locked))
            finished = [outcome for outcome in finished if id(outcome) not in locked]
        if finished:
            self._settled(finished, left.lost)
        return len(finished)

    def _keep(self, finished: Sequence[Outcome], error: BaseException) -> None:
        """They could not be settled: they come first at the next try."""
        if isinstance(error, StoreUnavailable):
            finished = [outcome_of.spared(outcome) for outcome in finished]
        self._waiting.extendleft(reversed(finished))
        self._under_way -= len(finished)
