"""What a message looks like over AMQP, and what is read back from what others send."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pika import frame, spec

from ledgerstone.errors import BadInput
from ledgerstone.messaging import cloudevents
from ledgerstone.messaging.brokers.amqp.frames import FRAME_OVERHEAD_BYTES, NotEncodable, published
from ledgerstone.messaging.brokers.amqp.wire import ID_STAMP, headers_of, message_of
from ledgerstone.messaging.message import Message

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
OTHER_ID = "01890a5d-ac96-774b-bcce-b302099a8058"
# Symfony puts the newest last.
TWO_STAMPS = f'[{{"messageId":"{OTHER_ID}"}},{{"messageId":"{ID}"}}]'
STAMP = {ID_STAMP: f'[{{"messageId":"{ID}"}}]'}
FRAME_BYTES_MAX = 4096
MESSAGE = Message(
    id=ID,
    name="order.placed",
    raw=b'{"order":7}',
    headers={"tenant": "acme"},
    partition="ann",
    key="order 7",
    created_at=datetime(2026, 2, 3, 4, 5, 6, 789012, UTC),
)


class Arrival:
    """A delivery that is made by hand."""

    redelivered = False

    def __init__(
        self,
        body: bytes = b"{}",
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, str] | None = None,
        content_type: str | None = "application/json",
    ) -> None:
        self.body = body
        self.headers = headers or {}
        self.properties = properties or {}
        self.content_type = content_type

    def ack(self) -> None: ...

    def back(self) -> None: ...


def deep() -> Any:
    """A table in a table in a table, deeper than anybody reads."""
    table: dict[str, Any] = {}
    for _ in range(100_000):
        table = {"deep": table}
    return table


def test_the_headers_of_a_message() -> None:
    """It leaves as a CloudEvent, with what the original package reads, and its own headers."""
    headers = headers_of(MESSAGE, "shop", structured=False)

    assert headers == {
        "tenant": "acme",
        "cloudEvents:specversion": "1.0",
        "cloudEvents:id": ID,
        "cloudEvents:source": "shop",
        "cloudEvents:type": "order.placed",
        "cloudEvents:time": "2026-02-03T04:05:06.789012Z",
        "cloudEvents:datacontenttype": "application/json",
        "cloudEvents:partitionkey": "ann",
        "cloudEvents:idempotencykey": "order 7",
        "type": "order.placed",
        "x-message-name": "order.placed",
        "X-Message-Stamp-Freyr\\MessageBroker\\Contracts\\MessageIdStamp": (
            f'[{{"messageId":"{ID}"}}]'
        ),
    }


def test_the_headers_of_a_structured_message() -> None:
    """A structured one has no attributes in its headers; the rest is the same."""
    headers = headers_of(MESSAGE, "shop", structured=True)

    assert headers == {
        "tenant": "acme",
        "type": "order.placed",
        "x-message-name": "order.placed",
        **STAMP,
    }


def test_binary_is_read_back() -> None:
    """What leaves in binary mode is read back as it was."""
    headers = headers_of(MESSAGE, "shop", structured=False)

    assert message_of(Arrival(MESSAGE.raw, headers)) == MESSAGE


def test_structured_is_read_back() -> None:
    """What leaves as one document is read back as it was."""
    headers = headers_of(MESSAGE, "shop", structured=True)
    document = cloudevents.structured(MESSAGE, "shop")

    for content_type in (cloudevents.STRUCTURED, "Application/CloudEvents+JSON; charset=utf-8"):
        arrival = Arrival(document, headers, content_type=content_type)

        assert message_of(arrival) == MESSAGE


@pytest.mark.parametrize("prefix", ["cloudEvents:", "cloudEvents_", "ce-", "CE-", "cloudevents:"])
def test_prefixes(prefix: str) -> None:
    """The attributes of a CloudEvent are known by any of the prefixes that are in use."""
    attributes = cloudevents.attributes(MESSAGE, "shop")
    headers = {f"{prefix}{name}": value for name, value in attributes.items()} | {"tenant": "acme"}

    assert message_of(Arrival(MESSAGE.raw, headers)) == MESSAGE


def test_the_content_type_of_the_protocol_counts() -> None:
    """A binary CloudEvent without datacontenttype has the content type of AMQP."""
    headers = {"ce-specversion": "1.0", "ce-id": ID, "ce-type": "order.placed"}

    message = message_of(Arrival(b"<a/>", headers, content_type="text/xml"))

    assert message.content_type == "text/xml"


@pytest.mark.parametrize(
    ("headers", "properties"),
    [
        ({"type": "order.placed", **STAMP}, {}),
        ({"x-message-name": "order.placed", **STAMP}, {}),
        ({"x-message-name": "order.placed", "type": "App\\Order\\Placed", **STAMP}, {}),
        ({"type": b"order.placed", "x-message-stamp-any\\messageidstamp": STAMP[ID_STAMP]}, {}),
        ({"type": "order.placed", "X-Message-Stamp-MessageIdStamp": STAMP[ID_STAMP]}, {}),
        ({}, {"type": "order.placed", "message_id": ID}),
        ({"x-message-name": "order.placed"}, {"message_id": ID.upper()}),
        ({"type": "order.placed", **STAMP}, {"message_id": "another publisher's own"}),
        ({"type": "order.placed", **STAMP}, {"message_id": OTHER_ID}),
        ({"type": "order.placed", ID_STAMP: TWO_STAMPS}, {}),
    ],
)
def test_the_shape_of_the_original(
    headers: Mapping[str, Any], properties: Mapping[str, str]
) -> None:
    """Name and id are found in the headers of the original package, or in the properties."""
    moment = {"timestamp": "2026-02-03T04:05:06Z"}

    message = message_of(Arrival(b'{"order":7}', headers, {**properties, **moment}))

    assert (message.id, message.name, message.body) == (ID, "order.placed", {"order": 7})
    assert message.created_at == datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert message.headers == {}


def test_headers_of_others() -> None:
    """Own headers are text; what the broker adds is not among them."""
    headers = {
        **STAMP,
        "type": "order.placed",
        "tenant": b"acme",
        "size": 7,
        "urgent": True,
        "gift": False,
        "nothing": None,
        "x-death": [{"count": 1, "queue": "orders"}],
        "x-first-death-queue": "orders",
        "x-delivery-count": 3,
        "X-Message-Class": "App\\Order\\Placed",
        "X-Ledgerstone-Consumer": "another's",
        "price": Decimal("7.50"),
        "at": datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC),
        "raw": b"\xff\x00",
        "lines": [1, "a", b"\xff", Decimal("0.1"), None],
        "table": {"at": datetime(2026, 2, 3, tzinfo=UTC), "deep": {"n": 1.5}},
    }

    message = message_of(Arrival(headers=headers))

    assert message.headers == {
        "tenant": "acme",
        "size": "7",
        "urgent": "true",
        "gift": "false",
        "price": "7.50",
        "at": "2026-02-03T04:05:06Z",
        "raw": "/wA=",
        "lines": '[1,"a","/w==","0.1",null]',
        "table": '{"at":"2026-02-03T00:00:00Z","deep":{"n":1.5}}',
    }


@pytest.mark.parametrize("name", ["com.github.pull_request.opened", "App\\Order\\Placed", "Ä b"])
@pytest.mark.parametrize("structured", [False, True])
def test_names_of_others(name: str, structured: bool) -> None:
    """Others name their messages as they like, and what our own relay carries on is read back."""
    message = msgspec.structs.replace(MESSAGE, name=name)
    headers = headers_of(message, "shop", structured=structured)
    body, kind = message.raw, message.content_type
    if structured:
        body, kind = cloudevents.structured(message, "shop"), cloudevents.STRUCTURED

    assert message_of(Arrival(body, headers, content_type=kind)) == message


@pytest.mark.parametrize(
    ("arrival", "said"),
    [
        (Arrival(), "no id"),
        (Arrival(headers=STAMP), "no name"),
        (Arrival(headers={"type": "order.placed"}), "no id"),
        (Arrival(headers={"type": "a\0b", **STAMP}), "not a valid message name"),
        (Arrival(headers={"type": "", **STAMP}), "not a valid message name"),
        (Arrival(headers={"type": ["order.placed"], **STAMP}), "header type is not text but list"),
        (Arrival(headers={"type": "order.placed", ID_STAMP: "x"}), "MessageIdStamp cannot be read"),
        (Arrival(headers={"type": "order.placed", ID_STAMP: "[]"}), "holds no id"),
        (Arrival(headers={"type": "order.placed", ID_STAMP: "[{}]"}), "not a message id"),
        (Arrival(headers={"type": "order.placed", ID_STAMP: b"\xff"}), "not UTF-8"),
        (
            Arrival(headers={"type": "order.placed", ID_STAMP: '[{"messageId":"7"}]'}),
            "'7' is not a message id",
        ),
        (
            Arrival(headers={"type": "order.placed"}, properties={"message_id": "7"}),
            "'7' is not a message id",
        ),
        (Arrival(b"{", {"type": "order.placed", **STAMP}), "order.placed is not JSON"),
        (Arrival(b"", {"type": "order.placed", **STAMP}), "order.placed is not JSON"),
        (
            Arrival(b"{", {"type": "order.placed", **STAMP}, content_type="Application/hal+json"),
            "order.placed is not JSON",
        ),
        (Arrival(b'"\xff"', {"type": "order.placed", **STAMP}), "order.placed is not JSON"),
        (Arrival(headers={"type": "order.placed", "a": deep(), **STAMP}), "a cannot be written"),
        (
            Arrival(
                headers={"type": "order.placed", **STAMP}, properties={"timestamp": "1e99 seconds"}
            ),
            "not a timestamp",
        ),
        (Arrival(headers={"ce-id": ID, "ce-type": "order.placed"}), "CloudEvents version None"),
        (Arrival(headers={"ce-specversion": "1.0", "ce-type": "order.placed"}), "not a message id"),
        (Arrival(headers={"ce-specversion": "1.0", "ce-id": ID}), "not a valid message name"),
        (Arrival(b"[]", content_type=cloudevents.STRUCTURED), "not a JSON object"),
        (Arrival(b"{", content_type=cloudevents.STRUCTURED), "not JSON"),
        (Arrival(b'{"data":"\xff"}', content_type=cloudevents.STRUCTURED), "not JSON"),
    ],
)
def test_malformed(arrival: Arrival, said: str) -> None:
    """What cannot be read says what is missing or wrong."""
    with pytest.raises(BadInput) as refused:
        message_of(arrival)

    assert said in str(refused.value)


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 20_000])
def test_frames(size: int) -> None:
    """A client that knows nothing of us reads the frames: method, header, and body in parts."""
    headers = {"tenant": "acme", "empty": "", "umlaut": "ä"}

    method, header, *bodies = decoded(encoded(body=b"a" * size, headers=headers))

    assert method.method.exchange == "events"
    assert method.method.routing_key == "order.placed"
    assert method.method.mandatory
    assert header.body_size == size
    properties = header.properties
    assert properties.content_type == "application/json"
    assert properties.headers == headers
    assert properties.delivery_mode == 2
    assert properties.message_id == ID
    assert properties.timestamp == 1_700_000_000
    assert properties.type == "order.placed"
    assert properties.app_id == "shop"
    assert b"".join(body.fragment for body in bodies) == b"a" * size
    assert all(0 < len(body.fragment) <= FRAME_BYTES_MAX - FRAME_OVERHEAD_BYTES for body in bodies)
    assert {one.channel_number for one in (method, header, *bodies)} == {7}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"headers": {"a": "b" * FRAME_BYTES_MAX}}, "a frame has at most 4096"),
        ({"routing_key": "a" * 256}, "255 bytes"),
        ({"content_type": "ä" * 128}, "255 bytes"),
        ({"app_id": "ä" * 128}, "255 bytes"),
    ],
)
def test_what_amqp_cannot_say(changed: Mapping[str, Any], said: str) -> None:
    """What does not fit into the protocol is refused before the broker sees it."""
    with pytest.raises(NotEncodable) as refused:
        encoded(**changed)

    assert said in str(refused.value)


@pytest.mark.parametrize("over", [0, 1])
def test_headers_at_the_limit(over: int) -> None:
    """Headers that fill a frame to its last byte travel; one byte more is refused."""
    bare = len(encoded(headers={"a": ""}, body=b"")) - len(encoded_method())
    room = FRAME_BYTES_MAX - bare

    with pytest.raises(NotEncodable) if over else nullcontext():
        frames = encoded(headers={"a": "b" * (room + over)}, body=b"")
        assert len(frames) - len(encoded_method()) == FRAME_BYTES_MAX


def encoded_method() -> bytes:
    """The first frame of what `encoded` makes."""
    frames = encoded()
    size, _ = frame.decode_frame(frames)
    return frames[:size]


def encoded(**changed: Any) -> bytes:
    fields: dict[str, Any] = {
        "channel": 7,
        "frame_bytes_max": FRAME_BYTES_MAX,
        "exchange": "events",
        "routing_key": "order.placed",
        "content_type": "application/json",
        "headers": {},
        "message_id": ID,
        "timestamp": 1_700_000_000,
        "name": "order.placed",
        "app_id": "shop",
        "body": b"{}",
    }
    return published(**fields | changed)


def decoded(frames: bytes) -> list[Any]:
    found = []
    while frames:
        size, one = frame.decode_frame(frames)
        found.append(one)
        frames = frames[size:]
    assert isinstance(found[0].method, spec.Basic.Publish)
    return found
