"""The hashes that identify groups, events and proposals: BLAKE3, 32 bytes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from blake3 import blake3

from ledgerstone.errors import BadInput
from ledgerstone.signing.bincode import encode
from ledgerstone.signing.values import (
    EventHash,
    EventSource,
    GroupConfig,
    GroupId,
    Hash32,
    SessionId,
    SigningEvent,
)

HASH_BYTES = 32


class _EventIdentity(msgspec.Struct, frozen=True, kw_only=True):
    event_source: EventSource
    event_id: str


def payload_hash(payload: bytes) -> Hash32:
    """The hash of any bytes."""
    return blake3(payload).digest()


def event_hash(event: SigningEvent) -> EventHash:
    """The hash that identifies an event: of all of it, its signature included."""
    return EventHash(payload_hash(encode(event)))


def external_hash(event: SigningEvent) -> Hash32:
    """The hash that validators outside sign: of the event without their signature."""
    return payload_hash(encode(msgspec.structs.replace(event, signature=None)))


def source_hash(event: SigningEvent) -> Hash32:
    """The hash that two events share to which one source gave the same id."""
    identity = _EventIdentity(event_source=event.event_source, event_id=event.event_id)
    return payload_hash(encode(identity))


def validation_hash(
    event_hash: EventHash, tx_template_hash: Hash32, input_hashes: Sequence[Hash32]
) -> Hash32:
    """The hash that binds a proposal to its event, template and inputs, in their order."""
    parts = [event_hash, tx_template_hash, *input_hashes]
    if any(len(part) != HASH_BYTES for part in parts):
        raise BadInput(f"each part of a validation hash has {HASH_BYTES} bytes")
    return payload_hash(b"".join(parts))


def group_id(config: GroupConfig) -> GroupId:
    """The hash that identifies a group: of every field, whatever the order of its keys."""
    encode(config)  # Refuses numbers that do not fit their fields.
    numbers = (
        config.fee_rate_sompi_per_gram,
        config.finality_blue_score_threshold,
        config.dust_threshold_sompi,
        config.min_recipient_amount_sompi,
        config.session_timeout_seconds,
    )
    parts = [
        config.threshold_m.to_bytes(2, "little"),
        config.threshold_n.to_bytes(2, "little"),
        *sorted(config.member_pubkeys),
        config.network_id.to_bytes(1, "little"),
        *(number.to_bytes(8, "little") for number in numbers),
        encode(config.group_metadata),
        encode(config.policy),
    ]
    return GroupId(payload_hash(b"".join(parts)))


def hyperlane_session_id(group: GroupId, message_id: Hash32) -> SessionId:
    """The session of a bridge message: the same on every node of the group."""
    return SessionId(payload_hash(group + message_id))
