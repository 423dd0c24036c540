"""Webhooks, against a real HTTP server: signatures, answers, order, and where it may lead."""

from __future__ import annotations

import base64
import itertools
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from standardwebhooks import Webhook

from ledgerstone.errors import BadInput, TargetDown
from ledgerstone.ledger import Ledger
from ledgerstone.messaging.brokers.transport import DELIVERED, PAUSE_SECONDS_MAX, Answer, SendResult
from ledgerstone.messaging.brokers.transports import webhook
from ledgerstone.messaging.brokers.transports.webhook import (
    HELD,
    REASON_CHARS_MAX,
    SHARES,
    SLOW_SECONDS,
    WebhookTransport,
)
from ledgerstone.messaging.brokers.webhooks import posting
from ledgerstone.messaging.brokers.webhooks.addresses import AddressScope, reach_of
from ledgerstone.messaging.brokers.webhooks.posting import BODY_BYTES_MAX
from ledgerstone.messaging.brokers.webhooks.signatures import signature, signers
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.relay.relays import relay_of
from ledgerstone.settings.messaging import DestinationSettings
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.contracts.transport import (
    OutageContract,
    RefusalContract,
    TransportContract,
    made,
)
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.harness.authority import PrivateAuthority
from tests.harness.ledgers import opened
from tests.harness.sizes import sized
from tests.harness.threads import PATIENCE_SECONDS
from tests.harness.workers import started
from tests.messaging.receiver import Receiver, Reply

SECONDS_MAX = WAIT_SECONDS_MAX
CONNECTIONS = DestinationSettings().connections_max
NEW = int(CONNECTIONS * SHARES[1])
"""New partitions have so many of them."""
SOURCE = "/shop"
NAME = "hooks"
REFUSED_NAME = "order.unwanted"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PADDED = f"whsec_{base64.b64encode(bytes(25)).decode()}"
OTHER_SECRET = f"whsec_{base64.b64encode(bytes(range(32))).decode()}"

