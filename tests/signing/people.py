"""Groups with real keys, and the payments they are asked for."""

from __future__ import annotations

from typing import Any

import msgspec

from ledgerstone.signing import schnorr
from ledgerstone.signing.kaspa import Address, AddressKind, Network
from ledgerstone.signing.values import (
    GroupConfig,
    GroupMetadata,
    GroupPolicy,
    Manual,
    PeerId,
    SigningEvent,
)

KAS = 100_000_000
DAY = 86_400_000_000_000
NOW = 20_000 * DAY + DAY // 2
"""Noon of some day."""


def secret(number: int) -> bytes:
    """The secret key of a member."""
    return number.to_bytes(32, "big")


def peer(number: int) -> PeerId:
    """The id of a member."""
    return PeerId(f"peer-{number}")


def address(number: int, network: Network = Network.MAINNET) -> str:
    """Somebody's address."""
    payload = bytes([number]) * 32
    return str(Address(network=network, kind=AddressKind.PUBKEY, payload=payload))


def group(threshold: int, members: int, **policy: Any) -> GroupConfig:
    """A group whose members have the secrets 1, 2, 3 and so on."""
    keys = {peer(n): schnorr.public_key(secret(n)) for n in range(1, members + 1)}
    return GroupConfig(
        network_id=0,
        threshold_m=threshold,
        threshold_n=members,
        member_pubkeys=tuple(keys.values()),
        fee_rate_sompi_per_gram=1,
        finality_blue_score_threshold=10,
        dust_threshold_sompi=600,
        min_recipient_amount_sompi=600,
        session_timeout_seconds=60,
        group_metadata=GroupMetadata(
            creation_timestamp_nanos=NOW,
            extra={f"peer:{name}": key.hex() for name, key in keys.items()},
        ),
        policy=GroupPolicy(**policy),
    )


def payment(number: int = 1, **fields: Any) -> SigningEvent:
    """An event that asks for 10 KAS, unless told otherwise."""
    event = SigningEvent(
        event_id=f"event-{number}",
        event_source=Manual(operator="ann"),
        derivation_path="",
        derivation_index=0,
        destination_address=address(1),
        amount_sompi=10 * KAS,
        metadata={"reason": "rent"},
        timestamp_nanos=NOW,
    )
    return msgspec.structs.replace(event, **fields)
