"""Messages of others on a real RabbitMQ: received, failed, retried and handled, nothing lost."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pika
import pytest

from ledgerstone import Ledger
from ledgerstone.errors import Hopeless
from ledgerstone.ids import new_id
from ledgerstone.messaging.brokers.subscriptions.amqp import AmqpSubscription
from ledgerstone.messaging.message import Message
from ledgerstone.settings import Settings
from ledgerstone.settings.messaging import SubscriptionSettings
from ledgerstone.testing.servers.rabbitmq import PrivateRabbitMQ
from ledgerstone.testing.waiting import until
from tests.brokers import connected

pytestmark = [
    pytest.mark.rabbitmq,
    pytest.mark.slow,
    pytest.mark.xdist_group("rabbitmq"),
]

_numbers = itertools.count(1)
MOMENT = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
HEADERS = {
    "tenant": "acme",
    "lines": [1, "two", [3]],
    "table": {"city": "Köln", "since": MOMENT},
    "at": MOMENT,
    "price": Decimal("7.25"),
    "raw": b"\xff\x00\xfe",
    "size": -7,
    "urgent": True,
}
READ = {
    "tenant": "acme",
    "lines": '[1,"two",[3]]',
    "table": '{"city":"Köln","since":"2026-02-03T04:05:06Z"}',
    "at": "2026-02-03T04:05:06Z",
    "price": "7.25",
    "raw": "/wD+",
    "size": "-7",
    "urgent": "true",
}
NAMES = ("com.github.pull_request.opened", "App\\Order\\Placed", "OrderPlaced", "Ärger um 7/8")


@pytest.fixture
def queue(rabbit: PrivateRabbitMQ) -> Iterator[str]:
    """A queue of its own."""
    name = f"foreign-{next(_numbers)}"
    with connected(rabbit.url) as connection:
        connection.channel().queue_declare(name, durable=True)
    yield name
    with connected(rabbit.url) as connection:
        connection.channel().queue_delete(name)


@pytest.fixture
def ledger(rabbit: PrivateRabbitMQ, queue: str, tmp_path: Path) -> Iterator[Ledger]:
    """A ledger that sends to the queue, and receives from it."""
    settings = Settings.load(
        url=f"sqlite:///{tmp_path}/shop.db",
        environ={},
        messaging={
            "destinations": {"broker": {"url": rabbit.url, "exchange": "", "routing_key": queue}},
            "routes": {"*": ["broker"]},
            "subscriptions": {"orders": {"url": rabbit.url, "queue": queue}},
        },
    )
    with Ledger(settings=settings) as made:
        yield made


def sent(rabbit: PrivateRabbitMQ, queue: str, name: str, *, binary: bool) -> str:
    """A message as another program sends it, with headers of every kind."""
    identity = new_id()
    headers: dict[str, Any] = dict(HEADERS)
    if binary:
        headers |= {"cloudEvents:specversion": "1.0", "cloudEvents:id": identity}
        headers |= {"cloudEvents:source": "github", "cloudEvents:type": name}
        headers |= {"cloudEvents:time": MOMENT}
    properties = pika.BasicProperties(
        content_type="application/json",
        headers=headers,
        message_id=identity,
        type=None if binary else name,
    )
    with connected(rabbit.url) as connection:
        connection.channel().basic_publish("", queue, b'{"n":7}', properties)
    return identity


@pytest.mark.parametrize("binary", [False, True], ids=["plain", "cloud event"])
@pytest.mark.parametrize("name", NAMES)
def test_failed_and_retried(
    rabbit: PrivateRabbitMQ, ledger: Ledger, queue: str, name: str, binary: bool
) -> None:
    """It is given to the handler that fails, and whole to the one that is tried again."""
    came: list[Message] = []

    @ledger.consumer("*", name="all")
    def handle(_: Any, message: Message) -> None:
        came.append(message)
        if len(came) == 1:
            raise Hopeless("not yet")

    identity = sent(rabbit, queue, name, binary=binary)
    deliveries = ledger.deliveries("orders")
    receiver = ledger.worker(deliveries)
    receiver.start()
    until(lambda: deliveries.counters.acknowledged == 1, what="the first try")
    receiver.stop()
    with ledger.transaction() as tx:
        (failed,) = tx.failed.find().rows
        tx.failed.retry(failed.id)
    worker = ledger.worker(ledger.relay_source("retry"))
    for _ in range(3):
        worker.tick()

    first, again = came
    assert (first.id, first.name, first.headers, first.body) == (identity, name, READ, {"n": 7})
    assert again == msgspec.structs.replace(first, place=again.place, consumer="all")


@pytest.mark.parametrize("name", NAMES)
def test_carried_by_us(ledger: Ledger, name: str) -> None:
    """What others wrote into our outbox, our relay carries, and our own consumers read."""
    came: list[Message] = []
    ledger.consumer("*", name="all")(lambda _, message: came.append(message))
    identity = new_id()
    stamp = "X-Message-Stamp-App\\Messenger\\MessageIdStamp"
    headers = {"type": name, stamp: f'[{{"messageId":"{identity}"}}]'}
    with ledger.transaction() as tx:
        row = {
            "body": "{}",
            "headers": msgspec.json.encode(headers).decode(),
            "queue_name": "broker",
            "partition_key": "",
            "created_at": "2026-02-03 04:05:06",
            "available_at": "2026-02-03 04:05:06",
        }
        tx.execute(ledger.registry.shared.outbox.insert().values(**row))
    worker = ledger.worker(ledger.relay_source("broker"))
    until(lambda: bool(worker.tick()) and carried(ledger) == 1, what="the relay")
    deliveries = ledger.deliveries("orders")
    receiver = ledger.worker(deliveries)
    receiver.start()
    until(lambda: deliveries.counters.acknowledged == 1, what="the receiver")
    receiver.stop()

    (message,) = came
    assert (message.id, message.name) == (identity, name)
    assert message.created_at == MOMENT
    assert deliveries.counters.malformed == 0


def carried(ledger: Ledger) -> int:
    """How many rows of the outbox are delivered."""
    with ledger.reading() as tx:
        rows = tx.execute(ledger.registry.shared.outbox.select()).all()
    return sum(row.delivered_at is not None for row in rows)


def test_a_wrong_password(
    rabbit: PrivateRabbitMQ,
    queue: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Why nothing is received is in the log, once."""
    monkeypatch.setattr(logging.getLogger("ledgerstone"), "propagate", True)
    wrong = rabbit.url.replace("guest:guest@", "guest:wrong@")
    subscription = AmqpSubscription("orders", SubscriptionSettings(url=wrong, queue=queue))

    with caplog.at_level(logging.WARNING):
        subscription.start(lambda _: None)
        until(lambda: "orders receives nothing" in caplog.text, what="the log")
        subscription.close()

    said = [each.message for each in caplog.records if "receives nothing" in each.message]
    assert len(set(said)) == len(said)
    assert "wrong" not in said[0]
