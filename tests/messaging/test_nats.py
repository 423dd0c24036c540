"""NATS JetStream, against a real server: streams, refusals, users, TLS, and a server that dies."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
import pytest
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, StreamConfig

from ledgerstone.errors import BadInput, TargetDown
from ledgerstone.messaging import cloudevents
from ledgerstone.messaging.brokers.transport import DELIVERED, Answer, SendResult
from ledgerstone.messaging.brokers.transports.nats import NatsTransport, _Session
from ledgerstone.messaging.message import Message
from ledgerstone.settings.messaging import DestinationSettings
from ledgerstone.testing.contracts.transport import (
    OutageContract,
    RefusalContract,
    TransportContract,
    delivered,
    ids,
    made,
)
from ledgerstone.testing.server import HOST, free_port
from ledgerstone.testing.servers.nats import PrivateNats
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.harness.authority import PrivateAuthority
from tests.harness.sizes import sized

pytestmark = [pytest.mark.nats, pytest.mark.xdist_group("messaging-nats")]

SECONDS_MAX = WAIT_SECONDS_MAX
IMPATIENT_SECONDS = 0.2
SOURCE = "/shop"
NAME = "stream"
USERS = """
accounts {
    SHOP {
        jetstream: enabled
        users: [
            { user: "ann", password: "p@ss/1" }
            { user: "bob", password: "b", permissions: { publish: { deny: ["Ev.order.placed"] } } }
            { user: "cat", password: "c", permissions: { publish: { deny: ["$JS.API.>"] } } }
        ]
    }
    PLAIN { users: [{ user: "eve", password: "e" }] }
}
no_auth_user: "ann"
# A client may take its time on a machine that is busy.
authorization { timeout: 300 }
"""

T = TypeVar("T")
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateNats]:
    with PrivateNats(lines=[USERS]) as server:
        yield server


@pytest.fixture
def prefix() -> str:
    """What the subjects of a test begin with, for its own stream."""
    return f"t{next(_numbers)}."


def asked(server: PrivateNats, ask: Callable[[Client], Awaitable[T]], **given: Any) -> T:
    """What a client of one's own gets to know."""

    async def talk() -> T:
        client = Client()
        await client.connect(server.url, connect_timeout=int(SECONDS_MAX), **given)
        try:
            return await ask(client)
        finally:
            await client.close()

    return asyncio.run(talk())


def add_stream(server: PrivateNats, prefix: str, **given: Any) -> str:
    name = prefix.rstrip(".")
    subjects = [f"{prefix}order.>"]

    async def add(client: Client) -> None:
        streams = client.jetstream(timeout=SECONDS_MAX)
        await streams.add_stream(StreamConfig(name=name, subjects=subjects, **given))

    asked(server, add)
    return name


def stored(server: PrivateNats, stream: str) -> list[tuple[str, dict[str, str], bytes]]:
    """What the stream holds: subject, headers and body of each."""

    async def read(client: Client) -> list[tuple[str, dict[str, str], bytes]]:
        streams = client.jetstream(timeout=SECONDS_MAX)
        count = (await streams.stream_info(stream)).state.messages
        reader = await streams.subscribe(f"{stream}.>", stream=stream, ordered_consumer=True)
        found = [await reader.next_msg(timeout=SECONDS_MAX) for _ in range(count)]
        return [(held.subject, dict(held.headers or {}), held.data) for held in found]

    return asked(server, read)


def read_back(headers: dict[str, str], body: bytes) -> Message:
    own = {name: value for name, value in headers.items() if not name.startswith("ce-")}
    if headers["Content-Type"] == cloudevents.STRUCTURED:
        return cloudevents.of_document(body, own)
    attributes = {
        name.removeprefix("ce-"): unquote(value, errors="strict")
        for name, value in headers.items()
        if name.startswith("ce-")
    }
    return cloudevents.of_attributes(attributes, body, own)


Make = Callable[..., NatsTransport]


