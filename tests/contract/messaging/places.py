"""The contract of places: a transaction that publishes more than once, and one that is undone."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from sqlalchemy import select, update

from ledgerstone.errors import BadInput, NotAllowedNow
from ledgerstone.messaging.outbox.publishing import ORDER
from ledgerstone.messaging.relay import parked
from ledgerstone.messaging.relay.lanes import LaneRow
from ledgerstone.messaging.states import LaneState, RecordKind
from ledgerstone.messaging.tables import lane
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.contract.messaging.destination import NAME, REFUSED, SHOP, Shop
from tests.contract.messaging.relays import Opened, Opening, call
from tests.harness.ledgers import Undone
from tests.harness.threads import aside, signaled


class PlacesContract(Opened):
    """Places over several calls of a transaction. Fixtures: `home`, `clock`."""

    @pytest.mark.parametrize("partitions", [["ann"], ["ann", "bob"]], ids=["one", "two"])
    def test_places_before_and_behind_another_commit(
        self, opening: Opening, partitions: list[str]
    ) -> None:
        """All that a transaction publishes goes behind another that commits between two calls.

        With one writer the other begins when the first is through.
        """
        shop = opening()
        one_writer = shop.ledger.database.dialect.one_writer
        first, between = threading.Event(), threading.Event()

        def early() -> None:
            with shop.ledger.transaction() as tx:
                for each in partitions:
                    tx.outbox.publish(NAME, 1, partition=each)
                first.set()
                if not one_writer:
                    signaled(between)
                for each in partitions:
                    tx.outbox.publish(NAME, 3, partition=each)

        with aside(early):
            signaled(first)
            with aside(partial(shop.publish, 2, partition="ann")) as other:
                if not one_writer:
                    other.result(WAIT_SECONDS_MAX)
                    shop.tick()
                between.set()
        shop.tick(2)

        order = [1, 3, 2] if one_writer else [2, 1, 3]
        assert shop.shelf.bodies_of("ann") == order
        assert shop.shelf.bodies_of("bob") == [1, 3][: 2 * len(partitions) - 2]
        assert shop.waiting() == []

    def test_what_was_undone_takes_no_place(self, opening: Opening) -> None:
        """A call that raises in a joined transaction leaves no partition, and those before stay."""
        shop = opening()

        with shop.ledger.database.engine.connect() as connection:
            tx = shop.ledger.join(connection)
            tx.outbox.publish(NAME, 1, partition="ann")
            with pytest.raises(Undone), ORDER.all_or_nothing(tx):
                tx.outbox.publish(NAME, 2, partition="ann")
                tx.outbox.publish(NAME, 3, partition="bob")
                raise Undone
            connection.commit()

        assert shop.waiting() == [1]
        with shop.ledger.reading() as tx:
            assert [row.partition for row in tx.outbox.lanes(SHOP).rows] == ["ann"]
        shop.tick()
        assert shop.shelf.bodies == [1]

    def test_a_parked_partition_is_not_paused(self, opening: Opening, clock: ManualClock) -> None:
        """One that waits for people because of a message is not paused over it, only resumed."""
        shop = opening(on_failure="park", max_attempts=1)
        shop.shelf.tell("poison", REFUSED)
        shop.publish("poison", partition="ann")
        for _ in range(2):
            shop.tick()
            clock.advance(400)

        with pytest.raises(NotAllowedNow, match="already parked"):
            call(shop, lambda tx: tx.outbox.pause(SHOP, partition="ann"))

        assert shop.lane("ann").state is LaneState.PARKED
        assert [entry.what for entry in shop.record()] == [RecordKind.PARKED]

    def test_only_parked_partitions_are_resumed(self, opening: Opening) -> None:
        """Of the partitions that are named those go on that are parked, with all their chances."""
        shop = opening(on_failure="park", max_attempts=1)
        shop.shelf.tell("poison", REFUSED)
        shop.publish("poison", partition="parked")
        shop.publish(1, partition="paused")
        shop.tick(2)
        call(shop, lambda tx: tx.outbox.pause(SHOP, partition="paused"))
        call(shop, lambda tx: tx.execute(update(lane).values(crashes=2)))

        resumed = shop.ledger.run(
            lambda tx: parked.resume(tx, SHOP, ["paused", "nowhere", "parked"], by="ada")
        )

        kept = {each.partition: each.state for each in lanes_of(shop)}
        assert resumed == ["parked"]
        assert kept == {"parked": LaneState.OPEN, "paused": LaneState.PAUSED}
        with shop.ledger.reading() as tx:
            crashes = tx.execute(select(lane.c.crashes).order_by(lane.c.partition_key)).all()
        assert [row[0] for row in crashes] == [0, 2]

    def test_so_many_are_resumed_at_once(self, opening: Opening) -> None:
        """One call finds and resumes a bounded number of partitions."""
        shop = opening()

        for limit in (0, parked.RESUME_MAX + 1):
            with pytest.raises(BadInput, match="limit must be 1 to"), shop.ledger.reading() as tx:
                parked.find(tx, SHOP, limit=limit)

    def test_whether_a_resumed_partition_got_through(self, opening: Opening) -> None:
        """It has when its lane is open, free and without a failure, or is not there any more."""
        shop = opening(max_attempts=5)
        shop.shelf.tell("poison", REFUSED)
        shop.publish("poison", partition="refused")
        shop.publish(1, partition="fine")
        shop.tick()
        call(shop, lambda tx: tx.execute(update(lane).values(code=None)))

        with shop.ledger.reading() as tx:
            through = {
                name: parked.got_through(tx, SHOP, name) for name in ("refused", "fine", "nowhere")
            }

        assert through == {"refused": False, "fine": True, "nowhere": True}


def lanes_of(shop: Shop) -> list[LaneRow]:
    """The lanes of its destination."""
    with shop.ledger.reading() as tx:
        return list(tx.outbox.lanes(SHOP).rows)
