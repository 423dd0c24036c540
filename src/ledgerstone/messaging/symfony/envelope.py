r"""Messages as rows: body and headers as Symfony Messenger's JSON serialiser has them.

    body     {"order": 7}
    headers  {"type": "order.placed", "Content-Type": "application/json",
              "X-Message-Stamp-…\\MessageIdStamp": "[{\"messageId\": \"0192…\"}]", …}

A stamp is a header whose value is a JSON array in text. Stamps of others are kept as they are. A
row without an id, which others may write, gets one that follows from where it lies, so that it has
the same each time it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec

from ledgerstone.errors import BadInput
from ledgerstone.messaging.message import JSON, Message, message_id_of, timestamp_of, written

TYPE = "type"
CONTENT_TYPE = "Content-Type"
STAMP = "X-Message-Stamp-"
ID_STAMP = f"{STAMP}Freyr\\MessageBroker\\Contracts\\MessageIdStamp"
NAME_STAMP = f"{STAMP}Freyr\\MessageBroker\\Contracts\\MessageNameStamp"
KEY = "X-Ledgerstone-Key"
ATTEMPT = "X-Ledgerstone-Attempt"
CONSUMER = "X-Ledgerstone-Consumer"
CREATED = "X-Ledgerstone-Created"
"""When a message was published that was put back later."""
HEADERS = {
    TYPE: "the name of the message; where Symfony wrote the row, the class of PHP",
    CONTENT_TYPE: "the media type of `body`",
    ID_STAMP: "`messageId`: the id of the message; the class may have another namespace",
    NAME_STAMP: "`messageName`: its name",
    KEY: "the key with which it was published",
    ATTEMPT: "how often a competing destination has refused it",
    CONSUMER: "the only consumer that is to handle it, or that could not; empty: none was found",
    CREATED: "when it was published, where it was put back later",
}
"""What a row says of its message, and in which words the reference says so."""
MESSAGE_ID = "MessageIdStamp"
NAMES_KEPT_MAX = 1024
_OURS = "x-ledgerstone-"

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(dict[str, Any])
_stamps = msgspec.json.Decoder(list[dict[str, Any]])


def headers_of(message: Message, *, put_back: bool = False) -> str:
    """The headers of its row, as JSON; one that is put back says when it was published."""
    found: dict[str, str] = {
        TYPE: message.name,
        CONTENT_TYPE: message.content_type,
        ID_STAMP: f'[{{"messageId":"{message.id}"}}]',
        NAME_STAMP: _encoder.encode([{"messageName": message.name}]).decode(),
        **message.headers,
    }
    if message.key is not None:
        found[KEY] = message.key
    if put_back:
        found[CREATED] = written(message.created_at)
    if message.attempt:
        found[ATTEMPT] = str(message.attempt)
    if message.consumer is not None:
        found[CONSUMER] = message.consumer
    return _encoder.encode(found).decode()


def with_attempt(headers: str, attempt: int) -> str:
    """The headers of a row, all that it has, and how often it was refused."""
    return _encoder.encode({**_decoder.decode(headers), ATTEMPT: str(attempt)}).decode()


def message_of(
    *,
    place: int,
    body: str,
    headers: str,
    partition: str,
    created_at: datetime,
    origin: str,
) -> Message:
    """The message in a row; BadInput says what is wrong with it.

    `origin` tells this table from every other: it goes into the id of a row that has none.
    """
    found = headers_in(headers)
    name = _name_in(found)
    return Message(
        id=id_in(found) or str(uuid5(NAMESPACE_OID, f"{origin}:{place}")),
        name=name,
        raw=body.encode(),
        headers=_carried(found),
        partition=partition,
        key=found.get(KEY),
        created_at=timestamp_of(found[CREATED]) if CREATED in found else created_at,
        content_type=found.get(CONTENT_TYPE, JSON),
        place=place,
        attempt=_attempt_in(found),
        consumer=found.get(CONSUMER),
    )


def headers_in(text: str) -> dict[str, str]:
    """The headers of a row by name; what others wrote as numbers or lists is taken as JSON text."""
    try:
        found = _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise BadInput(f"the headers are no JSON object: {error}") from error
    return {
        name: value if isinstance(value, str) else _encoder.encode(value).decode()
        for name, value in found.items()
    }


def stamp(headers: Mapping[str, str], ending: str) -> dict[str, Any] | None:
    """The newest stamp whose class is called so, whatever its namespace."""
    for name, value in headers.items():
        if is_stamp(name, ending):
            return newest_stamp(name, value)
    return None


@lru_cache(NAMES_KEPT_MAX)
def is_stamp(header: str, ending: str) -> bool:
    """Whether this header holds the stamps of a class, in whatever case a protocol has put it."""
    header, prefix, ending = header.lower(), STAMP.lower(), ending.lower()
    return header.startswith(prefix) and header[len(prefix) :].rpartition("\\")[2] == ending


def newest_stamp(header: str, text: str) -> dict[str, Any] | None:
    """The last stamp of a header: Symfony puts the newest there."""
    try:
        stamps = _stamps.decode(text)
    except msgspec.DecodeError as error:
        hint = 'it is a JSON array: [{"messageId":"…"}]'
        raise BadInput(f"the header {header} cannot be read: {error}", hint=hint) from error
    return stamps[-1] if stamps else None


def id_in(headers: Mapping[str, str]) -> str | None:
    """The id that a stamp holds; BadInput if it is none."""
    found = stamp(headers, MESSAGE_ID)
    return id_of(found) if found is not None else None


def id_of(found: Mapping[str, Any]) -> str:
    """The id in a stamp; BadInput if there is none."""
    return message_id_of(found.get("messageId", found.get("id")))


def _name_in(headers: Mapping[str, str]) -> str:
    """The name of the message; where `type` is a class, the name that a stamp gives it."""
    name = headers.get(TYPE)
    if not name:
        raise BadInput("the row has no header `type`", hint="it names the message: order.placed")
    if "\\" in name:
        named = stamp(headers, "MessageNameStamp") or {}
        given = named.get("messageName", named.get("name"))
        return given if isinstance(given, str) and given else name
    return name


def _attempt_in(headers: Mapping[str, str]) -> int:
    text = headers.get(ATTEMPT, "0")
    return int(text) if text.isdecimal() and len(text) < 6 else 0  # noqa: PLR2004 - a small number


def _carried(headers: Mapping[str, str]) -> dict[str, str]:
    """What travels on: neither what has a field of its own nor what is only about this row."""
    fields = {TYPE, CONTENT_TYPE}
    return {
        name: value
        for name, value in headers.items()
        if name not in fields and not name.startswith(STAMP) and not name.lower().startswith(_OURS)
    }
