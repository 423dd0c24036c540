"""Groups and requests."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ledgerstone.errors import (
    BadInput,
    EventReplayed,
    KeyAmbiguous,
    KeyConflict,
    NotAMember,
    NotFound,
)
from ledgerstone.signing.keys import ContextKey
from ledgerstone.signing.life import requests
from ledgerstone.signing.values import Aborted, Approved, Finalized, GroupId, Stored
from tests.signing.people import DAY, NOW, group, payment, peer
from tests.signing.world import MINUTE, Worlds


def test_stored_by_its_hash(worlds: Worlds) -> None:
    """A group is stored under its id, as often as one likes; an unsound one is refused."""
    world = worlds()

    with world.store.transaction() as tx:
        assert requests.upsert_group_config(tx, world.config) == world.group_id
        assert requests.get_group_config(tx, world.group_id) == world.config
        with pytest.raises(BadInput):
            requests.upsert_group_config(tx, group(4, 3))
        with pytest.raises(NotFound):
            requests.get_group_config(tx, GroupId(bytes(32)))


def test_once(worlds: Worlds) -> None:
    """A request is new the first time and the same after, also when it has moved on."""
    world = worlds()
    event = payment()
    world.event(event)
    request = world.new_request("r1", event, inputs=0)

    assert [world.request(request), world.request(request)] == [Stored.NEW, Stored.SAME]
    world.abort(request.request_id)
    world.now += 2 * MINUTE

    assert world.request(request) is Stored.SAME
    assert world.decision(request.request_id) == Aborted(reason="no longer")


def test_another_request_with_the_same_id(worlds: Worlds) -> None:
    """A request is never overwritten: other content with its id is KeyConflict."""
    world = worlds()
    world.propose()
    other = payment(2)
    world.event(other)

    with pytest.raises(KeyConflict):
        world.request(world.new_request("r1", other))


def test_the_group_is_part_of_a_request(worlds: Worlds) -> None:
    """The same request for another group is KeyConflict."""
    world = worlds()
    other = world.signing.upsert_group_config(group(1, 2))
    world.event(payment())
    request = world.new_request("r1", payment())
    world.request(request)

    with pytest.raises(KeyConflict):
        world.signing.insert_request(request, group_id=other)


def test_references(worlds: Worlds) -> None:
    """Without its event or its group a request is NotFound."""
    world = worlds()
    request = world.new_request("r1", payment())

    with pytest.raises(NotFound, match="event"):
        world.request(request)
    world.event(payment())
    with world.store.transaction() as tx, pytest.raises(NotFound, match="group"):
        requests.insert_request(tx, request, group_id=GroupId(bytes(32)), now_nanos=NOW)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"coordinator_peer_id": peer(9)}, NotAMember),
        ({"decision": Approved()}, BadInput),
        ({"decision": Finalized(), "final_tx_id": bytes(32)}, BadInput),
        ({"final_tx_accepted_blue_score": 1}, BadInput),
        ({"expires_at_nanos": NOW}, BadInput),
        ({"expires_at_nanos": NOW + 366 * DAY + 1}, BadInput),
        ({"expires_at_nanos": 2**64 - 1}, BadInput),
        ({"request_id": "a:b"}, KeyAmbiguous),
        ({"request_id": ""}, KeyAmbiguous),
    ],
    ids=str,
)
def test_requests_that_are_refused(
    worlds: Worlds, change: dict[str, Any], error: type[Exception]
) -> None:
    """A stranger as coordinator, a state other than pending, an end that is past or never comes."""
    world = worlds()
    world.event(payment())

    with pytest.raises(error):
        world.request(msgspec.structs.replace(world.new_request("r1", payment()), **change))


def test_one_request_for_an_event(worlds: Worlds) -> None:
    """A second request for an event is EventReplayed while the first is not over."""
    world = worlds()
    first = world.propose()
    second = world.new_request("r2", payment())

    with pytest.raises(EventReplayed, match="r1"):
        world.request(second)
    world.abort(first)

    assert world.request(second) is Stored.NEW


def test_no_second_payment(worlds: Worlds) -> None:
    """A finalized event is never requested again, nor one with a signature that may be used."""
    paid, aborted = worlds(), worlds()
    paid.finalize(paid.signed())
    aborted.abort(aborted.signed())

    for world in (paid, aborted):
        with pytest.raises(EventReplayed):
            world.request(world.new_request("r2", payment()))


def test_a_request_of_another_program(worlds: Worlds) -> None:
    """A request without a group takes no votes until it is adopted by one."""
    world = worlds()
    request = world.propose()
    key = ContextKey(request_id=request)
    world.delete(key)

    with pytest.raises(NotFound, match="group"):
        world.vote(request, 1)
    with world.store.transaction() as tx:
        adopt = requests.adopt_request
        assert adopt(tx, request, group_id=world.group_id, now_nanos=NOW) is Stored.NEW
        assert adopt(tx, request, group_id=world.group_id, now_nanos=NOW) is Stored.SAME
        other = requests.upsert_group_config(tx, group(1, 2))
        with pytest.raises(KeyConflict):
            adopt(tx, request, group_id=other, now_nanos=NOW)
    world.vote(request, 1)

    assert world.vote(request, 2).decision == Approved()
