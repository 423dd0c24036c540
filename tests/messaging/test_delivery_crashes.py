"""A message from a real RabbitMQ that kills each process that handles it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ledgerstone.ids import new_id
from ledgerstone.messaging.brokers.amqp.topology import declare, plan
from ledgerstone.messaging.brokers.transports.amqp import AmqpTransport
from ledgerstone.messaging.inbox import crashes
from ledgerstone.messaging.message import Message
from ledgerstone.settings.messaging import DestinationSettings, MessagingSettings, QueueSettings
from ledgerstone.testing.servers import PrivateRabbitMQ
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.brokers import connected
from tests.cli.program import Program
from tests.cli.shop import ledger_in

pytestmark = [pytest.mark.rabbitmq, pytest.mark.slow, pytest.mark.xdist_group("rabbitmq")]

APPLICATION = """
import os, signal
from ledgerstone import Ledger

ledger = Ledger()

@ledger.consumer("*", name="recorder", ordered=True)
def record(tx, message):
    if message.body == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
"""
KILLED = -9


@pytest.fixture
def queue(rabbit: PrivateRabbitMQ) -> Iterator[str]:
    """A queue with a message that kills, and one behind it."""
    name = f"deadly-{new_id()}"
    destination = DestinationSettings(url=rabbit.url, exchange="", routing_key=name)
    declare("test", destination, plan(MessagingSettings(queues={name: QueueSettings()})))
    transport = AmqpTransport("test", destination, "test")
    now = datetime.now(UTC)
    messages = [
        Message(id=new_id(), name="order.placed", raw=raw, partition="ann", created_at=now)
        for raw in (b'"poison"', b'"behind"')
    ]
    answers = transport.send(messages, seconds_max=WAIT_SECONDS_MAX)
    assert {answer.result.value for answer in answers} == {"delivered"}
    transport.close()
    yield name
    with connected(rabbit.url) as connection:
        connection.channel().queue_delete(name)


def test_given_up_at_last(tmp_path: Path, rabbit: PrivateRabbitMQ, queue: str) -> None:
    """After so many deaths it is in the failed table, and the one behind it is handled."""
    program = Program(tmp_path)
    (tmp_path / "ledgerstone.toml").write_text(
        f'[messaging.subscriptions.orders]\nurl = "{rabbit.url}"\nqueue = "{queue}"\n'
        "crashes_max = 1\n"
    )
    (tmp_path / "recorder.py").write_text(APPLICATION)
    program.run("migrate")
    consume = ("inbox", "consume", "orders", "-A", "recorder:ledger")

    for _ in range(2):
        with program.start(*consume) as running:
            assert running.ended() == KILLED
    with ledger_in(program) as ledger, program.start(*consume) as running:

        def handled() -> bool:
            with ledger.reading() as tx:
                return bool(tx.inbox.find().rows)

        until(handled, what="the message behind it")
        running.terminate()
        assert running.ended() == 0
        with ledger.reading() as tx:
            (failed,) = tx.failed.find().rows

    assert (failed.code, failed.consumer) == (crashes.CRASHED, "recorder")
