"""A message: what is published, carried and handled, and the rules for its parts.

Its id is minted when it is published and never changes: what is delivered twice is recognised by
it. Three identities are kept apart: the id of the message, the key by which a publisher recognises
a repeated call, and the partition within which order is kept.
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

    - `raw` is its body as it travels, a JSON document; `body` is what that says.
    - `headers` are the publisher's own and the trace context, nothing that the house adds.
    - `place` is the number of its row in the outbox, by which a partition is ordered; a message
      that came from elsewhere has none.
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
    """How often its destination has refused it."""
    consumer: str | None = None
    """The only consumer that is to handle it, where it is not for all."""

    @property
    def body(self) -> Any:
        """What the body says, as plain values."""
        return msgspec.json.decode(self.raw)

    def body_as(self, kind: type[T]) -> T:
        """The body as a value of a type: BadInput if it does not fit."""
        try:
            return msgspec.json.decode(self.raw, type=kind)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadInput(f"the body of {self.name} does not fit: {error}") from error


def check_message_name(name: Any) -> str:
    """BadInput unless it is a name of a message: `order.placed`."""
    if isinstance(name, str) and len(name) <= NAME_CHARS_MAX and _NAME.fullmatch(name):
        return name
    message = f"{_shown(name)} is no name of a message"
    hint = (
        "write two or more parts of small letters and digits, each beginning with a letter,"
        f" joined by dots, at most {NAME_CHARS_MAX} characters: order.placed"
    )
    raise BadInput(message, hint=hint)


def check_foreign_name(name: Any) -> str:
    """BadInput unless it can name a message that others have published.

    They name theirs as they like: `com.github.pull_request.opened`, or a class of PHP.
    """
    if isinstance(name, str) and 0 < len(name) <= NAME_CHARS_MAX and not _NO_HEADER.search(name):
        return name
    hint = f"it is text of 1 to {NAME_CHARS_MAX} characters, none of them a control character"
    raise BadInput(f"{_shown(name)} is no name of a message", hint=hint)


def check_partition(partition: Any) -> str:
    """BadInput unless it can be a partition; the empty one is a partition like any other."""
    if not isinstance(partition, str):
        raise BadInput(f"a partition is text, not {_shown(partition)}")
    if partition:
        check_name(partition, "a partition", chars_max=PARTITION_CHARS_MAX)
    return partition


def check_headers(headers: Any) -> dict[str, str]:
    """BadInput unless these can travel as headers of a publisher's own."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise BadInput(f"headers are given by name, not as {_shown(headers)}")
    if len(headers) > HEADERS_MAX:
        raise BadInput(f"a message has at most {HEADERS_MAX} headers, this one {len(headers)}")
    for name, value in headers.items():
        _check_header(name, value)
    return dict(headers)


def _check_header(name: Any, value: Any) -> None:
    fits = isinstance(name, str) and len(name) <= HEADER_NAME_CHARS_MAX
    if not (fits and _HEADER_NAME.fullmatch(name)):
        hint = f"use letters, digits and -, at most {HEADER_NAME_CHARS_MAX} of them"
        raise BadInput(f"{_shown(name)} is no name of a header", hint=hint)
    if _RESERVED.fullmatch(name):
        # A header that overwrote the id would make another message out of this one.
        raise BadInput(f"the header {name} is not the publisher's to set", hint="rename it")
    if not isinstance(value, str) or len(value) > HEADER_VALUE_CHARS_MAX:
        hint = f"give text of at most {HEADER_VALUE_CHARS_MAX} characters"
        raise BadInput(f"the header {name} cannot be {_shown(value)}", hint=hint)
    if _NO_HEADER.search(value):
        raise BadInput(f"the header {name} holds characters that no header may")


def message_id_of(text: Any) -> str:
    """The id in its usual spelling; BadInput if it is none."""
    if isinstance(text, str) and _ID.fullmatch(text):
        return text
    try:
        return str(UUID(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise BadInput(f"{_shown(text)} is no id of a message", hint="ids are UUIDs") from error


def is_json(content_type: str | None) -> bool:
    """Whether a body of this type is a JSON document."""
    media = (content_type or "").partition(";")[0].strip().lower()
    return media == JSON or media.endswith("+json")


def timestamp_of(text: str) -> datetime:
    """A moment as it is written on the wire (RFC 3339), in UTC; BadInput if it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f"{_shown(text)} is no moment", hint="write it as RFC 3339") from error
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def written(moment: datetime) -> str:
    """A moment as it is written on the wire (RFC 3339, UTC)."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[: SHOWN_CHARS_MAX - 1]}…"
