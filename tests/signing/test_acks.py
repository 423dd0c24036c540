"""Votes, and what they decide."""

from __future__ import annotations

from typing import Any

import pytest

from ledgerstone.errors import (
    MoveNotAllowed,
    NotAllowedNow,
    NotAMember,
    NotFound,
    RequestExpired,
    TooLarge,
    VoteChanged,
)
from ledgerstone.signing.kaspa import Network
from ledgerstone.signing.keys import AckKey, EventKey, InputKey
from ledgerstone.signing.life import acks, proposals, records, trail, volume
from ledgerstone.signing.life.trail import VoteRefused
from ledgerstone.signing.policy import Check
from ledgerstone.signing.values import (
    Approved,
    Pending,
    Rejected,
    RequestId,
    SignerAckRecord,
    Stored,
)
from tests.signing.people import KAS, NOW, address, payment, peer
from tests.signing.world import MINUTE, World, Worlds, an_input, proposal

GONE = RequestId("gone")


def test_rejected_when_no_longer_reachable(worlds: Worlds) -> None:
    """A request is rejected when M accepts are out of reach, with the reasons."""
    world = worlds(3, 5)
    request = world.propose()

    decisions = [
        world.vote(request, n, accept=n == 1, reason=f"no {n}").decision for n in (2, 1, 3, 4)
    ]

    assert decisions == [Pending()] * 3 + [Rejected(reason="no 2; no 3; no 4")]


def test_one_vote_each(worlds: Worlds) -> None:
    """A member that repeats its vote counts once."""
    world = worlds()
    request = world.propose()

    votes = [world.vote(request, 1, reason=str(n)) for n in range(3)]

    assert [vote.stored for vote in votes] == [Stored.NEW, Stored.SAME, Stored.SAME]
    assert votes[-1].decision == Pending()


def test_a_changed_vote(worlds: Worlds) -> None:
    """A changed vote is refused, the first one stands, and the attempt is on record."""
    world = worlds()
    request = world.propose()
    world.vote(request, 1)

    with pytest.raises(VoteChanged):
        world.vote(request, 1, accept=False, reason="second thoughts")

    with world.store.transaction() as tx:
        last = [*trail.entries(tx, request)][-1]
    assert (last.happened, last.actor) == (VoteRefused(accept=False), peer(1))
    assert last.detail == "second thoughts"
    assert world.vote(request, 2).decision == Approved()


def test_votes_that_are_refused(worlds: Worlds) -> None:
    """Strangers, a missing request, the time after its end and a long reason are refused."""
    world = worlds()
    request = world.propose()

    with pytest.raises(NotAMember):
        world.vote(request, 4)
    with pytest.raises(NotFound):
        world.vote(GONE, 1)
    with pytest.raises(TooLarge):
        world.vote(request, 1, accept=False, reason="x" * 1025)
    world.now += MINUTE
    with pytest.raises(RequestExpired):
        world.vote(request, 1)


def test_late_votes(worlds: Worlds) -> None:
    """A vote after the approval is kept and changes nothing; after the end it is refused."""
    world = worlds()
    request = world.approved()

    assert world.vote(request, 3, accept=False) == (Stored.NEW, Approved())
    world.abort(request)

    assert world.vote(request, 3, accept=False).stored is Stored.SAME
    with pytest.raises(MoveNotAllowed):
        World.vote(world, aborted_after_one_vote(world), 2)


@pytest.mark.parametrize("missing", ["both", "proposal", "inputs"])
def test_nothing_to_sign(worlds: Worlds, missing: str) -> None:
    """A request without proposal or inputs is not accepted, and may be when both are there."""
    world = worlds()
    event = payment()
    request = world.new_request("r1", event)
    inputs = [an_input("r1", index) for index in (0, 1)]
    world.event(event)
    world.request(request)
    if missing == "inputs":
        world.signing.insert_proposal(proposal(request, event))
    if missing == "proposal":
        for each in inputs:
            world.signing.insert_request_input(request.request_id, each)
    before = world.rows()

    for number in (1, 2):
        with pytest.raises(NotAllowedNow, match="nothing to sign"):
            world.vote(request.request_id, number)

    assert world.rows() == before
    world.propose()
    world.vote(request.request_id, 1)
    assert world.vote(request.request_id, 2).decision == Approved()


def test_nothing_to_sign_can_be_rejected(worlds: Worlds) -> None:
    """A rejection needs no proposal."""
    world = worlds()
    request = world.new_request("r1", payment())
    world.event(payment())
    world.request(request)

    world.vote(request.request_id, 1, accept=False)

    found = world.vote(request.request_id, 2, accept=False).decision
    assert isinstance(found, Rejected)


