"""The stored structures, their fields in the order in which they are encoded.

A value is only shaped here, not judged: a database that another program wrote may hold an address
that does not parse. Modules that accept a value for the first time check what it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, ClassVar, NewType

import msgspec

from ledgerstone.signing.bincode import Fixed, Unsigned
from ledgerstone.signing.states import Status

U8 = Annotated[int, Unsigned(8)]
U16 = Annotated[int, Unsigned(16)]
U32 = Annotated[int, Unsigned(32)]
U64 = Annotated[int, Unsigned(64)]
Hash32 = Annotated[bytes, Fixed(32)]

GroupId = NewType("GroupId", Hash32)
EventHash = NewType("EventHash", Hash32)
SessionId = NewType("SessionId", Hash32)
TransactionId = NewType("TransactionId", Hash32)
RequestId = NewType("RequestId", str)
PeerId = NewType("PeerId", str)

U64_MAX = 2**64 - 1


class Stored(Enum):
    """The result of inserting a record."""

    NEW = "new"
    SAME = "same"
    """The same record was there before: nothing was written."""


class GroupMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a group."""

    creation_timestamp_nanos: U64
    group_name: str | None = None
    policy_version: U32 = 0
    extra: Mapping[str, str] = {}


class GroupPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The payments that a group signs; without allowed destinations every one is allowed."""

    allowed_destinations: tuple[str, ...] = ()
    min_amount_sompi: U64 | None = None
    max_amount_sompi: U64 | None = None
    max_daily_volume_sompi: U64 | None = None
    require_reason: bool = False


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A group of N members of which M must sign."""

    network_id: U8
    threshold_m: U16
    threshold_n: U16
    member_pubkeys: tuple[bytes, ...]
    fee_rate_sompi_per_gram: U64
    finality_blue_score_threshold: U64
    dust_threshold_sompi: U64
    min_recipient_amount_sompi: U64
    session_timeout_seconds: U64
    group_metadata: GroupMetadata
    policy: GroupPolicy


class Hyperlane(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A message of a Hyperlane bridge."""

    domain: str
    sender: str


class LayerZero(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A message of a LayerZero bridge."""

    endpoint: str
    sender: str


class Api(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A caller of the HTTP interface."""

    issuer: str


class Manual(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An operator."""

    operator: str


class Other(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Anything else."""

    kind: str
    payload: str


EventSource = Hyperlane | LayerZero | Api | Manual | Other


class SigningEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A payment that something outside asks for."""

    event_id: str
    event_source: EventSource
    derivation_path: str
    derivation_index: U32 | None = None
    destination_address: str
    amount_sompi: U64
    metadata: Mapping[str, str] = {}
    timestamp_nanos: U64
    signature: bytes | None = None


class Pending(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Waits for votes."""

    status: ClassVar[Status] = Status.PENDING


class Approved(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """M members accept; waits for signatures."""

    status: ClassVar[Status] = Status.APPROVED


class Rejected(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """M members can no longer accept, or the policy refused it."""

    status: ClassVar[Status] = Status.REJECTED
    reason: str


class Expired(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Its time ran out."""

    status: ClassVar[Status] = Status.EXPIRED


class Finalized(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Its transaction was sent."""

    status: ClassVar[Status] = Status.FINALIZED


class Aborted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Its coordinator gave it up."""

    status: ClassVar[Status] = Status.ABORTED
    reason: str


RequestDecision = Pending | Approved | Rejected | Expired | Finalized | Aborted


class SigningRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to have an event signed."""

    request_id: RequestId
    session_id: SessionId
    event_hash: EventHash
    coordinator_peer_id: PeerId
    tx_template_hash: Hash32
    validation_hash: Hash32
    decision: RequestDecision = Pending()
    expires_at_nanos: U64
    final_tx_id: TransactionId | None = None
    final_tx_accepted_blue_score: U64 | None = None


class StoredProposal(msgspec.Struct, frozen=True, kw_only=True):
    """The transaction that the coordinator proposes."""

    request_id: RequestId
    session_id: SessionId
    event_hash: EventHash
    validation_hash: Hash32
    signing_event: SigningEvent
    kpsbt_blob: bytes


class RequestInput(msgspec.Struct, frozen=True, kw_only=True):
    """One input of the transaction, and the hash that its signatures sign."""

    input_index: U32
    utxo_tx_id: Hash32
    utxo_output_index: U32
    utxo_value: U64
    signing_hash: Hash32
    my_signature: bytes | None = None


class SignerAckRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The vote of one member."""

    signer_peer_id: PeerId
    accept: bool
    reason: str | None = None
    timestamp_nanos: U64


class PartialSigRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The signature of one member for one input."""

    signer_peer_id: PeerId
    input_index: U32
    pubkey: bytes
    signature: bytes
    timestamp_nanos: U64