Make = Callable[..., WebhookTransport]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transport's own limits are out of the way: the machine of a test may be slow.

    A test that is about one of them sets it to what it waits for.
    """
    monkeypatch.setattr(webhook, "REQUEST_SECONDS_MAX", WAIT_SECONDS_MAX)
    for limit in ("CONNECT", "BODY", "IDLE", "AGE"):
        monkeypatch.setattr(posting, f"{limit}_SECONDS_MAX", WAIT_SECONDS_MAX)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.stop()


@pytest.fixture
def make(receiver: Receiver) -> Iterator[Make]:
    """Makes transports to the receiver, and closes them."""
    opened: list[WebhookTransport] = []

    def made_with(
        monotonic: Callable[[], float] = time.monotonic, **given: Any
    ) -> WebhookTransport:
        settings = {"url": receiver.url, "private_addresses": True, **given}
        transport = WebhookTransport(
            NAME, DestinationSettings(**settings), SOURCE, monotonic=monotonic
        )
        opened.append(transport)
        return transport

    yield made_with
    for transport in opened:
        transport.close()


def send(transport: WebhookTransport, *messages: Message) -> list[Answer]:
    return transport.send(messages, seconds_max=SECONDS_MAX)


def one(name: str = "order.placed", **given: Any) -> Message:
    (message,) = made(1, name)
    return msgspec.structs.replace(message, **given)


class HookPlace:
    """A receiver, and the transport that leads there."""

    name = NAME
    refused_name = REFUSED_NAME

    def __init__(self, receiver: Receiver, transport: WebhookTransport) -> None:
        self._receiver = receiver
        self.transport = transport
        self.stop = receiver.stop
        self.start = receiver.start
        self.pause = receiver.pause
        self.resume = receiver.resume
        receiver.replies[REFUSED_NAME] = Reply(status=422, body=b"no such thing")

    def received(self) -> list[Message]:
        return [came.message for came in self._receiver.kept]


class TestWebhooks(TransportContract):
    """Webhooks keep the contract of transports."""

    full_batch = sized(200, full=1000)
    test_many_at_once = pytest.mark.torture(TransportContract.test_many_at_once)

    @pytest.fixture(params=["binary", "structured"])
    def place(self, receiver: Receiver, make: Make, request: pytest.FixtureRequest) -> HookPlace:
        """The receiver, over one connection so that it sees the order between partitions too."""
        return HookPlace(receiver, make(format=request.param, connections_max=1))


class TestOutages(OutageContract):
    """Over several connections too, a receiver may be gone or silent, and many may send."""

    test_several_threads = TransportContract.test_several_threads

    @pytest.fixture
    def place(self, receiver: Receiver, make: Make) -> HookPlace:
        """The receiver."""
        return HookPlace(receiver, make())


class TestRefusals(RefusalContract):
    """Where messages are on their own, a refused one holds none back."""

    @pytest.fixture
    def place(self, receiver: Receiver, make: Make) -> HookPlace:
        """The receiver, over one connection so that it sees the order."""
        return HookPlace(receiver, make(mode="competing", connections_max=1))


def test_a_receiver_can_check_the_signature(receiver: Receiver, make: Make) -> None:
    """What is signed is accepted by the library of Standard Webhooks, by either secret."""
    message = one()

    answers = send(make(secrets=[SECRET, OTHER_SECRET]), message)

    (came,) = receiver.requests
    assert answers == [DELIVERED]
    assert Webhook(SECRET).verify(came.body, came.headers) == message.body
    assert Webhook(OTHER_SECRET).verify(came.body, came.headers) == message.body
    assert came.headers["webhook-id"] == message.id


def test_the_published_example() -> None:
    """The signature of the published example is the published one."""
    signing = signers([SECRET], destination=NAME)

    signed = signature(signing, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')

    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_padding_may_be_cut_off() -> None:
    """A secret in base64 signs the same with and without the padding at its end."""
    whole, cut = (signers([each], destination=NAME) for each in (PADDED, PADDED.rstrip("=")))

    assert PADDED.endswith("=")
    assert signature(cut, "msg_1", 1, b"{}") == signature(whole, "msg_1", 1, b"{}")


@pytest.mark.parametrize("whole", [False, True])
def test_signed_by_ed25519(receiver: Receiver, make: Make, *, whole: bool) -> None:
    """A secret key signs so that the public one verifies, given as a seed or as a pair."""
    key = Ed25519PrivateKey.generate()
    pair = key.private_bytes_raw() + (key.public_key().public_bytes_raw() if whole else b"")

    send(make(secrets=[SECRET, f"whsk_{base64.b64encode(pair).decode()}"]), one())

    (came,) = receiver.requests
    _, signed = came.headers["webhook-signature"].split()
    kind, _, encoded = signed.partition(",")
    head = f"{came.headers['webhook-id']}.{came.headers['webhook-timestamp']}."
    assert kind == "v1a"
    key.public_key().verify(base64.b64decode(encoded), head.encode() + came.body)


def test_without_secrets_it_is_not_signed(receiver: Receiver, make: Make) -> None:
    """No secret, no signature; id and time are there."""
    began = int(time.time())

    send(make(), one())

    (came,) = receiver.requests
    assert "webhook-signature" not in came.headers
    assert began <= int(came.headers["webhook-timestamp"]) <= time.time()


def test_the_id_stays_over_attempts(receiver: Receiver, make: Make) -> None:
    """Each attempt is signed anew, under the same id."""
    receiver.replies["order.placed"] = Reply(status=500)
    transport, message = make(secrets=[SECRET]), one()

    send(transport, message)
    receiver.replies.clear()
    send(transport, message)

    assert [came.headers["webhook-id"] for came in receiver.requests] == [message.id] * 2
    for came in receiver.requests:
        Webhook(SECRET).verify(came.body, came.headers)


@pytest.mark.parametrize(
    "secret",
    [
        "correct-horse-battery",
        "whsec_not*base64*correct-horse",
        f"whsec_{base64.b64encode(b'correct-horse').decode()}",
        f"whsec_{base64.b64encode(b'correct-horse' * 5).decode()}",
        f"whsk_{base64.b64encode(b'correct-horse').decode()}",
        f"whsk_{base64.b64encode(bytes(64)).decode()}",
        "whpk_correct-horse",
    ],
    ids=["no kind", "no base64", "short", "long", "short key", "other half", "public key"],
)
def test_bad_secrets_are_told_and_not_shown(make: Make, secret: str) -> None:
    """A secret that cannot sign is refused when the transport is made, by its number."""
    with pytest.raises(BadInput, match="secret 2 of the destination hooks") as refused:
        make(secrets=[SECRET, secret])

    encoded = secret.rpartition("_")[2]
    assert secret not in str(refused.value)
    assert encoded not in str(refused.value)


@pytest.mark.slow
def test_ed25519_without_its_package() -> None:
    """Where the package for ed25519 is missing, a secret of it is told with what to install."""
    script = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from ledgerstone.messaging.brokers.webhooks.signatures import signers\n"
        f"signers([{SECRET!r}], destination='hooks')\n"
        "try: signers(['whsk_' + 'A' * 43], destination='hooks')\n"
        "except ValueError as error: print(error)\n"
    )

    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=True,
    )

    assert "cryptography is not installed" in ran.stdout
    assert "install ledgerstone[" in ran.stdout


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (300, "redirect"),
        (307, "redirect"),
        (400, "http_400"),
        (404, "http_404"),
        (429, "http_429"),
        (500, "http_500"),
        (503, "http_503"),
    ],
)
def test_what_a_status_means(receiver: Receiver, make: Make, status: int, code: str) -> None:
    """All but 2xx and 410 are refusals that may end, with the receiver's words."""
    receiver.replies["order.placed"] = Reply(status=status, body=b"come\nlater")

    (answer,) = send(make(), one())

    assert (answer.result, answer.code) == (SendResult.REFUSED, code)
    assert answer.reason == f"the receiver answered {status}: come later"
    assert answer.retry_after_seconds is None


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_is_delivered(receiver: Receiver, make: Make, status: int) -> None:
    """Any 2xx means that the receiver has it."""
    receiver.replies["order.placed"] = Reply(status=status)

    assert send(make(), one()) == [DELIVERED]


