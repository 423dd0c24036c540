"""Rows of another program: what they pay is not paid again."""

from __future__ import annotations

import msgspec
import pytest

from ledgerstone.errors import EventReplayed
from ledgerstone.signing import hashes
from ledgerstone.signing.keys import (
    ArchivedRequestKey,
    EventKey,
    InputKey,
    ProposalKey,
    RequestKey,
    SignatureKey,
)
from ledgerstone.signing.life import records
from ledgerstone.signing.values import (
    Approved,
    Expired,
    Finalized,
    Pending,
    Rejected,
    RequestDecision,
    RequestId,
    SigningRequest,
    Stored,
    TransactionId,
)
from tests.signing.people import KAS, payment, peer
from tests.signing.world import MINUTE, World, Worlds, a_signature, an_input, proposal


def stored_elsewhere(
    world: World,
    name: str,
    decision: RequestDecision,
    *,
    signed: bool = False,
    archived: bool = False,
) -> RequestId:
    """A request as another program stores it: there is no record of ours."""
    paid = TransactionId(b"f" * 32) if isinstance(decision, Finalized) else None
    new = world.new_request(name, payment())
    request: SigningRequest = msgspec.structs.replace(new, decision=decision, final_tx_id=paid)
    request_id = request.request_id
    key = (ArchivedRequestKey if archived else RequestKey)(request_id=request_id)
    with world.store.transaction() as tx:
        records.save(tx, EventKey(event_hash=request.event_hash), payment())
        records.save(tx, key, request)
        records.save(tx, ProposalKey(request_id=request_id), proposal(request, payment()))
        for index in (0, 1):
            at = InputKey(request_id=request_id, input_index=index)
            records.save(tx, at, an_input(name, index))
            if signed:
                by = SignatureKey(request_id=request_id, peer_id=peer(1), input_index=index)
                records.save(tx, by, a_signature(request_id, 1, index, now_nanos=world.now))
    return request_id


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize(
    ("decision", "signed"),
    [(Pending(), False), (Approved(), True), (Expired(), True), (Finalized(), True)],
    ids=str,
)
@pytest.mark.parametrize("accept_first", [False, True])
def test_the_event_of_a_request_of_another_program(
    worlds: Worlds, decision: RequestDecision, signed: bool, archived: bool, accept_first: bool
) -> None:
    """An event that another program's request pays, or may still pay, gets no second request."""
    world = worlds()
    stored_elsewhere(world, "theirs", decision, signed=signed, archived=archived)
    if accept_first:
        assert world.event(payment()).stored is Stored.SAME

    for _ in range(2):
        with pytest.raises(EventReplayed, match="theirs"):
            world.propose("ours")
        with pytest.raises(EventReplayed, match="theirs"):
            world.request(world.new_request("ours", payment()))


def test_what_ended_elsewhere_unsigned(worlds: Worlds) -> None:
    """A request of another program that ended without a signature leaves its event free."""
    world = worlds()
    stored_elsewhere(world, "theirs", Expired())

    world.finalize(world.signed("ours"))

    assert world.decision(RequestId("ours")) == Finalized()


def test_several_requests_elsewhere(worlds: Worlds) -> None:
    """Of several requests of an event the one that was paid counts, whatever the order."""
    world = worlds()
    stored_elsewhere(world, "a", Expired())
    stored_elsewhere(world, "b", Finalized(), signed=True)
    stored_elsewhere(world, "c", Pending())

    with pytest.raises(EventReplayed, match="'b'"):
        world.propose("ours")
    with pytest.raises(EventReplayed, match="'b'"):
        world.signing.adopt_request(RequestId("c"), group_id=world.group_id)
    adopted = world.signing.adopt_request(RequestId("b"), group_id=world.group_id)

    assert adopted is Stored.NEW


def test_one_id_elsewhere_and_here(worlds: Worlds) -> None:
    """An event that another program stored is not requested beside ours with the same id."""
    here, elsewhere = payment(timestamp_nanos=7), payment()
    late, early = worlds(), worlds()
    for world in (late, early):
        with world.store.transaction() as tx:
            key = EventKey(event_hash=hashes.event_hash(elsewhere))
            records.save(tx, key, elsewhere)

    late.propose("ours", here)
    with pytest.raises(EventReplayed, match="source gave the id"):
        late.request(late.new_request("theirs", elsewhere))
    early.request(early.new_request("theirs", elsewhere))
    with pytest.raises(EventReplayed, match="source gave the id"):
        early.event(here)


def test_an_open_request_elsewhere(worlds: Worlds) -> None:
    """Beside one that ended, the open one counts: it may still be paid."""
    world = worlds()
    stored_elsewhere(world, "a", Expired())
    stored_elsewhere(world, "b", Pending())
    stored_elsewhere(world, "c", Expired())

    with pytest.raises(EventReplayed, match="'b'"):
        world.propose("ours")


def test_an_adopted_request_has_its_event(worlds: Worlds) -> None:
    """After the adoption the event is known by the id of its source, and has its one request."""
    world = worlds()
    theirs = stored_elsewhere(world, "theirs", Pending())

    world.signing.adopt_request(theirs, group_id=world.group_id)

    with pytest.raises(EventReplayed, match="theirs"):
        world.propose("ours")
    with pytest.raises(EventReplayed, match="source gave the id"):
        world.event(payment(timestamp_nanos=world.now + 1))
    for number in (1, 2):
        world.vote(theirs, number)
    assert world.decision(theirs) == Approved()


def test_an_adoption_beside_a_request_of_ours(worlds: Worlds) -> None:
    """An open request of another program is not adopted while the event has a request of ours."""
    world = worlds()
    stored_elsewhere(world, "theirs", Expired())
    world.propose("ours")
    theirs = stored_elsewhere(world, "theirs", Pending())

    with pytest.raises(EventReplayed, match="ours"):
        world.signing.adopt_request(theirs, group_id=world.group_id)
    world.abort(RequestId("ours"))

    assert world.signing.adopt_request(theirs, group_id=world.group_id) is Stored.NEW


@pytest.mark.parametrize("decision", [Pending(), Approved()])
def test_an_adopted_request_ends(worlds: Worlds, decision: RequestDecision) -> None:
    """It counts against the limit as any other one does, expires, and gives its amount back."""
    world = worlds(max_daily_volume_sompi=15 * KAS)
    theirs = stored_elsewhere(world, "theirs", decision)
    world.signing.adopt_request(theirs, group_id=world.group_id)
    if decision == Pending():
        world.vote(theirs, 1)
        world.vote(theirs, 2)
    reserved = world.signing.reserved_volume()
    ours = world.decision(world.approved("ours", payment(2)))

    world.now += MINUTE
    expired = world.signing.expire_requests().expired

    assert reserved == 10 * KAS
    assert isinstance(ours, Rejected)
    assert expired == ["theirs"]
    assert world.signing.reserved_volume() == 0
