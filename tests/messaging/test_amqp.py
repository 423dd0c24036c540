"""AMQP on a real RabbitMQ: the transport contract, refusals, crashes, TLS."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

import msgspec
import pika
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ledgerstone.errors import BadInput, TargetDown
from ledgerstone.messaging.amqp.connection import CLOSE_SECONDS_MAX
from ledgerstone.messaging.amqp.wire import message_of
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.subscription import Delivery
from ledgerstone.messaging.subscriptions.amqp import AmqpSubscription, _Delivery
from ledgerstone.messaging.transport import DELIVERED, Verdict
from ledgerstone.messaging.transports.amqp import AmqpTransport
from ledgerstone.settings.messaging import DestinationSettings, SubscriptionSettings
from ledgerstone.testing.contract.transports import (
    OutageContract,
    RefusalContract,
    TransportContract,
    delivered,
    ids,
    made,
)
from ledgerstone.testing.servers.rabbitmq import Certificates, PrivateRabbitMQ
from ledgerstone.testing.waiting import until
from tests.conftest import BROKER_BODY_BYTES_MAX

pytestmark = [
    pytest.mark.rabbitmq,
    pytest.mark.slow,
    pytest.mark.xdist_group("rabbitmq"),
]

SECONDS_MAX = 30.0
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
            return [channel.basic_get(self.queue) for _ in range(count)]

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
        self._connection = pika.BlockingConnection(pika.URLParameters(url))

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


class TestOutages(OutageContract):
    """A broker that is killed, or says nothing."""

    @pytest.fixture
    def place(self, place: AmqpPlace) -> AmqpPlace:
        place.server.write_out()
        return place


class TestStructuredToQuorum(TransportContract, RefusalContract):
    """Structured, to a quorum queue."""

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

    assert answer.verdict is Verdict.UNDELIVERABLE
    assert answer.code == "unroutable"
    for word in (place.exchange, "nobody.listens", "312 NO_ROUTE"):
        assert word in answer.reason


def test_unroutable_twice_at_once(place: AmqpPlace) -> None:
    """The same unroutable message twice on its way is answered twice."""
    (message,) = made(1, "nobody.listens")

    answers = place.transport.send([message, *made(1), message], seconds_max=SECONDS_MAX)

    assert [answer.code for answer in answers] == ["unroutable", "", "unroutable"]


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
    assert {(a.verdict, a.code) for a in before} == {(Verdict.REFUSED, "no_exchange")}
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

    assert {(a.verdict, a.code) for a in first} == {(Verdict.UNKNOWN, "no_exchange")}
    assert {(a.verdict, a.code) for a in second} == {(Verdict.REFUSED, "no_exchange")}
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
        assert answers[index].verdict is Verdict.REFUSED
        assert answers[index].code == "precondition_failed"
        assert "larger than" in answers[index].reason
    # Some may have arrived before the channel was closed, and again; in order all the same.
    assert list(dict.fromkeys(ids(place.received()))) == good
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
    assert (answers[1].verdict, answers[1].code) == (Verdict.UNDELIVERABLE, "not_encodable")


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

    assert (answer.verdict, answer.code) == (Verdict.REFUSED, "nacked")
    place.end()


def test_a_broker_that_takes_nothing(place: AmqpPlace) -> None:
    """Under a memory alarm all is UNKNOWN in time; what was not written is never sent."""
    written, withdrawn, later = made(2), made(2), made(2)
    place.transport.send(made(1), seconds_max=SECONDS_MAX)
    place.server.control("set_vm_memory_high_watermark", "absolute", "1000000")
    try:
        first = place.transport.send(written, seconds_max=1.0)
        began = time.monotonic()
        second = place.transport.send(withdrawn, seconds_max=1.0)
        took = time.monotonic() - began
    finally:
        place.server.control("set_vm_memory_high_watermark", "0.6")

    third = place.transport.send(later, seconds_max=SECONDS_MAX)

    assert {answer.code for answer in first + second} == {"blocked"}
    assert {answer.verdict for answer in first + second} == {Verdict.UNKNOWN}
    assert took < 3.0
    assert third == [DELIVERED] * 2
    assert ids(place.received())[1:] == [*ids(written), *ids(later)]


def test_killed_in_the_middle(place: AmqpPlace) -> None:
    """Of 5,000 messages on their way to a broker that dies, the DELIVERED are there afterwards."""
    body = msgspec.json.encode("a" * 4096)
    messages = [msgspec.structs.replace(message, raw=body) for message in made(5000)]
    place.server.write_out()

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(place.transport.send, messages, seconds_max=SECONDS_MAX)
        until(lambda: confirmed(place.transport) > 500 or sending.done(), what="confirming")
        place.stop()
        answers = sending.result(SECONDS_MAX)
    with pytest.raises(TargetDown):
        place.transport.send(messages[:1], seconds_max=SECONDS_MAX)
    place.start()

    verdicts = {answer.verdict for answer in answers}
    assert verdicts == {Verdict.DELIVERED, Verdict.UNKNOWN}
    assert set(delivered(messages, answers)) <= set(ids(place.received()))
    assert place.transport.send(made(1), seconds_max=SECONDS_MAX) == [DELIVERED]


def confirmed(transport: AmqpTransport) -> int:
    """How many the broker has confirmed on the connection that is in use."""
    line = transport._line
    return 0 if line is None else line._next - 1 - len(line._pending)


def test_closed_while_sending(place: AmqpPlace) -> None:
    """Close ends what is on its way: each answer is DELIVERED or UNKNOWN, and true."""
    messages = made(3000)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(place.transport.send, messages, seconds_max=SECONDS_MAX)
        until(lambda: place.count() > 0 or sending.done(), what="arriving")
        place.transport.close()
        answers = sending.result(SECONDS_MAX)

    assert {answer.verdict for answer in answers} <= {Verdict.DELIVERED, Verdict.UNKNOWN}
    assert set(delivered(messages, answers)) <= set(ids(place.received()))


def test_closed_in_silence(place: AmqpPlace) -> None:
    """Close does not wait for a broker that says nothing."""
    place.transport.send(made(1), seconds_max=SECONDS_MAX)
    place.pause()
    began = time.monotonic()

    place.transport.close()

    took = time.monotonic() - began
    place.resume()
    assert took < 2 * CLOSE_SECONDS_MAX


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


class Authority:
    """An authority that signs certificates for the tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
        self._own = self._signed(self._name, self._key, authority=True)
        self.pem = _pem(self._own)
        self.file = self._written("authority.pem", self.pem)

    def issue(self, name: str) -> tuple[str, str]:
        """A certificate for localhost, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return _pem(self._signed(subject, key, authority=False)), secret.decode()

    def issued(self, name: str) -> tuple[str, str]:
        """The same, as files."""
        certificate, key = self.issue(name)
        return self._written(f"{name}.pem", certificate), self._written(f"{name}.key", key)

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )

    def _written(self, name: str, text: str) -> str:
        path = self._folder / name
        path.write_text(text)
        return str(path)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def test_tls(tmp_path: Path) -> None:
    """Over TLS both sides show who they are; who cannot is out of reach, with the reason."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("broker")
    file, key_file = authority.issued("shop")
    arrived: list[Delivery] = []
    messages = made(500)

    def keep(delivery: Delivery) -> None:
        arrived.append(delivery)
        delivery.ack()

    shown = Certificates(authority=authority.pem, certificate=certificate, key=key)
    with PrivateRabbitMQ(tls=shown) as server:
        place = AmqpPlace(server)
        known: dict[str, Any] = {"ca_file": authority.file}
        known |= {"certificate_file": file, "key_file": key_file}
        plain = msgspec.structs.replace(place.settings, url=server.tls_url)
        transport = AmqpTransport("shop", msgspec.structs.replace(plain, **known), SOURCE)
        subscription = AmqpSubscription(
            "shop", SubscriptionSettings(url=server.tls_url, queue=place.queue, **known)
        )
        answers = transport.send(messages, seconds_max=SECONDS_MAX)
        subscription.start(keep)
        until(lambda: len(arrived) == 500, what="arriving")
        with pytest.raises(TargetDown, match="CERTIFICATE_VERIFY_FAILED"):
            AmqpTransport("stranger", plain, SOURCE).send(made(1), seconds_max=SECONDS_MAX)
        nameless = msgspec.structs.replace(plain, ca_file=authority.file)
        with pytest.raises(TargetDown):
            AmqpTransport("nameless", nameless, SOURCE).send(made(1), seconds_max=SECONDS_MAX)
        transport.close()
        subscription.close()

    assert answers == [DELIVERED] * 500
    assert [message_of(delivery).id for delivery in arrived] == ids(messages)
