"""The encoding of the stored structures as their document gives it; shares no code with the room.

Each line is a structure, its fields in order. Types are those of the document: `Option<T>`,
`Vec<T>`, `map` (of text to text), `[32]` (so many bytes), and names of structures and enums.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

STRUCTURES = """
GroupConfig: network_id u8, threshold_m u16, threshold_n u16, member_pubkeys Vec<bytes>,
 fee_rate_sompi_per_gram u64, finality_blue_score_threshold u64, dust_threshold_sompi u64,
 min_recipient_amount_sompi u64, session_timeout_seconds u64, group_metadata GroupMetadata,
 policy GroupPolicy
GroupMetadata: creation_timestamp_nanos u64, group_name Option<String>, policy_version u32,
 extra map
GroupPolicy: allowed_destinations Vec<String>, min_amount_sompi Option<u64>,
 max_amount_sompi Option<u64>, max_daily_volume_sompi Option<u64>, require_reason bool
SigningEvent: event_id String, event_source EventSource, derivation_path String,
 derivation_index Option<u32>, destination_address String, amount_sompi u64, metadata map,
 timestamp_nanos u64, signature Option<bytes>
SigningRequest: request_id String, session_id [32], event_hash [32], coordinator_peer_id String,
 tx_template_hash [32], validation_hash [32], decision RequestDecision, expires_at_nanos u64,
 final_tx_id Option<[32]>, final_tx_accepted_blue_score Option<u64>
StoredProposal: request_id String, session_id [32], event_hash [32], validation_hash [32],
 signing_event SigningEvent, kpsbt_blob bytes
RequestInput: input_index u32, utxo_tx_id [32], utxo_output_index u32, utxo_value u64,
 signing_hash [32], my_signature Option<bytes>
SignerAckRecord: signer_peer_id String, accept bool, reason Option<String>, timestamp_nanos u64
PartialSigRecord: signer_peer_id String, input_index u32, pubkey bytes, signature bytes,
 timestamp_nanos u64
Hyperlane: domain String, sender String
LayerZero: endpoint String, sender String
Api: issuer String
Manual: operator String
Other: kind String, payload String
Pending:
Approved:
Rejected: reason String
Expired:
Finalized:
Aborted: reason String
"""
ENUMS = {
    "EventSource": ["Hyperlane", "LayerZero", "Api", "Manual", "Other"],
    "RequestDecision": ["Pending", "Approved", "Rejected", "Expired", "Finalized", "Aborted"],
}
NUMBERS = {"u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q"}

FIELDS = {
    name: [tuple(field.split()) for field in fields.split(",") if field.strip()]
    for name, fields in (
        line.split(":", 1) for line in STRUCTURES.replace("\n ", " ").strip().splitlines()
    )
}


def encoded(kind: str, value: Any) -> bytes:
    """The bytes of a value of a documented type."""
    if kind in NUMBERS:
        return struct.pack(NUMBERS[kind], value)
    if kind in PLAIN:
        return PLAIN[kind](value)
    if kind.startswith("Option<"):
        return b"\0" if value is None else b"\1" + encoded(kind[7:-1], value)
    if kind.startswith("Vec<"):
        return counted([encoded(kind[4:-1], item) for item in value])
    if kind in ENUMS:
        variant = type(value).__name__
        return struct.pack("<I", ENUMS[kind].index(variant)) + encoded(variant, value)
    return b"".join(encoded(of, getattr(value, name)) for name, of in FIELDS[kind])


def counted(items: list[bytes]) -> bytes:
    """Their number, then they."""
    return struct.pack("<Q", len(items)) + b"".join(items)


def blob(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pairs(value: dict[str, str]) -> bytes:
    """A map, its keys in the order of their bytes."""
    ordered = sorted((key.encode(), text.encode()) for key, text in value.items())
    return counted([blob(key) + blob(text) for key, text in ordered])


PLAIN: dict[str, Callable[[Any], bytes]] = {
    "bool": lambda value: b"\1" if value else b"\0",
    "bytes": blob,
    "String": lambda value: blob(value.encode()),
    "map": pairs,
    "[32]": bytes,
}
