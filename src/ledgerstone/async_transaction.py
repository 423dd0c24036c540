"""A transaction for an event loop: the same calls as coroutines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ledgerstone.blobs.async_calls import AsyncBlobs
from ledgerstone.jobs.async_calls import AsyncJobs, AsyncSchedules
from ledgerstone.messaging.async_calls import AsyncFailed, AsyncInbox, AsyncOutbox
from ledgerstone.protocols.async_calls import AsyncProtocols
from ledgerstone.store.async_calls import RunInTransaction

if TYPE_CHECKING:
    from ledgerstone.ledger import Transaction

T = TypeVar("T")


class AsyncTransaction:
    """A transaction whose calls are awaited: `await tx.jobs.enqueue(…)`.

    `run` calls a function with the synchronous transaction, for a room of your own, as in
    `await tx.run(lambda tx: tx.room(ACME).enter("order-7"))`, or for statements of your own.
    """

    def __init__(self, carry: RunInTransaction[Transaction]) -> None:
        self._carry = carry

    @property
    def jobs(self) -> AsyncJobs:
        """Jobs: enqueue, look at, cancel and retry them."""
        return AsyncJobs(lambda ask: self.run(lambda tx: ask(tx.jobs)))

    @property
    def schedules(self) -> AsyncSchedules:
        """Schedules: jobs at the times of a cron expression."""
        return AsyncSchedules(lambda ask: self.run(lambda tx: ask(tx.schedules)))

    @property
    def outbox(self) -> AsyncOutbox:
        """The outbox: publish messages, and look at what waits for delivery."""
        return AsyncOutbox(lambda ask: self.run(lambda tx: ask(tx.outbox)))

    @property
    def inbox(self) -> AsyncInbox:
        """The inbox: the receipts of handled messages."""
        return AsyncInbox(lambda ask: self.run(lambda tx: ask(tx.inbox)))

    @property
    def failed(self) -> AsyncFailed:
        """Failed messages: look at, retry and remove them."""
        return AsyncFailed(lambda ask: self.run(lambda tx: ask(tx.failed)))

    @property
    def blobs(self) -> AsyncBlobs:
        """Files in slices."""
        return AsyncBlobs(lambda ask: self.run(lambda tx: ask(tx.blobs)))

    @property
    def protocols(self) -> AsyncProtocols:
        """Protocols: their events, and what waits in them."""
        return AsyncProtocols(lambda ask: self.run(lambda tx: ask(tx.protocols)))

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """Call `work` with the synchronous transaction, outside of the event loop."""
        return await self._carry(work)