def test_redirects_are_not_followed(receiver: Receiver, make: Make) -> None:
    """A redirect is an answer, not a way."""
    there = {"Location": f"{receiver.url}/elsewhere"}
    receiver.replies["order.placed"] = Reply(status=308, headers=there)

    send(make(), one())

    assert [came.path for came in receiver.requests] == ["/hook"]


@pytest.mark.parametrize(
    ("said", "low", "high"),
    [
        ("120", 120, 120),
        ("0", 0, 0),
        ("9" * 5000, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX),
        ("in an hour", 3600 - WAIT_SECONDS_MAX, 3600),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Wed, 21 Oct 9999 07:28:00 GMT", PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX),
    ],
    ids=["seconds", "none", "many digits", "in an hour", "past", "far"],
)
def test_retry_after(receiver: Receiver, make: Make, said: str, low: float, high: float) -> None:
    """The receiver says how long to wait, in seconds or by a date; there is a longest pause."""
    if said == "in an hour":
        said = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    receiver.replies["order.placed"] = Reply(status=429, headers={"Retry-After": said})

    (answer,) = send(make(), one())

    assert answer.result is SendResult.REFUSED
    assert answer.retry_after_seconds is not None
    assert low <= answer.retry_after_seconds <= high


@pytest.mark.parametrize("said", ["soon", "-1", "1e9", "", "\u0661"])
def test_retry_after_that_says_nothing(receiver: Receiver, make: Make, said: str) -> None:
    """What cannot be read is as if it was not there."""
    encoded = said.encode().decode("latin-1")
    receiver.replies["order.placed"] = Reply(status=503, headers={"Retry-After": encoded})

    (answer,) = send(make(), one())

    assert (answer.code, answer.retry_after_seconds) == ("http_503", None)


def test_a_pause_is_of_its_partition(receiver: Receiver, make: Make) -> None:
    """A receiver that asks for a pause is sent the other partitions, and nothing more of this."""
    receiver.replies["order.placed"] = Reply(status=429, headers={"Retry-After": "270"})
    transport = make(connections_max=1)

    answers = send(transport, one(), one("order.paid"), one("order.paid", partition="bob"))
    later = send(transport, one("order.paid", partition="cid"))

    assert [answer.code for answer in answers] == ["http_429", "held", ""]
    assert (answers[0].retry_after_seconds, later) == (270, [DELIVERED])
    assert len(receiver.requests) == 3


def test_a_slow_post_holds_no_other_partition(receiver: Receiver, home: Home) -> None:
    """While one post waits for its answer, a relay delivers all messages of 20 other partitions."""
    posted, answer = threading.Event(), threading.Event()

    def wait() -> None:
        posted.set()
        answer.wait(WAIT_SECONDS_MAX)

    receiver.replies["order.slow"] = Reply(before=wait)
    partitions = [f"p{number}" for number in range(20)]
    hooks = {"url": receiver.url, "private_addresses": True}
    messaging = {"destinations": {"hooks": hooks}, "routes": {"order.*": ["hooks"]}}
    with opened(home.url, messaging=messaging) as ledger:
        with ledger.transaction() as tx:
            for name in ("order.slow", "order.placed"):
                tx.outbox.publish(name, partition="slow")
            for number in range(10):
                for partition in partitions:
                    tx.outbox.publish("order.placed", number, partition=partition)
        with started(ledger.worker(ledger.relay_source("hooks"))):
            assert posted.wait(WAIT_SECONDS_MAX)
            until(lambda: len(receiver.kept) == 10 * len(partitions), what="all others")
            answer.set()
            until(lambda: len(receiver.kept) == 2 + 10 * len(partitions), what="the slow ones")

    came = [request.message for request in receiver.kept]
    for partition in partitions:
        assert [each.body for each in came if each.partition == partition] == list(range(10))
    slow = [each.name for each in came if each.partition == "slow"]
    assert slow == ["order.slow", "order.placed"]


