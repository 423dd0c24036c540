"""Signatures of members, verified before they are stored and before they are counted."""

from __future__ import annotations

from ledgerstone.errors import NotAMember, SignatureInvalid
from ledgerstone.signing import schnorr
from ledgerstone.signing.access import Reader, Transaction
from ledgerstone.signing.groups import Roster, member_key, roster
from ledgerstone.signing.keys import InputKey, SignatureKey, request_prefix
from ledgerstone.signing.life import records, trail
from ledgerstone.signing.life.proposals import list_request_inputs
from ledgerstone.signing.life.requests import check_live, open_request
from ledgerstone.signing.life.trail import Signed, TrailEntry
from ledgerstone.signing.quorum import is_ready, missing_signatures
from ledgerstone.signing.states import Status
from ledgerstone.signing.values import (
    GroupConfig,
    PartialSigRecord,
    RequestId,
    RequestInput,
    Stored,
)


def insert_partial_sig(
    tx: Transaction, request_id: RequestId, record: PartialSigRecord, *, now_nanos: int
) -> Stored:
    """Store the signature of a member for one input of an approved request.

    - NotAMember unless the peer is in the group and the key is that peer's; SignatureInvalid unless
      the key signed the input's hash; NotFound without the input.
    - A second signature of the member for the input is SAME, and the first one stays.
    """
    opened = open_request(tx, request_id)
    key = SignatureKey(
        request_id=request_id, peer_id=record.signer_peer_id, input_index=record.input_index
    )
    at = InputKey(request_id=request_id, input_index=record.input_index)
    signed = records.load(
        tx, RequestInput, at, f"input {record.input_index} of the request {request_id!r}"
    )
    verify_record(opened.members, signed, record)
    earlier = records.find(tx, PartialSigRecord, key)
    if earlier is not None and _counts(opened.members, signed, earlier):
        return Stored.SAME
    check_live(opened.request, now_nanos, Status.APPROVED)
    records.save(tx, key, record)
    entry = TrailEntry(
        at_nanos=now_nanos,
        actor=record.signer_peer_id,
        happened=Signed(input_index=record.input_index),
    )
    trail.append(tx, opened.request, opened.context, entry)
    return Stored.NEW


def verify_record(members: Roster, signed: RequestInput, record: PartialSigRecord) -> None:
    """NotAMember or SignatureInvalid unless the member's key signed the input's hash."""
    key = member_key(members, record.signer_peer_id)
    if schnorr.parse_public_key(record.pubkey) != key:
        raise NotAMember(f"the key is not that of {record.signer_peer_id!r}")
    schnorr.verify(key, signed.signing_hash, record.signature)


def _counts(members: Roster, signed: RequestInput, record: PartialSigRecord) -> bool:
    """Whether a stored signature counts: another program may have stored it unverified."""
    try:
        verify_record(members, signed, record)
    except (NotAMember, SignatureInvalid):
        return False
    return True


def list_partial_sigs(reader: Reader, request_id: RequestId) -> list[PartialSigRecord]:
    """The stored signatures of a request, by peer and input."""
    prefix = request_prefix(SignatureKey, request_id)
    return [*records.scan(reader, PartialSigRecord, SignatureKey.family, prefix)]


def verified_signatures(
    members: Roster, inputs: list[RequestInput], stored: list[PartialSigRecord]
) -> list[PartialSigRecord]:
    """The stored signatures that count."""
    by_index = {each.input_index: each for each in inputs}
    return [
        record
        for record in stored
        if record.input_index in by_index and _counts(members, by_index[record.input_index], record)
    ]


def signatures_missing(
    reader: Reader, request_id: RequestId, group: GroupConfig
) -> dict[int, int] | None:
    """How many signatures each input still needs; None if the request is ready."""
    members, threshold = roster(group), group.threshold_m
    inputs = list_request_inputs(reader, request_id)
    verified = verified_signatures(members, inputs, list_partial_sigs(reader, request_id))
    if is_ready(members, threshold, inputs, verified):
        return None
    return missing_signatures(members, threshold, inputs, verified)
