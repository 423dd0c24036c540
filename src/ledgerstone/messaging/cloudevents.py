"""Messages as CloudEvents 1.0: their attributes, the structured document, and both read back.

Binary: the attributes travel as headers, each with a prefix that the protocol gives (`ce-` on HTTP,
`cloudEvents:` on AMQP), and the body is the message's own. Structured: one JSON document for both.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from ledgerstone.errors import BadInput
from ledgerstone.messaging.message import (
    JSON,
    Message,
    check_foreign_name,
    check_partition,
    is_json,
    message_id_of,
    timestamp_of,
    written,
)

SPEC_VERSION = "1.0"
STRUCTURED = "application/cloudevents+json"
TRACE = ("traceparent", "tracestate")
_KEY = "idempotencykey"
_EXTENSION = re.compile(r"[a-z0-9]{1,20}")
_looked_through = msgspec.json.Decoder(msgspec.Raw)
# What the bindings of HTTP and NATS leave as it is: all but space, quote and percent.
_PRINTABLE = "".join(char for char in map(chr, range(0x21, 0x7F)) if char not in '"%')


def attributes(message: Message, source: str) -> dict[str, str]:
    """The context attributes of a message, by name."""
    found = {
        "specversion": SPEC_VERSION,
        "id": message.id,
        "source": source,
        "type": message.name,
        "time": written(message.created_at),
        "datacontenttype": message.content_type,
    }
    if message.partition:
        found["partitionkey"] = message.partition
    if message.key is not None:
        found[_KEY] = message.key
    for name in TRACE:
        if name in message.headers:
            found[name] = message.headers[name]
    return found


def headers(message: Message, source: str) -> dict[str, str]:
    """The attributes as headers of HTTP and NATS, whose values are printable ASCII."""
    found = attributes(message, source).items()
    return {f"ce-{name}": quote(value, safe=_PRINTABLE) for name, value in found}


def structured(message: Message, source: str) -> bytes:
    """The message as one JSON document."""
    document: dict[str, Any] = dict(attributes(message, source))
    if is_json(message.content_type) and _is_document(message.raw):
        document["data"] = msgspec.Raw(message.raw)
    else:
        document["data_base64"] = base64.b64encode(message.raw).decode()
    return msgspec.json.encode(document)


def _is_document(raw: bytes) -> bool:
    """Whether it is JSON; others write what they like, and call it so."""
    try:
        # Looking through does not look into its texts.
        raw.decode()
        _looked_through.decode(raw)
    except (UnicodeDecodeError, msgspec.DecodeError):
        return False
    return True


def of_attributes(found: Mapping[str, str], raw: bytes, headers: Mapping[str, str]) -> Message:
    """The message that attributes and a body make; BadInput says what is wrong with them."""
    if found.get("specversion") != SPEC_VERSION:
        version = found.get("specversion")
        raise BadInput(f"CloudEvents {version!r} cannot be read", hint=f"send {SPEC_VERSION}")
    time = found.get("time")
    trace = {name: found[name] for name in TRACE if name in found}
    return Message(
        id=message_id_of(found.get("id")),
        name=check_foreign_name(found.get("type")),
        raw=raw,
        headers={**headers, **trace},
        partition=check_partition(found.get("partitionkey", "")),
        key=found.get(_KEY),
        created_at=timestamp_of(time) if time is not None else datetime.now(UTC),
        content_type=found.get("datacontenttype", JSON),
    )


def of_document(document: bytes, headers: Mapping[str, str]) -> Message:
    """The message in a structured document; BadInput says what is wrong with it."""
    try:
        found = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"the CloudEvent is no JSON object: {error}") from error
    data = found.pop("data", msgspec.Raw(b"null"))
    encoded = found.pop("data_base64", None)
    raw = bytes(data) if encoded is None else _decoded(bytes(encoded))
    texts = {name: _text(name, bytes(value)) for name, value in found.items()}
    return of_attributes(texts, raw, headers)


def _text(name: str, value: bytes) -> str:
    if not _EXTENSION.fullmatch(name):
        raise BadInput(f"{name!r} is no name of a CloudEvents attribute")
    plain = msgspec.json.decode(value)
    return plain if isinstance(plain, str) else value.decode()


def _decoded(encoded: bytes) -> bytes:
    try:
        return base64.b64decode(msgspec.json.decode(encoded, type=str), validate=True)
    except (msgspec.DecodeError, binascii.Error) as error:
        raise BadInput(f"data_base64 cannot be read: {error}") from error