@pytest.fixture
def make(server: PrivateNats, prefix: str) -> Iterator[Make]:
    """Makes transports to the server, and closes them."""
    opened: list[NatsTransport] = []

    def made_with(**given: Any) -> NatsTransport:
        settings = {"url": server.url, "subject_prefix": prefix, **given}
        transport = NatsTransport(NAME, DestinationSettings(**settings), SOURCE)
        opened.append(transport)
        return transport

    yield made_with
    for transport in opened:
        transport.close()


def send(transport: NatsTransport, *messages: Message) -> list[Answer]:
    return transport.send(messages, seconds_max=SECONDS_MAX)


def one(name: str = "order.placed", **given: Any) -> Message:
    (message,) = made(1, name)
    return msgspec.structs.replace(message, **given)


class StreamPlace:
    """A stream, and the transport that leads there."""

    name = NAME
    refused_name = "invoice.sent"

    def __init__(self, server: PrivateNats, stream: str, transport: NatsTransport) -> None:
        self._server = server
        self._stream = stream
        self.transport = transport
        self.stop = server.kill
        self.start = server.restart
        self.pause = server.pause
        self.resume = server.resume

    def received(self) -> list[Message]:
        return [read_back(headers, body) for _, headers, body in stored(self._server, self._stream)]


class TestStreams(TransportContract, RefusalContract):
    """JetStream keeps the contract of transports."""

    full_batch = sized(200, full=1000)
    test_many_at_once = pytest.mark.torture(TransportContract.test_many_at_once)

    @pytest.fixture(params=["binary", "structured"])
    def place(
        self, server: PrivateNats, prefix: str, make: Make, request: pytest.FixtureRequest
    ) -> StreamPlace:
        """A stream of the test's own."""
        return StreamPlace(server, add_stream(server, prefix), make(format=request.param))


class TestOutages(OutageContract):
    """A server that is killed, or says nothing; what a message looks like makes no difference."""

    @pytest.fixture
    def place(self, server: PrivateNats, prefix: str, make: Make) -> StreamPlace:
        """A stream of the test's own."""
        return StreamPlace(server, add_stream(server, prefix), make())


def test_what_is_published(server: PrivateNats, prefix: str, make: Make) -> None:
    """The subject is prefix and name, the id is Nats-Msg-Id, the attributes are `ce-` headers."""
    stream = add_stream(server, prefix)
    message = one(headers={"X-Tenant": "Zoë"}, partition="ä b%")

    answers = send(make(), message)

    ((subject, headers, body),) = stored(server, stream)
    assert answers == [DELIVERED]
    assert (subject, body) == (f"{prefix}order.placed", message.raw)
    assert headers["Nats-Msg-Id"] == headers["ce-id"] == message.id
    assert headers["X-Tenant"] == "Zoë"
    assert headers["ce-partitionkey"] == "%C3%A4%20b%25"
    assert headers["Content-Type"] == headers["ce-datacontenttype"] == "application/json"


def test_sent_again_it_is_stored_once(server: PrivateNats, prefix: str, make: Make) -> None:
    """The stream recognises by its id what is sent again, and that counts as delivered."""
    stream = add_stream(server, prefix)
    transport, message = make(), one()

    answers = [*send(transport, message), *send(transport, message, message)]

    assert answers == [DELIVERED] * 3
    assert len(stored(server, stream)) == 1


def test_no_stream_listens(server: PrivateNats, prefix: str, make: Make) -> None:
    """A subject that no stream has is unroutable, by its name."""
    add_stream(server, prefix)

    (answer,) = send(make(), one("invoice.sent"))

    assert (answer.result, answer.code) == (SendResult.UNDELIVERABLE, "unroutable")
    assert f"{prefix}invoice.sent" in answer.reason


def test_somebody_listens_who_is_no_stream(server: PrivateNats, prefix: str, make: Make) -> None:
    """A client that listens, and even answers, is no stream that keeps it."""
    transport = make()

    async def listen(client: Client) -> list[Answer]:
        heard: list[bytes] = []

        async def answer(msg: Any) -> None:
            heard.append(msg.data)
            await msg.respond(b"thanks" if len(heard) % 2 else b'{"ok": true}')

        await client.subscribe(f"{prefix}>", cb=answer)
        await client.flush(timeout=int(SECONDS_MAX))
        return await asyncio.to_thread(send, transport, one(), one())

    answers = asked(server, listen)

    assert {(a.result, a.code) for a in answers} == {(SendResult.REFUSED, "no_stream")}


