"""A worker that receives from a subscription of a test's own."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ledgerstone import Ledger
from ledgerstone.engine.worker import Worker
from ledgerstone.messaging.brokers.subscription import Delivery, Subscription
from ledgerstone.messaging.inbox.deliveries import Deliveries, Received
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.registry import MessagingRegistry
from ledgerstone.settings import SubscriptionSettings

POLL_SECONDS = 0.02
"""How soon it is seen that a test has moved the clock."""
GRACE_SECONDS = 30.0


class Receiving:
    """Deliveries, and the worker that has them handled."""

    def __init__(
        self,
        ledger: Ledger,
        registry: MessagingRegistry,
        subscription: Subscription,
        settings: SubscriptionSettings,
        *,
        name: str,
        parse: Callable[[Delivery], Message],
    ) -> None:
        self.deliveries = Deliveries(
            ledger.database, registry, subscription, settings, name=name, parse=parse
        )
        engine = msgspec.structs.replace(
            ledger.settings.engine, poll_seconds_max=POLL_SECONDS, notice_seconds=POLL_SECONDS
        )
        self.worker = Worker(ledger.database, [self.deliveries], engine)
        (self.pump,) = self.worker.pumps

    def start(self) -> None:
        self.worker.start()

    def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        self.worker.stop(grace_seconds)

    @property
    def counters(self) -> Received:
        return self.deliveries.counters

    @property
    def trouble(self) -> str | None:
        return self.deliveries.trouble

    @property
    def connected(self) -> bool:
        return self.deliveries.connected

    @property
    def failure(self) -> BaseException | None:
        return self.worker.failure

    @property
    def running(self) -> int:
        """Handlers that are at work."""
        return self.pump.running

    @property
    def waiting(self) -> int:
        """Deliveries that wait for anything."""
        return self.pump.waiting + self.deliveries.waiting