@pytest.mark.slow
def test_more_slow_partitions_than_connections(
    receiver: Receiver, make: Make, home: Home, clock: ManualClock
) -> None:
    """While posts of slow or new partitions wait for answers, quick ones have a connection."""
    slow, partitions = [f"slow{number}" for number in range(6)], ["ann", "bob", "cid"]
    posted, answer = threading.Semaphore(0), threading.Event()

    def wait() -> None:
        posted.release()
        answer.wait(WAIT_SECONDS_MAX)

    hooks = {"url": receiver.url, "private_addresses": True, "connections_max": 4}
    messaging = {"destinations": {"hooks": hooks}, "routes": {"order.*": ["hooks"]}}
    with opened(home.url, messaging=messaging) as ledger:
        transport = make(clock.monotonic, connections_max=4)
        relay = relay_of("hooks", ledger.registry, ledger.database, transport)
        with started(ledger.worker(relay)):
            receiver.replies["order.slow"] = Reply(before=lambda: clock.advance(SLOW_SECONDS + 1))
            publish(ledger, "order.slow", slow)
            until(lambda: len(receiver.kept) == len(slow), what="the first slow ones")
            receiver.replies["order.slow"] = Reply(before=wait)
            publish(ledger, "order.slow", slow)
            for _ in range(2):
                assert posted.acquire(timeout=WAIT_SECONDS_MAX)
            for _ in range(5):
                publish(ledger, "order.placed", partitions)
            until(lambda: len(receiver.kept) == len(slow) + 15, what="all others")
            publish(ledger, "order.slow", [f"new {partition}" for partition in slow])
            assert posted.acquire(timeout=WAIT_SECONDS_MAX)
            publish(ledger, "order.placed", partitions)
            until(lambda: len(receiver.kept) == len(slow) + 18, what="those that are known")
            answer.set()
            until(lambda: len(receiver.kept) == 3 * len(slow) + 18, what="the slow ones")

    assert len(receiver.requests) == 3 * len(slow) + 18


@pytest.mark.slow
def test_no_connection_in_time(receiver: Receiver, make: Make) -> None:
    """What gets no connection beside slow posts is sent later, and no attempt is counted."""
    answer = threading.Event()
    receiver.replies["order.slow"] = Reply(before=lambda: answer.wait(WAIT_SECONDS_MAX))
    seconds = 0.25
    answers = [HELD]

    while answers[0] != DELIVERED and seconds < SECONDS_MAX:
        # On a slow machine the first answer takes longer.
        seconds *= 2
        waiting = [one(partition="a"), one("order.slow", partition="b"), one(partition="c")]
        answers = make(connections_max=1).send(waiting, seconds_max=seconds)
    answer.set()

    assert [each.code for each in answers] == ["", "timeout", "busy"]
    assert (answers[1].result, answers[2].counts) == (SendResult.UNKNOWN, False)


def publish(ledger: Ledger, name: str, partitions: Sequence[str]) -> None:
    """One message in each partition."""
    with ledger.transaction() as tx:
        for partition in partitions:
            tx.outbox.publish(name, partition=partition)


def test_410_disables(receiver: Receiver, make: Make) -> None:
    """After 410 nothing is posted any more; all is undeliverable, also after close."""
    receiver.replies["order.placed"] = Reply(status=410)
    transport = make(connections_max=1)

    first = send(transport, *[one(partition=str(number % 2)) for number in range(4)])
    receiver.replies.clear()
    transport.close()
    second = send(transport, one())

    assert {(a.result, a.code) for a in first + second} == {(SendResult.UNDELIVERABLE, "gone")}
    assert len(receiver.requests) == 1


def test_a_long_answer_is_not_read(receiver: Receiver, make: Make) -> None:
    """Of a body only the beginning is read, and the connection is not used again."""
    receiver.replies["order.placed"] = Reply(status=500, body=b"x" * (BODY_BYTES_MAX * 1000))
    transport = make()

    (answer,) = send(transport, one())
    receiver.replies.clear()
    after = send(transport, one())

    assert len(answer.reason) <= REASON_CHARS_MAX + 40
    assert after == [DELIVERED]
    assert len({came.connection for came in receiver.requests}) == 2


@pytest.mark.slow
def test_an_answer_that_never_ends(receiver: Receiver, make: Make) -> None:
    """A receiver that answers letter by letter holds nobody for longer than the limit."""
    receiver.replies["order.placed"] = Reply(drip=True)

    (answer,) = make().send([one()], seconds_max=1.0)

    assert (answer.result, answer.code) == (SendResult.UNKNOWN, "timeout")


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=202, headers={"Content-Length": "100"}, body=b"half"),
        Reply(raw=b"HTTP/1.1 202 Accepted\r\nContent-Length: 100\r\n\r\nhalf"),
        Reply(raw=b"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\nno length\r\n"),
    ],
    ids=["stops", "hangs up", "nonsense"],
)
def test_a_status_is_an_answer(
    receiver: Receiver, make: Make, monkeypatch: pytest.MonkeyPatch, reply: Reply
) -> None:
    """What the receiver says is its status: a body that stops, is cut or is none is no matter.

    Its connection is not used again.
    """
    monkeypatch.setattr(posting, "BODY_SECONDS_MAX", 0.05)
    receiver.replies["order.placed"] = reply
    transport = make()

    answers = send(transport, one())
    receiver.replies.clear()
    after = send(transport, one())

    assert answers == after == [DELIVERED]
    assert len({came.connection for came in receiver.requests}) == 2


def test_words_that_are_no_text(receiver: Receiver, make: Make) -> None:
    """A receiver that explains itself in other bytes than UTF-8 is a refusal like any other."""
    receiver.replies["order.placed"] = Reply(status=500, headers={"X": "\xff"}, body=b"no \xff")

    (answer,) = send(make(), one())

    assert (answer.result, answer.code) == (SendResult.REFUSED, "http_500")
    assert answer.reason == "the receiver answered 500: no \ufffd"


