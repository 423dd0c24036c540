"""Votes of members, and what they decide."""

from __future__ import annotations

from typing import NamedTuple, assert_never

import msgspec

from ledgerstone.errors import TooLarge
from ledgerstone.signing.access import Reader, Transaction
from ledgerstone.signing.keys import AckKey, ContextKey, request_prefix
from ledgerstone.signing.life import records, trail, volume
from ledgerstone.signing.life.events import get_event
from ledgerstone.signing.life.proposals import check_proposed, review_request
from ledgerstone.signing.life.requests import OpenRequest, check_live, move, open_request
from ledgerstone.signing.life.trail import TrailEntry, Voted, VoteRefused
from ledgerstone.signing.quorum import check_vote, count_votes
from ledgerstone.signing.states import Status
from ledgerstone.signing.values import (
    Approved,
    PeerId,
    Rejected,
    RequestDecision,
    RequestId,
    SignerAckRecord,
    Stored,
)

REASON_BYTES_MAX = 1024
REFUSALS_MAX = 100
U32_MAX = 2**32 - 1


class CountedVote(NamedTuple):
    """Whether a vote was new, and what stands decided after it."""

    stored: Stored
    decision: RequestDecision


def insert_signer_ack(
    tx: Transaction, request_id: RequestId, ack: SignerAckRecord, *, now_nanos: int
) -> CountedVote:
    """Count the vote of a member.

    - At M accepts the request is approved, and its amount reserved; if hashes do not match or the
      policy does not allow it, it is rejected instead.
    - When M accepts can no longer be reached, the request is rejected.
    - The same vote again is SAME. VoteChanged if it differs from the member's first one: roll back,
      and then put the attempt on record with `record_changed_vote`.
    - NotAllowedNow refuses an accept while the proposal or every input is missing: such a request
      holds nothing that could be signed. A rejection needs neither.
    - NotAMember, RequestExpired and MoveNotAllowed (the request is finished) refuse a vote.
    """
    if len((ack.reason or "").encode(errors="surrogatepass")) > REASON_BYTES_MAX:
        raise TooLarge(f"a reason has at most {REASON_BYTES_MAX} bytes")
    opened = open_request(tx, request_id)
    key = AckKey(request_id=request_id, peer_id=ack.signer_peer_id)
    earlier = records.find(tx, SignerAckRecord, key)
    if check_vote(opened.members, earlier, ack) is Stored.SAME:
        return CountedVote(Stored.SAME, opened.request.decision)
    check_live(opened.request, now_nanos, Status.PENDING, Status.APPROVED)
    if ack.accept:
        check_proposed(tx, request_id)
    records.save(tx, key, ack)
    entry = TrailEntry(
        at_nanos=now_nanos,
        actor=ack.signer_peer_id,
        happened=Voted(accept=ack.accept),
        detail=ack.reason or "",
    )
    context = trail.append(tx, opened.request, opened.context, entry)
    opened = opened._replace(context=context)
    if opened.request.decision.status is Status.PENDING:
        opened = decide(tx, opened, actor=ack.signer_peer_id, now_nanos=now_nanos)
    return CountedVote(Stored.NEW, opened.request.decision)


def decide(tx: Transaction, opened: OpenRequest, *, actor: PeerId, now_nanos: int) -> OpenRequest:
    """Count the votes on a pending request, and approve or reject it if they decide."""
    acks = list_signer_acks(tx, opened.request.request_id)
    votes = count_votes(opened.members, opened.group.threshold_m, acks)
    match votes.decision:
        case Status.APPROVED:
            return _approve(tx, opened, actor, now_nanos)
        case Status.REJECTED:
            reasons = [each.reason or "no reason given" for each in acks if not each.accept]
            rejected = Rejected(reason="; ".join(reasons)[:REASON_BYTES_MAX])
            return move(tx, opened, rejected, actor=actor, now_nanos=now_nanos)
        case Status.PENDING:
            return opened
        case Status.EXPIRED | Status.FINALIZED | Status.ABORTED:
            raise AssertionError("votes decide nothing else")
        case never:
            assert_never(never)


def _approve(tx: Transaction, opened: OpenRequest, actor: PeerId, now_nanos: int) -> OpenRequest:
    """Approve and reserve, or reject: under the lock of what is reserved, so that limits hold."""
    request = opened.request
    review = review_request(
        tx,
        request.request_id,
        opened.group,
        now_nanos=now_nanos,
        reserved_sompi=volume.lock_reserved(tx),
    )
    if review.reason:
        rejected = Rejected(reason=review.reason[:REASON_BYTES_MAX])
        return move(tx, opened, rejected, actor=actor, now_nanos=now_nanos)
    amount = get_event(tx, request.event_hash).amount_sompi
    volume.reserve(tx, amount)
    context = msgspec.structs.replace(opened.context, reserved_sompi=amount)
    reserved = opened._replace(context=context)
    return move(tx, reserved, Approved(), actor=actor, now_nanos=now_nanos)


def record_changed_vote(
    tx: Transaction, request_id: RequestId, ack: SignerAckRecord, *, now_nanos: int
) -> None:
    """Put on record that a member tried to change its vote, in a transaction of its own.

    After `REFUSALS_MAX` of a request they are counted and no longer written: a member that tries
    for ever does not fill the store.
    """
    opened = open_request(tx, request_id)
    refusals = opened.context.refusals
    if refusals == U32_MAX:
        return
    context = msgspec.structs.replace(opened.context, refusals=refusals + 1)
    if refusals >= REFUSALS_MAX:
        records.save(tx, ContextKey(request_id=request_id), context)
        return
    entry = TrailEntry(
        at_nanos=now_nanos,
        actor=ack.signer_peer_id,
        happened=VoteRefused(accept=ack.accept),
        detail=ack.reason or "",
    )
    trail.append(tx, opened.request, context, entry)


def list_signer_acks(reader: Reader, request_id: RequestId) -> list[SignerAckRecord]:
    """The votes on a request, by peer."""
    prefix = request_prefix(AckKey, request_id)
    return [*records.scan(reader, SignerAckRecord, AckKey.family, prefix)]
