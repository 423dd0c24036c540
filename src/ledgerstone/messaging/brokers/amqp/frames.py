"""A message as the bytes of basic.publish of AMQP 0-9-1: method, header and body in one piece.

    +------+---------+------+- - - - -+-----+
    | kind | channel | size | payload | end |     a frame: 1 method, 2 header, 3 body
    +------+---------+------+- - - - -+-----+

Only the properties that a message needs are encoded. A client that encodes every property by its
declared type takes several times as long per message.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache

METHOD, HEADER, BODY = 1, 2, 3
END = b"\xce"
FRAME_OVERHEAD_BYTES = 8
SHORT_BYTES_MAX = 255
BASIC = 60
PUBLISH = struct.pack(">HHH", BASIC, 40, 0)
MANDATORY = b"\x01"
PERSISTENT = b"\x02"
NAMES_KEPT_MAX = 1024
# Content type, headers, delivery mode, message id, timestamp, type, application id.
_PROPERTIES = 1 << 15 | 1 << 13 | 1 << 12 | 1 << 7 | 1 << 6 | 1 << 5 | 1 << 3
_frame = struct.Struct(">BHI")
_header = struct.Struct(">BHIHHQH")
_long = struct.Struct(">I")
_moment = struct.Struct(">Q")


def _close() -> bytes:
    """The frame of connection.close on channel 0: code 200, without text."""
    payload = struct.pack(">HHHBHH", 10, 50, 200, 0, 0, 0)
    return _frame.pack(METHOD, 0, len(payload)) + payload + END


CLOSE = _close()
"""The bytes that close a connection in good order, whatever the state of its channels."""


class NotEncodable(ValueError):
    """The message cannot be encoded in AMQP; the text says why."""


def published(
    *,
    channel: int,
    frame_bytes_max: int,
    exchange: str,
    routing_key: str,
    content_type: str,
    headers: Mapping[str, str],
    message_id: str,
    timestamp: int,
    name: str,
    app_id: str,
    body: bytes,
) -> bytes:
    """The frames of a persistent, mandatory basic.publish; raises NotEncodable."""
    properties = b"".join(
        (
            short(content_type),
            table(headers),
            PERSISTENT,
            short(message_id),
            _moment.pack(timestamp),
            short(name),
            short(app_id),
        )
    )
    # Class, weight, body size and flags precede the properties.
    size = 14 + len(properties)
    if size > frame_bytes_max - FRAME_OVERHEAD_BYTES:
        message = f"its headers are {size} bytes, and a frame has at most {frame_bytes_max}"
        raise NotEncodable(message)
    header = _header.pack(HEADER, channel, size, BASIC, 0, len(body), _PROPERTIES)
    method = _method(channel, exchange, routing_key)
    return b"".join((method, header, properties, END, *_bodies(channel, body, frame_bytes_max)))


def _bodies(channel: int, body: bytes, frame_bytes_max: int) -> tuple[bytes, ...]:
    part_bytes = frame_bytes_max - FRAME_OVERHEAD_BYTES
    if len(body) <= part_bytes:
        return (_frame.pack(BODY, channel, len(body)), body, END) if body else ()
    parts: list[bytes] = []
    for start in range(0, len(body), part_bytes):
        part = body[start : start + part_bytes]
        parts += (_frame.pack(BODY, channel, len(part)), part, END)
    return tuple(parts)


@lru_cache(NAMES_KEPT_MAX)
def _method(channel: int, exchange: str, routing_key: str) -> bytes:
    payload = b"".join((PUBLISH, short(exchange), short(routing_key), MANDATORY))
    return b"".join((_frame.pack(METHOD, channel, len(payload)), payload, END))


def table(texts: Mapping[str, str]) -> bytes:
    """A field table with text values."""
    fields: list[bytes] = []
    for name, text in texts.items():
        value = text.encode()
        fields += (_field(name), _long.pack(len(value)), value)
    joined = b"".join(fields)
    return _long.pack(len(joined)) + joined


@lru_cache(NAMES_KEPT_MAX)
def _field(name: str) -> bytes:
    """The name of a field and the type of its value, long string."""
    return short(name) + b"S"


def short(text: str) -> bytes:
    """A short string: its size in one byte, then its bytes."""
    encoded = text.encode()
    if len(encoded) > SHORT_BYTES_MAX:
        shown = f"{text[:40]}…"
        raise NotEncodable(
            f"{shown!r} is longer than the {SHORT_BYTES_MAX} bytes of a short string"
        )
    return bytes((len(encoded),)) + encoded
