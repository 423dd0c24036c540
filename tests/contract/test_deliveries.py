"""The delivery contract on a real RabbitMQ: consumers in threads, and in processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import insert

from ledgerstone import Ledger
from ledgerstone.ids import new_id
from ledgerstone.messaging.brokers.amqp.topology import declare, plan
from ledgerstone.messaging.brokers.amqp.wire import message_of
from ledgerstone.messaging.brokers.subscriptions.amqp import AmqpSubscription
from ledgerstone.messaging.brokers.transports.amqp import AmqpTransport
from ledgerstone.messaging.message import Message
from ledgerstone.settings.messaging import (
    DestinationSettings,
    MessagingSettings,
    QueueSettings,
    SubscriptionSettings,
)
from ledgerstone.store.transaction import Transaction
from ledgerstone.testing.servers.rabbitmq import PrivateRabbitMQ
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.brokers import connected
from tests.cli.program import Program, Running
from tests.cli.shop import ledger_in
from tests.contract.messaging.deliveries import PARTITIONS, DeliveryContract, arrival, own
from tests.contract.messaging.inbox import new_office
from tests.harness.receiving import Receiving

pytestmark = [
    pytest.mark.rabbitmq,
    pytest.mark.slow,
    pytest.mark.xdist_group("rabbitmq"),
]


class OrderedQueue:
    """A queue of its own on the broker, with one active consumer at a time."""

    def __init__(self, server: PrivateRabbitMQ, kind: str) -> None:
        self.name = f"ordered-{new_id()}"
        self.url = server.url
        self._server = server
        wanted = {self.name: QueueSettings(type=kind, one_consumer=True)}  # type: ignore[arg-type]
        destination = DestinationSettings(url=server.url, exchange="", routing_key=self.name)
        (declared,) = declare("test", destination, plan(MessagingSettings(queues=wanted)))
        assert declared.ok, declared.reason
        self._transport = AmqpTransport("test", destination, "test")

    def publish(self, count: int) -> None:
        """So many of each partition, in turns."""
        now = datetime.now(UTC)
        messages = [
            Message(
                id=new_id(),
                name="order.placed",
                raw=b"%d" % number,
                partition=partition,
                created_at=now,
            )
            for number in range(count)
            for partition in PARTITIONS
        ]
        answers = self._transport.send(messages, seconds_max=WAIT_SECONDS_MAX)
        assert {answer.result.value for answer in answers} == {"delivered"}

    def consumers(self) -> int:
        """How many the broker knows."""
        name = f'rabbit_misc:r(<<"/">>, queue, <<"{self.name}">>)'
        look = f"{{ok, Q}} = rabbit_amqqueue:lookup({name}), length(rabbit_amqqueue:consumers(Q))"
        return int(self._server.evaluate(look))

    def remove(self) -> None:
        self._transport.close()
        with connected(self.url) as connection:
            connection.channel().queue_delete(self.name)


@pytest.fixture(params=["quorum", "classic"])
def queue(rabbit: PrivateRabbitMQ, request: pytest.FixtureRequest) -> Iterator[OrderedQueue]:
    """A queue of each type that keeps an order."""
    made = OrderedQueue(rabbit, request.param)
    yield made
    made.remove()


class InThreads:
    """Workers of this process, on one ledger."""

    def __init__(self, ledger: Ledger, queue: OrderedQueue) -> None:
        self.ledger = ledger
        self._queue = queue
        self._running: dict[str, Receiving] = {}

    def publish(self, count: int) -> None:
        self._queue.publish(count)

    def start(self, name: str, *, handler_seconds: float) -> None:
        registry = new_office(self.ledger)
        time_passes = threading.Event()

        def record(tx: Transaction, came: Message) -> None:
            time_passes.wait(handler_seconds)
            tx.connection.execute(insert(arrival).values(lane=came.partition, number=came.body))

        registry.consumers.add("*", record, name="recorder", ordered=True)
        settings = SubscriptionSettings(url=self._queue.url, queue=self._queue.name)
        subscription = AmqpSubscription(name, settings)
        self._running[name] = Receiving(
            self.ledger, registry, subscription, settings, name=name, parse=message_of
        )
        self._running[name].start()
        until(lambda: subscription.connected, what="a subscription")

    def stop(self, name: str) -> None:
        self._running.pop(name).stop(WAIT_SECONDS_MAX)

    def end(self) -> None:
        for name in list(self._running):
            self.stop(name)


class TestInThreads(DeliveryContract):
    """Consumers are workers of one process."""

    @pytest.fixture
    def consumption(self, ledger: Ledger, queue: OrderedQueue) -> Iterator[InThreads]:
        """Workers, which are stopped at the end."""
        own.create_all(ledger.database.engine)
        made = InThreads(ledger, queue)
        yield made
        made.end()


APPLICATION = """
import threading
from sqlalchemy import insert
from ledgerstone import Ledger
from tests.contract.messaging.deliveries import arrival

ledger = Ledger()
time_passes = threading.Event()

@ledger.consumer("*", name="recorder", ordered=True)
def record(tx, message):
    time_passes.wait(HANDLER_SECONDS)
    tx.connection.execute(insert(arrival).values(lane=message.partition, number=message.body))
"""


class InProcesses:
    """`ledgerstone inbox consume`, stopped by SIGTERM."""

    def __init__(self, program: Program, ledger: Ledger, queue: OrderedQueue) -> None:
        self.ledger = ledger
        self._program = program
        self._queue = queue
        self._running: dict[str, Running] = {}
        (program.folder / "ledgerstone.toml").write_text(
            f'[messaging.subscriptions.orders]\nurl = "{queue.url}"\nqueue = "{queue.name}"\n'
        )

    def publish(self, count: int) -> None:
        self._queue.publish(count)

    def start(self, name: str, *, handler_seconds: float) -> None:
        code = APPLICATION.replace("HANDLER_SECONDS", str(handler_seconds))
        (self._program.folder / "recorder.py").write_text(code)
        consume = ("inbox", "consume", "orders", "-A", "recorder:ledger")
        before = self._queue.consumers()
        self._running[name] = self._program.start(*consume).__enter__()
        until(lambda: self._queue.consumers() > before, what="a consumer")

    def stop(self, name: str) -> None:
        running = self._running.pop(name)
        running.terminate()
        code = running.ended()
        running.__exit__()
        assert code == 0, running.said

    def end(self) -> None:
        for running in self._running.values():
            running.__exit__()


class TestInProcesses(DeliveryContract):
    """Consumers are processes."""

    @pytest.fixture
    def consumption(self, tmp_path: Path, queue: OrderedQueue) -> Iterator[InProcesses]:
        """Processes, which are gone at the end."""
        folder = tmp_path / "here"
        folder.mkdir()
        program = Program(folder)
        program.run("migrate")
        with ledger_in(program) as ledger:
            own.create_all(ledger.database.engine)
            made = InProcesses(program, ledger, queue)
            yield made
            made.end()
