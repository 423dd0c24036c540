"""Receiving from a real RabbitMQ: acknowledged, prefetched, redelivered, and reconnected."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pika
import pytest

from ledgerstone.errors import BadInput, NotAllowedNow
from ledgerstone.messaging.brokers.amqp.wire import message_of
from ledgerstone.messaging.brokers.subscription import Delivery
from ledgerstone.messaging.brokers.subscriptions.amqp import AmqpSubscription
from ledgerstone.messaging.brokers.transports.amqp import AmqpTransport
from ledgerstone.settings.messaging import DestinationSettings, SubscriptionSettings
from ledgerstone.testing.contracts.transport import ids, made
from ledgerstone.testing.servers.rabbitmq import PrivateRabbitMQ
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.brokers import connected

pytestmark = [
    pytest.mark.rabbitmq,
    pytest.mark.slow,
    pytest.mark.xdist_group("rabbitmq"),
]

SECONDS_MAX = WAIT_SECONDS_MAX
_numbers = itertools.count(1)


class Bay:
    """A queue of its own on the broker, what is sent to it and who receives from it."""

    def __init__(self, server: PrivateRabbitMQ) -> None:
        self.server = server
        self.queue = f"orders-{next(_numbers)}"
        settings = DestinationSettings(url=server.url, exchange="", routing_key=self.queue)
        self.transport = AmqpTransport("shop", settings, "shop")
        self.started: list[AmqpSubscription] = []
        self.arrived: list[Delivery] = []
        self.declare()

    def declare(self) -> None:
        self.ask(lambda channel: channel.queue_declare(self.queue, durable=True))

    def delete(self) -> None:
        self.ask(lambda channel: channel.queue_delete(self.queue))

    def count(self) -> int:
        """How many the queue holds that nobody has been given."""
        answer = self.ask(lambda channel: channel.queue_declare(self.queue, passive=True))
        return int(answer.method.message_count)

    def holds(self, count: int) -> None:
        """Wait until the queue holds so many, given to somebody or not."""
        name = f'rabbit_misc:r(<<"/">>, queue, <<"{self.queue}">>)'
        look = f"{{ok, Q}} = rabbit_amqqueue:lookup({name}), rabbit_amqqueue:info(Q, [messages])"
        wanted = f"[{{messages, {count}}}]"
        until(lambda: self.server.evaluate(look) == wanted, what=f"a queue of {count}")

    def ask(self, do: Callable[[Any], Any]) -> Any:
        with connected(self.server.url) as connection:
            return do(connection.channel())

    def send(self, count: int) -> list[str]:
        messages = made(count)
        answers = self.transport.send(messages, seconds_max=SECONDS_MAX)
        assert {answer.result.value for answer in answers} == {"delivered"}
        return ids(messages)

    def subscription(self, *, prefetch: int = 100) -> AmqpSubscription:
        settings = SubscriptionSettings(url=self.server.url, queue=self.queue, prefetch=prefetch)
        made_here = AmqpSubscription("orders", settings)
        self.started.append(made_here)
        return made_here

    def take(self, delivery: Delivery) -> None:
        self.arrived.append(delivery)
        delivery.ack()

    def arrivals(self, count: int) -> list[Delivery]:
        """The first so many arrivals, once they are there."""
        until(lambda: len(self.arrived) >= count, what=f"arrival {count}")
        return self.arrived[:count]

    def drop_connections(self) -> None:
        all_of_them = "rabbit_networking:connections()"
        self.server.evaluate(f'rabbit_networking:close_connections({all_of_them}, "dropped")')

    def end(self) -> None:
        for subscription in self.started:
            subscription.close()
        self.transport.close()
        self.delete()


@pytest.fixture
def bay(rabbit: PrivateRabbitMQ) -> Iterator[Bay]:
    made_here = Bay(rabbit)
    yield made_here
    made_here.end()


def read(deliveries: list[Delivery]) -> list[str]:
    return [message_of(delivery).id for delivery in deliveries]


def test_received_in_order(bay: Bay) -> None:
    """Messages arrive in order, once each, and are forgotten when they are acknowledged."""
    sent = bay.send(300)
    subscription = bay.subscription()

    subscription.start(bay.take)

    arrived = bay.arrivals(300)
    assert read(arrived) == sent
    assert not any(delivery.redelivered for delivery in arrived)
    assert (subscription.connected, subscription.trouble) == (True, None)
    subscription.close()
    bay.holds(0)


def test_what_a_delivery_holds(bay: Bay) -> None:
    """Body, content type, headers and properties are as they were sent."""
    (sent,) = bay.send(1)
    bay.subscription().start(bay.arrived.append)

    (delivery,) = bay.arrivals(1)

    assert delivery.body.startswith(b'{"number":0')
    assert delivery.content_type == "application/json"
    assert delivery.headers["tenant"] == "acme"
    assert delivery.properties["message_id"] == sent
    assert delivery.properties["type"] == "order.placed"
    moment = datetime.fromisoformat(delivery.properties["timestamp"])
    assert moment == message_of(delivery).created_at.replace(microsecond=0)
    assert moment.tzinfo is UTC or moment.utcoffset() is not None


def test_a_bare_message(bay: Bay) -> None:
    """A message without any property arrives, and says what it lacks."""
    bay.ask(lambda channel: channel.basic_publish("", bay.queue, b"hello"))
    bay.subscription().start(bay.arrived.append)

    (delivery,) = bay.arrivals(1)

    assert (delivery.content_type, dict(delivery.headers), dict(delivery.properties)) == (
        None,
        {},
        {},
    )
    with pytest.raises(BadInput, match="no id"):
        message_of(delivery)


def test_a_moment_of_no_calendar(bay: Bay) -> None:
    """A timestamp that no calendar has is malformed, and hurts nothing else."""
    properties = pika.BasicProperties(timestamp=2**62, message_id="7", type="order.placed")
    bay.ask(lambda channel: channel.basic_publish("", bay.queue, b"{}", properties))
    bay.subscription().start(bay.arrived.append)

    (delivery,) = bay.arrivals(1)

    assert delivery.properties["timestamp"] == f"{2**62} seconds"


def test_prefetch(bay: Bay) -> None:
    """No more are outstanding than the prefetch allows; each acknowledged one makes room."""
    sent = bay.send(20)
    bay.subscription(prefetch=5).start(bay.arrived.append)

    first = bay.arrivals(5)
    waiting = bay.count()
    first[0].ack()

    assert waiting == 15
    assert read(bay.arrivals(6)) == sent[:6]
    assert (len(bay.arrived), bay.count()) == (6, 14)


def test_acknowledged_out_of_turn(bay: Bay) -> None:
    """A slow handler holds up no other's place, and what it has is not acknowledged by others."""
    sent = bay.send(50)
    subscription = bay.subscription(prefetch=10)
    subscription.start(bay.arrived.append)

    for turn in range(10, 50):
        bay.arrivals(turn)[turn - 1].ack()
    late = bay.arrivals(50)
    subscription.close()

    until(lambda: bay.count() == 10, what="the return of what was outstanding")
    again: list[Delivery] = []
    bay.subscription().start(again.append)
    until(lambda: len(again) == 10)
    assert read(late) == sent
    assert read(again) == [*sent[:9], sent[49]]