def test_accepts_of_another_program_without_inputs(worlds: Worlds) -> None:
    """Votes that were stored without being counted approve nothing that cannot be signed."""
    world = worlds()
    request = world.propose()
    for index in (0, 1):
        world.delete(InputKey(request_id=request, input_index=index))
    with world.store.transaction() as tx:
        for number in (1, 2):
            ack = SignerAckRecord(
                signer_peer_id=peer(number), accept=True, reason=None, timestamp_nanos=NOW
            )
            records.save(tx, AckKey(request_id=request, peer_id=peer(number)), ack)

    with pytest.raises(MoveNotAllowed, match="rejected"):
        world.signing.update_request_decision(request, Approved())

    assert world.signing.reserved_volume() == 0


def test_inputs_that_were_changed(worlds: Worlds) -> None:
    """A request whose inputs are not those of its validation hash is rejected by the votes."""
    world = worlds()
    request = world.propose()
    with world.store.transaction() as tx:
        proposals.insert_request_input(tx, request, an_input("r1", 2), now_nanos=NOW)

    world.vote(request, 1)

    assert world.vote(request, 2).decision == Rejected(reason="validation_hash_mismatch")


def test_an_event_that_was_changed(worlds: Worlds) -> None:
    """A request whose stored event is not the one that it names is rejected by the votes."""
    world = worlds()
    request = world.propose()
    key = EventKey(event_hash=world.signing.get_request(request).event_hash)
    with world.store.transaction() as tx:
        records.save(tx, key, payment(amount_sompi=KAS))

    world.vote(request, 1)

    assert world.vote(request, 2).decision == Rejected(reason="event_hash_mismatch")


REFUSED_BY: dict[Check, tuple[dict[str, Any], dict[str, Any]]] = {
    Check.AMOUNT_NOT_ZERO: ({}, {"amount_sompi": 0}),
    Check.DESTINATION_VALID: ({}, {"destination_address": address(1, Network.TESTNET)}),
    Check.DESTINATION_ALLOWED: ({"allowed_destinations": (address(2),)}, {}),
    Check.MINIMUM_AMOUNT: ({"min_amount_sompi": 11 * KAS}, {}),
    Check.MAXIMUM_AMOUNT: ({"max_amount_sompi": 9 * KAS}, {}),
    Check.REASON_GIVEN: ({"require_reason": True}, {}),
    Check.DAILY_VOLUME: ({"max_daily_volume_sompi": 9 * KAS}, {}),
}
"""For each check a policy and a payment that it refuses."""


@pytest.mark.parametrize("check", [*Check])
def test_policy(worlds: Worlds, check: Check) -> None:
    """A request that the policy does not allow is rejected, whatever its members vote."""
    policy, changes = REFUSED_BY[check]
    world = worlds(**policy)
    request = world.propose(event=payment(**{"metadata": {}} | changes))
    world.vote(request, 1)

    decision = world.vote(request, 2).decision

    assert isinstance(decision, Rejected)
    assert decision.reason.startswith(check.value)
    with world.store.transaction() as tx:
        assert volume.reserved(tx) == 0


def test_every_violation_is_told(worlds: Worlds) -> None:
    """The reason of a rejected request names each check that failed, in their order."""
    world = worlds(max_amount_sompi=9 * KAS, require_reason=True, max_daily_volume_sompi=8 * KAS)
    request = world.propose(event=payment(metadata={}))
    world.vote(request, 1)

    decision = world.vote(request, 2).decision

    assert isinstance(decision, Rejected)
    told = [part.partition(":")[0] for part in decision.reason.split("; ")]
    assert told == ["maximum_amount", "reason_given", "daily_volume"]


def aborted_after_one_vote(world: World) -> RequestId:
    """Another request, which ended after the vote of peer 1."""
    request = world.propose("r9", payment(9))
    world.vote(request, 1)
    world.abort(request)
    return request


def test_refusals_are_bounded(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that tries for ever to change its vote is counted, and fills no store."""
    monkeypatch.setattr(acks, "REFUSALS_MAX", 2)
    world = worlds()
    request = world.propose()
    world.vote(request, 1)

    for _ in range(5):
        with pytest.raises(VoteChanged):
            world.vote(request, 1, accept=False)
    report = world.signing.audit_request(request)

    assert report.context is not None
    assert report.context.refusals == 5
    assert len(report.trail) == report.context.entries == 1 + 1 + 2


def test_a_long_reason_is_short_on_record(worlds: Worlds) -> None:
    """The vote keeps its reason, the trail its beginning."""
    world = worlds()
    request = world.propose()
    reason = "x" * acks.REASON_BYTES_MAX

    world.vote(request, 1, accept=False, reason=reason)

    report = world.signing.audit_request(request)
    assert report.acks[0].reason == reason
    assert report.trail[-1].detail == "x" * trail.DETAIL_CHARS_MAX
