"""Messages of others on a real RabbitMQ: received, failed, retried and handled, nothing lost."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pika
import pytest

from ledgerstone import Ledger
from ledgerstone.errors import Hopeless
from ledgerstone.ids import new_id
from ledgerstone.messaging.brokers.subscriptions.amqp import AmqpSubscription
from ledgerstone.messaging.message import Message
from ledgerstone.settings.messaging import SubscriptionSettings
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.servers.rabbitmq import PrivateRabbitMQ
from ledgerstone.testing.waiting import until
from tests.brokers import connected
from tests.harness.ledgers import opened

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
def ledger(rabbit: PrivateRabbitMQ, queue: str, home: Home) -> Iterator[Ledger]:
    """A ledger that sends to the queue, and receives from it."""
    messaging = {
        "destinations": {"broker": {"url": rabbit.url, "exchange": "", "routing_key": queue}},
        "routes": {"*": ["broker"]},
        "subscriptions": {"orders": {"url": rabbit.url, "queue": queue}},
    }
    with opened(home.url, messaging=messaging) as made:
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
def test_failed_and_retried(
    rabbit: PrivateRabbitMQ, ledger: Ledger, queue: str, *, binary: bool
) -> None:
    """Each is given to the handler that fails, and whole to the one that is tried again."""
    came: dict[str, list[Message]] = {}

    @ledger.consumer("*", name="all")
    def handle(_: Any, message: Message) -> None:
        tries = came.setdefault(message.id, [])
        tries.append(message)
        if len(tries) == 1:
            raise Hopeless("not yet")

    names = {sent(rabbit, queue, name, binary=binary): name for name in NAMES}
    deliveries = ledger.deliveries("orders")
    receiver = ledger.worker(deliveries)
    receiver.start()
    until(lambda: deliveries.counters.acknowledged == len(NAMES), what="the first tries")
    receiver.stop()
    with ledger.transaction() as tx:
        failed = tx.failed.retry_all(consumer="all").ids
    worker = ledger.worker(ledger.relay_source("retry"))
    for _ in range(3):
        worker.tick()

    assert len(failed) == len(NAMES)
    for identity, name in names.items():
        first, again = came[identity]
        assert (first.id, first.name, first.headers, first.body) == (identity, name, READ, {"n": 7})
        assert again == msgspec.structs.replace(first, place=again.place, consumer="all")


def test_carried_by_us(ledger: Ledger) -> None:
    """What others wrote into our outbox, our relay carries, and our own consumers read."""
    came: list[Message] = []
    ledger.consumer("*", name="all")(lambda _, message: came.append(message))
    names = {new_id(): name for name in NAMES}
    with ledger.transaction() as tx:
        for identity, name in names.items():
            tx.execute(ledger.registry.shared.outbox.insert().values(**row_of(identity, name)))
    worker = ledger.worker(ledger.relay_source("broker"))
    until(lambda: bool(worker.tick()) and carried(ledger) == len(NAMES), what="the relay")
    deliveries = ledger.deliveries("orders")
    receiver = ledger.worker(deliveries)
    receiver.start()
    until(lambda: deliveries.counters.acknowledged == len(NAMES), what="the receiver")
    receiver.stop()

    assert {message.id: message.name for message in came} == names
    assert {message.created_at for message in came} == {MOMENT}
    assert deliveries.counters.malformed == 0


def row_of(identity: str, name: str) -> dict[str, Any]:
    """A row of the outbox as another program writes it."""
    stamp = "X-Message-Stamp-App\\Messenger\\MessageIdStamp"
    headers = {"type": name, stamp: f'[{{"messageId":"{identity}"}}]'}
    return {
        "body": "{}",
        "headers": msgspec.json.encode(headers).decode(),
        "queue_name": "broker",
        "partition_key": "",
        "created_at": MOMENT.replace(tzinfo=None),
        "available_at": MOMENT.replace(tzinfo=None),
    }


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


def test_a_wrong_password_of_a_relay(
    rabbit: PrivateRabbitMQ,
    home: Home,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Why nothing is sent is in the log, once; no attempt is counted, and nothing is lost."""
    monkeypatch.setattr(logging.getLogger("ledgerstone"), "propagate", True)
    broker = {"url": rabbit.url.replace("guest:guest@", "guest:wrong@"), "exchange": ""}
    messaging = {"destinations": {"broker": broker}, "routes": {"*": ["broker"]}}
    with opened(home.url, messaging=messaging) as ledger, caplog.at_level(logging.WARNING):
        with ledger.transaction() as tx:
            for partition in ("ann", "bob"):
                tx.outbox.publish("order.placed", partition=partition)
        worker = ledger.worker(ledger.relay_source("broker"))
        for _ in range(3):
            worker.tick()
        with ledger.reading() as tx:
            lanes = tx.outbox.lanes("broker").rows
            waiting = tx.outbox.find(waiting=True).rows

    (said,) = [each.message for each in caplog.records if each.name == "ledgerstone.relay"]
    assert "ACCESS_REFUSED" in said
    assert "wrong" not in said
    assert ([lane.attempts for lane in lanes], len(waiting)) == ([0, 0], 2)