def test_acknowledged_by_many_threads(bay: Bay) -> None:
    """Acknowledged from several threads in any order, nothing is left and nothing comes twice."""
    sent = bay.send(300)
    subscription = bay.subscription(prefetch=50)
    halves = (threading.Semaphore(0), threading.Semaphore(0))

    def finish(half: int) -> None:
        for index in range(half, 300, 2):
            assert halves[half].acquire(timeout=SECONDS_MAX)
            bay.arrived[index].ack()

    def keep(delivery: Delivery) -> None:
        bay.arrived.append(delivery)
        halves[(len(bay.arrived) - 1) % 2].release()

    threads = [threading.Thread(target=finish, args=(half,)) for half in range(2)]
    for thread in threads:
        thread.start()
    subscription.start(keep)
    for thread in threads:
        thread.join(SECONDS_MAX)
    subscription.close()

    assert read(bay.arrived) == sent
    bay.holds(0)


def test_acknowledged_twice(bay: Bay) -> None:
    """To acknowledge or give back again what is acknowledged changes nothing."""
    bay.send(3)
    subscription = bay.subscription(prefetch=2)
    subscription.start(bay.arrived.append)

    first = bay.arrivals(2)[0]
    first.ack()
    bay.arrivals(3)
    first.ack()
    first.back()
    bay.arrived[1].ack()
    bay.arrived[2].ack()
    subscription.close()

    assert len(bay.arrived) == 3
    bay.holds(0)


def test_given_back(bay: Bay) -> None:
    """What is given back arrives again, and says so."""
    (sent,) = bay.send(1)
    bay.subscription().start(bay.arrived.append)

    bay.arrivals(1)[0].back()

    again = bay.arrivals(2)[1]
    assert read([again]) == [sent]
    assert again.redelivered


def test_given_back_among_others(bay: Bay) -> None:
    """What is given back among acknowledged ones is the only one that is left."""
    sent = bay.send(9)
    subscription = bay.subscription()
    subscription.start(bay.arrived.append)

    for index, delivery in enumerate(bay.arrivals(9)):
        (delivery.back if index == 4 else delivery.ack)()

    assert read([bay.arrivals(10)[9]]) == [sent[4]]
    subscription.close()
    until(lambda: bay.count() == 1, what="the return of what was outstanding")


