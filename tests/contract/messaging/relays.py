"""The relay contract: what leaves, in which order, and what happens to what does not.

Relays are driven step by step, by a clock that is moved by hand: two relays are two workers on the
same database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from sqlalchemy import Table, TextClause, text

from ledgerstone.engine.source import Ask
from ledgerstone.engine.worker import Worker
from ledgerstone.ledger import Transaction
from ledgerstone.messaging.brokers.transport import Answer, SendResult
from ledgerstone.messaging.states import LaneState, RecordKind
from ledgerstone.messaging.tables import CODE_CHARS_MAX, REASON_CHARS_MAX
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import until
from tests.contract.messaging.destination import (
    NAME,
    REFUSED,
    SHOP,
    UNDELIVERABLE,
    UNKNOWN,
    Shop,
)

Opening = Callable[..., Shop]
CRASHES = 3
LEASE = 30.0
WORKER = "0190a000-0000-7000-8000-00000000ada0"
STEPS_MAX = 50


class Opened:
    """The fixture that opens shops on the database of the test. Fixtures: `home`, `clock`."""

    @pytest.fixture
    def opening(self, home: Home, clock: ManualClock) -> Iterator[Opening]:
        """Opens a shop whose destination has these settings."""
        with ExitStack() as shops:
            yield lambda **options: shops.enter_context(Shop(home.url, clock, **options))


class OrderedRelayContract(Opened):
    """What holds where order is kept."""

    def test_order_is_kept_by_two_relays(self, opening: Opening) -> None:
        """Two relays that take turns deliver each partition in its order, each message once."""
        shop = opening(batch_max=4)
        relays = [shop.relay(), shop.relay()]
        for number in range(10):
            for partition in ("ann", "bob", "cid"):
                shop.publish(number, partition=partition)

        run(relays, shop)

        assert len(shop.shelf.sent) == 30
        for partition in ("ann", "bob", "cid"):
            assert shop.shelf.bodies_of(partition) == list(range(10))

    def test_a_held_partition_is_passed_over(self, opening: Opening, clock: ManualClock) -> None:
        """What one relay has under way no other touches, and it takes the other partitions."""
        shop = opening(batch_max=1)
        first, second = shop.relay(), shop.relay()
        shop.publish(1, 2, partition="ann")
        clock.advance(1)
        shop.publish(3, partition="bob")

        def beside() -> None:
            second.tick()
            second.tick()

        shop.shelf.meanwhile = beside
        first.tick()

        assert shop.shelf.bodies == [3, 1]

    def test_a_delivery_is_marked(self, opening: Opening, clock: ManualClock) -> None:
        """A delivered row says when, to the second; its lane waits for nothing."""
        shop = opening()
        shop.publish(1, partition="ann")
        clock.advance(90)

        shop.tick()

        (row,) = shop.rows()
        assert moment(row["delivered_at"]) == moment(row["created_at"]) + timedelta(seconds=90)
        assert (shop.lane("ann").due_at, shop.lane("ann").held_by) == (None, None)

    def test_delivered_rows_may_go_at_once(self, opening: Opening) -> None:
        """With keep_delivered_days = 0 a row is gone as soon as it is delivered."""
        shop = opening(messaging={"keep_delivered_days": 0})
        shop.publish(1, 2, partition="ann")

        shop.tick()

        assert shop.shelf.bodies == [1, 2]
        assert shop.rows() == []

    def test_a_message_arrives_as_it_was_published(self, opening: Opening) -> None:
        """Id, name, body, headers, key and partition arrive as they were given."""
        shop = opening()
        (published,) = shop.publish(
            {"ä": [1, None]}, partition="ann", key="k", headers={"Tenant": "a\\b\"c'🦊"}
        )

        shop.tick()

        (message,) = shop.shelf.kept
        assert (message.id, message.name, message.key) == (published.id, NAME, "k")
        assert (message.body, message.partition) == ({"ä": [1, None]}, "ann")
        assert message.headers == {"Tenant": "a\\b\"c'🦊"}
        assert message.attempt == 0

    def test_a_refused_head_holds_its_partition(self, opening: Opening) -> None:
        """A refused message holds those behind it and no other partition; its attempts are seen."""
        shop = opening()
        shop.shelf.tell("poison", REFUSED)
        shop.publish("poison", "behind", partition="ann")
        shop.publish(1, 2, partition="bob")

        shop.tick(3)

        lane = shop.lane("ann")
        assert shop.shelf.bodies == [1, 2]
        assert (lane.state, lane.attempts) == (LaneState.OPEN, 1)
        assert (lane.code, lane.reason) == ("full", "the shelf is full")
        assert [message.body for message in shop.shelf.sent].count("poison") == 1

    def test_pauses_grow_and_it_is_tried_for_ever(
        self, opening: Opening, clock: ManualClock
    ) -> None:
        """With block a refused head is tried for ever, after pauses that double up to their end."""
        shop = opening(max_attempts=2, backoff_seconds=1, backoff_seconds_max=8)
        shop.shelf.tell("poison", REFUSED)
        shop.publish("poison", "behind", partition="ann")
        pauses = []

        for _ in range(6):
            shop.tick()
            pauses.append(pause_of(shop, clock))
            clock.advance(pauses[-1])

        for pause, longest in zip(pauses, (1, 2, 4, 8, 8, 8), strict=True):
            assert 0.79 * longest <= pause <= longest
        assert shop.lane("ann").attempts == 6
        shop.shelf.forgive("poison")
        shop.tick()
        assert shop.shelf.bodies == ["poison", "behind"]
        assert shop.lane("ann").attempts == 0

    def test_attempts_are_those_of_the_first(self, opening: Opening, clock: ManualClock) -> None:
        """Each message is refused so often as it may be, whatever became of the one before it."""
        shop = opening(on_failure="skip", max_attempts=2)
        shop.shelf.tell(1, REFUSED, times=1)
        for poison in (2, 3):
            shop.shelf.tell(poison, REFUSED)
        shop.publish(1, 2, 3, partition="ann")

        attempts = []
        for _ in range(5):
            shop.tick()
            attempts.append(shop.lane("ann").attempts)
            clock.advance(400)

        sent = [(message.body, message.attempt) for message in shop.shelf.sent]
        assert sent == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
        assert attempts == [1, 1, 0, 1, 0]
        with shop.ledger.reading() as tx:
            assert [found.attempts for found in tx.failed.find().rows] == [2, 2]

    def test_publishing_does_not_end_a_pause(self, opening: Opening, clock: ManualClock) -> None:
        """What is published behind a refused message waits with it: the pause stays."""
        shop = opening(backoff_seconds=60)
        shop.shelf.tell("poison", REFUSED)
        shop.publish("poison", partition="ann")
        shop.tick()
        pause = pause_of(shop, clock)

        shop.publish("behind", partition="ann")
        shop.tick()

        assert pause_of(shop, clock) == pause > 0
        assert len(shop.shelf.sent) == 1

    def test_the_destination_may_say_how_long(self, opening: Opening, clock: ManualClock) -> None:
        """A destination that says when to come again is left alone for so long."""
        shop = opening()
        shop.shelf.tell(1, Answer(SendResult.REFUSED, "busy", "later", 77.0))
        shop.publish(1, partition="ann")

        shop.tick()

        assert pause_of(shop, clock) == 77

    def test_a_refusal_need_not_count(self, opening: Opening, clock: ManualClock) -> None:
        """A refusal that is not the message's doing is told, and is no attempt."""
        shop = opening(on_failure="park", max_attempts=1)
        shop.shelf.tell("early", msgspec.structs.replace(REFUSED, counts=False), times=3)
        shop.publish("early", partition="ann")

        for _ in range(3):
            shop.tick()
            clock.advance(3600)
        waited = shop.lane("ann")
        shop.tick()

        assert (waited.state, waited.attempts, waited.code) == (LaneState.OPEN, 0, "full")
        assert shop.shelf.bodies == ["early"]

    def test_park_waits_for_people(self, opening: Opening, clock: ManualClock) -> None:
        """With park a head that was refused too often stops its partition until it is resumed."""
        shop = opening(on_failure="park", max_attempts=2)
        shop.shelf.tell("poison", REFUSED)
        (poison, _) = shop.publish("poison", "behind", partition="ann")

        for _ in range(5):
            shop.tick()
            clock.advance(400)
        shop.publish(1, partition="bob")
        shop.tick()
        parked = shop.lane("ann")
        with shop.ledger.reading() as tx:
            backlog = {each.destination: each for each in tx.outbox.backlog()}[SHOP]
            listed = [
                [row.partition for row in tx.outbox.lanes(SHOP, state=state).rows]
                for state in ("parked", LaneState.OPEN)
            ]

        assert (parked.state, parked.attempts, parked.code) == (LaneState.PARKED, 2, "full")
        assert (backlog.parked, backlog.waiting, listed) == (1, 2, [["ann"], ["bob"]])
        assert shop.shelf.bodies == [1]
        assert shop.waiting() == ["poison", "behind"]
        (entry,) = shop.record()
        assert (entry.what, entry.partition) == (RecordKind.PARKED, "ann")
        assert (entry.message_id, entry.code) == (poison.id, "full")
        call(shop, lambda tx: tx.outbox.resume(SHOP, partition="ann", by="ada"))
        shop.tick()
        assert (shop.lane("ann").state, shop.lane("ann").attempts) == (LaneState.OPEN, 1)
        shop.shelf.forgive("poison")
        clock.advance(400)
        shop.tick()
        assert shop.shelf.bodies_of("ann") == ["poison", "behind"]
        assert shop.lane("ann").attempts == 0

    def test_skip_goes_on(self, opening: Opening, clock: ManualClock) -> None:
        """With skip it goes to the failed table and on record, and those behind it go on."""
        shop = opening(on_failure="skip", max_attempts=2)
        shop.shelf.tell("poison", REFUSED)
        _, poison, _ = shop.publish(1, "poison", 2, partition="ann")

        for _ in range(3):
            shop.tick()
            clock.advance(400)

        assert shop.shelf.bodies == [1, 2]
        (entry,) = shop.record()
        assert (entry.what, entry.message_id) == (RecordKind.SKIPPED, poison.id)
        with shop.ledger.reading() as tx:
            (failed,) = tx.failed.find().rows
        assert (failed.message_id, failed.origin, failed.code) == (poison.id, SHOP, "full")
        assert (failed.attempts, failed.partition) == (2, "ann")
        assert [row["body"] for row in shop.rows()] == ["1", "2"]

    def test_what_was_skipped_keeps_its_place(self, opening: Opening, clock: ManualClock) -> None:
        """Retried, a skipped message leaves before those behind it that still wait."""
        shop = opening(on_failure="skip", max_attempts=1)
        shop.shelf.tell("poison", REFUSED)
        shop.shelf.tell("later", UNKNOWN)
        shop.publish("poison", "later", partition="ann")
        shop.publish(1, partition="bob")
        shop.tick(2)
        shop.shelf.forgive("poison")
        shop.shelf.forgive("later")

        with shop.ledger.transaction() as tx:
            (failed,) = tx.failed.find().rows
            tx.failed.retry(failed.id)
        clock.advance(60)
        shop.tick()

        assert shop.shelf.bodies_of("ann") == ["poison", "later"]

    @pytest.mark.parametrize("policy", ["block", "park"])
    def test_undeliverable_is_parked_at_once(self, opening: Opening, policy: str) -> None:
        """What no retry helps is parked at the first answer, with its reason."""
        shop = opening(on_failure=policy, max_attempts=10)
        shop.shelf.tell("lost", UNDELIVERABLE)
        shop.publish("lost", "behind", partition="ann")

        shop.tick(2)

        lane = shop.lane("ann")
        assert (lane.state, lane.code) == (LaneState.PARKED, "too_large")
        assert lane.reason == "it takes no such size"
        assert shop.shelf.bodies == []
        assert [entry.what for entry in shop.record()] == [RecordKind.PARKED]

    def test_long_words_are_cut(self, opening: Opening) -> None:
        """However much a destination says, its code and reason are kept as far as they fit."""
        shop = opening()
        shop.shelf.tell(1, Answer(SendResult.UNDELIVERABLE, "c" * 5000, "ä" * 5000))
        shop.publish(1, partition="ann")

        shop.tick()

        lane, (entry,) = shop.lane("ann"), shop.record()
        assert lane.state is LaneState.PARKED
        assert (lane.code, lane.reason) == ("c" * CODE_CHARS_MAX, "ä" * REASON_CHARS_MAX)
        assert (entry.code, entry.reason) == (lane.code, lane.reason)

    def test_undeliverable_may_be_skipped(self, opening: Opening) -> None:
        """With skip it is in the failed table at the first answer, and the rest goes on."""
        shop = opening(on_failure="skip", max_attempts=10)
        shop.shelf.tell("lost", UNDELIVERABLE)
        shop.publish("lost", "behind", partition="ann")

        shop.tick(2)

        assert shop.shelf.bodies == ["behind"]
        with shop.ledger.reading() as tx:
            (failed,) = tx.failed.find().rows
        assert (failed.code, failed.attempts) == ("too_large", 1)

    def test_an_outage_costs_nothing(self, opening: Opening, clock: ManualClock) -> None:
        """While the destination is down no attempt is counted; afterwards order is as it was."""
        shop = opening(on_failure="park", max_attempts=2)
        shop.publish(1, 2, partition="ann")
        shop.publish(3, 4, partition="bob")
        shop.shelf.down = True

        for _ in range(12):
            shop.tick()
            clock.advance(5)
        during = shop.lane("ann")
        shop.publish(5, partition="ann")
        shop.shelf.down = False
        clock.advance(60)
        shop.tick(2)

        assert (during.state, during.attempts, during.code) == (LaneState.OPEN, 0, "target_down")
        assert shop.shelf.bodies_of("ann") == [1, 2, 5]
        assert shop.shelf.bodies_of("bob") == [3, 4]
        assert shop.record() == []

    def test_an_outage_in_the_middle_costs_nothing(
        self, opening: Opening, clock: ManualClock
    ) -> None:
        """What was confirmed before the destination went away is marked, the rest is as it was."""
        shop = opening(on_failure="park", max_attempts=1)
        shop.publish(1, 2, 3, partition="ann")

        def cut() -> None:
            shop.shelf.down = True

        shop.shelf.meanwhile = cut
        shop.tick()
        after = shop.waiting()
        shop.shelf.down = False
        clock.advance(60)
        shop.tick(2)

        assert after == [2, 3]
        assert shop.shelf.bodies == [1, 2, 3]

    def test_no_answer_costs_nothing(self, opening: Opening, clock: ManualClock) -> None:
        """A message without an answer is sent again before those behind it, at no cost."""
        shop = opening(on_failure="park", max_attempts=1)
        shop.shelf.tell(2, UNKNOWN, times=3)
        shop.publish(1, 2, 3, partition="ann")
        shop.publish(4, partition="bob")

        for _ in range(6):
            shop.tick()
            clock.advance(60)

        assert shop.shelf.bodies_of("ann") == [1, 2, 3]
        assert [message.body for message in shop.shelf.sent].count(2) == 4
        assert shop.lane("ann").state is LaneState.OPEN
        assert shop.record() == []

    def test_a_fault_of_the_carrier_is_no_attempt(
        self, opening: Opening, clock: ManualClock
    ) -> None:
        """An error in what carries costs no attempt, is seen at the lane, and is not hammered."""
        shop = opening(on_failure="park", max_attempts=1, backoff_seconds=5)
        shop.publish(1, partition="ann")

        def fail() -> None:
            message = "a fault"
            raise ValueError(message)

        shop.shelf.meanwhile = fail
        shop.tick(3)
        lane, pause = shop.lane("ann"), pause_of(shop, clock)
        clock.advance(pause)
        shop.tick()

        assert (lane.state, lane.attempts, lane.code) == (LaneState.OPEN, 0, "ValueError")
        assert (pause, lane.reason) == (5, "a fault")
        assert shop.shelf.bodies == [1]

    def test_only_the_confirmed_beginning_is_marked(
        self, opening: Opening, clock: ManualClock
    ) -> None:
        """With several of a partition under way, what is behind a gap is sent again."""
        shop = opening(in_flight_per_partition=3)
        shop.shelf.tell(2, REFUSED, times=1)
        shop.publish(1, 2, 3, 4, partition="ann")

        shop.tick()
        after = shop.waiting()
        clock.advance(60)
        shop.tick()

        assert after == [2, 3, 4]
        assert shop.shelf.bodies == [1, 3, 2, 3, 4]
        assert shop.waiting() == []

    def test_destinations_are_independent(self, opening: Opening) -> None:
        """A message for two destinations is delivered to one although the other refuses it."""
        other = {"url": "amqp://elsewhere"}
        shop = opening(
            messaging={
                "destinations": {SHOP: {"url": "amqp://nowhere"}, "audit": other},
                "routes": {"order.*": [SHOP], "*": ["audit"]},
            }
        )
        (published,) = shop.publish(1, partition="ann")
        audit = shop.relay("audit")
        shop.shelf.down = True
        shop.tick()
        shop.shelf.down = False

        audit.tick()

        assert published.destinations == (SHOP, "audit")
        assert [message.id for message in shop.shelf.kept] == [published.id]
        delivered = {row["queue_name"]: row["delivered_at"] is not None for row in shop.rows()}
        assert delivered == {SHOP: False, "audit": True}

    def test_the_empty_partition_is_one(self, opening: Opening) -> None:
        """What has no partition is in the empty one, which keeps order like any other."""
        shop = opening()
        shop.shelf.tell(1, REFUSED)
        shop.publish(1, 2)
        shop.publish(3, partition="ann")

        shop.tick(2)

        assert shop.shelf.bodies == [3]
        assert shop.lane("").attempts == 1

    def test_partitions_differ_in_case(self, opening: Opening) -> None:
        """Partitions that differ only in case or in an accent are two."""
        shop = opening()
        shop.shelf.tell(1, REFUSED)
        shop.publish(1, 2, partition="ann")
        shop.publish(3, partition="Ann")
        shop.publish(4, partition="änn")

        shop.tick(2)

        assert sorted(shop.shelf.bodies) == [3, 4]
        assert [message.partition for message in shop.shelf.kept if message.body == 3] == ["Ann"]

    def test_a_long_backlog_is_carried_in_rounds(self, opening: Opening) -> None:
        """More than a round holds is carried in several, none larger than the batch."""
        shop = opening(batch_max=7, in_flight_per_partition=7)
        shop.publish(*range(30), partition="ann")
        shop.publish(*range(5), partition="bob")

        run([shop.relay()], shop)

        assert shop.shelf.bodies_of("ann") == list(range(30))
        assert max(shop.shelf.batches) <= 7