def test_one_request_has_a_limit_of_its_own(
    receiver: Receiver, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request is given up before the call has to end, and counts; others are answered."""

    def from_now_on() -> None:
        # For what is posted after this one, over the same connection.
        monkeypatch.setattr(webhook, "REQUEST_SECONDS_MAX", 0.5)

    receiver.replies["order.placed"] = Reply(before=from_now_on)
    receiver.replies[REFUSED_NAME] = Reply(drip=True)

    answers = send(make(connections_max=1), one(partition="a"), one(REFUSED_NAME, partition="b"))

    assert answers == [
        DELIVERED,
        Answer(SendResult.REFUSED, "timeout", "no response came within 0.5 s"),
    ]


@pytest.mark.parametrize(
    ("raw", "verdict", "why"),
    [
        (b"", SendResult.UNKNOWN, "closed the connection"),
        (b"220 smtp.example.org ESMTP\r\n", SendResult.REFUSED, "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nBad Header: x\r\n\r\n", SendResult.REFUSED, "not HTTP"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 50, SendResult.REFUSED, "10 interim responses"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, SendResult.REFUSED, "too long"),
    ],
    ids=["nothing", "smtp", "bad header", "many interim", "long header"],
)
def test_what_is_no_answer(
    receiver: Receiver, make: Make, raw: bytes, verdict: SendResult, why: str
) -> None:
    """What cannot be read as an answer is a refusal; a receiver that hangs up may be going down."""
    receiver.replies["order.placed"] = Reply(raw=raw)

    (answer,) = send(make(), one())

    assert (answer.result, answer.code) == (verdict, "broken")
    assert why in answer.reason


def test_a_connection_that_breaks_off(receiver: Receiver, make: Make) -> None:
    """A connection that breaks off in the middle of an answer is no answer, to this one alone."""
    receiver.replies[REFUSED_NAME] = Reply(raw=b"HTTP/1.1 200", reset=True)

    answers = send(make(), one(REFUSED_NAME, partition="a"), one(partition="b"))

    assert [answer.code for answer in answers] == ["broken", ""]
    assert answers[1] == DELIVERED


def test_interim_answers_are_passed_over(receiver: Receiver, make: Make) -> None:
    """100 Continue and its like are not the answer."""
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    receiver.replies["order.placed"] = Reply(raw=interim + b"HTTP/1.1 204 No Content\r\n\r\n")

    assert send(make(), one()) == [DELIVERED]


def test_a_partition_is_held_at_its_first_failure(receiver: Receiver, make: Make) -> None:
    """What comes after a refused message of its partition waits; other partitions go on."""
    receiver.replies[REFUSED_NAME] = Reply(status=500)
    first = [one(partition="a"), one(REFUSED_NAME, partition="a"), one(partition="a")]
    other = [one(partition="b") for _ in range(3)]
    mixed = [*itertools.chain.from_iterable(zip(first, other, strict=True))]

    answers = send(make(), *mixed)

    assert [answer.code for answer in answers[::2]] == ["", "http_500", "held"]
    assert answers[4].result is SendResult.UNKNOWN
    assert answers[1::2] == [DELIVERED] * 3
    assert first[2].id not in {came.headers["webhook-id"] for came in receiver.requests}


@pytest.mark.slow
def test_partitions_go_side_by_side(receiver: Receiver, make: Make) -> None:
    """Partitions are posted at once over a few connections, each in its order."""
    together = threading.Barrier(NEW)
    receiver.replies["order.first"] = Reply(before=lambda: together.wait(SECONDS_MAX))
    partitions = [str(number) for number in range(CONNECTIONS * 3)]
    first = [one("order.first", partition=name) for name in partitions[:NEW]]
    later = [one(partition=name) for name in partitions * 3]

    answers = send(make(), *first, *later)

    assert answers == [DELIVERED] * (len(first) + len(later))
    assert NEW <= len({came.connection for came in receiver.requests}) <= CONNECTIONS
    for name in partitions:
        came = [came.message.id for came in receiver.kept if came.message.partition == name]
        assert came == [m.id for m in first + later if m.partition == name]


def test_connections_are_kept(receiver: Receiver, make: Make) -> None:
    """Messages of several calls travel over the same connection."""
    transport = make()

    answers = [*send(transport, one(), one()), *send(transport, one())]

    assert answers == [DELIVERED] * 3
    assert len({came.connection for came in receiver.requests}) == 1


@pytest.mark.parametrize("limit", ["IDLE_SECONDS_MAX", "AGE_SECONDS_MAX"])
def test_connections_are_not_kept_for_ever(
    receiver: Receiver, make: Make, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """One that was idle for long, or is old, is not used again: names may lead elsewhere by now."""
    monkeypatch.setattr(posting, limit, 0.0)
    transport = make()

    answers = [*send(transport, one()), *send(transport, one())]

    assert answers == [DELIVERED] * 2
    assert len({came.connection for came in receiver.requests}) == 2


def test_calls_share_the_connections(receiver: Receiver, make: Make) -> None:
    """However many send at once, no more connections are open than there may be."""
    watched = threading.Event()
    receiver.replies["order.placed"] = Reply(before=lambda: watched.wait(PATIENCE_SECONDS))
    transport = make(connections_max=1)

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: send(transport, one()), range(3)))

    assert answers == [[DELIVERED]] * 3
    assert receiver.accepted == 1


def test_a_kept_connection_may_be_closed(receiver: Receiver, make: Make) -> None:
    """A connection that the receiver closed meanwhile costs nothing but another one."""
    transport = make()
    send(transport, one())
    receiver.cut()

    answers = send(transport, one(), one())

    assert answers == [DELIVERED] * 2


def test_a_kept_connection_may_end_under_a_request(receiver: Receiver, make: Make) -> None:
    """A kept connection that ends without a word is no answer: the message goes over another."""
    transport = make()
    send(transport, one())
    receiver.replies["order.placed"] = Reply(raw=b"", before=receiver.replies.clear)

    answers = send(transport, one())

    assert answers == [DELIVERED]
    assert len({came.connection for came in receiver.requests}) == 2


def test_a_kept_connection_may_answer_nonsense(receiver: Receiver, make: Make) -> None:
    """What a kept connection says is an answer, whatever it is: the message is not posted again."""
    transport = make()
    send(transport, one())
    receiver.replies["order.placed"] = Reply(raw=b"220 smtp\r\n", before=receiver.replies.clear)

    (answer,) = send(transport, one())

    assert (answer.result, answer.code) == (SendResult.REFUSED, "broken")
    assert len(receiver.requests) == 2


def test_gone_after_the_first(receiver: Receiver, make: Make) -> None:
    """What was delivered before the receiver went is told; the rest of the call is not known."""
    close = {"Connection": "close"}
    receiver.replies["order.first"] = Reply(headers=close, before=receiver.hide)

    answers = send(make(), one("order.first"), one(), one())

    assert answers[0] == DELIVERED
    assert {(a.result, a.code) for a in answers[1:]} == {(SendResult.UNKNOWN, "unreachable")}


def test_a_receiver_that_keeps_no_connection(receiver: Receiver, make: Make) -> None:
    """Who closes after each answer is connected to for each message."""
    receiver.replies["order.placed"] = Reply(headers={"Connection": "close"})

    answers = send(make(), one(), one())

    assert answers == [DELIVERED] * 2
    assert len({came.connection for came in receiver.requests}) == 2


def test_closed_while_it_waits(receiver: Receiver, make: Make) -> None:
    """Who closes the transport does not wait for an answer, and neither does who sends."""
    transport = make()
    receiver.pause()

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send, transport, one())
        until(lambda: receiver.accepted)
        transport.close()
        (answer,) = sending.result(SECONDS_MAX)

    assert answer.result is SendResult.UNKNOWN


def test_headers_travel(receiver: Receiver, make: Make) -> None:
    """The publisher's headers arrive, but for those that belong to the connection."""
    own = {"X-Tenant": "Zoë €", "Upgrade": "websocket", "Expect": "100-continue", "Empty": ""}
    own |= {"Authorization": "Bearer a", "Webhook-Extra": "b", "Proxy-Authorization": "c"}
    message = one(headers=own, partition="ä b%", key='"7"')

    answers = send(make(), message)

    (came,) = receiver.requests
    assert answers == [DELIVERED]
    assert (came.headers["x-tenant"], came.headers["empty"]) == ("Zoë €", "")
    assert came.headers["ce-partitionkey"] == "%C3%A4%20b%25"
    assert came.headers["ce-idempotencykey"] == "%227%22"
    assert came.headers["ce-source"] == SOURCE
    assert not {"upgrade", "expect", "ce-datacontenttype"} & set(came.headers)
    assert not {"authorization", "webhook-extra", "proxy-authorization"} & set(came.headers)
    assert came.headers["user-agent"].startswith("ledgerstone/")


def test_a_message_that_cannot_be_sent(receiver: Receiver, make: Make) -> None:
    """What HTTP cannot carry is undeliverable, and does not spoil the connection for others."""
    bad = one(content_type="text/plain\r\nX-Evil: 1", partition="bad")

    answers = send(make(connections_max=1), bad, one(), one())

    assert (answers[0].result, answers[0].code) == (SendResult.UNDELIVERABLE, "unsendable")
    assert answers[1:] == [DELIVERED] * 2
    assert len(receiver.requests) == 2


def test_user_and_password(receiver: Receiver, make: Make) -> None:
    """User and password of the URL become Basic authentication, and are in no address."""
    url = receiver.url.replace("://", "://ann:p%40ss@") + "/a b?c=d#e"

    send(make(url=url), one())

    (came,) = receiver.requests
    encoded = base64.b64encode(b"ann:p@ss").decode()
    assert came.headers["authorization"] == f"Basic {encoded}"
    assert came.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert came.path == "/hook/a%20b?c=d"


@pytest.mark.parametrize(
    ("address", "reach"),
    [
        ("93.184.215.14", AddressScope.PUBLIC),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", AddressScope.PUBLIC),
        ("10.1.2.3", AddressScope.PRIVATE),
        ("9.255.255.255", AddressScope.PUBLIC),
        ("11.0.0.0", AddressScope.PUBLIC),
        ("172.15.255.255", AddressScope.PUBLIC),
        ("172.16.0.0", AddressScope.PRIVATE),
        ("172.31.255.255", AddressScope.PRIVATE),
        ("172.32.0.0", AddressScope.PUBLIC),
        ("192.168.0.1", AddressScope.PRIVATE),
        ("127.0.0.1", AddressScope.PRIVATE),
        ("100.64.0.1", AddressScope.PRIVATE),
        ("100.127.255.255", AddressScope.PRIVATE),
        ("fc00::1", AddressScope.PRIVATE),
        ("fd00::1", AddressScope.PRIVATE),
        ("::1", AddressScope.PRIVATE),
        ("169.254.169.254", AddressScope.NOWHERE),
        ("0.0.0.0", AddressScope.NOWHERE),  # noqa: S104 - an address to be refused
        ("192.0.0.8", AddressScope.NOWHERE),
        ("192.88.99.1", AddressScope.NOWHERE),
        ("239.255.255.255", AddressScope.NOWHERE),
        ("3fff::1", AddressScope.NOWHERE),
        ("198.18.0.1", AddressScope.NOWHERE),
        ("224.0.0.1", AddressScope.NOWHERE),
        ("240.0.0.1", AddressScope.NOWHERE),
        ("255.255.255.255", AddressScope.NOWHERE),
        ("::", AddressScope.NOWHERE),
        ("::127.0.0.1", AddressScope.NOWHERE),
        ("::ffff:127.0.0.1", AddressScope.NOWHERE),
        ("::ffff:93.184.215.14", AddressScope.NOWHERE),
        ("64:ff9b::7f00:1", AddressScope.NOWHERE),
        ("64:ff9b:1::7f00:1", AddressScope.NOWHERE),
        ("2002:7f00:1::", AddressScope.NOWHERE),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", AddressScope.NOWHERE),
        ("2001:db8::1", AddressScope.NOWHERE),
        ("fe80::1", AddressScope.NOWHERE),
        ("fe80::1%eth0", AddressScope.NOWHERE),
        ("fec0::1", AddressScope.NOWHERE),
        ("ff02::1", AddressScope.NOWHERE),
        ("fd00:ec2::254%eth0", AddressScope.NOWHERE),
        ("127.1", AddressScope.NOWHERE),
        ("hook.example.org", AddressScope.NOWHERE),
    ],
)
def test_where_an_address_lies(address: str, reach: AddressScope) -> None:
    """Only addresses that are known to be public or private count as such."""
    assert reach_of(address) is reach


@pytest.mark.parametrize(
    ("url", "private"),
    [
        ("https://127.0.0.1/", False),
        ("https://[::1]/", False),
        ("https://[::ffff:10.0.0.1]/", True),
        ("https://169.254.169.254/latest", True),
        ("https://127.1/", True),
        ("https://2130706433/", True),
        ("http://hook.example.org/", False),
        ("http://93.184.215.14/", True),
        ("https:///path", True),
        ("https://hook.example.org:99999/", True),
        ("https://:secret@/", True),
    ],
)
def test_where_it_may_not_lead(make: Make, url: str, *, private: bool) -> None:
    """A URL that cannot be right is refused when the transport is made."""
    with pytest.raises(BadInput, match="destination hooks") as refused:
        make(url=url, private_addresses=private)

    assert "secret" not in str(refused.value)


def test_a_name_with_a_private_address(receiver: Receiver, make: Make) -> None:
    """A name that leads into a private network is not connected to unless that is allowed."""
    transport = make(url=f"https://localhost:{receiver.port}/", private_addresses=False)

    with pytest.raises(TargetDown, match="private_addresses"):
        send(transport, one())

    assert receiver.accepted == 0


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """What the names of `example.org` resolve to, one look-up after the other.

    The names of the world are not the test's to set, so this stands in for the resolver alone.
    """
    turns: list[list[str]] = []
    real = socket.getaddrinfo

    def look_up(host: Any, port: Any, *rest: Any, **named: Any) -> Any:
        if not str(host).endswith("example.org"):
            return real(host, port, *rest, **named)
        return [entry for address in turns.pop(0) for entry in real(address, port, *rest, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield turns
    assert turns == []


def test_one_bad_address_is_enough(
    receiver: Receiver, make: Make, resolved: list[list[str]]
) -> None:
    """A name of which one address is private is not connected to, whatever the others are."""
    resolved.append(["93.184.215.14", "127.0.0.1"])
    url = f"https://hook.example.org:{receiver.port}/"

    with pytest.raises(TargetDown, match=r"127\.0\.0\.1"):
        send(make(url=url, private_addresses=False), one())

    assert receiver.accepted == 0


def test_a_name_is_resolved_once(receiver: Receiver, make: Make, resolved: list[list[str]]) -> None:
    """The connection goes to the address that was checked: there is no second look-up."""
    resolved.append(["127.0.0.1"])

    answers = send(make(url=f"http://hook.example.org:{receiver.port}/"), one(), one())

    assert answers == [DELIVERED] * 2
    assert receiver.requests[0].headers["host"] == f"hook.example.org:{receiver.port}"


def test_plain_http_stays_in_private_networks(make: Make, resolved: list[list[str]]) -> None:
    """Without TLS nothing is sent to a public address."""
    resolved.append(["93.184.215.14"])

    with pytest.raises(TargetDown, match="use https"):
        send(make(url="http://hook.example.org/"), one())


def test_the_next_address_is_tried(
    receiver: Receiver, make: Make, resolved: list[list[str]]
) -> None:
    """Of several addresses the first that takes the connection is used."""
    resolved.append(["127.0.0.2", "127.0.0.1"])

    assert send(make(url=f"http://hook.example.org:{receiver.port}/"), one()) == [DELIVERED]


@pytest.mark.parametrize("hangs_up", [False, True], ids=["is silent", "hangs up"])
def test_no_handshake(make: Make, monkeypatch: pytest.MonkeyPatch, *, hangs_up: bool) -> None:
    """Who takes the connection and shakes no hands, or hangs up instead, is out of reach."""
    words = "127.0.0.1" if hangs_up else "accepted no connection within 0.05 s"
    if not hangs_up:
        monkeypatch.setattr(posting, "CONNECT_SECONDS_MAX", 0.05)

    def hang_up() -> None:
        connection, _ = listener.accept()
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        if hangs_up:
            pool.submit(hang_up)
        transport = make(url=f"https://127.0.0.1:{listener.getsockname()[1]}/")

        with pytest.raises(TargetDown, match=words) as down:
            send(transport, one())

    assert down.value.target == NAME


def test_no_tls_at_all(receiver: Receiver, make: Make) -> None:
    """A receiver that speaks no TLS is not spoken to without it."""
    with pytest.raises(TargetDown):
        send(make(url=receiver.url.replace("http:", "https:")), one())

    assert receiver.requests == []


def test_a_name_that_nobody_has(make: Make) -> None:
    """A name that cannot be resolved is a destination out of reach."""
    with pytest.raises(TargetDown, match="cannot be resolved"):
        send(make(url="https://no-such-host.invalid/"), one())


class TestTls:
    """TLS, with an authority of the test's own."""

    @pytest.fixture
    def authority(self, tmp_path: Path) -> PrivateAuthority:
        """Whom the transport trusts."""
        return PrivateAuthority(tmp_path)

    @pytest.fixture
    def receiver(self, authority: PrivateAuthority) -> Iterator[Receiver]:
        """A receiver with a certificate of that authority."""
        certificate = authority.certificate(["hook.example.org"])
        receiver = Receiver(certificate=str(certificate))
        yield receiver
        receiver.stop()

    def test_the_name_is_asked_for_and_checked(
        self,
        receiver: Receiver,
        make: Make,
        authority: PrivateAuthority,
        resolved: list[list[str]],
    ) -> None:
        """The handshake is made for the name of the URL, over the address that was checked."""
        resolved.append(["127.0.0.1"])
        url = f"https://hook.example.org:{receiver.port}/"

        answers = send(make(url=url, ca_file=str(authority.ca_file)), one(), one())

        assert answers == [DELIVERED] * 2
        assert receiver.asked_for == ["hook.example.org"]
        assert receiver.requests[0].headers["host"] == f"hook.example.org:{receiver.port}"

    def test_another_name_is_not_trusted(
        self,
        receiver: Receiver,
        make: Make,
        authority: PrivateAuthority,
        resolved: list[list[str]],
    ) -> None:
        """A certificate for another name is no certificate."""
        resolved.append(["127.0.0.1"])
        url = f"https://other.example.org:{receiver.port}/"

        with pytest.raises(TargetDown, match="cannot be trusted"):
            send(make(url=url, ca_file=str(authority.ca_file)), one())

        assert receiver.requests == []

    def test_another_authority_is_not_trusted(
        self, receiver: Receiver, make: Make, resolved: list[list[str]]
    ) -> None:
        """A certificate of an authority that the system does not know is no certificate."""
        resolved.append(["127.0.0.1"])

        with pytest.raises(TargetDown, match="cannot be trusted"):
            send(make(url=f"https://hook.example.org:{receiver.port}/"), one())

        assert receiver.requests == []

    @pytest.mark.parametrize("setting", ["ca_file", "certificate_file"])
    def test_files_that_cannot_be_used(self, make: Make, tmp_path: Path, setting: str) -> None:
        """A missing file and one that is no PEM are named when the transport is made."""
        empty = tmp_path / "empty.pem"
        empty.touch()

        for file in (tmp_path / "missing.pem", empty):
            with pytest.raises(BadInput, match=f"{setting} of the destination hooks") as refused:
                make(url="https://hook.example.org/", **{setting: str(file)})
            assert file.name in str(refused.value)