def test_a_lost_connection(bay: Bay) -> None:
    """After a lost connection what was outstanding arrives again; old acks do nothing."""
    sent = bay.send(3)
    subscription = bay.subscription()
    subscription.start(bay.arrived.append)
    first = bay.arrivals(3)
    first[0].ack()
    bay.holds(2)

    bay.drop_connections()
    again = bay.arrivals(5)[3:]
    first[1].ack()
    first[2].back()
    again[0].ack()

    assert read(again) == sent[1:]
    assert all(delivery.redelivered for delivery in again)
    subscription.close()
    until(lambda: bay.count() == 1, what="the return of what was outstanding")


def test_a_killed_broker(bay: Bay) -> None:
    """A broker that dies and comes back is found again; until then the trouble says why."""
    bay.send(1)
    subscription = bay.subscription()
    subscription.start(bay.arrived.append)
    bay.arrivals(1)
    bay.server.write_out()

    bay.server.kill()
    try:
        until(lambda: not subscription.connected, what="noticing")
        refused = until(lambda: "refused" in (subscription.trouble or "").lower())
    finally:
        bay.server.restart()

    assert refused
    until(lambda: subscription.connected, what="the return")
    assert subscription.trouble is None
    assert bay.arrivals(2)[1].redelivered


def test_a_missing_queue(bay: Bay) -> None:
    """A queue that is not there is told by its name, and found when it is."""
    bay.delete()
    subscription = bay.subscription()
    subscription.start(bay.arrived.append)

    until(lambda: f"the queue {bay.queue} does not exist" in (subscription.trouble or ""))
    connected = subscription.connected
    bay.declare()
    bay.send(1)

    assert not connected
    bay.arrivals(1)
    until(lambda: subscription.connected)


def test_a_deleted_queue(bay: Bay) -> None:
    """When the queue is deleted the broker says so; it is found again when it is there again."""
    subscription = bay.subscription()
    subscription.start(bay.arrived.append)
    until(lambda: subscription.connected)

    bay.delete()
    until(lambda: bay.queue in (subscription.trouble or ""), what="the trouble")
    bay.declare()
    bay.send(1)

    bay.arrivals(1)


def test_stopped(bay: Bay) -> None:
    """Once stopped nothing more arrives; what is outstanding can still be acknowledged."""
    bay.send(3)
    subscription = bay.subscription()
    subscription.start(bay.arrived.append)
    first = bay.arrivals(3)

    subscription.stop()
    until(lambda: not subscription.connected)
    bay.send(2)
    for delivery in first:
        delivery.ack()
    bay.holds(2)

    assert subscription.trouble == "stopped"
    assert len(bay.arrived) == 3
    subscription.close()
    until(lambda: bay.count() == 2, what="the return of what was outstanding")


def test_closed(bay: Bay) -> None:
    """Close gives back what is outstanding; it can be done twice, and before the start."""
    bay.send(3)
    subscription = bay.subscription()
    subscription.start(bay.arrived.append)
    bay.arrivals(3)

    subscription.close()
    subscription.close()
    bay.subscription().close()
    for delivery in bay.arrived:
        delivery.ack()

    assert not subscription.connected
    assert subscription.trouble == "closed"
    until(lambda: bay.count() == 3, what="the return of what was outstanding")


def test_closed_right_after(bay: Bay) -> None:
    """What was acknowledged just before the close is told to the broker."""
    bay.send(50)
    subscription = bay.subscription()

    def deliver(delivery: Delivery) -> None:
        bay.arrived.append(delivery)
        if len(bay.arrived) == 50:
            # On the thread of the connection: it writes nothing between the two.
            for each in bay.arrived:
                each.ack()
            subscription.stop()
            assert subscription._session is not None
            subscription._session.close()

    subscription.start(deliver)
    bay.arrivals(50)
    subscription.close()

    bay.holds(0)


def test_closed_while_it_connects(bay: Bay) -> None:
    """Close does not wait for a broker that does not greet, and leaves no thread behind."""
    subscription = bay.subscription()
    bay.server.pause()
    try:
        subscription.start(bay.arrived.append)
        until(
            lambda: subscription._session and subscription._session._connection._services.transport
        )

        subscription.close()

        # Still silent: nothing but the limit of closing can have ended it.
        thread = subscription._thread
        until(lambda: thread and not thread.is_alive(), what="the end of the connection")
    finally:
        bay.server.resume()


def test_started_once(bay: Bay) -> None:
    """A subscription is started once."""
    subscription = bay.subscription()
    subscription.start(bay.arrived.append)

    with pytest.raises(NotAllowedNow, match="already"):
        subscription.start(bay.arrived.append)


def test_a_deliver_that_raises(bay: Bay) -> None:
    """What `deliver` could not take comes again, and the trouble is told."""
    bay.send(1)
    subscription = bay.subscription()
    troubles: list[str | None] = []

    def deliver(delivery: Delivery) -> None:
        if not delivery.redelivered:
            raise RuntimeError("no room")
        troubles.append(subscription._trouble)
        bay.arrived.append(delivery)

    subscription.start(deliver)

    assert bay.arrivals(1)[0].redelivered
    assert "no room" in str(troubles[0])
