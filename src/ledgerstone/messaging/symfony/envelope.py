r"""Messages as rows: body and headers in the format of the JSON serializer of Symfony Messenger.

    body     {"order": 7}
    headers  {"type": "order.placed", "Content-Type": "application/json",
              "X-Message-Stamp-…\\MessageIdStamp": "[{\"messageId\": \"0192…\"}]", …}

A stamp is a header whose value is the text of a JSON array. Stamps of other programs are kept
unchanged. A row without an id gets an id that is computed from its table and row, so that it is the
same every time the row is read.
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
"""The header with the publish time of a message that was inserted again later."""
HEADERS = {
    TYPE: "the name of the message; the PHP class if Symfony wrote the row",
    CONTENT_TYPE: "the media type of `body`",
    ID_STAMP: "`messageId`: the id of the message; the class may have another namespace",
    NAME_STAMP: "`messageName`: its name",
    KEY: "the key with which it was published",
    ATTEMPT: "how many times a competing destination has refused it",
    CONSUMER: "the only consumer of the message, or the one that failed; empty: none was found",
    CREATED: "when it was published, if it was inserted again later",
}
"""The headers of a message in the outbox, with the words of the reference."""
MESSAGE_ID = "MessageIdStamp"
NAMES_KEPT_MAX = 1024
_OURS = "x-ledgerstone-"

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(dict[str, Any])
_stamps = msgspec.json.Decoder(list[dict[str, Any]])


def headers_of(message: Message, *, put_back: bool = False) -> str:
    """The headers of the row as JSON; `put_back` adds the time when it was published."""
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
    """The headers of a row with the number of refusals added."""
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
    """The message in a row. Raises BadInput if it is malformed.

    - `origin`: the identity of the table, part of the id of a row that has none.
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
    """The headers of a row by name. Values that are not text become JSON text."""
    try:
        found = _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise BadInput(f"the headers are not a JSON object: {error}") from error
    return {
        name: value if isinstance(value, str) else _encoder.encode(value).decode()
        for name, value in found.items()
    }


def stamp(headers: Mapping[str, str], ending: str) -> dict[str, Any] | None:
    """The newest stamp whose class has this name, in any namespace."""
    for name, value in headers.items():
        if is_stamp(name, ending):
            return newest_stamp(name, value)
    return None


@lru_cache(NAMES_KEPT_MAX)
def is_stamp(header: str, ending: str) -> bool:
    """Whether the header holds stamps of this class; the case of letters does not matter."""
    header, prefix, ending = header.lower(), STAMP.lower(), ending.lower()
    return header.startswith(prefix) and header[len(prefix) :].rpartition("\\")[2] == ending


def newest_stamp(header: str, text: str) -> dict[str, Any] | None:
    """The last stamp of a header: Symfony appends the newest."""
    try:
        stamps = _stamps.decode(text)
    except msgspec.DecodeError as error:
        hint = 'use a JSON array: [{"messageId":"…"}]'
        raise BadInput(f"the header {header} cannot be read: {error}", hint=hint) from error
    return stamps[-1] if stamps else None


def id_in(headers: Mapping[str, str]) -> str | None:
    """The id in the stamp of the headers, if there is one. Raises BadInput if it is malformed."""
    found = stamp(headers, MESSAGE_ID)
    return id_of(found) if found is not None else None


def id_of(found: Mapping[str, Any]) -> str:
    """The id in a stamp. Raises BadInput if there is none."""
    return message_id_of(found.get("messageId", found.get("id")))


def _name_in(headers: Mapping[str, str]) -> str:
    """The name of the message: `type`, or the name in a stamp if `type` is a PHP class."""
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
    """The headers that are sent: without those that have a field or concern only this row."""
    fields = {TYPE, CONTENT_TYPE}
    return {
        name: value
        for name, value in headers.items()
        if name not in fields and not name.startswith(STAMP) and not name.lower().startswith(_OURS)
    }
