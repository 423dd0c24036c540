r"""The row of a failed message: how it is written and parsed.

The row has the format of Symfony Messenger, in a queue of Ledgerstone: Symfony deletes a row that
its serializer cannot parse, even when it only lists it. Headers beside the stamps of Symfony hold
the rest:

    X-Ledgerstone-Consumer    the consumer that failed; empty: no consumer was found
    X-Ledgerstone-Origin      the destination or subscription that the message came from
    X-Ledgerstone-Code, -Reason, -Traceback, -Attempts, -Partition, -Place, -Created
    X-Ledgerstone-Body        `base64` if the body is not text
    X-Ledgerstone-Raw         the headers and properties of a delivery that could not be parsed
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from ledgerstone.engine.source import Failure
from ledgerstone.errors import BadInput
from ledgerstone.messaging.brokers.subscription import Delivery
from ledgerstone.messaging.message import Message, written
from ledgerstone.messaging.symfony import envelope
from ledgerstone.store.sql.statement import Row

TRACEBACK_CHARS_MAX = 4000
RAW_DEPTH_MAX = 8
UNREADABLE = "unreadable"
"""The name of a message that could not be parsed."""

_OURS = "X-Ledgerstone-"
_CONSUMER = envelope.CONSUMER
_ORIGIN = f"{_OURS}Origin"
_CODE = f"{_OURS}Code"
_REASON = f"{_OURS}Reason"
_TRACEBACK = f"{_OURS}Traceback"
_ATTEMPTS = f"{_OURS}Attempts"
_PARTITION = f"{_OURS}Partition"
_PLACE = f"{_OURS}Place"
_CREATED = envelope.CREATED
_BODY = f"{_OURS}Body"
_RAW = f"{_OURS}Raw"
_BASE64 = "base64"
_SYMFONY = f"{envelope.STAMP}Symfony\\Component\\Messenger\\Stamp\\"
HEADERS = {
    _ORIGIN: "the destination or the subscription that the message came from",
    _CODE: "the code of the failure",
    _REASON: "its message",
    _TRACEBACK: "its traceback, the end of it",
    _ATTEMPTS: "how often it was tried",
    _PARTITION: "the partition that the message had",
    _PLACE: "its place in the outbox",
    _BODY: "`base64` where the body is no text",
    _RAW: "headers, properties and content type of what could not be read",
    f"{_SYMFONY}ErrorDetailsStamp": "the failure as Symfony has it",
    f"{_SYMFONY}SentToFailureTransportStamp": "the origin as Symfony has it",
    f"{_SYMFONY}RedeliveryStamp": "the number of retries as Symfony has it",
}
"""The headers of a failed message, with the words of the reference."""


class Raw(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that could not be parsed as a message."""

    body: bytes
    content_type: str | None = None
    headers: Mapping[str, Any] = {}
    properties: Mapping[str, str] = {}


class FailedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in the failed table.

    - `consumer`: the consumer that failed; empty if no consumer was found; None if the destination
      `origin` gave it up.
    - `message`: the message to retry; None if it could not be parsed, then `raw` and `headers` hold
      what arrived.
    - In lists `raw` and the body of `message` are empty.
    """

    id: int
    failed_at: datetime
    name: str
    message_id: str | None
    consumer: str | None
    origin: str | None
    code: str
    reason: str
    attempts: int
    partition: str
    place: int | None
    traceback: str | None
    headers: Mapping[str, str]
    raw: bytes
    message: Message | None

    @property
    def binary(self) -> bool:
        """Whether the body is not text."""
        return self.headers.get(_BODY) == _BASE64


class Cause(msgspec.Struct, frozen=True):
    """The cause of a failure, by which filters select and groups count."""

    consumer: str | None
    origin: str | None
    name: str
    code: str


class _Headers(msgspec.Struct):
    """The headers of the cause, decoded without the others."""

    consumer: str | None = msgspec.field(name=_CONSUMER, default=None)
    origin: str | None = msgspec.field(name=_ORIGIN, default=None)
    name: str = msgspec.field(name=envelope.TYPE, default="")
    code: str = msgspec.field(name=_CODE, default="")


_headers = msgspec.json.Decoder(_Headers)
_NO_DAY = datetime(1970, 1, 1, tzinfo=UTC)


def cause_of(headers: str) -> Cause:
    """The cause of a row with these headers, the same that `made` returns."""
    try:
        found = _headers.decode(headers)
    except msgspec.DecodeError:
        found = _Headers()
    if found.origin is not None and found.name and found.code:
        return Cause(found.consumer, found.origin, found.name, found.code)
    whole = made((0, headers, None), "", _NO_DAY)
    return Cause(whole.consumer, whole.origin, whole.name, whole.code)


def raw_of(delivery: Delivery) -> Raw:
    """The row of a delivery that could not be parsed."""
    return Raw(
        body=delivery.body,
        content_type=delivery.content_type,
        headers=delivery.headers,
        properties=delivery.properties,
    )


def row_of(
    item: Message | Raw, *, consumer: str | None, failure: Failure, attempts: int, origin: str
) -> tuple[str, str]:
    """Body and headers of the row of a failed message."""
    headers = _of_message(item) if isinstance(item, Message) else _of_raw(item)
    headers.update(_stamps(failure, attempts, origin))
    headers |= {
        _ORIGIN: origin,
        _CODE: failure.code,
        _REASON: failure.message,
        _ATTEMPTS: str(attempts),
    }
    if consumer is not None:
        headers[_CONSUMER] = consumer
    if failure.traceback:
        headers[_TRACEBACK] = failure.traceback[-TRACEBACK_CHARS_MAX:]
    raw = item.raw if isinstance(item, Message) else item.body
    body = _text(raw)
    if body is None:
        headers[_BODY] = _BASE64
        body = base64.b64encode(raw).decode()
    return body, msgspec.json.encode(headers).decode()


def _of_message(message: Message) -> dict[str, str]:
    plain = msgspec.structs.replace(message, attempt=0, consumer=None)
    headers = envelope.headers_in(envelope.headers_of(plain))
    headers[_PARTITION] = message.partition
    headers[_CREATED] = written(message.created_at)
    if message.place is not None:
        headers[_PLACE] = str(message.place)
    return headers


def _of_raw(raw: Raw) -> dict[str, str]:
    name = raw.headers.get("type", raw.properties.get("type"))
    came = {
        "headers": _plain(raw.headers),
        "properties": _plain(raw.properties),
        "content_type": _plain(raw.content_type),
    }
    return {
        envelope.TYPE: storable(name) if isinstance(name, str) and name else UNREADABLE,
        envelope.CONTENT_TYPE: storable(raw.content_type or "application/octet-stream"),
        _RAW: msgspec.json.encode(came).decode(),
    }


def _stamps(failure: Failure, attempts: int, origin: str) -> dict[str, str]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    stamps = {
        "ErrorDetailsStamp": {
            "exceptionClass": failure.code,
            "exceptionCode": 0,
            "exceptionMessage": failure.message,
            "flattenException": None,
        },
        "SentToFailureTransportStamp": {"originalReceiverName": origin},
        "RedeliveryStamp": {"retryCount": max(0, attempts - 1), "redeliveredAt": now},
    }
    return {
        f"{_SYMFONY}{name}": msgspec.json.encode([stamp]).decode() for name, stamp in stamps.items()
    }


def made(row: Row, table: str, failed_at: datetime) -> FailedMessage:
    """Makes a failed message of a row; lists select no body.

    - `table`: the identity of the table, part of the id of a message that has none.
    """
    try:
        headers = envelope.headers_in(row[1])
    except BadInput as error:
        headers, wrong = {}, str(error)
    else:
        wrong = ""
    raw = _bytes(row[3] if len(row) > 3 else "", headers)  # noqa: PLR2004 - the body is the fourth
    code, reason, origin = _said(headers)
    message: Message | None = None
    if _RAW not in headers and not wrong:
        message, wrong = _message(int(row[0]), raw, headers, failed_at, table)
    return FailedMessage(
        id=int(row[0]),
        failed_at=failed_at,
        name=headers.get(envelope.TYPE) or UNREADABLE,
        message_id=message.id if message is not None else None,
        consumer=headers.get(_CONSUMER),
        origin=origin,
        code=code or ("bad_input" if wrong else ""),
        reason=reason or wrong,
        attempts=_number(headers.get(_ATTEMPTS)) or 0,
        partition=headers.get(_PARTITION, ""),
        place=_number(headers.get(_PLACE)),
        traceback=headers.get(_TRACEBACK),
        headers=headers,
        raw=raw,
        message=message,
    )


def _message(
    place: int, raw: bytes, headers: Mapping[str, str], failed_at: datetime, table: str
) -> tuple[Message | None, str]:
    """The message as it was before it failed, or the reason why it cannot be parsed."""
    try:
        message = envelope.message_of(
            place=place,
            body="",
            headers=msgspec.json.encode(headers).decode(),
            partition=headers.get(_PARTITION, ""),
            created_at=failed_at,
            origin=table,
        )
    except BadInput as error:
        return None, str(error)
    place_before = _number(headers.get(_PLACE))
    return (
        msgspec.structs.replace(message, raw=raw, place=place_before, consumer=None, attempt=0),
        "",
    )


def _said(headers: Mapping[str, str]) -> tuple[str, str, str | None]:
    """Code, reason and origin: from our headers, or from the stamps if Symfony wrote the row."""
    code, reason = headers.get(_CODE), headers.get(_REASON)
    origin = headers.get(_ORIGIN)
    if origin is None:
        origin = _stamped(headers, "SentToFailureTransportStamp").get("originalReceiverName")
    if code is None:
        error = _stamped(headers, "ErrorDetailsStamp")
        code, reason = error.get("exceptionClass", ""), error.get("exceptionMessage", "")
    return str(code), str(reason or ""), None if origin is None else str(origin)


def _stamped(headers: Mapping[str, str], ending: str) -> dict[str, Any]:
    try:
        return envelope.stamp(headers, ending) or {}
    except BadInput:
        return {}


def _number(text: str | None) -> int | None:
    fits = text is not None and text.isascii() and text.isdecimal() and len(text) < 19  # noqa: PLR2004
    return int(text) if fits and text is not None else None


def _text(raw: bytes) -> str | None:
    """The bytes as text that every database can store, or None."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _bytes(body: str, headers: Mapping[str, str]) -> bytes:
    if headers.get(_BODY) != _BASE64:
        return body.encode()
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error:
        return body.encode()


def storable(text: str) -> str:
    """The text without NUL and lone surrogates, which databases reject."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _plain(value: Any, depth: int = 0) -> Any:
    """The value of a header as a JSON value."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else str(value)
    if isinstance(value, bytes | bytearray):
        return _text(bytes(value)) or base64.b64encode(value).decode()
    if depth < RAW_DEPTH_MAX and isinstance(value, Mapping):
        return {storable(str(k)): _plain(v, depth + 1) for k, v in value.items()}
    if depth < RAW_DEPTH_MAX and isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each, depth + 1) for each in value]
    return storable(str(value))
