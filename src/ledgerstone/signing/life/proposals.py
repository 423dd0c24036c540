"""Proposals: the transaction that the coordinator proposes, its inputs, and their review."""

from __future__ import annotations

import msgspec

from ledgerstone.errors import BadInput, NotAllowedNow, TooLarge
from ledgerstone.signing import hashes
from ledgerstone.signing.access import Reader, Transaction
from ledgerstone.signing.keys import InputKey, ProposalKey, request_prefix
from ledgerstone.signing.life import records, volume
from ledgerstone.signing.life.events import get_event
from ledgerstone.signing.life.requests import check_live, get_request, lock_request
from ledgerstone.signing.policy import PolicyReport, evaluate
from ledgerstone.signing.states import Status
from ledgerstone.signing.values import (
    GroupConfig,
    RequestId,
    RequestInput,
    SigningRequest,
    Stored,
    StoredProposal,
)

KPSBT_BYTES_MAX = 10 * 1024 * 1024
INPUTS_MAX = 1000
EVENT_HASH_MISMATCH = "event_hash_mismatch"
VALIDATION_HASH_MISMATCH = "validation_hash_mismatch"


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request should not be signed: what does not match, and what the policy says."""

    mismatches: tuple[str, ...]
    policy: PolicyReport

    @property
    def reason(self) -> str:
        """Everything that is wrong in one line; empty if nothing is."""
        return "; ".join([*self.mismatches, *filter(None, [self.policy.reason])])


def insert_proposal(tx: Transaction, proposal: StoredProposal, *, now_nanos: int) -> Stored:
    """Store the proposal of a pending request; BadInput unless it is for this request."""
    if len(proposal.kpsbt_blob) > KPSBT_BYTES_MAX:
        raise TooLarge(f"a transaction has at most {KPSBT_BYTES_MAX} bytes")
    request = lock_request(tx, proposal.request_id)
    for field in ("session_id", "event_hash", "validation_hash"):
        if getattr(proposal, field) != getattr(request, field):
            raise BadInput(f"the {field} of the proposal is not that of the request")
    if hashes.event_hash(proposal.signing_event) != request.event_hash:
        raise BadInput(f"{EVENT_HASH_MISMATCH}: the event of the proposal is another one")
    key = ProposalKey(request_id=proposal.request_id)
    if records.find(tx, StoredProposal, key) is None:
        check_live(request, now_nanos, Status.PENDING)
    return records.insert(tx, key, proposal, "proposal of this request")


def insert_request_input(
    tx: Transaction, request_id: RequestId, added: RequestInput, *, now_nanos: int
) -> Stored:
    """Store an input of a pending request; the same input again is SAME."""
    if added.input_index >= INPUTS_MAX:
        raise TooLarge(f"a transaction has at most {INPUTS_MAX} inputs")
    request = lock_request(tx, request_id)
    key = InputKey(request_id=request_id, input_index=added.input_index)
    if records.find(tx, RequestInput, key) is None:
        check_live(request, now_nanos, Status.PENDING)
    return records.insert(tx, key, added, f"input {added.input_index} of this request")


def get_proposal(reader: Reader, request_id: RequestId) -> StoredProposal:
    """The proposal of a request, or NotFound."""
    key = ProposalKey(request_id=request_id)
    return records.load(reader, StoredProposal, key, f"proposal of the request {request_id!r}")


def list_request_inputs(reader: Reader, request_id: RequestId) -> list[RequestInput]:
    """The inputs of a request, in order."""
    prefix = request_prefix(InputKey, request_id)
    return [*records.scan(reader, RequestInput, InputKey.family, prefix)]


def check_proposed(reader: Reader, request_id: RequestId) -> None:
    """NotAllowedNow unless the request has a proposal and an input."""
    key = ProposalKey(request_id=request_id)
    found = records.find(reader, StoredProposal, key)
    if found is None or not list_request_inputs(reader, request_id):
        raise NotAllowedNow(
            f"the request {request_id!r} has no proposal or no inputs: there is nothing to sign",
            hint="vote again when its coordinator has proposed the transaction",
        )


def review_request(
    reader: Reader,
    request_id: RequestId,
    group: GroupConfig,
    *,
    now_nanos: int,
    reserved_sompi: int | None = None,
) -> Review:
    """The checks that a signer makes before it votes, and an approval once more.

    `reserved_sompi` is what was read under a lock; by default it is read without one.
    """
    request = get_request(reader, request_id)
    event = get_event(reader, request.event_hash)
    reserved = volume.reserved(reader) if reserved_sompi is None else reserved_sompi
    report = evaluate(
        group,
        event,
        volume_sompi=volume.volume_of_day(reader, now_nanos),
        reserved_sompi=reserved,
    )
    return Review(mismatches=_mismatches(reader, request), policy=report)


def _mismatches(reader: Reader, request: SigningRequest) -> tuple[str, ...]:
    """The hashes that do not match the stored event and inputs, of which there must be one."""
    found = []
    if hashes.event_hash(get_event(reader, request.event_hash)) != request.event_hash:
        found.append(EVENT_HASH_MISMATCH)
    inputs = list_request_inputs(reader, request.request_id)
    indexes = [each.input_index for each in inputs]
    expected = hashes.validation_hash(
        request.event_hash, request.tx_template_hash, [each.signing_hash for each in inputs]
    )
    numbered = indexes == [*range(len(inputs))]
    if not inputs or not numbered or expected != request.validation_hash:
        found.append(VALIDATION_HASH_MISMATCH)
    return tuple(found)
