"""Exchanges, queues and bindings: planned, declared on a real RabbitMQ, exported and imported."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import msgspec
import pytest

from ledgerstone.errors import BadInput, TargetDown
from ledgerstone.messaging.brokers.amqp.topology import (
    DELIVERIES_MAX,
    OTHER_LIMIT,
    Binding,
    Declared,
    Exchange,
    Queue,
    declare,
    definitions,
    plan,
)
from ledgerstone.settings.messaging import (
    DestinationSettings,
    ExchangeSettings,
    MessagingSettings,
    QueueSettings,
)
from ledgerstone.testing.server import free_port
from ledgerstone.testing.servers.rabbitmq import PrivateRabbitMQ
from tests.brokers import connected, virtual_host

BROKER = [
    pytest.mark.rabbitmq,
    pytest.mark.slow,
    pytest.mark.xdist_group("rabbitmq"),
]
REDELIVERED = 25
SETTINGS = MessagingSettings(
    exchanges={
        "events": ExchangeSettings(),
        "orders": ExchangeSettings(type="fanout", durable=False),
    },
    queues={
        "billing": QueueSettings(
            bindings={"events": ["order.placed", "order.paid"]},
            arguments={"x-delivery-limit": 20},
        ),
        "stock": QueueSettings(type="classic", one_consumer=True, bindings={"orders": [""]}),
        "audit": QueueSettings(type="stream", bindings={"events": ["#"]}),
    },
)
PLAN = [
    Exchange(name="events", type="topic", durable=True, arguments={}),
    Exchange(name="orders", type="fanout", durable=False, arguments={}),
    Queue(
        name="billing",
        durable=True,
        arguments={"x-queue-type": "quorum", "x-delivery-limit": 20},
    ),
    Queue(
        name="stock",
        durable=True,
        arguments={"x-queue-type": "classic", "x-single-active-consumer": True},
    ),
    Queue(name="audit", durable=True, arguments={"x-queue-type": "stream"}),
    Binding(exchange="events", queue="billing", routing_key="order.placed"),
    Binding(exchange="events", queue="billing", routing_key="order.paid"),
    Binding(exchange="orders", queue="stock", routing_key=""),
    Binding(exchange="events", queue="audit", routing_key="#"),
]


@pytest.fixture
def host(rabbit: PrivateRabbitMQ) -> Iterator[str]:
    """An empty virtual host of the broker."""
    with virtual_host(rabbit) as name:
        yield name


@pytest.fixture
def broker(rabbit: PrivateRabbitMQ, host: str) -> DestinationSettings:
    """The broker, by this virtual host."""
    return DestinationSettings(url=f"{rabbit.url}{host}")


def test_quorum_queues_are_planned_without_a_limit() -> None:
    """A quorum queue gets a limit of deliveries that cannot be reached, unless one is set."""
    (queue,) = plan(MessagingSettings(queues={"orders": QueueSettings()}))

    assert isinstance(queue, Queue)
    assert queue.arguments["x-delivery-limit"] == DELIVERIES_MAX


def test_the_plan() -> None:
    """The plan says what would be declared: exchanges, then queues, then what binds them."""
    items = plan(SETTINGS)

    assert items == PLAN
    assert [str(item) for item in items][1:4] == [
        "exchange orders (fanout)",
        "queue billing (quorum)",
        "queue stock (classic)",
    ]
    assert str(items[5]) == "binding events → billing (order.placed)"


def test_a_queue_without_a_name() -> None:
    """A queue without a name is refused: the broker would make up one of its own."""
    with pytest.raises(BadInput, match="name"):
        plan(MessagingSettings(queues={"": QueueSettings()}))


def test_out_of_reach() -> None:
    """A broker that is not there raises TargetDown with its name."""
    nobody = DestinationSettings(url=f"amqp://127.0.0.1:{free_port()}/")

    with pytest.raises(TargetDown, match="refused") as down:
        declare("shop", nobody, plan(SETTINGS))

    assert down.value.target == "shop"


class TestOnABroker:
    """What a real broker makes of it."""

    pytestmark = BROKER

    def test_declared(
        self, rabbit: PrivateRabbitMQ, broker: DestinationSettings, host: str
    ) -> None:
        """Everything is there as planned, and declaring it again is fine."""
        items = plan(SETTINGS)

        first = declare("shop", broker, items)
        second = declare("shop", broker, items)

        assert first == second == [Declared(item, ok=True) for item in items]
        assert found(rabbit, host) == expected()

    def test_one_that_fails(self, broker: DestinationSettings) -> None:
        """An item that fails says why in the broker's words, and does not stop the others."""
        items = plan(SETTINGS)
        declare("shop", broker, items)
        other = msgspec.structs.replace(items[0], type="direct")
        missing = Binding(exchange="nowhere", queue="billing", routing_key="a")

        results = declare("shop", broker, [other, missing, *items])

        assert [result.ok for result in results] == [False, False, *[True] * len(items)]
        assert "inequivalent arg 'type'" in results[0].reason
        assert "no exchange 'nowhere'" in results[1].reason

    def test_imported(
        self, rabbit: PrivateRabbitMQ, broker: DestinationSettings, host: str
    ) -> None:
        """What is exported, the broker imports, and it is what declaring would have made."""
        file = rabbit.folder / "definitions.json"
        file.write_bytes(msgspec.json.encode(definitions(plan(SETTINGS), vhost=host)))
        file.chmod(0o644)

        rabbit.control("import_definitions", str(file))

        assert found(rabbit, host) == expected()
        items = plan(SETTINGS)
        assert declare("shop", broker, items) == [Declared(item, ok=True) for item in items]


