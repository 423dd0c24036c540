"""The decision of votes, and when there are enough signatures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerstone.errors import NotAMember, VoteChanged
from ledgerstone.signing.groups import roster
from ledgerstone.signing.quorum import Votes, check_vote, count_votes, is_ready, missing_signatures
from ledgerstone.signing.states import Status
from ledgerstone.signing.values import PartialSigRecord, RequestInput, SignerAckRecord, Stored
from tests.signing.people import group, peer

MEMBERS = roster(group(3, 5))


def vote(number: int, *, accept: bool = True, reason: str | None = None) -> SignerAckRecord:
    """The vote of a peer."""
    return SignerAckRecord(
        signer_peer_id=peer(number), accept=accept, reason=reason, timestamp_nanos=number
    )


def signature(number: int, index: int) -> PartialSigRecord:
    """A signature, taken to be verified."""
    return PartialSigRecord(
        signer_peer_id=peer(number), input_index=index, pubkey=b"", signature=b"", timestamp_nanos=0
    )


def an_input(index: int) -> RequestInput:
    """An input of a transaction."""
    return RequestInput(
        input_index=index,
        utxo_tx_id=bytes(32),
        utxo_output_index=0,
        utxo_value=1,
        signing_hash=bytes(32),
    )


@pytest.mark.parametrize(
    ("threshold", "members", "accepts", "rejects", "status"),
    [
        (2, 3, 0, 0, Status.PENDING),
        (2, 3, 1, 0, Status.PENDING),
        (2, 3, 1, 1, Status.PENDING),
        (2, 3, 2, 0, Status.APPROVED),
        (2, 3, 2, 1, Status.APPROVED),
        (2, 3, 0, 1, Status.PENDING),
        (2, 3, 0, 2, Status.REJECTED),
        (2, 3, 1, 2, Status.REJECTED),
        (3, 5, 2, 2, Status.PENDING),
        (3, 5, 2, 3, Status.REJECTED),
        (3, 5, 3, 2, Status.APPROVED),
        (1, 1, 0, 1, Status.REJECTED),
        (3, 3, 2, 1, Status.REJECTED),
        (0, 0, 0, 0, Status.PENDING),
        (0, 3, 0, 3, Status.PENDING),
    ],
)
def test_decisions(
    threshold: int, members: int, accepts: int, rejects: int, status: Status
) -> None:
    """Approved at M accepts, rejected when M can no longer be reached, pending until then."""
    votes = Votes(threshold=threshold, members=members, accepts=accepts, rejects=rejects)

    assert votes.decision is status


@given(members=st.integers(1, 20), data=st.data())
def test_a_decision_stays(members: int, data: st.DataObject) -> None:
    """Once votes have decided, no further vote changes the decision; all votes always decide."""
    threshold = data.draw(st.integers(1, members))
    cast = data.draw(st.lists(st.booleans(), min_size=members, max_size=members))

    decisions = [
        Votes(
            threshold=threshold,
            members=members,
            accepts=sum(cast[:count]),
            rejects=count - sum(cast[:count]),
        ).decision
        for count in range(members + 1)
    ]

    decided = [decision for decision in decisions if decision is not Status.PENDING]
    assert len(set(decided)) == 1
    assert decisions[-1] is decided[0]


def test_one_vote_each() -> None:
    """A first vote is new; the same vote again is the same, also with another reason or time."""
    again = SignerAckRecord(
        signer_peer_id=peer(1), accept=True, reason="still fine", timestamp_nanos=9
    )

    assert check_vote(MEMBERS, None, vote(1)) is Stored.NEW
    assert check_vote(MEMBERS, vote(1), again) is Stored.SAME


@pytest.mark.parametrize("first", [True, False])
def test_a_changed_vote(first: bool) -> None:
    """A member that votes differently than before is VoteChanged."""
    with pytest.raises(VoteChanged, match="accepted" if first else "rejected"):
        check_vote(MEMBERS, vote(1, accept=first), vote(1, accept=not first))


def test_a_stranger_votes() -> None:
    """The vote of a peer that is no member is NotAMember."""
    with pytest.raises(NotAMember):
        check_vote(MEMBERS, None, vote(6))


def test_votes_are_counted_once() -> None:
    """Each member counts once; strangers do not count."""
    cast = [vote(1), vote(1), vote(2, accept=False), vote(6), vote(7, accept=False)]

    votes = count_votes(MEMBERS, 3, cast)

    assert votes == Votes(threshold=3, members=5, accepts=1, rejects=1)


@pytest.mark.parametrize(
    ("signers", "ready"),
    [((1, 2, 3, 4, 5), True), ((1, 2, 3), True), ((1, 2), False), ((1, 1, 1), False), ((), False)],
)
def test_enough_signatures(signers: tuple[int, ...], ready: bool) -> None:
    """Three of five are enough, fewer are not, and one member three times is one."""
    inputs = [an_input(0), an_input(1)]
    signatures = [signature(number, index) for number in signers for index in (0, 1)]

    assert is_ready(MEMBERS, 3, inputs, signatures) is ready


def test_every_input_needs_its_signatures() -> None:
    """Missing signatures are counted for each input; strangers and unknown inputs do not count."""
    inputs = [an_input(0), an_input(1), an_input(2)]
    signatures = [signature(number, 0) for number in (1, 2, 3)]
    signatures += [signature(1, 1), signature(6, 1), signature(7, 2), signature(1, 99)]

    assert missing_signatures(MEMBERS, 3, inputs, signatures) == {1: 2, 2: 3}
    assert not is_ready(MEMBERS, 3, inputs, signatures)


def test_nothing_is_never_ready() -> None:
    """Without inputs, or with a threshold of zero, a request is never ready."""
    assert not is_ready(MEMBERS, 3, [], [])
    assert not is_ready(MEMBERS, 0, [an_input(0)], [signature(1, 0)])