def run(relays: Sequence[Worker], shop: Shop) -> None:
    """Let the relays take turns until nothing waits.

    A lane that a publisher had locked is settled after a pause: no number of steps is enough.
    """

    def turn() -> bool:
        for relay in relays:
            relay.tick()
        return not shop.waiting()

    until(turn, what="the delivery of every message")


def ask(limit: int = 10, *, worker: str = "dead") -> Ask:
    """What a relay asks for that will never be heard of again."""
    return Ask(limit, worker, LEASE)


def claimed(shop: Shop, *, worker: str = "dead") -> Any:
    """What a relay claims that will never be heard of again."""
    return shop.ledger.run(lambda tx: shop.source().claim(tx, ask(worker=worker)))


def rescued(shop: Shop, crashes_max: int = CRASHES) -> int:
    """How many lanes of dead relays are due again."""
    return shop.ledger.run(lambda tx: shop.source().rescue(tx, limit=10, crashes_max=crashes_max))


def pause_of(shop: Shop, clock: ManualClock, partition: str = "ann") -> float:
    """In how many seconds a partition is looked at again."""
    due = shop.lane(partition).due_at
    assert due is not None
    return round(due.timestamp() - clock.now_ms() / 1000, 3)


def moment(kept: Any) -> datetime:
    """A moment as the database gave it back; it is kept without a zone."""
    given = datetime.fromisoformat(kept) if isinstance(kept, str) else kept
    assert given.tzinfo is None
    return given.replace(tzinfo=UTC)


