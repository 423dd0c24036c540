"""Makes relays, transports and deliveries from settings: the mode and the URL select them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ledgerstone.errors import NotFound, Unsupported
from ledgerstone.messaging.brokers.transport import Transport
from ledgerstone.messaging.inbox.deliveries import Deliveries
from ledgerstone.messaging.relay.competing import BATCHES_MAX, CompetingRelay
from ledgerstone.messaging.relay.ordered import OrderedRelay
from ledgerstone.messaging.relay.watched_transport import WatchedTransport
from ledgerstone.settings import DestinationSettings, SubscriptionSettings

if TYPE_CHECKING:
    from ledgerstone.messaging.registry import MessagingRegistry
    from ledgerstone.store.database import Database

IDLE_SECONDS_MAX = 30
"""The idle limit of the transaction of a batch, in addition to the longest send."""
EXTRAS = {
    "amqp": "amqp",
    "amqps": "amqp",
    "nats": "nats",
    "tls": "nats",
    "http": "webhook",
    "https": "webhook",
}


def relay_of(
    name: str,
    registry: MessagingRegistry,
    database: Database[Any],
    transport: Transport | None = None,
) -> OrderedRelay | CompetingRelay:
    """The relay of a destination, with the transport that its URL selects."""
    destination = registry.routes.destinations.get(name)
    if destination is None:
        known = ", ".join(registry.routes.destinations)
        raise NotFound(f"no destination is named {name!r}", hint=f"the settings have {known}")
    if transport is None:
        transport = WatchedTransport(name, transport_of(name, destination, registry, database))
    if not registry.keeps_order(name, database):
        return CompetingRelay(
            name,
            destination,
            transport,
            registry,
            # The transaction is idle while its batch is sent; the limit unlocks rows of a relay
            # that stands still.
            database=database.sibling(
                connections=BATCHES_MAX,
                idle_seconds_max=math.ceil(destination.send_seconds_max) + IDLE_SECONDS_MAX,
            ),
            origin=lambda: database.identity,
        )
    return OrderedRelay(
        name,
        destination,
        transport,
        registry,
        origin=lambda: database.identity,
        handling=destination.url == "local:",
        monotonic=database.clock.monotonic,
    )


def deliveries_of(
    name: str,
    registry: MessagingRegistry,
    database: Database[Any],
    settings: SubscriptionSettings | None = None,
) -> Deliveries:
    """The source of work that receives from a subscription for the consumers of this process."""
    settings = settings or registry.settings.subscriptions.get(name)
    if settings is None:
        known = ", ".join(registry.settings.subscriptions) or "none"
        hint = f"the settings have {known}; add [messaging.subscriptions.{name}] to them"
        raise NotFound(f"no subscription is named {name!r}", hint=hint)
    try:
        from ledgerstone.messaging.brokers.amqp.wire import message_of
        from ledgerstone.messaging.brokers.subscriptions.amqp import AmqpSubscription
    except ModuleNotFoundError as error:
        message = f"the subscription {name} needs {error.name}, which is not installed"
        raise Unsupported(message, hint="install ledgerstone[amqp]") from error
    subscription = AmqpSubscription(name, settings)
    return Deliveries(database, registry, subscription, settings, name=name, parse=message_of)


def transport_of(
    name: str,
    destination: DestinationSettings,
    registry: MessagingRegistry,
    database: Database[Any],
) -> Transport:
    """The transport of a destination. It connects at its first send."""
    scheme = destination.url.partition(":")[0]
    source = registry.settings.source
    try:
        if scheme == "local":
            from ledgerstone.messaging.brokers.transports.local import LocalTransport

            return LocalTransport(database, registry)
        if scheme in {"amqp", "amqps"}:
            from ledgerstone.messaging.brokers.transports.amqp import AmqpTransport

            return AmqpTransport(name, destination, source)
        if scheme in {"nats", "tls"}:
            from ledgerstone.messaging.brokers.transports.nats import NatsTransport

            return NatsTransport(name, destination, source)
        from ledgerstone.messaging.brokers.transports.webhook import WebhookTransport

        return WebhookTransport(name, destination, source)
    except ModuleNotFoundError as error:
        message = f"the destination {name} needs {error.name}, which is not installed"
        hint = f"install ledgerstone[{EXTRAS.get(scheme, scheme)}]"
        raise Unsupported(message, hint=hint) from error
