"""A page of requests as people look at them: votes, missing signatures, time left."""

from __future__ import annotations

import pytest

from ledgerstone.errors import BadInput
from ledgerstone.signing import reading
from ledgerstone.signing.quorum import Votes
from ledgerstone.signing.read.requests import RequestStanding, StandingPage, standing_requests
from ledgerstone.signing.states import Status
from ledgerstone.signing.values import Pending
from tests.signing.people import NOW, payment
from tests.signing.test_neighbour import stored_elsewhere
from tests.signing.world import MINUTE, World, Worlds


def one(world: World, *, archived: bool = False) -> RequestStanding:
    (found,) = standing_requests(world.signing, archived=archived, rows_max=10).requests
    return found


def ids(page: StandingPage) -> list[str]:
    return [each.request.request_id for each in page.requests]


def test_a_request_on_its_way(worlds: Worlds) -> None:
    """Votes, missing signatures of each input and the time left follow the request."""
    world = worlds()
    request = world.propose()
    world.vote(request, 1)
    world.vote(request, 3, accept=False)
    world.now += MINUTE // 4

    found = one(world)
    assert found.group_id == world.group_id
    assert found.votes == Votes(threshold=2, members=3, accepts=1, rejects=1)
    assert (found.missing, found.ready, found.seconds_left) == ({0: 2, 1: 2}, False, 45)

    world.vote(request, 2)
    for number, index in ((1, 0), (1, 1), (2, 1)):
        world.sign(request, number, index)
    assert (one(world).missing, one(world).ready) == ({0: 1}, False)

    world.sign(request, 2, 0)
    assert (one(world).missing, one(world).ready) == ({}, True)
    world.now += MINUTE
    assert one(world).seconds_left == -15


@pytest.mark.parametrize("archived", [False, True])
def test_a_request_that_has_ended(worlds: Worlds, archived: bool) -> None:
    """Its votes stay; it needs no signature and has no time left."""
    world = worlds()
    world.finalize(world.signed())
    if archived:
        world.signing.archive_old_requests(NOW + 1)

    found = one(world, archived=archived)

    assert found.votes is not None
    assert found.votes.accepts == 2
    assert (found.missing, found.ready, found.seconds_left) == ({}, False, None)


def test_a_request_of_another_program(worlds: Worlds) -> None:
    """Without a group it has no quorum; it is listed all the same."""
    world = worlds()
    stored_elsewhere(world, "theirs", Pending())

    found = one(world)

    assert (found.group_id, found.votes, found.missing, found.ready) == (None, None, {}, False)


def test_pages_of_a_state_are_full(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search goes on behind requests in other states, and the last page has no cursor."""
    monkeypatch.setattr(reading, "STEP_ROWS", 3)
    world = worlds()
    for number in range(12):
        request = world.propose(f"r{number:02}", payment(number))
        if number not in {7, 9, 11}:
            world.abort(request)

    first = standing_requests(world.signing, status=Status.PENDING, rows_max=2)
    second = standing_requests(world.signing, status=Status.PENDING, after=first.after, rows_max=2)
    every = standing_requests(world.signing, rows_max=12)
    none = standing_requests(world.signing, status=Status.EXPIRED, rows_max=2)

    assert (ids(first), ids(second), second.after) == (["r07", "r09"], ["r11"], None)
    assert (len(every.requests), every.after) == (12, None)
    assert none == StandingPage(requests=[], after=None)


def test_a_search_is_bounded(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that holds something ends after so many requests of other states."""
    monkeypatch.setattr(reading, "STEP_ROWS", 3)
    monkeypatch.setattr(reading, "LOOKED_AT_MAX", 6)
    world = worlds()
    for number in range(12):
        request = world.propose(f"r{number:02}", payment(number))
        if number not in {0, 11}:
            world.abort(request)

    first = world.signing.list_requests(status=Status.PENDING, rows_max=2)
    second = world.signing.list_requests(status=Status.PENDING, after=first.after, rows_max=2)

    assert [each.request_id for each in first.requests + second.requests] == ["r00", "r11"]
    assert len(first.requests) == len(second.requests) == 1


def test_a_page_has_limits(worlds: Worlds) -> None:
    """A page has 1 to 10,000 rows; a page of others is BadInput."""
    signing = worlds().signing

    assert signing.list_requests(rows_max=10_000).requests == []
    for rows_max in (0, 10_001):
        with pytest.raises(BadInput, match=f"1 to 10000 rows, not {rows_max}"):
            signing.list_requests(rows_max=rows_max)