def call(shop: Shop, work: Callable[[Transaction], Any]) -> None:
    """In a transaction of its own."""
    with shop.ledger.transaction() as tx:
        work(tx)


def symfony(name: str) -> str:
    """Headers as Symfony's serialiser writes them, without an id."""
    stamp = "X-Message-Stamp-Symfony\\\\Component\\\\Messenger\\\\Stamp\\\\BusNameStamp"
    return (
        f'{{"type":"{name}","{stamp}":"[{{\\"busName\\":\\"bus\\"}}]",'
        '"Content-Type":"application\\/json"}'
    )


def foreign(clock: ManualClock, body: str, headers: str, partition: str = "") -> dict[str, Any]:
    """A row as others write it."""
    now = datetime.fromtimestamp(clock.now_ms() // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return {
        "body": body,
        "headers": headers,
        "queue_name": SHOP,
        "partition_key": partition,
        "created_at": now,
        "available_at": now,
    }


def write(shop: Shop, clock: ManualClock, body: str, headers: str, partition: str = "") -> int:
    """Write a row as others do, past the ledger; its place."""
    outbox = shop.ledger.registry.shared.outbox
    with shop.ledger.transaction() as tx:
        tx.execute(insert_text(outbox), foreign(clock, body, headers, partition))
    return int(shop.rows()[-1]["id"])


def insert_text(outbox: Table) -> TextClause:
    """As others spell it."""
    names = ("body", "headers", "queue_name", "partition_key", "created_at", "available_at")
    listed = ", ".join(names)
    marks = ", ".join(f":{name}" for name in names)
    return text(f"INSERT INTO {outbox.name} ({listed}) VALUES ({marks})")  # noqa: S608 - fixed names
