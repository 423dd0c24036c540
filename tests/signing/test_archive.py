"""Archive and delete: finished requests leave in bounded steps, with all that is theirs."""

from __future__ import annotations

import msgspec
import pytest

from ledgerstone.errors import EventReplayed, KeyConflict, NotFound
from ledgerstone.signing import hashes, sweeping
from ledgerstone.signing.keys import (
    ContextKey,
    EventIdKey,
    EventKey,
    EventUseKey,
    Family,
    GroupKey,
    RequestKey,
    StoreIdKey,
    VolumeKey,
    parse,
)
from ledgerstone.signing.life import archive, records
from ledgerstone.signing.life.archive import DeletedRows
from ledgerstone.signing.values import Aborted, RequestId, Stored
from tests.signing.people import DAY, KAS, NOW, payment
from tests.signing.world import World, Worlds


def kinds(world: World) -> set[str]:
    """The kinds of all rows that are stored."""
    return {type(parse(key)).__name__ for _, key in world.rows()}


def test_archived(worlds: Worlds) -> None:
    """A request that ended before the moment is archived, in every final state, and readable."""
    world = worlds()
    paid = world.signed("paid", payment(1))
    world.finalize(paid)
    world.abort(world.propose("given-up", payment(2)))
    world.propose("open", payment(3))
    world.now += DAY
    world.abort(world.propose("late", payment(4)))

    step = world.signing.archive_old_requests(NOW + 1)

    assert (step.archived, step.errors, step.after) == (["given-up", "paid"], {}, None)
    listed = world.signing.list_requests().requests
    assert [each.request_id for each in listed] == ["late", "open"]
    assert len(world.signing.list_requests(archived=True).requests) == 2
    assert world.signing.get_request(paid).final_tx_id == b"f" * 32
    assert len(world.signing.audit_request(paid).signatures) == 4


def test_the_id_of_an_archived_request(worlds: Worlds) -> None:
    """It is not used again: the same request is the same, another one is a conflict."""
    world = worlds()
    request = world.new_request("r1", payment(), inputs=0)
    world.event(payment())
    world.request(request)
    world.abort(request.request_id)
    world.signing.archive_old_requests(NOW + 1)

    assert world.request(request) is Stored.SAME
    with pytest.raises(KeyConflict):
        world.request(msgspec.structs.replace(request, tx_template_hash=bytes(32)))


def test_bounded_steps(worlds: Worlds) -> None:
    """A step looks at so many requests and says where the next one begins."""
    world = worlds()
    for number in range(5):
        world.abort(world.propose(f"r{number}", payment(number)))

    first = world.signing.archive_old_requests(NOW + 1, rows_max=2)
    second = world.signing.archive_old_requests(NOW + 1, after=first.after, rows_max=3)
    third = world.signing.archive_old_requests(NOW + 1, after=second.after, rows_max=3)

    assert [len(step.archived) for step in (first, second, third)] == [2, 3, 0]
    assert third.after is None


def test_deleted_with_everything(worlds: Worlds) -> None:
    """Nothing is left of a request that could not have been paid, and its event may come again."""
    world = worlds()
    empty = kinds(world)
    world.vote(world.propose(), 1)
    world.abort(RequestId("r1"))
    world.signing.archive_old_requests(NOW + 1)

    step = world.signing.delete_old_archives(NOW + 1)

    assert (step.requests, step.errors, step.after) == (["r1"], {}, None)
    assert step.rows == 12
    assert kinds(world) == empty == {GroupKey.__name__}
    with pytest.raises(NotFound):
        world.signing.get_request(RequestId("r1"))
    assert world.decision(world.approved("r2")).status.value == "approved"


@pytest.mark.parametrize("finalized", [True, False])
def test_a_spent_event_is_never_paid_again(worlds: Worlds, finalized: bool) -> None:
    """Two small marks outlive a request with signatures, and the volume does."""
    world = worlds()
    request = world.signed()
    if finalized:
        world.finalize(request)
    else:
        world.abort(request)
    world.signing.archive_old_requests(NOW + 1)

    world.signing.delete_old_archives(NOW + 1)

    left = {GroupKey, EventUseKey, EventIdKey} | ({VolumeKey} if finalized else set())
    # A reserved sum of nothing stays where there was one.
    assert kinds(world) - {"ReservedKey"} == {kind.__name__ for kind in left}
    assert world.signing.volume_today() == (10 * KAS if finalized else 0)
    with pytest.raises(EventReplayed):
        world.event(payment())
    with pytest.raises(EventReplayed):
        world.event(payment(timestamp_nanos=NOW + 1))


def test_a_spent_event_that_was_lost(worlds: Worlds) -> None:
    """An event that was signed for is known by its hash, also where nothing else of it is left."""
    world = worlds()
    request = world.signed()
    world.abort(request)
    lost = world.signing.get_request(request).event_hash
    world.delete(EventKey(event_hash=lost))
    world.delete(EventIdKey(source_hash=hashes.source_hash(payment())))

    world.signing.archive_old_requests(NOW + 1)
    world.signing.delete_old_archives(NOW + 1)

    with pytest.raises(EventReplayed, match="r1"):
        world.event(payment())


