"""A source in the worker's database as the work of a pump: each call is a transaction."""

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
    """The work of a source, moved by transactions on a database; see `Work`."""

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
        # Polling finds what becomes due in the database; a source may know that it is sooner.
        asked: Callable[[], float] | None = getattr(self.source, "due_seconds", None)
        return asked() if asked is not None else float("inf")

    def start(self) -> None:
        """Nothing has to be begun."""

    def stop(self) -> None:
        """Nothing comes without a claim."""

    def close(self) -> None:
        """Have the source let go of what it holds outside the database, if it holds anything."""
        closing: Callable[[], None] | None = getattr(self.source, "close", None)
        if closing is not None:
            closing()

    def _settle(self, tx: Transaction, outcomes: Sequence[Outcome]) -> NotSettled[Outcome]:
        left = self.source.settle(tx, outcomes)
        hit("pump.settling")
        return left
