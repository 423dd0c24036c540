"""The quorum: what votes decide, and when there are enough signatures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ledgerstone.errors import VoteChanged
from ledgerstone.signing.groups import Roster, member_key
from ledgerstone.signing.states import Status
from ledgerstone.signing.values import (
    PartialSigRecord,
    PeerId,
    RequestInput,
    SignerAckRecord,
    Stored,
)


class Votes(msgspec.Struct, frozen=True, kw_only=True):
    """The votes of a group of `members` members of whom `threshold` must accept."""

    threshold: int
    members: int
    accepts: int
    rejects: int

    @property
    def decision(self) -> Status:
        """Approved at the threshold, rejected when it can no longer be reached, else pending."""
        if self.threshold < 1:
            return Status.PENDING
        if self.accepts >= self.threshold:
            return Status.APPROVED
        if self.members - self.rejects < self.threshold:
            return Status.REJECTED
        return Status.PENDING


def check_vote(members: Roster, earlier: SignerAckRecord | None, vote: SignerAckRecord) -> Stored:
    """Whether a vote is new or repeats the member's earlier one.

    - NotAMember if the peer is not in the group.
    - VoteChanged if the member voted differently before. Another reason or time changes no vote.
    """
    member_key(members, vote.signer_peer_id)
    if earlier is None:
        return Stored.NEW
    if earlier.accept is not vote.accept:
        before = "accepted" if earlier.accept else "rejected"
        raise VoteChanged(f"{vote.signer_peer_id!r} has already {before} the request")
    return Stored.SAME


def count_votes(members: Roster, threshold: int, acks: Iterable[SignerAckRecord]) -> Votes:
    """The votes of members; a vote of another peer, should one be stored, does not count."""
    by_peer = {ack.signer_peer_id: ack.accept for ack in acks if ack.signer_peer_id in members}
    accepts = sum(by_peer.values())
    return Votes(
        threshold=threshold,
        members=len(members),
        accepts=accepts,
        rejects=len(by_peer) - accepts,
    )


def missing_signatures(
    members: Roster,
    threshold: int,
    inputs: Sequence[RequestInput],
    signatures: Iterable[PartialSigRecord],
) -> dict[int, int]:
    """How many signatures each input still needs, by its index; the signatures are verified ones.

    A member counts once for an input. A signature for an input that is not there does not count.
    """
    signers: dict[int, set[PeerId]] = {each.input_index: set() for each in inputs}
    for signature in signatures:
        if signature.input_index in signers and signature.signer_peer_id in members:
            signers[signature.input_index].add(signature.signer_peer_id)
    missing = {index: threshold - len(found) for index, found in signers.items()}
    return {index: count for index, count in missing.items() if count > 0}


def is_ready(
    members: Roster,
    threshold: int,
    inputs: Sequence[RequestInput],
    signatures: Iterable[PartialSigRecord],
) -> bool:
    """Whether every input has its signatures; never without inputs or without a threshold."""
    enough = not missing_signatures(members, threshold, inputs, signatures)
    return enough and threshold > 0 and len(inputs) > 0
