"""The contract of rounds: what a relay claims, when it looks again, and what wakes it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from ledgerstone.engine.source import Ask, Batch, Outcome
from ledgerstone.engine.source import OutcomeKind as Out
from ledgerstone.errors import TargetDown
from ledgerstone.messaging.brokers.transport import PAUSE_SECONDS_MAX
from ledgerstone.messaging.relay import lanes
from ledgerstone.messaging.relay import sweep as sweeping
from ledgerstone.messaging.relay.ordered import PAUSE_SECONDS_MIN
from ledgerstone.store.wakeup import WakeSignal
from ledgerstone.testing.clock import ManualClock
from tests.contract.messaging.destination import NAME, REFUSED, SHOP, UNKNOWN
from tests.contract.messaging.relays import (
    LEASE,
    WORKER,
    Opened,
    Opening,
    ask,
    call,
    claimed,
    foreign,
    insert_text,
    pause_of,
    rescued,
    symfony,
    write,
)

DAY_SECONDS = 86_400


class RelayRoundContract(Opened):
    """What holds for the rounds of an ordered relay. Fixtures: `home`, `clock`."""

    def test_no_answer_is_no_loop(self, opening: Opening, clock: ManualClock) -> None:
        """After no answer a lane has a rest, as long as the destination asked for if it did."""
        shop = opening()
        shop.shelf.tell(1, UNKNOWN)
        shop.shelf.tell(2, msgspec.structs.replace(UNKNOWN, retry_after_seconds=77.0))
        for partition, body in (("ann", 1), ("bob", 2), ("cid", 3)):
            shop.publish(body, partition=partition)

        shop.tick()

        assert pause_of(shop, clock, "ann") == PAUSE_SECONDS_MIN
        assert pause_of(shop, clock, "bob") == 77

    @pytest.mark.parametrize("mode", ["ordered", "competing"])
    def test_a_pause_is_no_shorter_than_the_back_off(
        self, opening: Opening, clock: ManualClock, mode: str
    ) -> None:
        """Asked for no pause, a relay makes its usual one; asked for a long one, one of an hour."""
        shop = opening(mode=mode, backoff_seconds=60)
        at_once = msgspec.structs.replace(REFUSED, retry_after_seconds=0.0)
        too_long = msgspec.structs.replace(REFUSED, retry_after_seconds=1e9)
        shop.shelf.tell(1, at_once, times=1)
        shop.shelf.tell(2, too_long, times=1)
        for partition, body in (("ann", 1), ("bob", 2), ("cid", 3)):
            shop.publish(body, partition=partition)

        shop.tick(3)
        first = list(shop.shelf.bodies)
        clock.advance(40)
        shop.tick(3)
        early = list(shop.shelf.bodies)
        clock.advance(40)
        shop.tick(3)
        later = list(shop.shelf.bodies)
        clock.advance(PAUSE_SECONDS_MAX)
        shop.tick(3)

        assert (first, early, later) == ([3], [3], [3, 1])
        assert shop.shelf.bodies == [3, 1, 2]

    def test_silence_is_an_outage(self, opening: Opening) -> None:
        """A destination that answers nothing at all is down; one that answers something is not."""
        shop = opening()
        relay = shop.source()
        shop.shelf.tell("silent", UNKNOWN)
        shop.publish("silent", partition="ann")
        shop.publish(1, partition="bob")
        some = shop.ledger.run(lambda tx: relay.claim(tx, ask()))
        shop.publish("silent", partition="cid")
        (none,) = shop.ledger.run(lambda tx: relay.claim(tx, ask()))

        relay.handler(some[0]).call(Batch.of(some))
        with pytest.raises(TargetDown, match="no answer came") as down:
            relay.handler(none).call(Batch.of([none]))

        assert down.value.target == SHOP
        assert shop.shelf.bodies == [1]

    def test_published_while_under_way(self, opening: Opening) -> None:
        """What is published while its partition is under way is due when that is through."""
        shop = opening()
        # The first step of a relay also looks for what others wrote.
        shop.tick()
        shop.publish(1, partition="ann")
        shop.shelf.meanwhile = lambda: call(
            shop, lambda tx: tx.outbox.publish(NAME, 2, partition="ann")
        )

        shop.tick()
        between, due = list(shop.shelf.bodies), shop.lane("ann").due_at
        shop.tick()

        assert between == [1]
        assert due is not None
        assert shop.shelf.bodies == [1, 2]
        assert shop.lane("ann").due_at is None

    def test_later_holds_its_partition(self, opening: Opening, clock: ManualClock) -> None:
        """A message that may leave later holds those behind it until then, to the second."""
        shop = opening()
        at = datetime.fromtimestamp(clock.now_ms() / 1000 + 600, UTC)
        shop.publish(1, partition="ann")
        shop.publish(2, partition="ann", available_at=at)
        shop.publish(3, partition="ann")
        shop.publish(4, partition="bob", available_at=at)
        told = shop.lane("bob").due_at

        shop.tick(2)
        early, due = list(shop.shelf.bodies), shop.lane("ann").due_at
        clock.advance(599)
        shop.tick()
        before = list(shop.shelf.bodies)
        clock.advance(1)
        shop.tick()

        assert early == before == [1]
        assert due == told == at
        assert shop.shelf.bodies_of("ann") == [1, 2, 3]
        assert shop.shelf.bodies_of("bob") == [4]

    def test_later_is_looked_at_within_the_hour(self, opening: Opening, clock: ManualClock) -> None:
        """A message that others let leave earlier than it was to is found an hour later at most."""
        shop = opening()
        at = datetime.fromtimestamp(clock.now_ms() / 1000 + 7200, UTC)
        shop.publish(1, partition="ann")
        shop.publish(2, partition="ann", available_at=at)
        shop.tick(2)
        outbox = shop.ledger.registry.shared.outbox
        call(
            shop,
            lambda tx: tx.execute(outbox.update().values(available_at=outbox.c.created_at)),
        )

        clock.advance(lanes.WAIT_SECONDS_MAX - 1)
        shop.tick()
        before = list(shop.shelf.bodies)
        clock.advance(1)
        shop.tick()

        assert (before, shop.shelf.bodies) == ([1], [1, 2])

    def test_a_lane_with_nothing_to_send_is_let_go(
        self, opening: Opening, clock: ManualClock
    ) -> None:
        """A lane whose first message may leave later, or is gone, is held by nobody until then."""
        shop = opening()
        outbox = shop.ledger.registry.shared.outbox
        later = datetime.fromtimestamp(clock.now_ms() / 1000 + 600, UTC)
        row = foreign(clock, "1", symfony(NAME), "ann")
        row |= {"available_at": later.strftime("%Y-%m-%d %H:%M:%S")}
        call(shop, lambda tx: tx.execute(insert_text(outbox), row))
        shop.publish(2, partition="bob")
        call(
            shop,
            lambda tx: tx.execute(outbox.delete().where(outbox.c.body == "2")),
        )

        shop.tick(2)
        due = shop.lane("ann").due_at, shop.lane("bob").due_at
        shop.publish(3, partition="bob")
        shop.tick()
        early = list(shop.shelf.bodies)
        clock.advance(600)
        shop.tick()

        assert due == (later, None)
        assert (early, shop.shelf.bodies) == ([3], [3, 1])

    def test_a_destination_that_is_down_is_not_claimed(self, opening: Opening) -> None:
        """While a destination is known to be down, a relay holds none of its lanes."""
        shop = opening()
        shop.publish(1, partition="ann")
        avoiding = Ask(10, WORKER, LEASE, frozenset({SHOP}))

        claims = shop.ledger.run(lambda tx: shop.source().claim(tx, avoiding))

        assert list(claims) == []
        assert shop.lane("ann").held_by is None

    def test_what_becomes_due_wakes(self, opening: Opening, clock: ManualClock) -> None:
        """Whatever makes a lane due wakes its relays: they need not wait for their next look."""
        shop = opening(batch_max=1)
        source = shop.source()
        wake_signal = WakeSignal()
        shop.ledger.database.wake_signals.subscribe(f"outbox:{SHOP}", wake_signal)

        def wakes(act: Callable[[], Any]) -> bool:
            wake_signal.wait(0)
            act()
            return wake_signal.wait(0)

        def settle() -> None:
            (claim,) = claims
            source.handler(claim).call(claim)
            shop.ledger.run(lambda tx: source.settle(tx, [Outcome(claim, Out.DONE)]))

        published = wakes(lambda: shop.publish(1, 2, partition="ann"))
        claims = shop.ledger.run(lambda tx: source.claim(tx, ask()))
        more = wakes(settle)
        claims = shop.ledger.run(lambda tx: source.claim(tx, ask()))
        done = wakes(settle)
        shop.publish(3, partition="ann")
        shop.publish(4, partition="bob")
        another = wakes(lambda: claimed(shop))
        clock.advance(LEASE + 1)
        rescue = wakes(lambda: rescued(shop))
        call(shop, lambda tx: tx.outbox.pause(SHOP))
        call(shop, lambda tx: tx.outbox.pause(SHOP, partition="ann"))
        lane = wakes(lambda: call(shop, lambda tx: tx.outbox.resume(SHOP, partition="ann")))
        whole = wakes(lambda: call(shop, lambda tx: tx.outbox.resume(SHOP)))
        write(shop, clock, "5", symfony(NAME), "cid")
        sweep = wakes(lambda: shop.ledger.run(sweeping.Sweep(shop.ledger.registry, SHOP)))

        assert (published, more, another, rescue) == (True, True, True, True)
        assert (lane, whole, sweep) == (True, True, True)
        assert not done

    def test_room_in_memory_wakes(self, opening: Opening) -> None:
        """A relay whose memory was full claims nothing, and is woken by the next settlement."""
        shop = opening(batch_max=1)
        source, wake_signal = shop.source(), WakeSignal()
        shop.ledger.database.wake_signals.subscribe(f"outbox:{SHOP}", wake_signal)
        shop.publish(1, partition="ann")
        shop.publish(2, partition="bob")
        (claim,) = shop.ledger.run(lambda tx: source.claim(tx, ask()))
        full = source.budget.share(source.budget.bytes_max)

        refused = shop.ledger.run(lambda tx: source.claim(tx, ask()))
        source.handler(claim).call(claim)
        wake_signal.wait(0)
        shop.ledger.run(lambda tx: source.settle(tx, [Outcome(claim, Out.DONE)]))

        assert full is not None
        assert list(refused) == []
        assert wake_signal.wait(0)

    @pytest.mark.parametrize("removed", [False, True], ids=["quiet", "removed"])
    def test_retried_into_a_quiet_partition(
        self, opening: Opening, clock: ManualClock, removed: bool
    ) -> None:
        """A retried message makes its lane due and wakes its relay; the lane may be gone."""
        shop = opening(on_failure="skip", max_attempts=1)
        shop.shelf.tell("poison", REFUSED, times=1)
        shop.publish("poison", 1, partition="ann")
        shop.tick(2)
        if removed:
            clock.advance(8 * DAY_SECONDS)
            shop.tick()
        wake_signal = WakeSignal()
        shop.ledger.database.wake_signals.subscribe(f"outbox:{SHOP}", wake_signal)

        with shop.ledger.transaction() as tx:
            before = [row.due_at for row in tx.outbox.lanes(SHOP).rows]
            (failed,) = tx.failed.find().rows
            tx.failed.retry(failed.id)
        due, woken = shop.lane("ann").due_at, wake_signal.wait(0)
        shop.tick()

        assert before == ([] if removed else [None])
        assert (due is not None, woken) == (True, True)
        assert shop.shelf.bodies == [1, "poison"]
