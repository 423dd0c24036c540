"""Messages as rows: what is written, and what is read of rows that others wrote."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerstone.engine.source import Failure
from ledgerstone.errors import BadInput
from ledgerstone.ids import new_id
from ledgerstone.messaging.brokers.amqp import wire
from ledgerstone.messaging.failed import rows as failed_rows
from ledgerstone.messaging.failed.rows import Raw
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.symfony import envelope
from tests.messaging.test_amqp_wire import Arrival

ROOT = Path(__file__).resolve().parents[2]
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ID = "01890a5d-ac96-774b-bcce-b302099a8057"
STAMP = "X-Message-Stamp-"


def read(headers: str, *, place: int = 7, origin: str = "db:outbox") -> Message:
    """The message of a row with these headers."""
    return envelope.message_of(
        place=place, body="{}", headers=headers, partition="ann", created_at=NOW, origin=origin
    )


def spelled(headers: dict[str, Any]) -> str:
    """Headers as they lie in a row."""
    return msgspec.json.encode(headers).decode()


@given(
    headers=st.dictionaries(
        st.from_regex(r"[a-b][a-z0-9-]{0,10}", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20),
        max_size=4,
    ),
    key=st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    attempt=st.integers(0, 1000),
    consumer=st.none() | st.sampled_from(["mailer", "a.b:c"]),
    name=st.sampled_from(["order.placed", "App\\Order\\Placed", 'a "b" \\', "com.a.b_c"]),
)
def test_what_is_written_is_read(
    headers: dict[str, str], key: str | None, attempt: int, consumer: str | None, name: str
) -> None:
    """A message that is written as a row is read from it as it was."""
    message = Message(
        id=new_id(),
        name=name,
        raw=b"{}",
        headers=headers,
        partition="ann",
        key=key,
        created_at=NOW,
        place=7,
        attempt=attempt,
        consumer=consumer,
    )

    assert read(envelope.headers_of(message)) == message


def test_stamps_are_json_arrays() -> None:
    """Each stamp is a header of its class whose value is a JSON array in text."""
    message = Message(id=ID, name="order.placed", raw=b"{}", created_at=NOW)

    found = msgspec.json.decode(envelope.headers_of(message))

    assert found == {
        "type": "order.placed",
        "Content-Type": "application/json",
        envelope.ID_STAMP: f'[{{"messageId":"{ID}"}}]',
        envelope.NAME_STAMP: '[{"messageName":"order.placed"}]',
    }


def test_the_id_of_a_row_without_one() -> None:
    """It follows from the table and the place: the same each time, another for another."""
    headers = '{"type":"order.placed"}'

    assert read(headers).id == read(headers).id
    assert len({read(headers).id, read(headers, place=8).id, read(headers, origin="b:o").id}) == 3


@pytest.mark.parametrize("field", ["messageId", "id"])
@pytest.mark.parametrize("namespace", ["App", "Freyr\\MessageBroker\\Contracts"])
def test_an_id_is_found_in_any_namespace(namespace: str, field: str) -> None:
    """The stamp that holds the id is known by the end of its name."""
    stamp = f"{STAMP}{namespace}\\MessageIdStamp"

    assert read(spelled({"type": "a.b", stamp: f'[{{"{field}":"{ID.upper()}"}}]'})).id == ID


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ("", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("null", "not a JSON object"),
        ("{}", "type"),
        ('{"type":""}', "type"),
        (spelled({"type": "a.b", f"{STAMP}A\\MessageIdStamp": "[{}]"}), "UUID"),
        (spelled({"type": "a.b", f"{STAMP}A\\MessageIdStamp": '[{"messageId":7}]'}), "UUID"),
        (spelled({"type": "a.b", f"{STAMP}A\\MessageIdStamp": "{"}), "MessageIdStamp"),
    ],
)
def test_what_cannot_be_read(headers: str, words: str) -> None:
    """Headers that are no object, name no message or hold a bad id are BadInput and say so."""
    with pytest.raises(BadInput, match=words):
        read(headers)


def test_what_travels_on() -> None:
    """Headers of others travel on, as text; stamps, the type and what is ours do not."""
    headers = spelled(
        {
            "type": "a.b",
            "Content-Type": "application/json",
            "tenant": "acme",
            "number": 7,
            "list": [1, "a"],
            f"{STAMP}A\\BusNameStamp": "[]",
            "X-Ledgerstone-Key": "k",
            "x-ledgerstone-other": "o",
        }
    )

    message = read(headers)

    assert message.headers == {"tenant": "acme", "number": "7", "list": '[1,"a"]'}
    assert message.key == "k"


def test_a_class_as_type() -> None:
    """Where `type` is a class of PHP, the name is that of its stamp, if it has one."""
    stamp = f"{STAMP}App\\MessageNameStamp"
    named = spelled({"type": "App\\Order", stamp: '[{"messageName":"order.placed"}]'})

    assert read(named).name == "order.placed"
    assert read(spelled({"type": "App\\Order"})).name == "App\\Order"


def test_the_attempt_is_counted() -> None:
    """The number of refusals is kept beside all that the row has."""
    headers = spelled({"type": "a.b", "tenant": "acme", "number": 7})

    found = envelope.with_attempt(envelope.with_attempt(headers, 1), 2)

    assert read(found).attempt == 2
    assert msgspec.json.decode(found)["number"] == 7


@pytest.mark.parametrize("odd", ["x", "-1", "1.5", "9" * 30, "²"])
def test_an_odd_attempt_is_none(odd: str) -> None:
    """What is no small number is taken for none."""
    assert read(spelled({"type": "a.b", "X-Ledgerstone-Attempt": odd})).attempt == 0


@pytest.mark.parametrize(
    "header",
    [
        "X-Message-Stamp-App\\MessageIdStamp",
        "x-message-stamp-app\\messageidstamp",
        "X-Message-Stamp-MessageIdStamp",
    ],
)
def test_the_newest_stamp(header: str) -> None:
    """Of two stamps of an id the last one counts, in a row as on the wire."""
    other = "01890a5d-ac96-774b-bcce-b302099a8058"
    stamps = f'[{{"messageId":"{other}"}},{{"messageId":"{ID}"}}]'
    arrival = Arrival(headers={"type": "order.placed", header: stamps})

    assert read(spelled({"type": "order.placed", header: stamps})).id == ID
    assert wire.message_of(arrival).id == ID


def test_when_it_was_published() -> None:
    """A row of a message that was put back says when it was published."""
    earlier = datetime(2025, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)
    message = msgspec.structs.replace(read(spelled({"type": "order.placed"})), created_at=earlier)

    assert read(envelope.headers_of(message, put_back=True)).created_at == earlier
    assert read(envelope.headers_of(message)).created_at == NOW


def test_the_reference_has_every_header() -> None:
    """Whatever a row says of its message or of its failure stands in the reference."""
    message = Message(
        id=ID,
        name="order.placed",
        raw=b"\xff",
        headers={"tenant": "seven"},
        partition="ann",
        key="k",
        created_at=NOW,
        place=7,
        attempt=2,
        consumer="mailer",
    )
    failure = Failure("LookupError", "no such order", "Traceback")
    written = set(envelope.headers_in(envelope.headers_of(message, put_back=True)))
    for item in (message, Raw(body=b"\xff")):
        _, headers = failed_rows.row_of(
            item, consumer="mailer", failure=failure, attempts=3, origin="local"
        )
        written |= set(envelope.headers_in(headers))

    assert written - {"tenant"} == set(envelope.HEADERS) | set(failed_rows.HEADERS)
    page = (ROOT / "docs" / "reference" / "messages.md").read_text(encoding="utf-8")
    assert [header for header in written if f"`{header}`" not in page] == ["tenant"]
