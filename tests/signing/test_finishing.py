"""The ends of a request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledgerstone.errors import (
    BadInput,
    KeyConflict,
    LockTimeout,
    MoveNotAllowed,
    NotAllowedNow,
    NotFound,
    ThresholdNotMet,
    TooLarge,
)
from ledgerstone.signing.keys import (
    ArchivedRequestKey,
    ContextKey,
    InputKey,
    RequestKey,
    ReservedKey,
)
from ledgerstone.signing.life import finishing, records, volume
from ledgerstone.signing.values import (
    Aborted,
    Approved,
    Expired,
    Finalized,
    RequestId,
    SigningRequest,
    Stored,
)
from tests.signing.people import DAY, KAS, NOW, payment, peer
from tests.signing.world import MINUTE, World, Worlds

GONE = RequestId("gone")


def test_once(worlds: Worlds) -> None:
    """The same transaction again adds no volume; another one is KeyConflict."""
    world = worlds()
    request = world.signed()

    assert [world.finalize(request), world.finalize(request)] == [Stored.NEW, Stored.SAME]
    with pytest.raises(KeyConflict):
        world.finalize(request, b"g" * 32)

    with world.store.transaction() as tx:
        assert volume.volume_since(tx, 0) == 10 * KAS


@pytest.mark.parametrize("final", [b"", b"f" * 31, "ff" * 32])
def test_what_is_no_transaction_id(worlds: Worlds, final: Any) -> None:
    """It is BadInput, and the request is as it was."""
    world = worlds()
    request = world.signed()

    with pytest.raises(BadInput, match="32 bytes"):
        world.finalize(request, final)

    assert world.decision(request) == Approved()


def test_signatures_that_are_missing(worlds: Worlds) -> None:
    """A request is not finalized before every input has M signatures."""
    world = worlds()
    request = world.approved()
    world.sign(request, 1, 0)
    world.sign(request, 2, 0)
    world.sign(request, 2, 1)

    with pytest.raises(ThresholdNotMet, match="input 1 needs 1"):
        world.finalize(request)


def test_without_inputs(worlds: Worlds) -> None:
    """A request without inputs is never finalized, also if another program approved it."""
    world = worlds()
    request = world.approved()
    for index in (0, 1):
        world.delete(InputKey(request_id=request, input_index=index))

    with pytest.raises(ThresholdNotMet, match="no inputs"):
        world.finalize(request)


def test_requests_that_cannot_be(worlds: Worlds) -> None:
    """A missing request is NotFound, a pending one is never finalized."""
    world = worlds()

    with pytest.raises(NotFound):
        world.finalize(GONE)
    with pytest.raises(MoveNotAllowed):
        world.finalize(world.propose())


def test_after_its_time(worlds: Worlds) -> None:
    """A transaction that was sent in time is recorded also later, on the day by our clock."""
    world = worlds()
    request = world.signed(event=payment(timestamp_nanos=7))
    world.now += DAY

    world.finalize(request)

    with world.store.transaction() as tx:
        assert volume.volume_of_day(tx, NOW) == 0
        assert volume.volume_of_day(tx, NOW + DAY) == 10 * KAS
        assert volume.volume_of_day(tx, 7) == 0


def test_blue_score(worlds: Worlds) -> None:
    """The score of a finalized request is recorded and corrected; no other request has one."""
    world = worlds()
    done, given_up = world.signed(), world.approved("r3", payment(3))
    others = [world.propose("r2", payment(2)), given_up, world.approved("r4", payment(4))]
    world.finalize(done)
    world.abort(given_up)

    with world.store.transaction() as tx:
        score = finishing.update_request_final_tx_score
        score(tx, done, 5)
        assert score(tx, done, 7).final_tx_accepted_blue_score == 7
        for other in others:
            with pytest.raises(NotAllowedNow):
                score(tx, other, 5)
        with pytest.raises(NotFound):
            score(tx, GONE, 5)


@pytest.mark.parametrize("begin", [World.propose, World.approved])
def test_expiry(worlds: Worlds, begin: Callable[[World], RequestId]) -> None:
    """A pending or approved request expires at its time, not before, and frees its volume."""
    world = worlds()
    request = begin(world)
    world.now += MINUTE - 1

    assert not world.expire(request)
    world.now += 1
    assert world.expire(request)

    assert world.decision(request) == Expired()
    assert not world.expire(request)
    with world.store.transaction() as tx:
        assert volume.reserved(tx) == 0


def test_a_ready_request_does_not_expire(worlds: Worlds) -> None:
    """A request with all its signatures keeps its volume reserved: it may have been sent."""
    world = worlds()
    request = world.signed()
    world.now += DAY

    assert not world.expire(request)

    assert world.finalize(request) is Stored.NEW


@pytest.mark.parametrize("begin", [World.propose, World.approved, World.signed])
def test_abort(worlds: Worlds, begin: Callable[[World], RequestId]) -> None:
    """The coordinator, and nobody else, aborts a request; that frees its volume."""
    world = worlds()
    request = begin(world)

    with pytest.raises(NotAllowedNow, match="coordinator"):
        world.abort(request, 2)
    assert [world.abort(request), world.abort(request)] == [Stored.NEW, Stored.SAME]

    assert world.decision(request) == Aborted(reason="no longer")
    with world.store.transaction() as tx:
        assert volume.reserved(tx) == 0
        with pytest.raises(TooLarge):
            finishing.abort_request(tx, request, peer_id=peer(1), reason="x" * 1025, now_nanos=NOW)


def test_sweeping(worlds: Worlds) -> None:
    """Due requests are found in bounded steps; finished ones are not due."""
    world = worlds()
    for number in range(5):
        world.propose(f"r{number}", payment(number))
    world.abort(RequestId("r3"))
    world.now += MINUTE

    steps = [world.signing.expire_requests(rows_max=2)]
    while steps[-1].after is not None:
        steps.append(world.signing.expire_requests(after=steps[-1].after, rows_max=2))

    assert [step.expired for step in steps] == [["r0", "r1"], ["r2", "r4"], []]
    assert all(world.decision(RequestId(f"r{n}")) == Expired() for n in (0, 1, 2, 4))
    assert world.signing.expire_requests().expired == []


def test_one_broken_request_stops_no_other(worlds: Worlds) -> None:
    """A request whose group is unknown is reported by its id, and those behind it expire."""
    world = worlds()
    for number in (1, 2, 3):
        world.propose(f"r{number}", payment(number))
    world.delete(ContextKey(request_id=RequestId("r1")))
    world.now += MINUTE

    step = world.signing.expire_requests()

    assert step.expired == ["r2", "r3"]
    assert [*step.errors] == ["r1"]
    assert isinstance(step.errors[RequestId("r1")], NotFound)


def test_a_signed_request_is_swept_once(worlds: Worlds) -> None:
    """It does not expire, and its signatures are not verified again at every sweep."""
    world = worlds()
    request = world.signed()
    world.now += MINUTE

    assert world.signing.expire_requests().expired == []

    assert world.decision(request) == Approved()
    assert not [key for _, key in world.rows() if key.startswith(b"own:due:")]
    assert world.finalize(request) is Stored.NEW


def test_what_another_program_finished_is_swept_once(worlds: Worlds) -> None:
    """A request that ended elsewhere is left as it is, and looked at no more."""
    world = worlds()
    request = world.propose()
    ended = msgspec.structs.replace(world.signing.get_request(request), decision=Finalized())
    with world.store.transaction() as tx:
        records.save(tx, RequestKey(request_id=request), ended)
    world.now += MINUTE

    assert world.signing.expire_requests().expired == []

    assert world.decision(request) == Finalized()
    assert world.signing.list_due() == []


def test_one_stuck_transaction_ends_the_step(tmp_path: Path) -> None:
    """A sweep waits twice for what a transaction holds, and goes on behind it in its next step."""
    with Worlds(tmp_path, lock_timeout_seconds=0.01) as worlds:
        world = worlds()
        requests = [world.approved(f"r{n}", payment(n)) for n in range(6)]
        world.now += MINUTE
        key = ReservedKey()
        with world.store.transaction() as stuck:
            stuck.get_for_update(key.family, key.encode())
            first = world.signing.expire_requests()
            second = world.signing.expire_requests(after=first.after)
        rest = world.signing.expire_requests(after=second.after)
        again = world.signing.expire_requests()

    assert ([*first.errors], [*second.errors]) == (requests[:2], requests[2:4])
    assert isinstance(first.errors[requests[0]], LockTimeout)
    assert (first.expired, second.expired) == ([], [])
    assert (rest.expired, rest.errors, rest.after) == (requests[4:], {}, None)
    assert again.expired == requests[:4]


def test_stuck_requests_stop_no_other(tmp_path: Path) -> None:
    """Archive and deletion go on beside one request that is held, and behind two."""
    with Worlds(tmp_path, lock_timeout_seconds=0.01) as worlds:
        world = worlds()
        requests = [world.propose(f"r{n}", payment(n)) for n in range(4)]
        for request in requests:
            world.abort(request)
        late = world.now + 1
        with world.store.transaction() as stuck:
            records.lock(stuck, SigningRequest, RequestKey(request_id=requests[0]))
            beside = world.signing.archive_old_requests(late)
        world.signing.archive_old_requests(late)
        with world.store.transaction() as stuck:
            for request in requests[:2]:
                records.lock(stuck, SigningRequest, ArchivedRequestKey(request_id=request))
            held = world.signing.delete_old_archives(late)
            behind = world.signing.delete_old_archives(late, after=held.after)

    assert (beside.archived, [*beside.errors]) == (requests[1:], requests[:1])
    assert (held.requests, [*held.errors]) == ([], requests[:2])
    assert (behind.requests, behind.after) == (requests[2:], None)
