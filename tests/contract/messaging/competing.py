"""The contract of competing relays: as many as they can, in any order, nothing lost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import pytest

from ledgerstone.engine.source import Ask, Claim
from ledgerstone.engine.worker import Worker
from ledgerstone.errors import TargetDown
from ledgerstone.messaging.relay.competing import BATCHES_MAX
from ledgerstone.store.wakeup import WakeSignal
from ledgerstone.testing.clock import ManualClock
from tests.contract.messaging.destination import REFUSED, SHOP, UNDELIVERABLE, UNKNOWN
from tests.contract.messaging.relays import (
    LEASE,
    STEPS_MAX,
    WORKER,
    Opened,
    Opening,
    ask,
    call,
    run,
    write,
)
from tests.harness.threads import together


class CompetingRelayContract(Opened):
    """What holds where order is not kept."""

    def test_a_backlog_is_shared(self, opening: Opening) -> None:
        """Two relays share a backlog; when nothing fails each message is sent once."""
        shop = opening(mode="competing", batch_max=10)
        relays = [shop.relay(), shop.relay()]
        for start in range(0, 100, 10):
            shop.publish(*range(start, start + 10), partition=f"p{start}")

        together(*[partial(run, [relay], shop) for relay in relays])

        assert sorted(shop.shelf.bodies) == list(range(100))
        assert len(shop.shelf.sent) == 100
        assert shop.waiting() == []

    def test_refused_comes_again(self, opening: Opening, clock: ManualClock) -> None:
        """A refused message comes again after a pause, with its attempts; others pass it."""
        shop = opening(mode="competing", backoff_seconds=10)
        shop.shelf.tell("poison", REFUSED, times=2)
        shop.publish("poison", partition="ann")
        shop.publish(1, partition="bob")

        shop.tick(2)
        passed = list(shop.shelf.bodies)
        for _ in range(3):
            clock.advance(400)
            shop.tick()

        assert passed == [1]
        assert shop.shelf.bodies == [1, "poison"]
        sent = [message for message in shop.shelf.sent if message.body == "poison"]
        assert [message.attempt for message in sent] == [0, 1, 2]

    @pytest.mark.parametrize("policy", ["park", "skip"])
    def test_given_up_is_seen(self, opening: Opening, clock: ManualClock, policy: str) -> None:
        """What was refused too often leaves the way: others go on, and it is on record."""
        shop = opening(mode="competing", on_failure=policy, max_attempts=2)
        shop.shelf.tell("poison", REFUSED)
        (poison,) = shop.publish("poison", partition="ann")
        shop.publish(1, partition="bob")

        for _ in range(5):
            shop.tick()
            clock.advance(400)

        assert shop.shelf.bodies == [1]
        (entry,) = shop.record()
        assert (entry.message_id, entry.code) == (poison.id, "full")
        assert [message.body for message in shop.shelf.sent].count("poison") == 2

    def test_an_outage_costs_nothing(self, opening: Opening, clock: ManualClock) -> None:
        """While the destination is down no attempt is counted and nothing is lost."""
        shop = opening(mode="competing", on_failure="park", max_attempts=1)
        shop.publish(1, 2, 3)
        shop.shelf.down = True

        for _ in range(10):
            shop.tick()
            clock.advance(5)
        during = shop.waiting()
        shop.shelf.down = False
        clock.advance(60)
        shop.tick(2)

        assert during == [1, 2, 3]
        assert sorted(shop.shelf.bodies) == [1, 2, 3]
        assert {message.attempt for message in shop.shelf.sent} == {0}

    def test_no_answer_costs_nothing(self, opening: Opening, clock: ManualClock) -> None:
        """A message without an answer is sent again, at no cost."""
        shop = opening(mode="competing", on_failure="park", max_attempts=1)
        shop.shelf.tell(1, UNKNOWN, times=2)
        shop.publish(1, partition="ann")

        for _ in range(5):
            shop.tick()
            clock.advance(60)

        assert shop.shelf.bodies == [1]
        assert [message.attempt for message in shop.shelf.sent] == [0, 0, 0]
        assert shop.record() == []

    def test_malformed_leaves_the_way(self, opening: Opening, clock: ManualClock) -> None:
        """With skip a row that cannot be read is in the failed table, and the others go on."""
        shop = opening(mode="competing", on_failure="skip")
        write(shop, clock, "{}", "no JSON")
        shop.publish(1)

        shop.tick(3)

        assert shop.shelf.bodies == [1]
        with shop.ledger.reading() as tx:
            (failed,) = tx.failed.find().rows
        assert (failed.code, failed.origin) == ("malformed", SHOP)

    def test_a_destination_is_paused(self, opening: Opening) -> None:
        """Nothing leaves for a paused destination until it is resumed."""
        shop = opening(mode="competing")
        shop.publish(1)
        call(shop, lambda tx: tx.outbox.pause(SHOP))
        shop.tick()
        paused = list(shop.shelf.bodies)

        call(shop, lambda tx: tx.outbox.resume(SHOP))
        shop.tick()

        assert (paused, shop.shelf.bodies) == ([], [1])

    def test_a_destination_that_is_down_is_not_claimed(self, opening: Opening) -> None:
        """While a destination is known to be down, nothing is claimed for it."""
        shop = opening(mode="competing")
        shop.publish(1)
        avoiding = Ask(10, WORKER, LEASE, frozenset({SHOP}))

        claims = shop.ledger.run(lambda tx: shop.source().claim(tx, avoiding))

        assert list(claims) == []

    def test_delivered_rows_may_go_at_once(self, opening: Opening) -> None:
        """With keep_delivered_days = 0 a row is gone as soon as it is delivered."""
        shop = opening(mode="competing", messaging={"keep_delivered_days": 0})
        shop.publish(1, 2)

        shop.tick()

        assert sorted(shop.shelf.bodies) == [1, 2]
        assert shop.rows() == []


class HeldRowsContract(Opened):
    """What holds for competing relays where rows can be held beside other writers."""

    def test_others_pass_in_the_same_partition(self, opening: Opening) -> None:
        """A refused message holds nothing, also not in its partition."""
        shop = opening(mode="competing", backoff_seconds=10)
        shop.shelf.tell("poison", REFUSED)
        shop.publish(1, "poison", 2, partition="ann")

        shop.tick(2)

        assert shop.shelf.bodies == [1, 2]
        assert shop.waiting() == ["poison"]

    def test_what_is_under_way_is_passed_over(self, opening: Opening) -> None:
        """While one relay has rows under way another takes the rest, and none twice."""
        shop = opening(mode="competing", batch_max=2)
        first, second = shop.relay(), shop.relay()
        shop.publish(*range(6))
        shop.shelf.meanwhile = lambda: run_all(second)

        first.tick(1)

        assert sorted(shop.shelf.bodies) == list(range(6))
        assert len(shop.shelf.sent) == 6

    def test_a_relay_that_dies_gives_its_rows_back(self, opening: Opening) -> None:
        """What a relay had under way when it died is there for the next one at once."""
        shop = opening(mode="competing")
        first, second = shop.relay(), shop.relay()
        shop.publish(1, 2, 3)

        def die() -> None:
            message = "killed"
            raise RuntimeError(message)

        shop.shelf.meanwhile = die
        first.tick(1)
        second.tick()

        assert shop.shelf.bodies == [1, 2, 3]
        assert {message.attempt for message in shop.shelf.kept} == {0}

    def test_refused_is_left_alone_as_long_as_asked(
        self, opening: Opening, clock: ManualClock
    ) -> None:
        """A message comes again when the destination wants it, never earlier, at no cost if so."""
        shop = opening(mode="competing", on_failure="park", max_attempts=1)
        later = msgspec.structs.replace(REFUSED, retry_after_seconds=77.0, counts=False)
        shop.shelf.tell(1, later, times=1)
        clock.advance(0.9)
        shop.publish(1)
        shop.tick()

        clock.advance(76.9)
        shop.tick()
        early = list(shop.shelf.bodies)
        clock.advance(1.1)
        shop.tick()

        assert (early, shop.shelf.bodies) == ([], [1])
        assert [message.attempt for message in shop.shelf.sent] == [0, 0]
        assert shop.record() == []

    def test_batches_have_an_end(self, opening: Opening) -> None:
        """A relay has so many batches under way and no more; a full one says that there is more."""
        shop = opening(mode="competing", batch_max=2)
        relay = shop.source()
        wake_signal = WakeSignal()
        shop.publish(*range(5))
        shop.ledger.database.wake_signals.subscribe(relay.channel, wake_signal)
        counts: list[int] = []

        def claim() -> Sequence[Claim]:
            return shop.ledger.run(lambda tx: relay.claim(tx, ask()))

        woken = []
        first, *_ = claim()
        shop.shelf.meanwhile = lambda: counts.append(len(claim()))
        for _ in range(3):
            relay.handler(first).call(first)
            woken.append(wake_signal.wait(0))

        assert counts == [BATCHES_MAX - 1]
        assert len(claim()) == 0
        assert woken == [True, True, False]
        assert shop.shelf.batches == [2, 2, 1]

    def test_silence_is_an_outage(self, opening: Opening) -> None:
        """A destination that answers nothing at all is down; one that answers something is not."""
        shop = opening(mode="competing")
        relay = shop.source()
        shop.shelf.tell("silent", UNKNOWN)
        shop.publish("silent", 1)
        (claim, *_) = shop.ledger.run(lambda tx: relay.claim(tx, ask()))

        relay.handler(claim).call(claim)
        with pytest.raises(TargetDown, match="no answer came"):
            relay.handler(claim).call(claim)

        assert (shop.shelf.bodies, shop.waiting()) == ([1], ["silent"])

    def test_all_have_their_turn(self, opening: Opening, clock: ManualClock) -> None:
        """What is refused or silent at the beginning keeps nothing behind it from its turn."""
        shop = opening(mode="competing", batch_max=2)
        for body in range(3):
            shop.shelf.tell(body, UNKNOWN)
        shop.publish(*range(5))

        for _ in range(4):
            shop.tick()
            clock.advance(60)
        for body in range(3):
            shop.shelf.forgive(body)
        # One is the probe of a destination that was down; what was held back meanwhile waits.
        for _ in range(4):
            shop.tick()
            clock.advance(60)

        assert sorted(shop.shelf.bodies) == list(range(5))
        assert max(shop.shelf.batches) == 2
        assert shop.waiting() == []

    def test_given_up_is_in_the_failed_table(self, opening: Opening, clock: ManualClock) -> None:
        """What was given up is in the failed table with its reason, whatever gave it up."""
        shop = opening(mode="competing", on_failure="park", max_attempts=1)
        shop.shelf.tell("poison", REFUSED)
        shop.shelf.tell("lost", UNDELIVERABLE)
        shop.publish("poison", "lost", 1)
        write(shop, clock, "{}", "{}")

        shop.tick(2)

        with shop.ledger.reading() as tx:
            failed = {found.code: found.reason for found in tx.failed.find().rows}
        assert failed["full"] == "the shelf is full"
        assert failed["too_large"] == "it takes no such size"
        assert "`type`" in failed["malformed"]
        assert (shop.shelf.bodies, shop.waiting()) == ([1], [])


def run_all(relay: Worker) -> None:
    """Everything that can be taken now."""
    for _ in range(STEPS_MAX):
        if not sum(tick.claimed for tick in relay.tick()):
            return
