"""The life of a request, from its event to its end."""

from __future__ import annotations

from itertools import product
from typing import assert_never

import pytest

from ledgerstone.errors import KeyConflict, Malformed, NotAllowedNow
from ledgerstone.signing.keys import Family
from ledgerstone.signing.life import finishing, requests, trail, volume
from ledgerstone.signing.life.trail import Moved
from ledgerstone.signing.states import FINISHED, MOVES, Status
from ledgerstone.signing.values import (
    Approved,
    Finalized,
    Pending,
    RequestId,
    Stored,
    TransactionId,
)
from tests.signing.people import KAS, NOW, payment
from tests.signing.recorded import Recorded
from tests.signing.world import MINUTE, World, Worlds


@pytest.mark.parametrize(("threshold", "members"), [(2, 3), (3, 5), (1, 1)])
def test_a_whole_life(worlds: Worlds, threshold: int, members: int) -> None:
    """M members accept and sign every input, the request is finalized, the volume is counted."""
    world = worlds(threshold, members)
    request = world.propose()

    decisions = [world.vote(request, n).decision for n in range(1, threshold + 1)]
    for number, index in product(range(1, threshold + 1), (0, 1)):
        assert world.sign(request, number, index) is Stored.NEW
    finalized = world.finalize(request)

    assert decisions == [Pending()] * (threshold - 1) + [Approved()]
    assert finalized is Stored.NEW
    assert world.decision(request) == Finalized()
    with world.store.transaction() as tx:
        assert requests.get_request(tx, request).final_tx_id == b"f" * 32
        assert volume.volume_of_day(tx, NOW) == 10 * KAS
        assert volume.reserved(tx) == 0


def put_into(worlds: Worlds, status: Status) -> tuple[World, RequestId]:
    """A request in a state, with what every move needs."""
    world = worlds()
    match status:
        case Status.PENDING:
            request = world.propose()
            world.vote(request, 1)
        case Status.REJECTED:
            request = world.propose()
            world.vote(request, 1)
            world.vote(request, 2, accept=False)
            world.vote(request, 3, accept=False)
        case Status.APPROVED:
            request = world.approved()
        case Status.EXPIRED:
            request = world.approved()
            world.now += MINUTE
            world.expire(request)
            world.now -= MINUTE
        case Status.FINALIZED:
            request = world.signed()
            world.finalize(request)
        case Status.ABORTED:
            request = world.approved()
            world.abort(request)
        case never:
            assert_never(never)
    return world, request


def try_move(world: World, request: RequestId, to: Status) -> None:
    """Do all that leads to a state, as far as it is allowed."""
    match to:
        case Status.PENDING:
            world.request(world.new_request(request, payment()))
        case Status.APPROVED:
            world.vote(request, 2)
        case Status.REJECTED:
            world.vote(request, 2, accept=False)
            world.vote(request, 3, accept=False)
        case Status.EXPIRED:
            world.now += MINUTE
            world.expire(request)
        case Status.FINALIZED:
            world.finalize(request)
        case Status.ABORTED:
            world.abort(request)


@pytest.mark.parametrize(("current", "to"), [*product(Status, Status)])
def test_every_pair_of_states(worlds: Worlds, current: Status, to: Status) -> None:
    """By whatever call, a request moves only as the table says, and its trail tells every move."""
    world, request = put_into(worlds, current)
    if (current, to) == (Status.APPROVED, Status.FINALIZED):
        for number, index in product((1, 2), (0, 1)):
            world.sign(request, number, index)

    try:
        try_move(world, request, to)
    except (NotAllowedNow, KeyConflict):
        assert (current, to) not in MOVES

    after = world.decision(request).status
    assert after is (to if (current, to) in MOVES else current)
    with world.store.transaction() as tx:
        moves = [e.happened for e in trail.entries(tx, request) if isinstance(e.happened, Moved)]
        assert (volume.reserved(tx) > 0) is (after is Status.APPROVED)
    steps = [Status.PENDING.value, *(move.after for move in moves)]
    assert [move.before for move in moves] == steps[:-1]
    assert steps[-1] == after.value
    assert after not in FINISHED or len(moves) <= 2


def test_a_damaged_record(worlds: Worlds) -> None:
    """A record whose bytes are damaged is Malformed, and the error names its key."""
    world = worlds()
    request = world.propose()

    with world.store.transaction() as tx:
        tx.put(Family.REQUEST, b"req:r1", b"\xff" * 40)
        with pytest.raises(Malformed, match="req:r1"):
            requests.get_request(tx, request)


def test_locks_are_taken_in_one_order(worlds: Worlds) -> None:
    """A request is locked before the reserved volume, and that before the volume of a day."""
    world = worlds()
    request = world.signed()

    with world.store.transaction() as real:
        tx = Recorded(real)
        finishing.update_request_final_tx(tx, request, TransactionId(bytes(32)), now_nanos=NOW)

    assert tx.locked[:2] == [("request", b"req:r1"), ("default", b"own:reserved")]
    assert tx.locked[2][0] == "volume"
