"""A message and the rules for its parts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from ledgerstone.errors import BadInput
from ledgerstone.messaging.message import (
    HEADERS_MAX,
    Message,
    check_headers,
    check_message_name,
    check_partition,
    message_id_of,
    timestamp_of,
    written,
)

ID = "01890a5d-ac96-774b-bcce-b302099a8057"


class Order(msgspec.Struct):
    """What a body may say."""

    number: int


def message(raw: bytes) -> Message:
    """A message with this body."""
    return Message(id=ID, name="order.placed", raw=raw, created_at=datetime(2026, 1, 1, tzinfo=UTC))


def test_a_body_is_read() -> None:
    """The body is what its JSON says, or a value of the type that is asked for."""
    found = message(b'{"number":7}')

    assert found.body == {"number": 7}
    assert found.body_as(Order) == Order(7)


@pytest.mark.parametrize("raw", [b'{"number":"seven"}', b"{}", b"no JSON", b""])
def test_a_body_that_does_not_fit(raw: bytes) -> None:
    """A body that does not fit the type is BadInput and names the message."""
    with pytest.raises(BadInput, match=r"order\.placed"):
        message(raw).body_as(Order)


@pytest.mark.parametrize("name", ["order.placed", "a.b", "a1.b2.c3", "a." + "b" * 253])
def test_names_that_are_taken(name: str) -> None:
    """Two or more parts of small letters and digits, each beginning with a letter."""
    assert check_message_name(name) == name


@pytest.mark.parametrize(
    "name", ["order", "a..b", "A.b", "a.1b", "a.b ", "a.b\n", "a." + "b" * 254]
)
def test_names_that_are_not(name: str) -> None:
    """Everything else is refused, and the rule is told."""
    with pytest.raises(BadInput, match="joined by dots"):
        check_message_name(name)


def test_what_is_shown_is_short() -> None:
    """A refusal shows what was given, but not a page of it."""
    with pytest.raises(BadInput) as raised:
        check_message_name("x" * 10_000)

    assert len(str(raised.value)) < 400


def test_partitions() -> None:
    """The empty partition is one, and so is every text that all databases compare alike."""
    assert check_partition("") == ""
    assert check_partition("Ann 🦊 " + "x" * 249) == "Ann 🦊 " + "x" * 249
    for bad in (None, 7, "a ", "a\0", "x" * 256):
        with pytest.raises(BadInput, match="partition"):
            check_partition(bad)


def test_headers_are_copied() -> None:
    """Headers are taken as they are; none are none; what was given is not kept itself."""
    given = {"tenant": "acme", "X-Trace": "ü"}

    found = check_headers(given)

    assert (found, check_headers(None)) == (given, {})
    assert found is not given


@pytest.mark.parametrize(
    "name",
    [
        *("type", "Type", "content-type", "Content-Encoding", "message-id", "X-Message-Stamp-A"),
        *("x-message-name", "X-Ledgerstone-Key", "ce-id", "cloudEvents:id", "cloudEvents_id"),
        *("webhook-id", "Nats-Msg-Id", "Host", "content-length", "transfer-encoding", "Connection"),
    ],
)
def test_headers_that_are_taken(name: str) -> None:
    """What the house and its transports say in headers no publisher says."""
    with pytest.raises(BadInput, match="header"):
        check_headers({name: "a"})


@pytest.mark.parametrize(
    "bad",
    [
        *([("a", "b")], "a", {1: "a"}, {"": "a"}, {"a b": "c"}, {"ä": "a"}, {"a": 1}, {"a": None}),
        *({"a": "b\nc"}, {"a": "\0"}, {"a": "\x7f"}, {"a": "\ud83d"}, {"a" * 129: "b"}),
        *({"a": "b" * 4097}, {f"h{n}": "v" for n in range(HEADERS_MAX + 1)}),
    ],
)
def test_headers_that_are_none(bad: Any) -> None:
    """What cannot travel as a header is refused."""
    with pytest.raises(BadInput, match="header"):
        check_headers(bad)


def test_ids() -> None:
    """An id is a UUID in any spelling, and is kept in the usual one."""
    assert message_id_of(ID.upper()) == message_id_of(ID.replace("-", "")) == ID
    for bad in (None, "", "7", 7, b"\0" * 16, "z" * 36):
        with pytest.raises(BadInput, match="UUID"):
            message_id_of(bad)


def test_moments() -> None:
    """A moment is written in UTC and read from any zone; one without a zone is in UTC."""
    moment = datetime(2026, 2, 3, 4, 5, 6, 789000, tzinfo=UTC)

    assert written(moment) == "2026-02-03T04:05:06.789000Z"
    assert timestamp_of(written(moment)) == moment
    assert timestamp_of("2026-02-03T06:05:06.789+02:00") == moment
    assert timestamp_of("2026-02-03T04:05:06.789") == moment
    with pytest.raises(BadInput, match="RFC 3339"):
        timestamp_of("yesterday")
