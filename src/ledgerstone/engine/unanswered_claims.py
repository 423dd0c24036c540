"""Claims that were committed and whose answer was lost: a worker asks for what it has.

claim ──commit──✂ answer lost ──▶ what does this worker hold? ──▶ claims, as if just made
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ledgerstone.errors import CommitUnknown

if TYPE_CHECKING:
    from ledgerstone.engine.source import Claim, ExchangeResult, Source, Work
    from ledgerstone.store.database import Database

UNSURE_SECONDS = 2.0
"""For so long after a lost answer it is asked: the server may still be about to commit."""


class UnansweredClaims:
    """What one pump has claimed without being told; only of a source that has `held_by`."""

    def __init__(self, source: Source | Work, database: Database[Any], worker: str) -> None:
        self._held_by = getattr(source, "held_by", None)
        self._database = database
        self._worker = worker
        self._lost_at: float | None = None

    def watched(self, exchange: Callable[[], ExchangeResult]) -> Sequence[Claim]:
        """What this claims; if its answer is lost, that is remembered."""
        try:
            return exchange().claims
        except CommitUnknown:
            self._lost_at = self._database.clock.monotonic()
            raise

    def claims(self, known: Mapping[str, Claim]) -> list[Claim]:
        """Those that are not among the known ones, which were looked up before this call."""
        if self._held_by is None or self._lost_at is None:
            return []
        with self._database.reading() as tx:
            found: Sequence[Claim] = self._held_by(tx, self._worker)
        if self._database.clock.monotonic() - self._lost_at > UNSURE_SECONDS:
            self._lost_at = None
        marks = {claim.mark for claim in known.values()}
        return [claim for claim in found if claim.mark not in marks]
