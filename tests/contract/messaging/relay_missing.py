"""The contract of targets that are missing, and of partitions that were parked."""

from __future__ import annotations

import pytest

from ledgerstone.messaging.states import LaneState, RecordKind
from ledgerstone.testing.clock import ManualClock
from tests.contract.messaging.destination import MISSING, REFUSED, SHOP, UNDELIVERABLE
from tests.contract.messaging.relays import Opened, Opening


class MissingTargetContract(Opened):
    """What waits for a target, and how it goes on. Fixtures: `home`, `clock`."""

    def test_a_missing_target_is_waited_for(self, opening: Opening, clock: ManualClock) -> None:
        """With block a message whose place is missing is tried for ever, and parks nothing."""
        shop = opening(max_attempts=1)
        shop.shelf.tell(1, MISSING, times=3)
        shop.publish(1, partition="ann")

        for _ in range(4):
            shop.tick()
            clock.advance(400)

        assert shop.shelf.bodies == [1]
        assert shop.record() == []

    def test_a_competing_message_waits_for_its_target(
        self, opening: Opening, clock: ManualClock
    ) -> None:
        """With park, where no order is kept, it is delivered when its target is back."""
        shop = opening(mode="competing", on_failure="park", max_attempts=1)
        shop.shelf.tell("away", MISSING)
        shop.publish("away", partition="ann")
        shop.publish(1, partition="bob")
        for _ in range(3):
            shop.tick(2)
            clock.advance(60)
        with shop.ledger.reading() as tx:
            failed = tx.failed.find().rows
        before = list(shop.shelf.bodies)

        shop.shelf.forgive("away")
        for _ in range(4):
            clock.advance(60)
            shop.tick(2)

        assert (before, failed) == ([1], [])
        assert shop.shelf.bodies == [1, "away"]
        assert shop.waiting() == []

    @pytest.mark.parametrize("mode", ["ordered", "competing"])
    def test_what_was_skipped_stays_aside(
        self, opening: Opening, clock: ManualClock, mode: str
    ) -> None:
        """With skip others have overtaken the message, so it is sent again only when asked for."""
        shop = opening(mode=mode, on_failure="skip")
        shop.shelf.tell("away", MISSING)
        shop.publish("away", 1, partition="ann")
        shop.tick(2)
        shop.shelf.forgive("away")
        clock.advance(400)
        shop.tick(3)
        before = list(shop.shelf.bodies)

        with shop.ledger.transaction() as tx:
            tx.failed.retry_all(origin=SHOP, code=MISSING.code)
        shop.tick(2)

        assert before == [1]
        assert shop.shelf.bodies == [1, "away"]

    def test_what_was_parked_for_a_missing_target(
        self, opening: Opening, clock: ManualClock
    ) -> None:
        """Partitions that were parked for it go on by themselves when it is back, and no others."""
        shop = opening(on_failure="park", max_attempts=1)
        partitions = [f"p{number}" for number in range(20)]
        for partition in partitions:
            shop.shelf.tell(partition, MISSING)
            shop.publish(partition, partition=partition)
        shop.shelf.tell("poison", UNDELIVERABLE)
        shop.publish("poison", partition="poison")
        shop.tick(2)
        for _ in range(3):
            clock.advance(60)
            shop.tick(2)
        probes = len(shop.shelf.sent) - len(partitions) - 1

        for partition in partitions:
            shop.shelf.forgive(partition)
        for _ in range(4):
            clock.advance(60)
            shop.tick(3)

        assert 1 <= probes <= 4
        assert sorted(shop.shelf.bodies) == sorted(partitions)
        assert shop.lane("poison").state is LaneState.PARKED
        resumed = [entry for entry in shop.record() if entry.what is RecordKind.RESUMED]
        assert {entry.who for entry in resumed} == {"relay"}

    def test_a_target_that_stays_missing(self, opening: Opening, clock: ManualClock) -> None:
        """While it is away, others that are back go on, and one of its messages a turn is tried."""
        shop = opening(on_failure="park", max_attempts=1)
        away, back = [f"a{number}" for number in range(3)], [f"b{number}" for number in range(3)]
        for partition in (*away, *back):
            shop.shelf.tell(partition, MISSING)
            shop.publish(partition, partition=partition)
        shop.tick(2)
        for partition in back:
            shop.shelf.forgive(partition)

        turns = 12
        for _ in range(turns):
            clock.advance(60)
            shop.tick(3)

        assert sorted(shop.shelf.bodies) == back
        tries = [message for message in shop.shelf.sent if message.partition in away]
        # Once at first, once when the others went on.
        assert 2 * len(away) < len(tries) <= 2 * len(away) + turns

    def test_parked_partitions_are_resumed_in_bulk(self, opening: Opening) -> None:
        """All that were parked for a reason are resumed, so many a call, or only named."""
        shop = opening(on_failure="park", max_attempts=1)
        for number in range(6):
            shop.shelf.tell(number, UNDELIVERABLE if number % 2 else REFUSED)
            shop.publish(number, partition=f"p{number}" if number else "")
        shop.tick(2)

        with shop.ledger.transaction() as tx:
            named = tx.outbox.resume_parked(SHOP, dry_run=True)
            full = tx.outbox.resume_parked(SHOP, code="full", by="ada")
            some = tx.outbox.resume_parked(SHOP, limit=2, by="ada")
            rest = tx.outbox.resume_parked(SHOP, by="ada")
            none = tx.outbox.resume_parked(SHOP, by="ada")

        assert named == ["", "p1", "p2", "p3", "p4", "p5"]
        assert sorted(full) == ["", "p2", "p4"]
        assert (some, rest, none) == (["p1", "p3"], ["p5"], [])
        resumed = [entry.partition for entry in shop.record() if entry.what is RecordKind.RESUMED]
        assert resumed == [*full, *some, *rest]
