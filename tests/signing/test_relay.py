"""The relay to the ledger: each end is published, at least once, and kept once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledgerstone import Ledger, failpoints
from ledgerstone.failpoints import FailpointHit
from ledgerstone.signing import upkeep
from ledgerstone.signing.relay import Announcement, announce
from ledgerstone.signing.values import RequestId
from ledgerstone.testing.clock import ManualClock
from tests.signing.people import DAY, KAS, NOW, group, payment
from tests.signing.world import MINUTE, World, Worlds


@pytest.fixture
def clock() -> ManualClock:
    """The ledger's clock."""
    return ManualClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: ManualClock) -> Iterator[Ledger]:
    """A ledger on a file."""
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", clock=clock) as opened:
        yield opened


@pytest.fixture
def world(worlds: Worlds) -> World:
    """A group whose ends are published."""
    made = worlds()
    made.signing.settings = msgspec.structs.replace(
        made.signing.settings, publish=True, archive_days=1, delete_days=2
    )
    return made


def bodies(ledger: Ledger) -> list[dict[str, Any]]:
    """The bodies of all messages in the outbox, oldest first."""
    with ledger.reading() as tx:
        rows = tx.outbox.find(limit=100).rows
    return [msgspec.json.decode(row.body) for row in reversed(rows)]


def end(world: World) -> None:
    """One request of each end."""
    world.finalize(world.signed("paid", payment(1)))
    rejected = world.propose("refused", payment(2))
    for number in (1, 2):
        world.vote(rejected, number, accept=False, reason="no\0body knows it")
    world.abort(world.propose("given-up", payment(3)))
    world.propose("late", payment(4))
    world.now += MINUTE
    world.signing.expire_requests()


def test_finalized_and_rejected(ledger: Ledger, world: World) -> None:
    """They are published with what happened; other ends are not."""
    end(world)

    published = ledger.relay_signing(world.signing)

    found = bodies(ledger)
    assert published == 2
    assert [each["status"] for each in found] == ["finalized", "rejected"]
    assert found[0]["amount_sompi"] == str(10 * KAS)
    assert found[0]["final_tx_id"] == "66" * 32
    assert found[1]["reason"] == "no\ufffdbody knows it; no\ufffdbody knows it"
    assert world.signing.list_outgoing() == []
    assert ledger.relay_signing(world.signing) == 0


def test_a_crash_between_publish_and_confirm(ledger: Ledger, world: World) -> None:
    """The message is published again, and the outbox keeps it once."""
    end(world)
    failpoints.arm("signing.published=fail")
    try:
        with pytest.raises(FailpointHit):
            ledger.relay_signing(world.signing)
    finally:
        failpoints.arm("")

    assert len(world.signing.list_outgoing()) == 2
    assert ledger.relay_signing(world.signing) == 0
    assert len(bodies(ledger)) == 2
    assert world.signing.list_outgoing() == []


def test_a_transaction_that_is_rolled_back(ledger: Ledger, world: World) -> None:
    """Nothing is confirmed by a commit that did not happen."""
    end(world)

    def roll_back(announcements: Any) -> Any:
        with ledger.transaction() as tx:
            for each in announcements:
                tx.outbox.publish(each.name, each.body, partition=each.partition, key=each.key)
            raise RuntimeError("the commit fails")

    with pytest.raises(RuntimeError):
        world.signing.relay(roll_back)

    assert len(world.signing.list_outgoing()) == 2
    assert bodies(ledger) == []


def test_a_message_that_is_not_committed_yet(world: World) -> None:
    """The marker stays until the outbox says that it had the message before."""
    end(world)

    first = world.signing.relay(lambda messages: [False for _ in messages])
    waiting = len(world.signing.list_outgoing())
    second = world.signing.relay(lambda messages: [True for _ in messages])

    assert (first, waiting, second) == (2, 2, 0)
    assert world.signing.list_outgoing() == []


def test_the_duties_of_a_worker(ledger: Ledger, clock: ManualClock, world: World) -> None:
    """A worker expires, publishes, archives and deletes, turn by turn."""
    world.finalize(world.signed("paid", payment(1)))
    world.propose("late", payment(2))
    world.now += MINUTE
    worker = ledger.worker(stores=[ledger.signing_duties(world.signing)])

    worker.tick()
    published = len(bodies(ledger))
    for _ in range(5):
        world.now += DAY
        clock.advance(60)
        worker.tick()

    done = {name.partition(":")[0]: count for name, count in worker.report().duties.items()}
    assert published == 1
    assert len(bodies(ledger)) == 1
    assert done["signing.expire"] == 1
    assert done["signing.publish"] == 1
    assert done["signing.archive"] == 2
    assert done["signing.delete"] == 2
    assert world.signing.list_requests(archived=True).requests == []


def test_two_stores_on_one_ledger(ledger: Ledger, worlds: Worlds) -> None:
    """Requests with one id in two stores are two messages."""
    for _ in range(2):
        world = worlds()
        world.finalize(world.signed())
        assert ledger.relay_signing(world.signing) == 1

    assert len(bodies(ledger)) == 2


def test_a_store_that_was_restored(ledger: Ledger, world: World, tmp_path: Path) -> None:
    """A request that ends once more after a restore is published, and holds no other one up."""
    paid = world.signed("paid", payment(1))
    store_id = world.signing.store_id()
    world.signing.create_checkpoint(tmp_path / "earlier")
    world.finalize(paid)
    first = ledger.relay_signing(world.signing)
    upkeep.restore_checkpoint(tmp_path / "earlier", tmp_path / "restored")

    restored = World(tmp_path / "restored", world.config)
    with restored.signing:
        assert restored.signing.store_id() == store_id
        restored.now += MINUTE
        restored.finalize(paid, b"g" * 32)
        restored.finalize(restored.signed("next", payment(2)))
        second = ledger.relay_signing(restored.signing)
        waiting = restored.signing.list_outgoing()

    assert (first, second, waiting) == (1, 2, [])
    assert sorted(each["request_id"] for each in bodies(ledger)) == ["next", "paid", "paid"]


def test_the_partition_of_a_group(worlds: Worlds) -> None:
    """The messages of one group have one partition, which is no other group's."""
    world = worlds()
    other = world.signing.upsert_group_config(group(1, 2))
    for number in (1, 2, 3):
        event = payment(number)
        world.event(event)
        request = world.new_request(f"r{number}", event, inputs=0)
        group_id = other if number == 3 else world.group_id
        world.signing.insert_request(request, group_id=group_id)
        for voter in (1, 2):
            world.vote(request.request_id, voter, accept=False)
    told: list[Announcement] = []

    def publish(messages: Sequence[Announcement]) -> list[bool]:
        told.extend(messages)
        return [False] * len(messages)

    world.signing.relay(publish)

    first, second, third = (each.partition for each in told)
    assert first == second == f"signing-{world.group_id.hex()}"
    assert third == f"signing-{other.hex()}"


def test_the_message_is_the_same_each_time(world: World) -> None:
    """It is made of what happened at the end, also after the blue score was recorded."""
    world.finalize(world.signed())
    (before,) = world.signing.list_outgoing()

    world.signing.update_request_final_tx_score(RequestId("r1"), 7)
    (after,) = world.signing.list_outgoing()

    assert announce("id", before) == announce("id", after)
    assert announce("id", before).key != announce("other", after).key
    assert before.at_nanos == NOW