def found(rabbit: PrivateRabbitMQ, host: str) -> dict[str, set[tuple[str, ...]]]:
    """What the virtual host holds beside what every one has."""
    columns = {
        "exchanges": ("name", "type", "durable"),
        "queues": ("name", "durable", "arguments"),
        "bindings": ("source", "destination", "routing_key"),
    }
    everything = "rabbit_json:encode(rabbit_definitions:all_definitions())"
    printed = rabbit.evaluate(f"binary_to_list(base64:encode({everything}))")
    held = msgspec.json.decode(base64.b64decode(printed.strip('"')))
    return {
        what: {
            tuple(_told(row[column]) for column in names)
            for row in held[what]
            if row["vhost"] == host
        }
        for what, names in columns.items()
    }


def _told(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(sorted(f"{name}={_told(given)}" for name, given in value.items()))
    return str(value).lower() if isinstance(value, bool) else str(value)


def expected() -> dict[str, set[tuple[str, ...]]]:
    return {
        "exchanges": {("events", "topic", "true"), ("orders", "fanout", "false")},
        "queues": {
            ("billing", "true", "x-delivery-limit=20 x-queue-type=quorum"),
            ("stock", "true", "x-queue-type=classic x-single-active-consumer=true"),
            ("audit", "true", "x-queue-type=stream"),
        },
        "bindings": {
            ("events", "billing", "order.placed"),
            ("events", "billing", "order.paid"),
            ("orders", "stock", ""),
            ("events", "audit", "#"),
        },
    }


@pytest.mark.rabbitmq
@pytest.mark.slow
@pytest.mark.xdist_group("rabbitmq")
def test_a_delivery_limit_never_bites(broker: DestinationSettings) -> None:
    """A quorum queue keeps what was redelivered more often than RabbitMQ 4 does by default."""
    settings = MessagingSettings(
        queues={
            "kept": QueueSettings(),
            "dropped": QueueSettings(arguments={"x-delivery-limit": 1}),
        }
    )
    declared = declare("test", broker, plan(settings))
    for name in settings.queues:
        with connected(broker.url) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("", name, b"1")
        for _ in range(REDELIVERED):
            with connected(broker.url) as connection:
                # The connection ends with the message in hand, as where a consumer is killed.
                connection.channel().basic_get(name)

    with connected(broker.url) as connection:
        found = {name: connection.channel().basic_get(name)[2] for name in settings.queues}

    assert [each.ok for each in declared] == [True, True]
    assert found == {"kept": b"1", "dropped": None}


@pytest.mark.rabbitmq
@pytest.mark.slow
@pytest.mark.xdist_group("rabbitmq")
def test_a_queue_without_the_limit_is_kept(broker: DestinationSettings) -> None:
    """A quorum queue that was made without a limit is fine, and what to do about it is said."""
    with connected(broker.url) as connection:
        arguments = {"x-queue-type": "quorum"}
        connection.channel().queue_declare("before", durable=True, arguments=arguments)
    settings = MessagingSettings(queues={"before": QueueSettings()})

    (declared,) = declare("test", broker, plan(settings))

    assert declared.ok
    assert declared.reason in {"", OTHER_LIMIT}