def test_a_stream_that_does_not_answer(server: PrivateNats, prefix: str, make: Make) -> None:
    """Where a stream has the subject, nobody's answer is UNKNOWN: it may be electing its leader."""
    add_stream(server, prefix)
    transport = make()
    send(transport, one())
    session = transport._session
    assert session is not None
    client = session._client
    assert client is not None

    answers = [
        session.thread.run(session._looked_up(client, f"{prefix}{name}", SECONDS_MAX))
        for name in ("order.placed", "invoice.sent")
    ]

    assert [(answer.result, answer.code) for answer in answers] == [
        (SendResult.UNKNOWN, "no_leader"),
        (SendResult.UNDELIVERABLE, "unroutable"),
    ]


def test_silent_until_the_limit(server: PrivateNats, prefix: str, make: Make) -> None:
    """What a silent server does not confirm is UNKNOWN (`timeout`): the limit ended the wait."""
    add_stream(server, prefix)
    transport = make()
    send(transport, one())

    server.pause()
    answers = transport.send([one(), one()], seconds_max=IMPATIENT_SECONDS)
    server.resume()

    assert [(answer.result, answer.code) for answer in answers] == [
        (SendResult.UNKNOWN, "timeout")
    ] * 2


def test_closed_while_sending(server: PrivateNats, prefix: str, make: Make) -> None:
    """Close ends what is under way to a silent server: it is UNKNOWN; the next call connects."""
    add_stream(server, prefix)
    transport = make()
    messages = made(3)
    send(transport, one())
    session = transport._session
    assert session is not None

    server.pause()
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send, transport, *messages)
        until(lambda: is_under_way(session, messages), what="sending")
        transport.close()
        answers = sending.result(SECONDS_MAX)
    server.resume()

    assert [(answer.result, answer.code) for answer in answers] == [
        (SendResult.UNKNOWN, "lost")
    ] * 3
    assert send(transport, one()) == [DELIVERED]


def test_closed_before_it_was_sent(server: PrivateNats, prefix: str, make: Make) -> None:
    """A call whose connection is closed by another thread before it begins is UNKNOWN."""
    add_stream(server, prefix)
    transport = make()
    send(transport, one())
    session = transport._session
    assert session is not None

    session.thread.close(session.end())
    answers = send(transport, one(), one())

    assert [(answer.result, answer.code) for answer in answers] == [
        (SendResult.UNKNOWN, "lost")
    ] * 2


def test_without_jetstream(server: PrivateNats, make: Make) -> None:
    """An account without JetStream is a destination out of reach: no message is to blame."""
    transport = make(url=f"nats://eve:e@{HOST}:{server.port}")

    with pytest.raises(TargetDown, match="JetStream"):
        send(transport, one(), one())


def test_a_stream_that_is_full(server: PrivateNats, prefix: str, make: Make) -> None:
    """What the stream refuses is refused in its words, and may be taken later."""
    add_stream(server, prefix, max_msgs=2, discard=DiscardPolicy.NEW)

    answers = send(make(), *[one() for _ in range(4)])

    assert answers[:2] == [DELIVERED] * 2
    assert {answer.result for answer in answers[2:]} == {SendResult.REFUSED}
    assert {answer.code for answer in answers[2:]} == {"jetstream_10077"}
    assert answers[3].reason == "maximum messages exceeded"


def test_too_large_for_the_stream(server: PrivateNats, prefix: str, make: Make) -> None:
    """What is larger than the stream takes is undeliverable."""
    add_stream(server, prefix, max_msg_size=2000)
    large = one(raw=b'"%s"' % (b"x" * 5000))

    answers = send(make(), large, one())

    assert (answers[0].result, answers[0].code) == (SendResult.UNDELIVERABLE, "too_large")
    assert answers[1] == DELIVERED


