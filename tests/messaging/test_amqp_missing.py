"""A queue of a real RabbitMQ that is deleted and comes back: what waited for it arrives."""

from __future__ import annotations

import pytest

from ledgerstone.ids import new_id
from ledgerstone.ledger import Ledger
from ledgerstone.testing.clock import ManualClock
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

PARTITIONS = [f"p{number}" for number in range(10)]


@pytest.mark.parametrize("mode", ["ordered", "competing"])
def test_a_deleted_queue_comes_back(
    rabbit: PrivateRabbitMQ, home: Home, clock: ManualClock, mode: str
) -> None:
    """With park, all messages that were refused arrive by themselves, once, and none has failed."""
    queue = f"missing-{new_id()}"
    broker = {"url": rabbit.url, "exchange": "", "routing_key": queue}
    messaging = {
        "destinations": {"broker": {**broker, "mode": mode, "on_failure": "park"}},
        "routes": {"order.*": ["broker"]},
    }
    with connected(rabbit.url) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.queue_delete(queue)
        with opened(home.url, clock=clock, messaging=messaging) as ledger:
            with ledger.transaction() as tx:
                for partition in PARTITIONS:
                    tx.outbox.publish("order.placed", partition=partition)
            relay = ledger.worker(ledger.relay_source("broker"))
            for _ in range(3):
                relay.tick()
                clock.advance(60)
            refused = waiting(ledger)
            with ledger.reading() as tx:
                failed = tx.failed.find().rows

            channel.queue_declare(queue, durable=True)

            def turn() -> bool:
                clock.advance(400)
                relay.tick()
                return not waiting(ledger)

            until(turn, what="the delivery of all")
        arrived = channel.queue_declare(queue, passive=True).method.message_count
        channel.queue_delete(queue)

    assert (refused, failed) == (len(PARTITIONS), [])
    assert arrived == len(PARTITIONS)


def waiting(ledger: Ledger) -> int:
    """How many messages are not delivered."""
    with ledger.reading() as tx:
        return len(tx.outbox.find(waiting=True).rows)
