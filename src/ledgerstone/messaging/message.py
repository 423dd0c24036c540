"""A message: what is published, sent and handled, and the rules for its parts.

The id is generated when the message is published and never changes. Consumers detect duplicate
deliveries by the id. Three identities are separate: the id of the message, the key that detects a
repeated publish call, and the partition that keeps messages in order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from ledgerstone.errors import BadInput
from ledgerstone.store.sql.names import check_name

NAME_CHARS_MAX = 255
PARTITION_CHARS_MAX = 255
KEY_CHARS_MAX = 255
HEADERS_MAX = 64
HEADER_NAME_CHARS_MAX = 128
HEADER_VALUE_CHARS_MAX = 4096
SHOWN_CHARS_MAX = 80
JSON = "application/json"

T = TypeVar("T")

_NAME = re.compile(r"[a-z][a-z0-9]*(\.[a-z][a-z0-9]*)+")
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_NO_HEADER = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_RESERVED = re.compile(
    r"type|content-type|content-encoding|message-id|x-message-.*|x-ledgerstone-.*|ce-.*"
    r"|cloudevents[:_].*|webhook-.*|nats-.*|host|content-length|transfer-encoding|connection",
    re.IGNORECASE,
)


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message.

    - `raw` is the body as it is sent, usually a JSON document. `body` is the decoded document.
    - `headers` are the headers of the publisher and the trace context, without headers that
      Ledgerstone adds.
    - `place` is the id of the row in the outbox, which orders the partition. It is None for a
      message that was not read from the outbox.
    """

    id: str
    name: str
    raw: bytes
    headers: Mapping[str, str] = {}
    partition: str = ""
    key: str | None = None
    created_at: datetime
    content_type: str = JSON
    place: int | None = None
    attempt: int = 0
    """How many times the destination has refused it."""
    consumer: str | None = None
    """The only consumer that handles it; None means all consumers of its name."""

    @property
    def body(self) -> object:
        """The decoded body, as plain values."""
        return msgspec.json.decode(self.raw)

    def body_as(self, kind: type[T]) -> T:
        """The body decoded as `kind`. Raises BadInput if the body does not fit the type."""
        try:
            return msgspec.json.decode(self.raw, type=kind)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadInput(f"the body of {self.name} does not fit: {error}") from error


def check_message_name(name: Any) -> str:
    """Raises BadInput unless it is a valid name of a message, such as `order.placed`."""
    if isinstance(name, str) and len(name) <= NAME_CHARS_MAX and _NAME.fullmatch(name):
        return name
    message = f"{_shown(name)} is not a valid message name"
    hint = (
        "write two or more parts of lowercase letters and digits, each starting with a letter,"
        f" joined by dots, at most {NAME_CHARS_MAX} characters: order.placed"
    )
    raise BadInput(message, hint=hint)


def check_foreign_name(name: Any) -> str:
    """Raises BadInput unless it can be the name of a message of another program.

    Other programs use names such as `com.github.pull_request.opened`, or a PHP class name.
    """
    if isinstance(name, str) and 0 < len(name) <= NAME_CHARS_MAX and not _NO_HEADER.search(name):
        return name
    hint = f"use text of 1 to {NAME_CHARS_MAX} characters without control characters"
    raise BadInput(f"{_shown(name)} is not a valid message name", hint=hint)


def check_partition(partition: Any) -> str:
    """Raises BadInput unless it can be a partition. The empty string is a valid partition."""
    if not isinstance(partition, str):
        raise BadInput(f"a partition must be text, not {_shown(partition)}")
    if partition:
        check_name(partition, "a partition", chars_max=PARTITION_CHARS_MAX)
    return partition


def check_headers(headers: Any) -> dict[str, str]:
    """Raises BadInput unless a publisher may set these headers."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise BadInput(f"headers must be a mapping of names to values, not {_shown(headers)}")
    if len(headers) > HEADERS_MAX:
        raise BadInput(f"a message has at most {HEADERS_MAX} headers, not {len(headers)}")
    for name, value in headers.items():
        _check_header(name, value)
    return dict(headers)


def _check_header(name: Any, value: Any) -> None:
    fits = isinstance(name, str) and len(name) <= HEADER_NAME_CHARS_MAX
    if not (fits and _HEADER_NAME.fullmatch(name)):
        hint = f"use letters, digits and -, at most {HEADER_NAME_CHARS_MAX} characters"
        raise BadInput(f"{_shown(name)} is not a valid header name", hint=hint)
    if _RESERVED.fullmatch(name):
        # A header that replaces the id would make this another message.
        raise BadInput(f"the header {name} is reserved", hint="use another name")
    if not isinstance(value, str) or len(value) > HEADER_VALUE_CHARS_MAX:
        hint = f"give text of at most {HEADER_VALUE_CHARS_MAX} characters"
        raise BadInput(f"the header {name} cannot have the value {_shown(value)}", hint=hint)
    if _NO_HEADER.search(value):
        raise BadInput(f"the header {name} contains control characters")


def message_id_of(text: Any) -> str:
    """The id in canonical spelling. Raises BadInput if the text is not a UUID."""
    if isinstance(text, str) and _ID.fullmatch(text):
        return text
    try:
        return str(UUID(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise BadInput(f"{_shown(text)} is not a message id", hint="ids are UUIDs") from error


def is_json(content_type: str | None) -> bool:
    """Whether a body with this content type is a JSON document."""
    media = (content_type or "").partition(";")[0].strip().lower()
    return media == JSON or media.endswith("+json")


def timestamp_of(text: str) -> datetime:
    """Parses a timestamp (RFC 3339) and returns it in UTC. Raises BadInput if it is malformed."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f"{_shown(text)} is not a timestamp", hint="write it as RFC 3339") from error
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def written(moment: datetime) -> str:
    """Formats a timestamp for the wire (RFC 3339, UTC)."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[: SHOWN_CHARS_MAX - 1]}…"
