"""A transaction for an event loop: the same calls, awaited."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ledgerstone.blobs.async_calls import AsyncBlobs
from ledgerstone.jobs.async_calls import AsyncJobs, AsyncSchedules
from ledgerstone.messaging.async_calls import AsyncFailed, AsyncInbox, AsyncOutbox
from ledgerstone.protocols.async_calls import AsyncProtocols
from ledgerstone.store.async_calls import Ask

if TYPE_CHECKING:
    from ledgerstone.ledger import Transaction

T = TypeVar("T")


class AsyncTransaction:
    """The same calls, awaited: `await tx.jobs.enqueue(…)`.

    Whatever else a transaction can do is done by `run`: a room of your own, as in
    `await tx.run(lambda tx: tx.room(ACME).enter("order-7"))`, or statements of your own.
    """

    def __init__(self, carry: Ask[Transaction]) -> None:
        self._carry = carry

    @property
    def jobs(self) -> AsyncJobs:
        """Functions to be run later."""
        return AsyncJobs(lambda ask: self.run(lambda tx: ask(tx.jobs)))

    @property
    def schedules(self) -> AsyncSchedules:
        """Jobs that come again and again."""
        return AsyncSchedules(lambda ask: self.run(lambda tx: ask(tx.schedules)))

    @property
    def outbox(self) -> AsyncOutbox:
        """Messages to be carried elsewhere."""
        return AsyncOutbox(lambda ask: self.run(lambda tx: ask(tx.outbox)))

    @property
    def inbox(self) -> AsyncInbox:
        """Messages that were handled."""
        return AsyncInbox(lambda ask: self.run(lambda tx: ask(tx.inbox)))

    @property
    def failed(self) -> AsyncFailed:
        """Messages that could not be handled or delivered."""
        return AsyncFailed(lambda ask: self.run(lambda tx: ask(tx.failed)))

    @property
    def blobs(self) -> AsyncBlobs:
        """Files in slices."""
        return AsyncBlobs(lambda ask: self.run(lambda tx: ask(tx.blobs)))

    @property
    def protocols(self) -> AsyncProtocols:
        """Events that come in, and what becomes of them."""
        return AsyncProtocols(lambda ask: self.run(lambda tx: ask(tx.protocols)))

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """`work(tx)` inside the transaction."""
        return await self._carry(work)
