"""Messages as CloudEvents 1.0: attributes, the structured document, and the parsing of both.

Binary mode: the attributes are headers with a prefix (`ce-` on HTTP, `cloudEvents:` on AMQP), and
the body is the body of the message. Structured mode: one JSON document holds both.
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
# The HTTP and NATS bindings percent-encode space, quote, percent and everything outside this set.
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
    """The attributes as headers for HTTP and NATS, with printable ASCII values."""
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
    """Whether the bytes are a JSON document. Other programs label bodies as JSON that are not."""
    try:
        # msgspec.Raw does not check that texts are valid UTF-8.
        raw.decode()
        _looked_through.decode(raw)
    except (UnicodeDecodeError, msgspec.DecodeError):
        return False
    return True


def of_attributes(found: Mapping[str, str], raw: bytes, headers: Mapping[str, str]) -> Message:
    """Makes a message of CloudEvents attributes and a body. Raises BadInput if they are invalid."""
    if found.get("specversion") != SPEC_VERSION:
        version = found.get("specversion")
        raise BadInput(
            f"CloudEvents version {version!r} is not supported", hint=f"send {SPEC_VERSION}"
        )
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
    """Makes a message of a structured document. Raises BadInput if the document is invalid."""
    try:
        found = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"the CloudEvent is not a JSON object: {error}") from error
    data = found.pop("data", msgspec.Raw(b"null"))
    encoded = found.pop("data_base64", None)
    raw = bytes(data) if encoded is None else _decoded(bytes(encoded))
    texts = {name: _text(name, bytes(value)) for name, value in found.items()}
    return of_attributes(texts, raw, headers)


def _text(name: str, value: bytes) -> str:
    if not _EXTENSION.fullmatch(name):
        raise BadInput(f"{name!r} is not a valid name of a CloudEvents attribute")
    plain = msgspec.json.decode(value)
    return plain if isinstance(plain, str) else value.decode()


def _decoded(encoded: bytes) -> bytes:
    try:
        return base64.b64decode(msgspec.json.decode(encoded, type=str), validate=True)
    except (msgspec.DecodeError, binascii.Error) as error:
        raise BadInput(f"data_base64 is not valid base64: {error}") from error