def test_an_event_with_another_request(worlds: Worlds) -> None:
    """The event stays while a later request of it is there."""
    world = worlds()
    world.abort(world.propose("r1"))
    world.signing.archive_old_requests(NOW + 1)
    later = world.propose("r2")

    world.signing.delete_old_archives(NOW + 1)

    report = world.signing.audit_request(later)
    assert report.event == payment()
    assert world.vote(later, 1).stored is Stored.NEW


def test_deleted_in_bounded_transactions(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large request goes over several steps; interrupted between two, it is taken up again."""
    monkeypatch.setattr(sweeping, "TRANSACTION_ROWS_MAX", 3)
    world = worlds()
    world.abort(world.signed())
    world.signing.archive_old_requests(NOW + 1)

    steps = [world.signing.delete_old_archives(NOW + 1, rows_max=4)]
    while steps[-1].rows:
        after = steps[-1].after
        steps.append(world.signing.delete_old_archives(NOW + 1, after=after, rows_max=4))

    assert len(steps) > 3
    assert all(step.rows <= 6 + 6 for step in steps)
    assert [gone for step in steps for gone in step.requests] == ["r1"]
    assert Family.PARTIAL_SIG not in {family for family, _ in world.rows()}


def test_a_transaction_of_a_deletion_is_bounded(worlds: Worlds) -> None:
    """It deletes no more rows of votes, inputs and signatures than it may, over all their kinds."""
    world = worlds()
    world.abort(world.signed())
    world.signing.archive_old_requests(NOW + 1)
    steps: list[DeletedRows] = []

    while not (steps and steps[-1].done):
        with world.store.transaction() as tx:
            steps.append(
                archive.delete_archived(
                    tx, RequestId("r1"), before_nanos=NOW + 1, publish=False, rows_max=3
                )
            )

    assert len(steps) > 4
    assert {step.rows for step in steps[:-1]} == {3}


def test_what_ended_at_the_moment_is_kept(worlds: Worlds) -> None:
    """Archived and deleted is what ended before the moment."""
    world = worlds()
    world.abort(world.propose())

    early = world.signing.archive_old_requests(NOW)
    archived = world.signing.archive_old_requests(NOW + 1)
    kept = world.signing.delete_old_archives(NOW)

    assert (early.archived, archived.archived, kept.requests) == ([], ["r1"], [])


def test_what_waits_for_its_message_is_kept(worlds: Worlds) -> None:
    """Where ends are published, a request is deleted only after its message is confirmed."""
    world = worlds()
    world.signing.settings = msgspec.structs.replace(world.signing.settings, publish=True)
    world.finalize(world.signed())
    world.signing.archive_old_requests(NOW + 1)

    early = world.signing.delete_old_archives(NOW + 1)
    world.signing.relay(lambda messages: [True] * len(messages))
    later = world.signing.delete_old_archives(NOW + 1)

    assert (early.requests, later.requests) == ([], ["r1"])


def test_requests_of_another_program(worlds: Worlds) -> None:
    """They are archived and deleted, too, by the time of their event, and stay marked as spent."""
    world = worlds()
    world.finalize(world.signed())
    for key in (
        ContextKey(request_id=RequestId("r1")),
        EventUseKey(event_hash=world.signing.get_request(RequestId("r1")).event_hash),
        EventIdKey(source_hash=hashes.source_hash(payment())),
    ):
        world.delete(key)

    kept = world.signing.archive_old_requests(payment().timestamp_nanos)
    archived = world.signing.archive_old_requests(payment().timestamp_nanos + 1)
    deleted = world.signing.delete_old_archives(NOW + 1)

    assert (kept.archived, archived.archived, deleted.requests) == ([], ["r1"], ["r1"])
    with pytest.raises(EventReplayed):
        world.event(payment())
    with pytest.raises(EventReplayed, match="source gave the id"):
        world.event(payment(timestamp_nanos=NOW + 1))


def test_one_damaged_request_stops_no_other(worlds: Worlds) -> None:
    """It is reported by its id, and the others are archived."""
    world = worlds()
    for name in ("r1", "r2"):
        world.abort(world.propose(name, payment(int(name[1]))))
    with world.store.transaction() as tx:
        tx.put(Family.REQUEST, b"req:r1", b"damaged")
        tx.put(Family.REQUEST, b"req:a:b", tx.get(Family.REQUEST, b"req:r2") or b"")

    step = world.signing.archive_old_requests(NOW + 1)

    assert step.archived == ["r2"]
    assert sorted(step.errors) == ["a:b", "r1"]


def test_a_missing_event(worlds: Worlds) -> None:
    """A request whose event is gone is archived by its own time limit."""
    world = worlds()
    request = msgspec.structs.replace(
        world.new_request("r1", payment()), decision=Aborted(reason="x")
    )
    with world.store.transaction() as tx:
        records.save(tx, RequestKey(request_id=request.request_id), request)

    early = world.signing.archive_old_requests(request.expires_at_nanos)
    later = world.signing.archive_old_requests(request.expires_at_nanos + 1)

    assert (early.archived, later.archived) == ([], ["r1"])
    assert world.signing.delete_old_archives(2**63).requests == ["r1"]


def test_the_store_id_stays(worlds: Worlds) -> None:
    """It is made once."""
    world = worlds()
    before = world.signing.store_id()

    assert before == world.signing.store_id()
    assert len(bytes.fromhex(before)) == 16
    key = StoreIdKey()
    assert world.store.get(key.family, key.encode()) == bytes.fromhex(before)
    assert EventKey.__name__ not in kinds(world)
