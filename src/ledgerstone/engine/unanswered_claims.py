"""Claims whose commit was not answered: the worker asks the database which claims it holds.

claim ──commit──✂ connection lost ──▶ `held_by(worker)` ──▶ claims, as if just made
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ledgerstone.errors import CommitUnknown

if TYPE_CHECKING:
    from ledgerstone.engine.source import Claim, ExchangeResult, Source, Work
    from ledgerstone.store.database import Database

UNSURE_SECONDS = 2.0
"""How long after a lost answer the worker asks: the server may still be about to commit."""


class UnansweredClaims:
    """The claims of one pump whose answer was lost; only for a source that has `held_by`."""

    def __init__(self, source: Source | Work, database: Database[Any], worker: str) -> None:
        self._held_by = getattr(source, "held_by", None)
        self._database = database
        self._worker = worker
        self._lost_at: float | None = None

    def watched(self, exchange: Callable[[], ExchangeResult]) -> Sequence[Claim]:
        """The claims of this exchange; if its answer is lost, `claims` asks for them."""
        try:
            return exchange().claims
        except CommitUnknown:
            self._lost_at = self._database.clock.monotonic()
            raise

    def claims(self, known: Mapping[str, Claim]) -> list[Claim]:
        """Claims that this worker holds and that are not among the known ones.

        Copy `known` before this call: a claim that is settled meanwhile is then no new one.
        """
        if self._held_by is None or self._lost_at is None:
            return []
        with self._database.reading() as tx:
            found: Sequence[Claim] = self._held_by(tx, self._worker)
        if self._database.clock.monotonic() - self._lost_at > UNSURE_SECONDS:
            self._lost_at = None
        marks = {claim.mark for claim in known.values()}
        return [claim for claim in found if claim.mark not in marks]
