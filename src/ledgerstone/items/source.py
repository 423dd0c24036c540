"""A `Source` over a table of leased items, for a table without rules of its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, assert_never

from sqlalchemy.sql.elements import ColumnElement

from ledgerstone.engine.attempt_log import FailedAttempt
from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.source import (
    Ask,
    Batches,
    Claim,
    Failure,
    Handler,
    NotSettled,
    Outcome,
    OutcomeKind,
)
from ledgerstone.items.claim import Claims, ItemClaim
from ledgerstone.items.declaration import Begun, Items
from ledgerstone.items.events import cut
from ledgerstone.items.key import key_words
from ledgerstone.items.moves import Moves, MoveStatement, Step
from ledgerstone.items.rescue import ExpiredItem, Rescue
from ledgerstone.items.settle import (
    ClaimStatus,
    EndedClaim,
    Extend,
    Settle,
    SettleResult,
    remainder,
)
from ledgerstone.store.sql.statement import Row

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

__all__ = ["ItemClaim", "ItemSource"]


class ItemSource:
    """Claims the due items of a table; a failed item is due again after a back-off.

    - `handler` runs the claims; `name` is the name of the source and of its wake-up channel, by
      default that of the items.
    - `where` selects the items of this source, if it does not claim all.
    - `batches`: one call of the handler gets many items.
    """

    def __init__(
        self,
        items: Items,
        handler: Handler,
        *,
        name: str | None = None,
        backoff: Backoff | None = None,
        where: ColumnElement[bool] | None = None,
        batches: Batches | None = None,
    ) -> None:
        self.name = name or items.name
        self.channel = self.name
        self.batches = batches
        self._items = items
        self._handler = handler
        self._backoff = backoff or Backoff()
        self._log = logging.getLogger(f"ledgerstone.{items.name}")
        self._claims = Claims(items, where=where)
        self._moves = Moves(items)
        self._settle = Settle(items)
        self._extend = Extend(items)
        self._rescue = Rescue(items, where=where)
        self._worker: str | None = None
        self._plain: dict[int, Step] = {}

    def handler(self, claim: Claim) -> Handler:
        return self._handler

    def claim(self, tx: Transaction, ask: Ask) -> Sequence[Claim]:
        self._worker = ask.worker
        return self._claims.run(tx, ask)

    def settle(
        self, tx: Transaction, outcomes: Sequence[Outcome], *, waits: bool = False
    ) -> NotSettled[Outcome]:
        ended = [
            EndedClaim(outcome.claim, self._step(outcome), outcome.verdict) for outcome in outcomes
        ]
        settled = self._settle.run(tx, ended, worker=self._worker, waits=waits)
        for outcome, each, found in zip(outcomes, ended, settled, strict=True):
            if outcome.verdict is not OutcomeKind.DONE and _has_failed(outcome, found):
                self._log_failed(tx, outcome, found.step or each.step)
        return remainder(outcomes, settled)

    def extend(
        self, tx: Transaction, claims: Sequence[Claim], lease_seconds: float
    ) -> NotSettled[Claim]:
        found = self._extend.run(tx, claims, lease_seconds)
        return remainder(claims, [SettleResult(each) for each in found])

    def rescue(self, tx: Transaction, *, limit: int, crashes_max: int) -> int:
        expired = self._rescue.run(tx, limit=limit)
        ended = [self._rescued(each, crashes_max) for each in expired]
        self._settle.run(tx, ended, worker=None)
        if expired:
            tx.wake(self.channel)
        return len(expired)

    def _step(self, outcome: Outcome) -> Step:
        """The step of the item for an outcome."""
        match outcome.verdict:
            case OutcomeKind.DONE:
                return self._done(outcome)
            case OutcomeKind.DEAD:
                return self._made(self._moves.dead, outcome, failed=1)
            case OutcomeKind.CANCELED:
                return self._made(self._moves.canceled, outcome)
            case OutcomeKind.SNOOZED | OutcomeKind.RETURNED:
                delay = outcome.delay_seconds or 0.0
                return self._made(self._moves.again, outcome, refunded=1, delay=delay)
            case OutcomeKind.FAILED:
                if outcome.claim.is_last:
                    return self._made(self._moves.dead, outcome, failed=1)
                delay = self._backoff.after(outcome.claim.attempt)
                return self._made(self._moves.again, outcome, failed=1, delay=delay)
            case _:
                assert_never(outcome.verdict)

    def _done(self, outcome: Outcome) -> Step:
        claim, items = outcome.claim, self._items
        assert isinstance(claim, ItemClaim)
        if items.more is not None:
            # New work arrived while the item was held: due again at once, the attempt refunded.
            again = self._made(self._moves.again, outcome, refunded=1)
            told = self._told(claim.attempt, None)
            return Step(move=self._moves.done, row=claim.seen, told=told, otherwise=again)
        if outcome.result is not None and items.result is not None:
            told = self._told(claim.attempt, None)
            return Step(move=self._moves.done_with, row=(outcome.result,), told=told)
        # The steps of most items of a batch are equal: make each once.
        step = self._plain.get(claim.attempt)
        if step is None:
            step = Step(move=self._moves.done, told=self._told(claim.attempt, None))
            self._plain[claim.attempt] = step
        return step

    def _made(
        self,
        move: MoveStatement,
        outcome: Outcome,
        *,
        refunded: int = 0,
        failed: int = 0,
        delay: float | None = None,
    ) -> Step:
        failure = outcome.failure
        crashed = int(failure is not None and failure.crashed)
        words = f"{failure.code}: {failure.message}" if failure is not None else None
        delay_ms = () if delay is None and move is not self._moves.again else _ms(delay)
        attempt = outcome.claim.attempt - refunded * isinstance(self._items.attempt, Begun)
        return Step(
            move=move,
            row=(refunded, failed, crashed, *delay_ms, *self._error(words)),
            told=self._told(attempt, words),
        )

    def _rescued(self, expired: ExpiredItem, crashes_max: int) -> EndedClaim:
        """Due again, or dead; an attempt that had not begun counts neither as crash nor attempt."""
        over = self._items.crashes is not None and expired.is_over(crashes_max)
        move = self._moves.dead if over else self._moves.back
        waited = int(expired.waited)
        refunded = waited * isinstance(self._items.attempt, Begun)
        step = Step(
            move=move,
            row=(waited, 0, 1 - waited, *self._error(expired.reason)),
            told=self._told(expired.attempt - refunded, expired.reason),
        )
        claim = ItemClaim(key_words(expired.key), expired.attempt, expired.token, parts=expired.key)
        return EndedClaim(claim, step)

    def _error(self, words: str | None) -> Row:
        error = self._items.error
        if error is None:
            return ()
        return (cut(words, error),)

    def _told(self, attempt: int, words: str | None) -> Row:
        history = self._items.history
        return history.told(attempt, words) if history is not None else ()

    def _log_failed(self, tx: Transaction, outcome: Outcome, step: Step) -> None:
        """Log a failed attempt after the commit."""
        claim, again = outcome.claim, step.move is self._moves.again
        failed = FailedAttempt(
            what=f"{self._items.table.name} {claim.key}",
            attempt=claim.attempt,
            failure=outcome.failure or Failure("failed", ""),
            next_seconds=step.row[3] / 1000 if again else None,
            end="it is dead",
            ids={f"{self._items.table.name}_id": claim.key, "attempt": claim.attempt},
        )
        tx.after_commit(partial(failed.write, self._log))


def _has_failed(outcome: Outcome, found: SettleResult) -> bool:
    failed = outcome.verdict in {OutcomeKind.FAILED, OutcomeKind.DEAD}
    return failed and found.status is ClaimStatus.SETTLED


def _ms(delay: float | None) -> Row:
    return (round((delay or 0.0) * 1000),)
