"""Whole lives of requests through the façade, and the bytes that a request takes."""

from __future__ import annotations

from hashlib import shake_256
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from bench.measure import settle_memory
from ledgerstone.signing import Signing, hashes, schnorr
from ledgerstone.signing.kaspa import Address, AddressKind, Network
from ledgerstone.signing.keys import Family
from ledgerstone.signing.states import Status
from ledgerstone.signing.values import (
    GroupConfig,
    GroupId,
    GroupMetadata,
    GroupPolicy,
    Manual,
    PartialSigRecord,
    PeerId,
    RequestId,
    RequestInput,
    SessionId,
    SignerAckRecord,
    SigningEvent,
    SigningRequest,
    TransactionId,
)

MS_IN_SECOND = 1000
THRESHOLD, MEMBERS = 2, 3
INPUTS = 5
KPSBT_BYTES = 10_000
NOW = 1_750_000_000_000_000_000
TIME_NANOS = 3600 * 1_000_000_000
OWN_PREFIX = b"own:"


class Lives(NamedTuple):
    """Milliseconds of each life, and bytes for each request of a store that was compacted."""

    taken: list[float]
    rows_bytes: float
    """Keys and values of the documented families."""
    own_bytes: float
    """Keys and values that Ledgerstone adds: trail, context, marks."""
    disk_bytes: float
    """Data files of all families."""


def live(folder: Path, *, warm_up: int, count: int) -> Lives:
    """Lead requests from their event to the final transaction, one after the other."""
    with Signing(folder, clock=lambda: NOW) as signing:
        group_id = signing.upsert_group_config(_group())
        for number in range(warm_up):
            _life(signing, group_id, number)
        settle_memory()
        taken = []
        for number in range(warm_up, warm_up + count):
            began = perf_counter()
            _life(signing, group_id, number)
            taken.append((perf_counter() - began) * MS_IN_SECOND)
        if len(signing.list_requests(status=Status.FINALIZED, rows_max=10_000).requests) < count:
            raise RuntimeError("a life did not end with its final transaction")
        signing.store.database.flush()
        signing.compact()
        total = warm_up + count
        rows = [
            (family, row.key, row.value)
            for family in Family
            for row in signing.store.database.scan(family)
        ]
        own = sum(len(key) + len(value) for _, key, value in rows if key.startswith(OWN_PREFIX))
        everything = sum(len(key) + len(value) for _, key, value in rows)
        disk = sum(signing.disk_usage().families.values())
    return Lives(taken, (everything - own) / total, own / total, disk / total)


def _life(signing: Signing, group_id: GroupId, number: int) -> None:
    request_id = RequestId(f"550e8400-e29b-41d4-a716-{number:012d}")
    event = _event(number)
    inputs = [_input(number, index) for index in range(INPUTS)]
    signing.propose(
        _request(request_id, event, inputs),
        group_id=group_id,
        event=event,
        inputs=inputs,
        kpsbt_blob=shake_256(request_id.encode()).digest(KPSBT_BYTES),
    )
    for member in range(1, THRESHOLD + 1):
        ack = SignerAckRecord(signer_peer_id=_peer(member), accept=True, timestamp_nanos=NOW)
        signing.insert_signer_ack(request_id, ack)
    for member in range(1, THRESHOLD + 1):
        for each in inputs:
            signing.insert_partial_sig(request_id, _signature(member, each))
    final = TransactionId(hashes.payload_hash(request_id.encode()))
    signing.update_request_final_tx(request_id, final)


def _secret(member: int) -> bytes:
    return member.to_bytes(32, "big")


def _peer(member: int) -> PeerId:
    return PeerId(f"peer-{member}")


def _group() -> GroupConfig:
    keys = {_peer(n): schnorr.public_key(_secret(n)) for n in range(1, MEMBERS + 1)}
    return GroupConfig(
        network_id=Network.MAINNET.value,
        threshold_m=THRESHOLD,
        threshold_n=MEMBERS,
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
        policy=GroupPolicy(max_daily_volume_sompi=2**63, require_reason=True),
    )


def _event(number: int) -> SigningEvent:
    address = Address(network=Network.MAINNET, kind=AddressKind.PUBKEY, payload=bytes(32))
    return SigningEvent(
        event_id=f"event-{number}",
        event_source=Manual(operator="operator"),
        derivation_path="",
        derivation_index=0,
        destination_address=str(address),
        amount_sompi=100_000_000,
        metadata={"reason": "withdrawal", "note": "x" * 200},
        timestamp_nanos=NOW,
        signature=bytes(64),
    )


def _input(number: int, index: int) -> RequestInput:
    return RequestInput(
        input_index=index,
        utxo_tx_id=hashes.payload_hash(b"utxo %d %d" % (number, index)),
        utxo_output_index=index,
        utxo_value=100_000_000,
        signing_hash=hashes.payload_hash(b"hash %d %d" % (number, index)),
    )


def _request(
    request_id: RequestId, event: SigningEvent, inputs: list[RequestInput]
) -> SigningRequest:
    event_hash, template = hashes.event_hash(event), bytes(32)
    signing_hashes = [each.signing_hash for each in inputs]
    return SigningRequest(
        request_id=request_id,
        session_id=SessionId(hashes.payload_hash(request_id.encode())),
        event_hash=event_hash,
        coordinator_peer_id=_peer(1),
        tx_template_hash=template,
        validation_hash=hashes.validation_hash(event_hash, template, signing_hashes),
        expires_at_nanos=NOW + TIME_NANOS,
    )


def _signature(member: int, signed: RequestInput) -> PartialSigRecord:
    return PartialSigRecord(
        signer_peer_id=_peer(member),
        input_index=signed.input_index,
        pubkey=schnorr.public_key(_secret(member)),
        signature=schnorr.sign(_secret(member), signed.signing_hash),
        timestamp_nanos=NOW,
    )
