"""Messages as CloudEvents 1.0."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerstone.errors import BadInput
from ledgerstone.messaging import cloudevents
from ledgerstone.messaging.message import Message

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
NOW = datetime(2026, 2, 3, 4, 5, 6, 789000, tzinfo=UTC)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs"]), min_size=1, max_size=30)


def message(**given: Any) -> Message:
    """A message with everything."""
    fields: dict[str, Any] = {
        "id": ID,
        "name": "order.placed",
        "raw": b'{"n":7}',
        "headers": {"traceparent": TRACE},
        "partition": "ann",
        "key": "k",
        "created_at": NOW,
    }
    return Message(**{**fields, **given})


def test_attributes() -> None:
    """The context attributes are those of the specification, and extensions by its rule."""
    found = cloudevents.attributes(message(), "shop")

    assert found == {
        "specversion": "1.0",
        "id": ID,
        "source": "shop",
        "type": "order.placed",
        "time": "2026-02-03T04:05:06.789000Z",
        "datacontenttype": "application/json",
        "partitionkey": "ann",
        "idempotencykey": "k",
        "traceparent": TRACE,
    }


def test_what_is_empty_is_left_out() -> None:
    """Without partition, key and trace there are no attributes for them."""
    found = cloudevents.attributes(message(partition="", key=None, headers={}), "shop")

    assert not set(found) & {"partitionkey", "idempotencykey", "traceparent"}


@given(partition=TEXT, key=st.none() | TEXT)
def test_binary_is_read_back(partition: str, key: str | None) -> None:
    """A message that travels as attributes and body is read as it was."""
    given = message(partition=partition, key=key)

    read = cloudevents.of_attributes(cloudevents.attributes(given, "shop"), given.raw, {})

    assert read == given


@pytest.mark.slow
@given(partition=TEXT, body=st.recursive(st.none() | st.integers() | st.text(), st.lists))
def test_structured_is_read_back(partition: str, body: Any) -> None:
    """A message that travels as one document is read as it was, its body byte for byte."""
    given = message(partition=partition, raw=msgspec.json.encode(body))

    read = cloudevents.of_document(cloudevents.structured(given, "shop"), {})

    assert read == given


def test_a_body_that_is_no_json() -> None:
    """A body of another kind travels as base64 in the document."""
    given = message(raw=b"\0\xff", content_type="application/octet-stream")

    document = msgspec.json.decode(cloudevents.structured(given, "shop"))
    read = cloudevents.of_document(cloudevents.structured(given, "shop"), {})

    assert document["data_base64"] == "AP8="
    assert "data" not in document
    assert read == given


@pytest.mark.parametrize(
    "raw", [b"", b"{oops", b'{"a":1},"id":"another"', b'"\xff"', b"1 2"], ids=repr
)
def test_a_body_that_is_called_json(raw: bytes) -> None:
    """A body that is no JSON, though it is called that, cannot change the document around it."""
    document = msgspec.json.decode(cloudevents.structured(message(raw=raw), "shop"))

    assert document["id"] == ID
    assert "data" not in document
    assert base64.b64decode(document["data_base64"]) == raw


def test_the_document_is_plain_json() -> None:
    """The document has the attributes beside the body as JSON."""
    document = msgspec.json.decode(cloudevents.structured(message(), "shop"))

    assert document["data"] == {"n": 7}
    assert document["type"] == "order.placed"


def test_others_may_say_more() -> None:
    """Attributes that are not known are passed over; a body may be missing."""
    document = msgspec.json.encode(
        {"specversion": "1.0", "id": ID, "source": "x", "type": "a.b", "sampled": 7, "ok": True}
    )

    read = cloudevents.of_document(document, {"tenant": "acme"})

    assert (read.id, read.name, read.raw) == (ID, "a.b", b"null")
    assert read.headers == {"tenant": "acme"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"specversion": "0.3"}, "0.3"),
        ({"specversion": None}, "CloudEvents"),
        ({"id": "7"}, "UUID"),
        ({"id": None}, "UUID"),
        ({"type": "a\nb"}, "name"),
        ({"type": "a" * 256}, "name"),
        ({"type": None}, "name"),
        ({"time": "yesterday"}, "RFC 3339"),
    ],
)
def test_bad_attributes(change: dict[str, str | None], words: str) -> None:
    """What is wrong with attributes is told."""
    found = {**cloudevents.attributes(message(), "shop"), **change}
    given = {name: value for name, value in found.items() if value is not None}

    with pytest.raises(BadInput, match=words):
        cloudevents.of_attributes(given, b"{}", {})


@pytest.mark.parametrize(
    "document",
    [b"", b"[]", b"no JSON", b'{"Bad_Name":"a"}', b'{"data_base64":"?"}', b'{"data_base64":7}'],
)
def test_bad_documents(document: bytes) -> None:
    """What is no CloudEvent is BadInput."""
    with pytest.raises(BadInput):
        cloudevents.of_document(document, {})


@pytest.mark.parametrize("encoded", ["AP8=\n", "A P8=", "AP8", "AP8*"])
def test_bad_base64(encoded: str) -> None:
    """A body whose base64 is not sound is told, and nothing is guessed."""
    whole = {**cloudevents.attributes(message(), "shop"), "data_base64": encoded}

    with pytest.raises(BadInput, match="data_base64"):
        cloudevents.of_document(msgspec.json.encode(whole), {})


def test_headers_are_printable() -> None:
    """As a header a value is printable ASCII: all else, quotes and percent signs are escaped."""
    given = message(partition='ä b%41"c', key="~!/:")

    found = cloudevents.headers(given, "shop")

    assert found["ce-partitionkey"] == "%C3%A4%20b%2541%22c"
    assert found["ce-idempotencykey"] == "~!/:"


@pytest.mark.parametrize("kind", ["application/vnd.shop+json", "Application/JSON; charset=utf-8"])
def test_every_kind_of_json_is_json(kind: str) -> None:
    """A body of any kind of JSON lies in the document as it is."""
    document = msgspec.json.decode(cloudevents.structured(message(content_type=kind), "shop"))

    assert document["data"] == {"n": 7}