@pytest.mark.parametrize("over", [0, 1])
def test_too_large_for_the_server(server: PrivateNats, prefix: str, make: Make, over: int) -> None:
    """What would end the connection is not sent, to the byte: others are delivered beside it."""
    add_stream(server, prefix)
    transport = make()
    empty = one(raw=b"")
    room = 1_048_576 - transport._publication(empty).size
    large = msgspec.structs.replace(empty, raw=b"1" * (room + over))

    answers = send(transport, one(), large, one())

    assert [answer.code for answer in answers] == ["", "too_large" if over else "", ""]


def test_a_message_that_cannot_be_sent(server: PrivateNats, prefix: str, make: Make) -> None:
    """What NATS cannot carry is undeliverable, and spoils nothing."""
    add_stream(server, prefix)

    answers = send(make(), one(headers={"no name": "x"}), one())

    assert (answers[0].result, answers[0].code) == (SendResult.UNDELIVERABLE, "unsendable")
    assert answers[1] == DELIVERED


def test_headers_that_steer_the_stream(server: PrivateNats, prefix: str, make: Make) -> None:
    """A header by which NATS is given orders does not travel."""
    stream = add_stream(server, prefix, allow_rollup_hdrs=True)
    transport = make()

    answers = send(transport, one(), one(headers={"Nats-Rollup": "all"}))

    assert answers == [DELIVERED] * 2
    assert len(stored(server, stream)) == 2


def test_user_and_password(server: PrivateNats, prefix: str, make: Make) -> None:
    """User and password are taken from the URL, where they are percent-encoded."""
    add_stream(server, prefix)
    address = f"{HOST}:{server.port}"

    answers = send(make(url=f"nats://ann:p%40ss%2F1@{address}"), one())

    assert answers == [DELIVERED]


def test_a_wrong_password(server: PrivateNats, make: Make) -> None:
    """Who is not let in is told why, without the password, each time."""
    transport = make(url=f"nats://ann:wrong-one@{HOST}:{server.port}")
    for _ in range(50):
        with pytest.raises(TargetDown, match=r"(?i)authorization") as down:
            send(transport, one())

        assert "wrong-one" not in str(down.value)


def test_who_may_not_publish(server: PrivateNats, make: Make) -> None:
    """A subject that the user may not publish to is refused at once, others are not."""
    add_stream(server, "Ev.")
    transport = make(url=f"nats://bob:b@{HOST}:{server.port}", subject_prefix="Ev.")

    answers = send(transport, one(), one("order.paid"))

    assert (answers[0].result, answers[0].code) == (SendResult.REFUSED, "not_allowed")
    assert answers[1] == DELIVERED


def test_who_may_not_list_the_streams(server: PrivateNats, prefix: str, make: Make) -> None:
    """Where nobody listens and the user may not ask why, it is refused without waiting for more."""
    add_stream(server, prefix)
    transport = make(url=f"nats://cat:c@{HOST}:{server.port}")

    answers = send(transport, one("invoice.sent"), one(), one("invoice.paid"))

    session = transport._session
    assert session is not None
    # Told by the server, not by a wait that took half of the call.
    assert session._may_not_look.is_set()
    assert [(answer.result, answer.code) for answer in answers] == [
        (SendResult.REFUSED, "no_responders"),
        (SendResult.DELIVERED, ""),
        (SendResult.REFUSED, "no_responders"),
    ]


def test_another_server_of_the_cluster(server: PrivateNats, prefix: str, make: Make) -> None:
    """Of several servers one that is there is enough."""
    add_stream(server, prefix)
    url = f"nats://{HOST}:{free_port()},{HOST}:{server.port}"

    assert send(make(url=url), one()) == [DELIVERED]


def test_killed_in_the_middle_of_many(server: PrivateNats, prefix: str, make: Make) -> None:
    """Of those under way when the server is killed, what was confirmed is kept, in order."""
    stream = add_stream(server, prefix)
    transport = make()
    messages, unheard = made(1000), made(5)
    send(transport, one())
    session = transport._session
    assert session is not None

    with ThreadPoolExecutor(2) as pool:
        sending = [pool.submit(send, transport, *messages)]
        until(lambda: stored_count(server, stream) > 100 or sending[0].done(), what="storing")
        server.pause()
        sending += [pool.submit(send, transport, *unheard)]
        until(lambda: is_under_way(session, unheard), what="sending to a server that is silent")
        server.kill()
        answers, lost = (sent.result(SECONDS_MAX) for sent in sending)
    server.restart()

    kept = [headers["Nats-Msg-Id"] for _, headers, _ in stored(server, stream)]
    assert set(delivered(messages, answers)) <= set(kept)
    assert {answer.result for answer in answers} <= {SendResult.DELIVERED, SendResult.UNKNOWN}
    assert {(answer.result, answer.code) for answer in lost} == {(SendResult.UNKNOWN, "lost")}
    assert len(kept) > 100
    assert kept[1:] == ids(messages)[: len(kept) - 1]


