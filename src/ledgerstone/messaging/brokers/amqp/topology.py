"""Exchanges, queues and bindings of RabbitMQ, as the settings describe them.

    plan ──▶ declare      on a broker: each item separately, with its result
         └─▶ definitions  for `rabbitmqctl import_definitions` and the management plugin

Nothing is deleted, and nothing else on the broker changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from ledgerstone.errors import BadInput, NotFound, TargetDown, Unsupported
from ledgerstone.settings.messaging import (
    DestinationSettings,
    ExchangeSettings,
    MessagingSettings,
    QueueSettings,
    SubscriptionSettings,
)

CONNECT_SECONDS_MAX = 30.0
DELIVERIES_MAX = 2**31 - 1
"""The delivery limit of a quorum queue, unless the settings give one. RabbitMQ 4 has a default
limit of 20: after as many restarts of a consumer it drops messages that the consumer prefetched."""
OTHER_LIMIT = "it exists with another delivery limit: set one by a policy, or create it again"
PRECONDITION_FAILED = 406
Arguments = Mapping[str, str | int | bool]


class Exchange(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="exchange"):
    """An exchange to declare."""

    name: str
    type: str
    durable: bool
    arguments: Arguments

    def __str__(self) -> str:
        return f"exchange {self.name} ({self.type})"


class Queue(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="queue"):
    """A queue to declare; its type is one of its arguments."""

    name: str
    durable: bool
    arguments: Arguments

    def __str__(self) -> str:
        return f"queue {self.name} ({self.arguments['x-queue-type']})"


class Binding(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="binding"):
    """A binding of a queue to an exchange, to declare."""

    exchange: str
    queue: str
    routing_key: str

    def __str__(self) -> str:
        return f"binding {self.exchange} → {self.queue} ({self.routing_key})"


Item = Exchange | Queue | Binding


class Declared(msgspec.Struct, frozen=True):
    """The result for an item: it exists as planned, or the reason of the broker why not."""

    what: Item
    ok: bool
    reason: str = ""


def plan(settings: MessagingSettings) -> list[Item]:
    """All items to declare, in an order that works."""
    exchanges = [_exchange(name, wanted) for name, wanted in settings.exchanges.items()]
    queues = [_queue(name, wanted) for name, wanted in settings.queues.items()]
    bindings = [
        Binding(exchange=exchange, queue=name, routing_key=key)
        for name, wanted in settings.queues.items()
        for exchange, keys in wanted.bindings.items()
        for key in keys
    ]
    return [*exchanges, *queues, *bindings]


def _exchange(name: str, wanted: ExchangeSettings) -> Exchange:
    return Exchange(
        name=name, type=wanted.type, durable=wanted.durable, arguments=dict(wanted.arguments)
    )


def _queue(name: str, wanted: QueueSettings) -> Queue:
    if not name:
        hint = "give each queue a name under messaging.queues"
        raise BadInput("a queue without a name cannot be declared", hint=hint)
    arguments: dict[str, str | int | bool] = {"x-queue-type": wanted.type}
    if wanted.type == "quorum":
        arguments["x-delivery-limit"] = DELIVERIES_MAX
    if wanted.one_consumer:
        arguments["x-single-active-consumer"] = True
    return Queue(name=name, durable=wanted.durable, arguments=arguments | wanted.arguments)


def declare(
    name: str, broker: DestinationSettings | SubscriptionSettings, items: Sequence[Item]
) -> list[Declared]:
    """Declares the items on the broker of a destination or subscription.

    - An item that exists as planned is fine. One with other properties is not changed.
    - A failed item does not stop the others.
    - Raises TargetDown if the broker is or becomes unreachable: declare again.
    """
    with _connected(name, broker) as connection:
        return [_declared(connection, item) for item in items]


def check(name: str, broker: DestinationSettings | SubscriptionSettings) -> None:
    """Raises NotFound if the broker does not have the named exchange or queue; creates nothing."""
    if isinstance(broker, SubscriptionSettings):
        what, verb, wanted = "queue", "queue_declare", broker.queue
    else:
        what, verb, wanted = "exchange", "exchange_declare", broker.exchange
    with _connected(name, broker) as connection:
        from pika.exceptions import ChannelClosedByBroker

        try:
            # The default exchange always exists.
            if wanted:
                getattr(connection.channel(), verb)(wanted, passive=True)
        except ChannelClosedByBroker as refused:
            message = f"the {what} {wanted}: {refused.reply_code} {refused.reply_text}"
            hint = "run `ledgerstone messaging topology`, or let an operator create it"
            raise NotFound(message, hint=hint) from refused


@contextmanager
def _connected(name: str, broker: DestinationSettings | SubscriptionSettings) -> Iterator[Any]:
    try:
        import pika
        from pika.exceptions import AMQPConnectionError

        from ledgerstone.messaging.brokers.amqp.connection import parameters, told
    except ModuleNotFoundError as error:
        message = f"{name} needs {error.name}, which is not installed"
        raise Unsupported(message, hint="install ledgerstone[amqp]") from error

    reach = parameters(name, broker)
    reach.socket_timeout = reach.stack_timeout = CONNECT_SECONDS_MAX
    reach.blocked_connection_timeout = CONNECT_SECONDS_MAX
    try:
        connection = pika.BlockingConnection(reach)
        try:
            yield connection
        finally:
            if connection.is_open:
                connection.close()
    except (AMQPConnectionError, OSError) as error:
        raise TargetDown(name, f"{name} is out of reach: {told(error)}") from error


def _declared(connection: Any, item: Item) -> Declared:
    from pika.exceptions import ChannelClosedByBroker

    # The broker closes the channel of a failed declaration, so each item has a channel of its own.
    channel = connection.channel()
    try:
        _ask(channel, item)
    except ChannelClosedByBroker as refused:
        if refused.reply_code == PRECONDITION_FAILED and _has_our_limit(item):
            plain = msgspec.structs.replace(item, arguments=_without_limit(item))
            found = _declared(connection, plain)
            return Declared(item, ok=found.ok, reason=OTHER_LIMIT if found.ok else found.reason)
        return Declared(item, ok=False, reason=f"{refused.reply_code} {refused.reply_text}")
    channel.close()
    return Declared(item, ok=True)


def _has_our_limit(item: Item) -> bool:
    return isinstance(item, Queue) and item.arguments.get("x-delivery-limit") == DELIVERIES_MAX


def _without_limit(item: Item) -> Arguments:
    assert isinstance(item, Queue)
    return {name: value for name, value in item.arguments.items() if name != "x-delivery-limit"}


def _ask(channel: Any, item: Item) -> None:
    match item:
        case Exchange():
            channel.exchange_declare(
                item.name,
                exchange_type=item.type,
                durable=item.durable,
                arguments=dict(item.arguments),
            )
        case Queue():
            channel.queue_declare(item.name, durable=item.durable, arguments=dict(item.arguments))
        case Binding():
            channel.queue_bind(item.queue, item.exchange, item.routing_key)


def definitions(items: Sequence[Item], *, vhost: str = "/") -> dict[str, list[dict[str, Any]]]:
    """The items in the import format of RabbitMQ."""
    found: dict[str, list[dict[str, Any]]] = {"exchanges": [], "queues": [], "bindings": []}
    for item in items:
        match item:
            case Exchange():
                found["exchanges"].append(
                    _exported(item, vhost) | {"type": item.type, "internal": False}
                )
            case Queue():
                found["queues"].append(_exported(item, vhost))
            case Binding():
                found["bindings"].append(
                    {
                        "source": item.exchange,
                        "vhost": vhost,
                        "destination": item.queue,
                        "destination_type": "queue",
                        "routing_key": item.routing_key,
                        "arguments": {},
                    }
                )
    return found


def _exported(item: Exchange | Queue, vhost: str) -> dict[str, Any]:
    return {
        "name": item.name,
        "vhost": vhost,
        "durable": item.durable,
        "auto_delete": False,
        "arguments": dict(item.arguments),
    }
