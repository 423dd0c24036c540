"""Messages on AMQP: the headers of a published message, and the parsing of a delivery.

A message is described in three ways, so that each reader finds what it knows: as a CloudEvent, by
the properties of AMQP, and by the headers of the original PHP package (`type`, `x-message-name` and
the stamp of the id). Each of them is enough to parse it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec

from ledgerstone.errors import BadInput
from ledgerstone.messaging import cloudevents
from ledgerstone.messaging.brokers.subscription import Delivery
from ledgerstone.messaging.message import (
    JSON,
    Message,
    check_foreign_name,
    message_id_of,
    timestamp_of,
    written,
)
from ledgerstone.messaging.symfony import envelope

PREFIX = "cloudEvents:"
NAME_HEADER = "x-message-name"
TYPE_HEADER = "type"
ID_STAMP = "X-Message-Stamp-Freyr\\MessageBroker\\Contracts\\MessageIdStamp"
_ATTRIBUTE = re.compile(r"(?:cloudevents[:_]|ce-)(.+)", re.IGNORECASE)
# Headers of Ledgerstone, the original package and the broker; the others are the publisher's.
_NOT_OWN = re.compile(
    r"type|content-type|x-message-.*|x-death|x-(first|last)-death-.*|x-delivery-count"
    r"|x-acquired-count|x-received-from|x-stream-.*|x-opt-.*|x-ledgerstone-.*|cc|bcc",
    re.IGNORECASE,
)
_SHOWN_CHARS_MAX = 80
NAMES_KEPT_MAX = 1024
# Parses a document without building values.
_json = msgspec.json.Decoder(msgspec.Raw)


def headers_of(message: Message, source: str, *, structured: bool) -> dict[str, str]:
    """The headers of a published message. In structured mode the body holds the attributes."""
    found = dict(message.headers)
    if not structured:
        attributes = cloudevents.attributes(message, source)
        found.update({f"{PREFIX}{name}": value for name, value in attributes.items()})
    found[TYPE_HEADER] = message.name
    found[NAME_HEADER] = message.name
    found[ID_STAMP] = f'[{{"messageId":"{message.id}"}}]'
    return found


def message_of(delivery: Delivery) -> Message:
    """The message in a delivery. Raises BadInput if it is malformed.

    - A CloudEvent, structured or binary (attributes with the prefix `cloudEvents:`, `cloudEvents_`
      or `ce-`), is parsed as one.
    - Other messages need a name (the header `x-message-name` or `type`, or the property `type`) and
      an id (the header with the stamp of the id, or the property `message_id`).
    """
    attributes: dict[str, str] = {}
    own: dict[str, str] = {}
    for name, value in delivery.headers.items():
        if attribute := _attribute(name):
            attributes[attribute] = _text(name, value)
        elif value is not None and _is_own(name):
            own[name] = _shown(name, value)
    if _media(delivery.content_type) == cloudevents.STRUCTURED:
        _check_json(delivery.body, "the CloudEvent")
        return _read(cloudevents.of_document(delivery.body, own))
    if attributes:
        if delivery.content_type:
            attributes.setdefault("datacontenttype", delivery.content_type)
        return _read(cloudevents.of_attributes(attributes, delivery.body, own))
    return _read(_original(delivery, own))


@lru_cache(NAMES_KEPT_MAX)
def _attribute(header: str) -> str:
    found = _ATTRIBUTE.fullmatch(header)
    return found[1].lower() if found else ""


@lru_cache(NAMES_KEPT_MAX)
def _is_own(header: str) -> bool:
    return not _NOT_OWN.fullmatch(header)


def _original(delivery: Delivery, own: Mapping[str, str]) -> Message:
    moment = delivery.properties.get("timestamp")
    return Message(
        id=_id(delivery),
        name=_name(delivery),
        raw=delivery.body,
        headers=own,
        created_at=timestamp_of(moment) if moment is not None else datetime.now(UTC),
        content_type=delivery.content_type or JSON,
    )


def _name(delivery: Delivery) -> str:
    headers = {name.lower(): value for name, value in delivery.headers.items()}
    for header in (NAME_HEADER, TYPE_HEADER):
        if headers.get(header) is not None:
            return check_foreign_name(_text(header, headers[header]))
    if name := delivery.properties.get("type"):
        return check_foreign_name(name)
    hint = f"send it as the header {NAME_HEADER} or {TYPE_HEADER}, or as the property type"
    raise BadInput("the message has no name", hint=hint)


def _id(delivery: Delivery) -> str:
    for name, value in delivery.headers.items():
        if envelope.is_stamp(name, envelope.MESSAGE_ID):
            newest = envelope.newest_stamp(name, _text(name, value))
            if newest is None:
                raise BadInput(f"the header {name} holds no id")
            return envelope.id_of(newest)
    if (found := delivery.properties.get("message_id")) is not None:
        return message_id_of(found)
    hint = f"send it as the header {ID_STAMP}, or as the property message_id"
    raise BadInput("the message has no id", hint=hint)


def _read(message: Message) -> Message:
    """The message, after a check that a JSON body is valid JSON."""
    media = _media(message.content_type)
    if media == JSON or media.endswith("+json"):
        _check_json(message.raw, f"the body of {message.name}")
    return message


def _check_json(document: bytes, what: str) -> None:
    try:
        # msgspec.Raw does not check that texts are valid UTF-8.
        document.decode()
        _json.decode(document)
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise BadInput(f"{what} is not JSON: {error}") from error


def _text(name: str, value: Any) -> str:
    """The value of a header that identifies the message; it must have one spelling."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | Decimal():
            return str(value)
        case datetime():
            return written(value if value.tzinfo is not None else value.replace(tzinfo=UTC))
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise BadInput(f"the header {name} contains bytes that are not UTF-8") from None
        case _:
            shown = repr(value)[:_SHOWN_CHARS_MAX]
            raise BadInput(f"the header {name} is not text but {type(value).__name__}: {shown}")


def _shown(name: str, value: Any) -> str:
    """The value of a publisher's header as text: other types as JSON, bytes as base64."""
    if isinstance(value, str | bool | int | Decimal | datetime):
        return _text(name, value)
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"the header {name} cannot be written as text: {error}") from error


def _media(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()
