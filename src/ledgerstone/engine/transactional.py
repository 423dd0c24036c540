"""The `Work` of a source in the worker's database: each call is one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ledgerstone.engine.source import (
    Ask,
    Claim,
    ExchangeResult,
    Handler,
    NotSettled,
    Outcome,
    Source,
)
from ledgerstone.failpoints import hit

if TYPE_CHECKING:
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction


class TransactionalWork:
    """Calls a `Source` in transactions on a database; see `Work`."""

    places = None
    local = False

    def __init__(self, source: Source, database: Database[Any]) -> None:
        self.source = source
        self.name = source.name
        self.channel = source.channel
        self.one_writer = database.dialect.one_writer
        self._database = database

    def handler(self, claim: Claim) -> Handler:
        return self.source.handler(claim)

    def exchange(self, outcomes: Sequence[Outcome], ask: Ask | None) -> ExchangeResult:
        def work(tx: Transaction) -> ExchangeResult:
            tx.may_end_early = not outcomes
            left = self._settle(tx, outcomes) if outcomes else NotSettled[Outcome]()
            return ExchangeResult(self.source.claim(tx, ask) if ask is not None else (), left)

        return self._database.run(work)

    def extend(self, claims: Sequence[Claim], lease_seconds: float) -> NotSettled[Claim]:
        return self._database.run(lambda tx: self.source.extend(tx, claims, lease_seconds))

    def due_seconds(self) -> float:
        # Polling finds what becomes due; a source may ask to be polled sooner.
        asked: Callable[[], float] | None = getattr(self.source, "due_seconds", None)
        return asked() if asked is not None else float("inf")

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop: no item comes without a claim."""

    def close(self) -> None:
        """Close the source, if it holds anything outside the database."""
        closing: Callable[[], None] | None = getattr(self.source, "close", None)
        if closing is not None:
            closing()

    def _settle(self, tx: Transaction, outcomes: Sequence[Outcome]) -> NotSettled[Outcome]:
        left = self.source.settle(tx, outcomes)
        hit("pump.settling")
        return left
