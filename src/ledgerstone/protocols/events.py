"""Events: what a protocol is told, on its way (an envelope) and with its identity."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from ledgerstone.errors import BadInput
from ledgerstone.protocols.tables import KEY_CHARS_MAX, NAME_CHARS_MAX
from ledgerstone.store.sql.names import check_name

MOMENT_MS_MAX = 253_402_300_799_999
"""The end of the year 9999."""
IDENTITY_BYTES = 32
"""Of BLAKE2b: nobody finds two contents of one identity."""

_encoder = msgspec.json.Encoder(order="deterministic")


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event as it travels.

    - `event_id` is its identity; empty: the protocol makes one, or its content is one.
    - `received_by` is the local identity that this copy belongs to: each has its own.
    - `created_at_ms` 0 stands for the moment at which it is taken in.
    """

    type: str
    data: dict[str, Any] = {}
    event_id: str = ""
    received_by: str = ""
    created_at_ms: int = 0

    def check(self) -> None:
        """BadInput unless every database keeps it."""
        check_name(self.type, "the type of an event", chars_max=NAME_CHARS_MAX)
        # None is refused, too: nothing has checked what a command put in.
        if self.event_id != "":
            check_name(self.event_id, "the identity of an event", chars_max=KEY_CHARS_MAX)
        if self.received_by != "":
            check_name(self.received_by, "an identity that receives", chars_max=KEY_CHARS_MAX)
        if not -MOMENT_MS_MAX <= self.created_at_ms <= MOMENT_MS_MAX:
            raise BadInput(f"an event has a moment in ms since 1970, not {self.created_at_ms}")


_decoder = msgspec.json.Decoder(Envelope)


def encode(envelope: Envelope) -> bytes:
    """An envelope as bytes: the same bytes for the same content."""
    return _encoded(envelope)


def decode(wire: bytes) -> Envelope:
    """The envelope of these bytes; BadInput if they are none."""
    try:
        envelope = _decoder.decode(wire)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"the bytes are no envelope: {error}") from error
    envelope.check()
    return envelope


def payload_of(envelope: Envelope) -> bytes:
    """What the log keeps of its content."""
    return _encoded(envelope.data)


def _encoded(value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"the content of an event is no JSON: {error}") from error


def data_of(payload: bytes) -> dict[str, Any]:
    """The content that the log has kept."""
    data: dict[str, Any] = msgspec.json.decode(payload)
    return data


def identity_of(kind: str, payload: bytes) -> str:
    """The identity of an event that brings none: a hash of its type and content."""
    hashed = hashlib.blake2b(kind.encode(), digest_size=IDENTITY_BYTES)
    hashed.update(b"\0")
    hashed.update(payload)
    return hashed.hexdigest()


def content_hash(value: Any) -> str:
    """What tells one content of a key from another."""
    return hashlib.sha256(_encoder.encode(value)).hexdigest()
