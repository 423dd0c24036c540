"""The contract of what is removed: delivered messages, the record, destinations that are gone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ledgerstone.errors import BadInput, NotAllowedNow
from ledgerstone.messaging import retention
from ledgerstone.messaging.states import LaneState
from ledgerstone.testing.clock import ManualClock
from tests.contract.messaging.destination import REFUSED, SHOP
from tests.contract.messaging.relays import Opened, Opening, call

DAY_SECONDS = 86_400


class CleanupContract(Opened):
    """What is removed, and what is not. Fixtures: `home`, `clock`."""

    def test_only_what_was_delivered_before_goes(
        self, opening: Opening, clock: ManualClock
    ) -> None:
        """Cleaning up removes what was delivered so long ago, and nothing that waits."""
        shop = opening()
        shop.shelf.tell("waits", REFUSED)
        shop.shelf.tell("late", REFUSED, times=1)
        shop.publish("waits", partition="ann")
        shop.publish("old", partition="bob")
        shop.publish("late", partition="cid")
        shop.tick()
        clock.advance(5 * DAY_SECONDS)
        shop.publish("new", partition="bob")
        shop.tick()
        clock.advance(3 * DAY_SECONDS)

        with shop.ledger.transaction() as tx:
            elsewhere = tx.outbox.cleanup(days=7, destination="local")
            removed = tx.outbox.cleanup(days=7)

        assert (elsewhere, removed) == (0, 1)
        assert shop.shelf.bodies == ["old", "late", "new"]
        assert [row["body"] for row in shop.rows()] == ['"waits"', '"late"', '"new"']

    def test_the_record_goes_in_the_end(self, opening: Opening, clock: ManualClock) -> None:
        """An event is kept for `keep_record_days`; then a worker without a relay removes it."""
        shop = opening(messaging={"keep_record_days": 30})
        worker = shop.ledger.worker()
        worker.tick()
        call(shop, lambda tx: tx.outbox.pause(SHOP, by="ada"))
        clock.advance(29 * DAY_SECONDS)
        call(shop, lambda tx: tx.outbox.resume(SHOP, by="ada"))
        worker.tick()
        before = [entry.what.value for entry in shop.record()]
        clock.advance(2 * DAY_SECONDS)
        worker.tick()

        assert before == ["paused", "resumed"]
        assert [entry.what.value for entry in shop.record()] == ["resumed"]

    def test_a_destination_that_is_gone(self, opening: Opening, clock: ManualClock) -> None:
        """What it has delivered goes like any other; the rest, when that is asked for."""
        before = opening(destination="former")
        before.publish(1, partition="ann")
        before.tick()
        before.publish(2, 3, partition="ann")
        shop = opening()
        shop.publish(4, partition="ann")
        clock.advance(8 * DAY_SECONDS)

        shop.tick(2)
        kept = [row["body"] for row in shop.rows()]
        with shop.ledger.transaction() as tx:
            gone = tx.outbox.gone()
            removed = [tx.outbox.discard("former", by="ada") for _ in range(2)]
            with pytest.raises(NotAllowedNow, match="is in the settings"):
                tx.outbox.discard(SHOP)

        assert kept == ["2", "3", "4"]
        assert (gone, removed) == (["former"], [3, 0])
        assert [row["body"] for row in shop.rows()] == ["4"]
        assert [(entry.what.value, entry.queue) for entry in shop.record()] == [
            ("removed", "former")
        ]

    def test_it_goes_in_bounded_steps(
        self, opening: Opening, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One call removes a bounded number, whatever the number of destinations."""
        shop = opening()
        monkeypatch.setattr(retention, "ROWS_MAX", 10)
        shop.publish(*range(25))
        shop.tick(2)
        clock.advance(DAY_SECONDS)
        steps: list[int] = []

        while not steps or steps[-1]:
            with shop.ledger.transaction() as tx:
                steps.append(tx.outbox.cleanup(days=0.5))

        assert steps == [10, 10, 5, 0]

    def test_a_relay_cleans_up(self, opening: Opening, clock: ManualClock) -> None:
        """Relays remove what is older than the setting, every so often; keys are kept longer."""
        shop = opening(messaging={"keep_delivered_days": 2, "keep_keys_days": 10})
        shop.publish(1, key="k")
        shop.tick()
        clock.advance(3 * DAY_SECONDS)
        shop.tick()
        gone, (known,) = shop.rows(), shop.publish(1, key="k")

        clock.advance(10 * DAY_SECONDS)
        shop.tick()
        (again,) = shop.publish(1, key="k")

        assert (gone, known.created, again.created) == ([], False, True)

    def test_idle_lanes_are_removed(self, opening: Opening, clock: ManualClock) -> None:
        """A partition in which nothing happened for long leaves nothing; it can come again."""
        shop = opening()
        shop.publish(1, partition="idle")
        shop.tick()
        clock.advance(8 * DAY_SECONDS)
        shop.tick()
        with shop.ledger.reading() as tx:
            left = tx.outbox.lanes(SHOP).rows

        shop.publish(2, partition="idle")
        shop.tick()

        assert left == []
        assert shop.shelf.bodies[-1] == 2

    def test_lanes_that_mean_something_stay(self, opening: Opening, clock: ManualClock) -> None:
        """A partition that is paused, or in which something waits, is kept however long it is."""
        shop = opening()
        later = datetime.fromtimestamp(clock.now_ms() / 1000 + 10 * DAY_SECONDS, UTC)
        shop.publish(1, partition="paused")
        shop.publish(2, partition="later", available_at=later)
        shop.shelf.meanwhile = lambda: call(
            shop, lambda tx: tx.outbox.pause(SHOP, partition="paused")
        )
        shop.tick()

        clock.advance(8 * DAY_SECONDS)
        shop.tick()
        shop.publish(3, partition="paused")
        shop.tick()

        assert shop.shelf.bodies == [1]
        assert shop.lane("paused").state is LaneState.PAUSED
        assert shop.lane("later").due_at == later

    @pytest.mark.parametrize("days", [-1, float("nan"), float("inf"), 40_000, "7", None])
    def test_bad_days_are_refused(self, opening: Opening, days: Any) -> None:
        """What is no number of days is refused."""
        shop = opening()

        with shop.ledger.transaction() as tx, pytest.raises(BadInput, match="days"):
            tx.outbox.cleanup(days=days)