def stored_count(server: PrivateNats, stream: str) -> int:
    async def count(client: Client) -> int:
        info = await client.jetstream(timeout=SECONDS_MAX).stream_info(stream)
        return info.state.messages

    return asked(server, count)


def is_under_way(session: _Session, messages: list[Message]) -> bool:
    """Whether the last of them is with the client of the connection, and has no answer."""
    wanted = messages[-1].id
    return any(
        publication.headers["Nats-Msg-Id"] == wanted and not publication.settled.is_set()
        for publication in list(session._under_way.values())
    )


@pytest.mark.parametrize("prefix", ["a b.", "a..", ".a", "a.*.", ">", "a\r\nPUB x 0\r\n"])
def test_a_prefix_that_is_none(prefix: str) -> None:
    """What cannot begin a subject is refused when the transport is made."""
    settings = DestinationSettings(url="nats://localhost", subject_prefix=prefix)

    with pytest.raises(BadInput, match="subject_prefix of the destination stream"):
        NatsTransport(NAME, settings, SOURCE)


@pytest.mark.parametrize("rest", ["ann:secret@", "ann:secret@host:x", "host,,other", "host:99999"])
def test_a_url_without_a_host(rest: str) -> None:
    """A URL that names no host is refused when the transport is made, and not shown."""
    settings = DestinationSettings(url=f"nats://{rest}")

    with pytest.raises(BadInput, match="destination stream") as refused:
        NatsTransport(NAME, settings, SOURCE)

    assert "secret" not in str(refused.value)


class TestTls:
    """TLS, with an authority of the test's own."""

    @pytest.fixture
    def authority(self, tmp_path: Path) -> PrivateAuthority:
        """Whom the transport trusts."""
        return PrivateAuthority(tmp_path)

    @pytest.fixture
    def secure(self, authority: PrivateAuthority) -> Iterator[PrivateNats]:
        """A server that speaks TLS alone, and to those with a certificate."""
        files = {
            "server.pem": authority.certificate([HOST]).read_text(),
            "authority.pem": authority.ca_file.read_text(),
        }
        own = 'cert_file: "server.pem", key_file: "server.pem"'
        tls = f'tls {{ {own}, ca_file: "authority.pem", verify: true, timeout: 300 }}'
        with PrivateNats(lines=[tls, USERS], files=files) as server:
            yield server

    @pytest.mark.parametrize("scheme", ["tls", "nats"])
    def test_both_sides_are_checked(
        self, secure: PrivateNats, authority: PrivateAuthority, make: Make, scheme: str
    ) -> None:
        """With the authority and a certificate of its own it gets in; the rest is as ever."""
        transport = make(
            url=f"{scheme}://{HOST}:{secure.port}",
            ca_file=str(authority.ca_file),
            certificate_file=str(authority.certificate(["client"])),
        )

        (answer,) = send(transport, one())

        assert answer.code == "unroutable"

    def test_another_authority_is_not_trusted(self, secure: PrivateNats, make: Make) -> None:
        """A server whose authority the system does not know is not spoken to."""
        with pytest.raises(TargetDown, match=r"certificate|issuer"):
            send(make(url=f"tls://{HOST}:{secure.port}"), one())

    def test_without_tls_nothing_is_said(self, server: PrivateNats, make: Make) -> None:
        """A server that offers no TLS is told nothing where TLS is asked for."""
        for user in ("", "ann:p%40ss%2F1@"):
            with pytest.raises(TargetDown, match="does not offer TLS"):
                send(make(url=f"tls://{user}{HOST}:{server.port}"), one())
