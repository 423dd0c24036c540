"""What waits for a key that has come is tried again, each event in a transaction of its own."""

from __future__ import annotations

from typing import Any

from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.source import Claim, Handler
from ledgerstone.errors import LedgerstoneError
from ledgerstone.failpoints import hit
from ledgerstone.items import ItemClaim, ItemSource
from ledgerstone.protocols import applying, incoming, log, waiting
from ledgerstone.protocols.events import decode
from ledgerstone.protocols.rechecks import MARKERS
from ledgerstone.protocols.registry import Registry
from ledgerstone.protocols.results import Blocked, Reason
from ledgerstone.protocols.tables import recheck_queue
from ledgerstone.store.database import Database
from ledgerstone.store.transaction import Transaction

PAGE = 100


class RecheckSource(ItemSource):
    """What waits for the keys that have come."""

    def __init__(self, registry: Registry, database: Database[Any], backoff: Backoff) -> None:
        rechecker = Rechecker(registry, database)
        where = registry.has(recheck_queue.c.protocol)
        super().__init__(MARKERS, Handler(rechecker.run), backoff=backoff, where=where)


class Rechecker:
    """Tries again what waits for one key, each event in a transaction of its own."""

    def __init__(self, registry: Registry, database: Database[Any]) -> None:
        self._registry = registry
        self._database = database

    def run(self, claim: Claim) -> None:
        """Every event that waits for the key, once."""
        assert isinstance(claim, ItemClaim)
        name, kind, key = claim.carries
        # A program that knows only the documented columns names the key in the partition alone.
        reason = Reason(kind, key or claim.key)
        after = 0
        while True:
            with self._database.reading() as tx:
                numbers = waiting.waiting_for(tx, name, reason, after=after, limit=PAGE)
            for number in numbers:
                self._one(name, reason, number)
                hit("protocols.rechecked")
            if len(numbers) < PAGE:
                return
            after = numbers[-1]

    def _one(self, name: str, reason: Reason, number: int) -> None:
        protocol = self._registry.found(name)

        def work(tx: Transaction) -> None:
            envelope = waiting.locked(tx, name, reason, number)
            if envelope is not None:
                waiting.remove(tx, number)
                applying.apply(tx, protocol, decode(envelope), log.now_of(tx))
                hit("protocols.unblocked")

        def keep(tx: Transaction) -> None:
            envelope = waiting.locked(tx, name, reason, number)
            if envelope is None:
                return
            now = log.now_of(tx)
            placed = applying.place(tx, protocol, decode(envelope), now, kept_as=number)
            if placed is not applying.Applied.BLOCKED:
                waiting.remove(tx, number)

        try:
            self._database.run(work)
        except Blocked:
            self._database.run(keep)
        except Exception as error:
            if isinstance(error, LedgerstoneError) and error.retryable:
                raise
            failed = error
            self._database.run(lambda tx: self._give_back(tx, name, reason, number, failed))

    def _give_back(
        self, tx: Transaction, name: str, reason: Reason, number: int, error: Exception
    ) -> None:
        """It failed: it is retried and parked like every other item that comes in."""
        envelope = waiting.locked(tx, name, reason, number)
        if envelope is not None:
            waiting.remove(tx, number)
            wait = self._registry.backoff.after(1)
            incoming.take_back(tx, name, envelope, error, delay_seconds=wait)
