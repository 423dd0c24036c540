"""AMQP on a real RabbitMQ: the transport contract, refusals, crashes, TLS."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from pika import spec

from ledgerstone import Ledger
from ledgerstone.errors import BadInput, TargetDown
from ledgerstone.ids import new_id
from ledgerstone.messaging.brokers.amqp.wire import message_of
from ledgerstone.messaging.brokers.subscription import Delivery
from ledgerstone.messaging.brokers.subscriptions.amqp import AmqpSubscription, _Delivery
from ledgerstone.messaging.brokers.transport import DELIVERED, SendResult
from ledgerstone.messaging.brokers.transports.amqp import AmqpTransport, _Batch, _BrokerSession
from ledgerstone.messaging.message import Message
from ledgerstone.settings import Settings
from ledgerstone.settings.messaging import DestinationSettings, SubscriptionSettings
from ledgerstone.testing.contracts.transport import (
    OutageContract,
    RefusalContract,
    TransportContract,
    delivered,
    ids,
    made,
)
from ledgerstone.testing.server import ServerFailed
from ledgerstone.testing.servers.rabbitmq import PrivateRabbitMQ
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.brokers import connected
from tests.conftest import BROKER_BODY_BYTES_MAX
from tests.harness.authority import PrivateAuthority
from tests.harness.sizes import sized

pytestmark = [
    pytest.mark.rabbitmq,
    pytest.mark.slow,
    pytest.mark.xdist_group("rabbitmq"),
]

SECONDS_MAX = WAIT_SECONDS_MAX
IMPATIENT_SECONDS = 0.1
MEMORY_BYTES_TOO_FEW = 1_000_000
CONNECTIONS = "rabbit_networking:connections()"
STATES = f"[rabbit_networking:connection_info(P, [state]) || P <- {CONNECTIONS}]"
FRAME_BYTES_MAX = 131_072
SOURCE = "shop"
_numbers = itertools.count(1)


class AmqpPlace:
    """An exchange and a queue of its own on the shared broker, bound for two names.

    The exchange is a direct one: RabbitMQ 3 may route nothing by the bindings of a topic exchange
    after it was killed, though it still lists them.
    """

    name = "shop"
    taken_names = ("order.placed", "order.line.added")
    refused_name = "nobody.listens"

    def __init__(
        self,
        server: PrivateRabbitMQ,
        *,
        kind: str = "classic",
        form: Literal["binary", "structured"] = "binary",
        arguments: dict[str, Any] | None = None,
    ) -> None:
        number = next(_numbers)
        self.server = server
        self.exchange, self.queue = f"events-{number}", f"orders-{number}"
        self.settings = DestinationSettings(url=server.url, exchange=self.exchange, format=form)
        self.transport = AmqpTransport(self.name, self.settings, SOURCE)
        self._down = self._frozen = False
        with self.channel() as channel:
            channel.exchange_declare(self.exchange, "direct", durable=True)
            arguments = {"x-queue-type": kind, **(arguments or {})}
            channel.queue_declare(self.queue, durable=True, arguments=arguments)
            for name in self.taken_names:
                channel.queue_bind(self.queue, self.exchange, name)

    def channel(self) -> Channel:
        return Channel(self.server.url)

    def count(self) -> int:
        with self.channel() as channel:
            return int(channel.queue_declare(self.queue, passive=True).method.message_count)

    def arrivals(self) -> list[Any]:
        """All in the queue, which keeps it: what is not acknowledged goes back."""
        with self.channel() as channel:
            count = channel.queue_declare(self.queue, passive=True).method.message_count
            return list(itertools.islice(channel.consume(self.queue), count))

    def received(self) -> list[Message]:
        line: Any = None
        return [message_of(_Delivery(line, *arrival)) for arrival in self.arrivals()]

    def stop(self) -> None:
        self._down = True
        self.server.kill()

    def start(self) -> None:
        self.server.restart()
        self._down = False

    def pause(self) -> None:
        self._frozen = True
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()
        self._frozen = False

    def end(self) -> None:
        """Leave the broker as it was found, whatever became of the test."""
        if self._frozen:
            self.resume()
        if self._down:
            self.start()
        self.transport.close()
        with self.channel() as channel:
            channel.queue_delete(self.queue)
            channel.exchange_delete(self.exchange)


class Channel:
    """A channel of a plain client, for looking and arranging."""

    def __init__(self, url: str) -> None:
        self._connection = connected(url)

    def __enter__(self) -> Any:
        return self._connection.channel()

    def __exit__(self, *_: object) -> None:
        self._connection.close()


@pytest.fixture
def place(rabbit: PrivateRabbitMQ) -> Iterator[AmqpPlace]:
    made_here = AmqpPlace(rabbit)
    yield made_here
    made_here.end()


class TestAmqp(TransportContract, RefusalContract):
    """Binary, to a classic queue."""

    full_batch = sized(200, full=1000)
    test_many_at_once = pytest.mark.torture(TransportContract.test_many_at_once)


class CutOffPlace(AmqpPlace):
    """A place that is cut off instead of being killed: a broker takes seconds to come back."""

    def stop(self) -> None:
        self._down = True
        self.server.evaluate("rabbit_maintenance:suspend_all_client_listeners()")
        # As by a cable that is pulled: nothing is said to the clients.
        self.server.evaluate(f"[exit(P, kill) || P <- {CONNECTIONS}]")

    def start(self) -> None:
        self.server.evaluate("rabbit_maintenance:resume_all_client_listeners()")
        self._down = False


class TestOutages(OutageContract):
    """A broker that is out of reach, or says nothing. One that is killed: see below."""

    @pytest.fixture
    def place(self, rabbit: PrivateRabbitMQ) -> Iterator[AmqpPlace]:
        made_here = CutOffPlace(rabbit)
        yield made_here
        made_here.end()


class TestStructuredToQuorum(TransportContract, RefusalContract):
    """Structured, to a quorum queue."""

    full_batch = sized(200, full=1000)
    test_many_at_once = pytest.mark.torture(TransportContract.test_many_at_once)

    @pytest.fixture
    def place(self, rabbit: PrivateRabbitMQ) -> Iterator[AmqpPlace]:
        made_here = AmqpPlace(rabbit, kind="quorum", form="structured")
        yield made_here
        made_here.end()


def test_what_is_on_the_wire(place: AmqpPlace) -> None:
    """Properties and headers are there for readers of CloudEvents, AMQP and the original."""
    (message,) = made(1, partition="ann")

    place.transport.send([message], seconds_max=SECONDS_MAX)

    ((method, properties, body),) = place.arrivals()
    assert method.routing_key == "order.placed"
    assert body == message.raw
    assert properties.message_id == message.id
    assert properties.type == "order.placed"
    assert properties.content_type == "application/json"
    assert properties.timestamp == int(message.created_at.timestamp())
    assert properties.app_id == SOURCE
    assert properties.delivery_mode == 2
    assert properties.headers["cloudEvents:id"] == message.id
    assert properties.headers["x-message-name"] == properties.headers["type"] == message.name
    assert properties.headers["tenant"] == "acme"


def test_structured_on_the_wire(rabbit: PrivateRabbitMQ) -> None:
    """A structured message is one JSON document that says what it is."""
    place = AmqpPlace(rabbit, form="structured")
    (message,) = made(1)

    place.transport.send([message], seconds_max=SECONDS_MAX)

    ((_, properties, body),) = place.arrivals()
    assert properties.content_type == "application/cloudevents+json"
    document = msgspec.json.decode(body)
    assert document["id"] == message.id
    assert document["data"] == message.body
    assert not [name for name in properties.headers if name.startswith("cloudEvents:")]
    place.end()


def test_a_routing_key_of_its_own(place: AmqpPlace) -> None:
    """The routing key of the settings counts instead of the name."""
    settings = msgspec.structs.replace(place.settings, exchange="", routing_key=place.queue)
    transport = AmqpTransport("direct", settings, SOURCE)

    answers = transport.send(made(2, "nobody.listens"), seconds_max=SECONDS_MAX)

    transport.close()
    assert answers == [DELIVERED] * 2
    assert place.count() == 2


def test_unroutable(place: AmqpPlace) -> None:
    """A message nobody is bound to receive is UNDELIVERABLE, and the reason says what to bind."""
    (answer,) = place.transport.send(made(1, "nobody.listens"), seconds_max=SECONDS_MAX)

    assert answer.result is SendResult.UNDELIVERABLE
    assert answer.code == "unroutable"
    for word in (place.exchange, "nobody.listens", "312 NO_ROUTE"):
        assert word in answer.reason


def test_unroutable_twice_at_once(place: AmqpPlace) -> None:
    """The same unroutable message twice on its way is answered twice."""
    (message,) = made(1, "nobody.listens")

    answers = place.transport.send([message, *made(1), message], seconds_max=SECONDS_MAX)

    assert [answer.code for answer in answers] == ["unroutable", "", "unroutable"]


def test_returned_twice_before_it_is_confirmed(place: AmqpPlace) -> None:
    """A broker may confirm several at once: each return of a message answers one of them."""
    (message,) = made(1, "nobody.listens")
    place.transport.send(made(1), seconds_max=SECONDS_MAX)
    line = line_of(place.transport)
    returned = spec.Basic.Return(312, "NO_ROUTE", place.exchange, message.name)
    properties = spec.BasicProperties(message_id=message.id)

    for _ in range(2):
        line._on_return(None, returned, properties, b"")
    answers = [line._answer(message, taken=True) for _ in range(3)]

    assert [answer.code for answer in answers] == ["unroutable", "unroutable", ""]
    assert line._returned == {}


def test_an_exchange_that_is_missing(place: AmqpPlace) -> None:
    """Without its exchange all is REFUSED; once it is there, all is taken."""
    settings = msgspec.structs.replace(place.settings, exchange=f"{place.exchange}-later")
    transport = AmqpTransport("late", settings, SOURCE)

    before = transport.send(made(3), seconds_max=SECONDS_MAX)
    with place.channel() as channel:
        channel.exchange_declare(settings.exchange, "topic")
        channel.queue_bind(place.queue, settings.exchange, "#")
    after = transport.send(made(3), seconds_max=SECONDS_MAX)

    transport.close()
    assert {(a.result, a.code) for a in before} == {(SendResult.REFUSED, "no_exchange")}
    assert settings.exchange in before[0].reason
    assert after == [DELIVERED] * 3
    assert place.count() == 3


def test_an_exchange_that_goes(place: AmqpPlace) -> None:
    """When the exchange goes while connected, nothing is DELIVERED; the next call says why."""
    place.transport.send(made(1), seconds_max=SECONDS_MAX)
    with place.channel() as channel:
        channel.exchange_delete(place.exchange)

    first = place.transport.send(made(3), seconds_max=SECONDS_MAX)
    second = place.transport.send(made(3), seconds_max=SECONDS_MAX)

    assert {(a.result, a.code) for a in first} == {(SendResult.UNKNOWN, "no_exchange")}
    assert {(a.result, a.code) for a in second} == {(SendResult.REFUSED, "no_exchange")}
    assert place.count() == 1


def test_too_large_for_the_broker(place: AmqpPlace) -> None:
    """The message for which the broker closes the channel is found; the others are delivered."""
    messages = made(8)
    for index in (2, 5):
        body = msgspec.json.encode("a" * (BROKER_BODY_BYTES_MAX + 1))
        messages[index] = msgspec.structs.replace(messages[index], raw=body)

    answers = place.transport.send(messages, seconds_max=SECONDS_MAX)

    good = [message.id for index, message in enumerate(messages) if index not in {2, 5}]
    assert delivered(messages, answers) == good
    for index in (2, 5):
        assert answers[index].result is SendResult.REFUSED
        assert answers[index].code == "precondition_failed"
        assert "larger than" in answers[index].reason
    # Some may have arrived before the channel was closed, and again; in order all the same.
    assert list(dict.fromkeys(ids(place.received()))) == good
    assert place.transport.send(made(1), seconds_max=SECONDS_MAX) == [DELIVERED]


def test_what_the_broker_makes_of_an_expression(rabbit: PrivateRabbitMQ) -> None:
    """The private broker answers what an expression is worth, or in whose words it failed."""
    assert rabbit.evaluate("1 + 2") == "3"
    with pytest.raises(ServerFailed, match="undef"):
        rabbit.evaluate("nothing:here()")


def test_what_was_answered_is_not_sent_again(place: AmqpPlace) -> None:
    """When the one that closes the channel is looked for, only those without an answer are sent."""
    messages = made(3)
    place.transport.send(made(1), seconds_max=SECONDS_MAX)
    line = line_of(place.transport)
    batch = _Batch(messages, [place.transport._frames(line, message) for message in messages])
    batch.settle(1, DELIVERED)

    place.transport._send_singly(batch, time.monotonic() + SECONDS_MAX)

    assert batch.final() == [DELIVERED] * 3
    assert ids(place.received())[1:] == [messages[0].id, messages[2].id]


def test_a_callback_that_fails(place: AmqpPlace) -> None:
    """An error on the thread of the connection ends the connection, with its words."""

    def fail() -> None:
        raise ArithmeticError("no such number")

    place.transport.send(made(1), seconds_max=SECONDS_MAX)
    line = line_of(place.transport)

    line._connection.call(fail)
    ending = until(lambda: line.ending, what="the end")

    assert ending is not None
    assert ending.reason == "ArithmeticError: no such number"
    assert place.transport.send(made(1), seconds_max=SECONDS_MAX) == [DELIVERED]


def test_larger_than_a_frame(place: AmqpPlace) -> None:
    """A body that needs several frames arrives whole, and so does the one behind it."""
    messages = made(2)
    body = msgspec.json.encode("a" * FRAME_BYTES_MAX)
    messages[0] = msgspec.structs.replace(messages[0], raw=body)

    answers = place.transport.send(messages, seconds_max=SECONDS_MAX)

    assert answers == [DELIVERED] * 2
    assert [came.raw for came in place.received()] == [body, messages[1].raw]


@pytest.mark.parametrize(
    "headers", [{f"h{number}": "ä" * 4096 for number in range(20)}, {"tenant": "\ud800"}]
)
def test_headers_that_cannot_travel(place: AmqpPlace, headers: dict[str, str]) -> None:
    """Headers that fit into no frame, or are no UTF-8, spoil only their own message."""
    messages = made(3)
    messages[1] = msgspec.structs.replace(messages[1], headers=headers)

    answers = place.transport.send(messages, seconds_max=SECONDS_MAX)

    assert delivered(messages, answers) == [messages[0].id, messages[2].id]
    assert (answers[1].result, answers[1].code) == (SendResult.UNDELIVERABLE, "not_encodable")


def test_a_moment_before_all_others(place: AmqpPlace) -> None:
    """A message of a time that AMQP has no timestamp for keeps its own as a CloudEvent."""
    moment = datetime(1969, 7, 20, 20, 17, tzinfo=UTC)
    (message,) = [msgspec.structs.replace(one, created_at=moment) for one in made(1)]

    answers = place.transport.send([message], seconds_max=SECONDS_MAX)

    assert answers == [DELIVERED]
    assert [came.created_at for came in place.received()] == [moment]


def test_a_full_queue(rabbit: PrivateRabbitMQ) -> None:
    """What a queue turns away is REFUSED, and may be taken later."""
    place = AmqpPlace(rabbit, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    place.transport.send(made(1), seconds_max=SECONDS_MAX)

    (answer,) = place.transport.send(made(1), seconds_max=SECONDS_MAX)

    assert (answer.result, answer.code) == (SendResult.REFUSED, "nacked")
    place.end()


@contextmanager
def memory_alarm(server: PrivateRabbitMQ) -> Iterator[None]:
    """The broker takes nothing; every connection that there was knows, its client not yet."""
    watermark = "vm_memory_monitor:set_vm_memory_high_watermark"
    server.evaluate(f"{watermark}({{absolute, {MEMORY_BYTES_TOO_FEW}}})")
    try:
        until(lambda: "running" not in server.evaluate(STATES), what="the alarm")
        yield
    finally:
        server.evaluate(f"{watermark}(0.6)")


def line_of(transport: AmqpTransport) -> _BrokerSession:
    """The connection that is in use."""
    assert transport._session is not None
    return transport._session


def test_a_broker_that_takes_nothing(place: AmqpPlace) -> None:
    """A broker that has said so: all is UNKNOWN (`blocked`); what was not written is never sent."""
    kept, withdrawn, later = made(2), made(2), made(2)
    place.transport.send(made(1), seconds_max=SECONDS_MAX)
    line = line_of(place.transport)
    written = _Batch(kept, [place.transport._frames(line, message) for message in kept])

    with memory_alarm(place.server):
        # As a call does, which would wait for its limit and not for the word of the broker.
        line.hand_over(written)
        until(lambda: line._connection.blocked, what="the word of the broker")
        line.give_up(written)
        answers = written.final()
        answers += place.transport.send(withdrawn, seconds_max=IMPATIENT_SECONDS)
    third = place.transport.send(later, seconds_max=SECONDS_MAX)

    codes = [(answer.result, answer.code) for answer in answers]
    assert codes == [(SendResult.UNKNOWN, "blocked")] * 4
    assert third == [DELIVERED] * 2
    assert line_of(place.transport) is line
    assert ids(place.received())[1:] == [*ids(kept), *ids(later)]


def test_a_broker_that_takes_nothing_for_a_while(place: AmqpPlace) -> None:
    """What waits for a broker that takes nothing is sent once it does, in order."""
    first, second = made(3), made(3)
    place.transport.send(made(1), seconds_max=SECONDS_MAX)
    line = line_of(place.transport)

    with ThreadPoolExecutor(2) as pool:
        with memory_alarm(place.server):
            sending = [pool.submit(place.transport.send, first, seconds_max=SECONDS_MAX)]
            until(lambda: line._connection.blocked, what="the word of the broker")
            sending += [pool.submit(place.transport.send, second, seconds_max=SECONDS_MAX)]
            until(lambda: line._waiting, what="waiting")
            early = [sent.done() for sent in sending]
        answers = [sent.result(SECONDS_MAX) for sent in sending]

    assert early == [False, False]
    assert answers == [[DELIVERED] * 3] * 2
    assert ids(place.received())[1:] == ids(first + second)


def test_a_broker_that_has_not_said_that_it_takes_nothing(place: AmqpPlace) -> None:
    """What it does not confirm is UNKNOWN (`timeout`); the next call has another connection."""
    place.transport.send(made(1), seconds_max=SECONDS_MAX)
    line = line_of(place.transport)

    place.pause()
    answers = place.transport.send(made(2), seconds_max=IMPATIENT_SECONDS)
    place.resume()
    later = place.transport.send(made(2), seconds_max=SECONDS_MAX)

    codes = [(answer.result, answer.code) for answer in answers]
    assert codes == [(SendResult.UNKNOWN, "timeout")] * 2
    assert later == [DELIVERED] * 2
    assert line_of(place.transport) is not line


def test_killed_in_the_middle(place: AmqpPlace) -> None:
    """Of those on their way to a broker that dies the DELIVERED are there afterwards."""
    body = msgspec.json.encode("a" * 4096)
    many = [msgspec.structs.replace(message, raw=body) for message in made(1000)]
    unheard = made(5)
    place.server.write_out()
    place.transport.send(made(1), seconds_max=SECONDS_MAX)
    line = line_of(place.transport)

    with ThreadPoolExecutor(2) as pool:
        sending = [pool.submit(place.transport.send, many, seconds_max=SECONDS_MAX)]
        until(lambda: confirmed(line) > 100 or sending[0].done(), what="confirming")
        place.pause()
        sending += [pool.submit(place.transport.send, unheard, seconds_max=SECONDS_MAX)]
        until(lambda: is_on_its_way(line, unheard), what="sending to a broker that is silent")
        place.stop()
        answers, lost = (sent.result(SECONDS_MAX) for sent in sending)
    with pytest.raises(TargetDown):
        place.transport.send(made(1), seconds_max=SECONDS_MAX)
    place.start()

    assert {answer.result for answer in answers} <= {SendResult.DELIVERED, SendResult.UNKNOWN}
    assert {(answer.result, answer.code) for answer in lost} == {
        (SendResult.UNKNOWN, "connection_lost")
    }
    kept = delivered(many, answers)
    assert kept
    assert set(kept) <= set(ids(place.received()))
    assert place.transport.send(made(1), seconds_max=SECONDS_MAX) == [DELIVERED]


def is_on_its_way(line: _BrokerSession, messages: list[Message]) -> bool:
    """Whether the connection has them, and no answer."""
    with line._lock:
        return any(batch.messages is messages and batch.written for batch in line._batches)


def confirmed(line: _BrokerSession) -> int:
    """How many the broker has confirmed on this connection."""
    return line._next - 1 - len(line._pending)


def test_closed_while_sending(place: AmqpPlace) -> None:
    """Close ends what is on its way: each answer is DELIVERED or UNKNOWN, and true."""
    messages = made(500)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(place.transport.send, messages, seconds_max=SECONDS_MAX)
        until(lambda: place.count() > 0 or sending.done(), what="arriving")
        place.transport.close()
        answers = sending.result(SECONDS_MAX)

    assert {answer.result for answer in answers} <= {SendResult.DELIVERED, SendResult.UNKNOWN}
    assert set(delivered(messages, answers)) <= set(ids(place.received()))


def test_closed_in_silence(place: AmqpPlace) -> None:
    """Close does not wait for a broker that says nothing, and leaves no thread behind."""
    url = f"{place.server.url}?heartbeat=0"
    transport = AmqpTransport("shop", msgspec.structs.replace(place.settings, url=url), SOURCE)
    transport.send(made(1), seconds_max=SECONDS_MAX)
    line = line_of(transport)
    place.pause()

    transport.close()

    # Still silent, and no heartbeat is missed: only the limit of closing can have ended it.
    until(lambda: not line._thread.is_alive(), what="the end of the connection")
    place.resume()


def test_a_wrong_password(place: AmqpPlace) -> None:
    """A broker that lets nobody in is out of reach, in its own words and without the password."""
    url = place.server.url.replace("guest:guest", "guest:geheim")
    transport = AmqpTransport("shop", DestinationSettings(url=url), SOURCE)

    with pytest.raises(TargetDown) as down:
        transport.send(made(1), seconds_max=SECONDS_MAX)

    assert "ACCESS_REFUSED" in str(down.value)
    assert "geheim" not in str(down.value)


def test_a_missing_virtual_host(place: AmqpPlace) -> None:
    """A virtual host that is not there is told by its name."""
    transport = AmqpTransport("shop", DestinationSettings(url=f"{place.server.url}nope"), SOURCE)

    with pytest.raises(TargetDown, match="nope"):
        transport.send(made(1), seconds_max=SECONDS_MAX)


@pytest.mark.parametrize(
    "settings",
    [
        DestinationSettings(url="amqp://guest:geheim@localhost:port/"),
        DestinationSettings(url="amqp://guest:geheim#1@localhost/"),
        DestinationSettings(url="amqps://guest:geheim@localhost/", ca_file="missing.pem"),
        DestinationSettings(url="amqps://guest:geheim@localhost/", certificate_file="missing.pem"),
    ],
)
def test_settings_that_cannot_be_right(settings: DestinationSettings) -> None:
    """A URL or a file that cannot be read is refused when the transport is made."""
    with pytest.raises(BadInput) as refused:
        AmqpTransport("shop", settings, SOURCE)

    assert "shop" in str(refused.value)
    assert "geheim" not in str(refused.value)


def test_tls(place: AmqpPlace, broker_authority: PrivateAuthority) -> None:
    """Over TLS both sides show who they are; who cannot is out of reach, with the reason."""
    arrived: list[Delivery] = []
    messages = made(50)
    known: dict[str, Any] = {"ca_file": str(broker_authority.ca_file)}
    shown = known | {"certificate_file": str(broker_authority.certificate(["shop"]))}
    url = place.server.tls_url
    plain = msgspec.structs.replace(place.settings, url=url)
    nameless = msgspec.structs.replace(plain, **known)
    transport = AmqpTransport("shop", msgspec.structs.replace(plain, **shown), SOURCE)
    subscription = AmqpSubscription(
        "shop", SubscriptionSettings(url=url, queue=place.queue, **shown)
    )

    def keep(delivery: Delivery) -> None:
        arrived.append(delivery)
        delivery.ack()

    answers = transport.send(messages, seconds_max=SECONDS_MAX)
    subscription.start(keep)
    until(lambda: len(arrived) == 50, what="arriving")
    with pytest.raises(TargetDown, match="CERTIFICATE_VERIFY_FAILED"):
        AmqpTransport("stranger", plain, SOURCE).send(made(1), seconds_max=SECONDS_MAX)
    with pytest.raises(TargetDown):
        AmqpTransport("nameless", nameless, SOURCE).send(made(1), seconds_max=SECONDS_MAX)

    transport.close()
    subscription.close()
    assert answers == [DELIVERED] * 50
    assert [message_of(delivery).id for delivery in arrived] == ids(messages)


def threads_of(name: str) -> list[str]:
    """The threads of this process that belong to a destination or subscription of this name."""
    return [each.name for each in threading.enumerate() if each.name.endswith(f" {name}")]


def connections_of(rabbit: PrivateRabbitMQ, name: str) -> int:
    """How many connections the broker has from a destination or subscription of this name."""
    # A connection may end while it is asked.
    told = "(try rabbit_networking:connection_info(P, [client_properties]) catch _:_ -> [] end)"
    known = f'{{<<"connection_name">>, longstr, <<"ledgerstone {name}">>}}'
    of_it = f"{{client_properties, T}} <- {told}, lists:member({known}, T)"
    return int(rabbit.evaluate(f"length([P || P <- {CONNECTIONS}, {of_it}])"))


@pytest.mark.parametrize("ends", ["worker", "ledger"])
def test_nothing_is_left_open(rabbit: PrivateRabbitMQ, tmp_path: Path, ends: str) -> None:
    """A worker that has stopped, or a ledger that is closed, leaves no thread and no connection."""
    queue, name = f"left-{new_id()}", f"broker{new_id()[-8:]}"
    with connected(rabbit.url) as connection:
        connection.channel().queue_declare(queue, durable=True)
    place = {"url": rabbit.url, "exchange": "", "routing_key": queue}
    settings = Settings.load(
        url=f"sqlite:///{tmp_path / 'here.db'}",
        environ={},
        messaging={
            "destinations": {name: place},
            "routes": {"*": [name]},
            "subscriptions": {name: {"url": rabbit.url, "queue": queue}},
        },
    )
    ledger = Ledger(settings=settings)
    came = threading.Event()
    ledger.consumer("*", name="hear")(lambda _tx, _message: came.set())
    worker = ledger.worker(ledger.relay_source(name))
    receiver = ledger.worker(ledger.deliveries(name))
    with ledger.transaction() as tx:
        tx.outbox.publish("order.placed", 1)
    worker.start()
    receiver.start()
    assert came.wait(WAIT_SECONDS_MAX)
    open_before = threads_of(name)
    known_before = connections_of(rabbit, name)

    worker.stop()
    if ends == "worker":
        receiver.stop()
    else:
        ledger.close()
    left = threads_of(name)
    ledger.close()

    assert (bool(open_before), known_before) == (True, 2)
    assert left == []
    until(lambda: connections_of(rabbit, name) == 0, what="the end of the connections")
    sends = f"ledgerstone-send-{name}"
    assert sends not in [each.name for each in threading.enumerate()]
