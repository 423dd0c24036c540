"""The audit report of a request: everything that is stored of it, and what follows from it."""

from __future__ import annotations

import msgspec

from ledgerstone.signing.access import Reader
from ledgerstone.signing.groups import roster
from ledgerstone.signing.hexadecimal import in_hex
from ledgerstone.signing.keys import ContextKey, EventKey, GroupKey, ProposalKey
from ledgerstone.signing.life import records, trail
from ledgerstone.signing.life.acks import list_signer_acks
from ledgerstone.signing.life.audit_text import report_lines
from ledgerstone.signing.life.proposals import list_request_inputs
from ledgerstone.signing.life.requests import get_request
from ledgerstone.signing.life.signatures import list_partial_sigs, verified_signatures
from ledgerstone.signing.life.trail import RequestContext, TrailEntry
from ledgerstone.signing.quorum import Votes, count_votes, missing_signatures
from ledgerstone.signing.values import (
    GroupConfig,
    PartialSigRecord,
    RequestId,
    RequestInput,
    SignerAckRecord,
    SigningEvent,
    SigningRequest,
    StoredProposal,
)


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """One request; parts that are not stored are None or empty."""

    request: SigningRequest
    context: RequestContext | None
    group: GroupConfig | None
    event: SigningEvent | None
    proposal: StoredProposal | None
    inputs: tuple[RequestInput, ...]
    acks: tuple[SignerAckRecord, ...]
    signatures: tuple[PartialSigRecord, ...]
    trail: tuple[TrailEntry, ...]
    votes: Votes | None
    missing: dict[int, int] | None
    """How many verified signatures each input still needs, by its index."""

    def as_json(self) -> bytes:
        """The report as a JSON document; bytes are in hex."""
        return msgspec.json.encode(in_hex(self))

    def as_text(self) -> str:
        """The report for people, a fact a line; nothing in it moves the cursor of a terminal."""
        return "\n".join(report_lines(self))


def audit_request(reader: Reader, request_id: RequestId) -> AuditReport:
    """The report of a request, or NotFound."""
    request = get_request(reader, request_id)
    context = records.find(reader, RequestContext, ContextKey(request_id=request_id))
    group = None
    if context is not None:
        group = records.find(reader, GroupConfig, GroupKey(group_id=context.group_id))
    inputs = list_request_inputs(reader, request_id)
    acks = list_signer_acks(reader, request_id)
    signatures = list_partial_sigs(reader, request_id)
    votes = missing = None
    if group is not None:
        members, threshold = roster(group), group.threshold_m
        votes = count_votes(members, threshold, acks)
        verified = verified_signatures(members, inputs, signatures)
        missing = missing_signatures(members, threshold, inputs, verified)
    return AuditReport(
        request=request,
        context=context,
        group=group,
        event=records.find(reader, SigningEvent, EventKey(event_hash=request.event_hash)),
        proposal=records.find(reader, StoredProposal, ProposalKey(request_id=request_id)),
        inputs=tuple(inputs),
        acks=tuple(acks),
        signatures=tuple(signatures),
        trail=tuple(trail.entries(reader, request_id)),
        votes=votes,
        missing=missing,
    )
