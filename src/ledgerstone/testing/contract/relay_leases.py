"""The contract of the leases of lanes: who lost one marks nothing, and who dies is noticed."""

from __future__ import annotations

from functools import partial

from ledgerstone.engine.source import Outcome
from ledgerstone.engine.source import Verdict as Out
from ledgerstone.messaging.states import LaneState, What
from ledgerstone.settings.messaging import LOCAL
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.contract.relays import (
    CRASHES,
    LEASE,
    WORKER,
    Opened,
    Opening,
    ask,
    claimed,
    rescued,
)
from ledgerstone.testing.shelf import REFUSED, SHOP
from ledgerstone.testing.workshop import reported


class RelayLeaseContract(Opened):
    """What holds for relays that are late, and for those that die. Fixtures: `home`, `clock`."""

    def test_a_lost_lease_marks_nothing(self, opening: Opening, clock: ManualClock) -> None:
        """A relay that was paused past its lease marks nothing of it, and that is on record."""
        shop = opening()
        late, prompt = shop.relay(), shop.relay()
        (first, _) = shop.publish(1, 2, partition="ann")
        shop.publish(3, partition="bob")
        shop.shelf.tell(2, REFUSED)

        def overtaken() -> None:
            clock.advance(LEASE + 1)
            prompt.tick()

        shop.shelf.meanwhile = overtaken
        late.tick()

        assert shop.waiting() == [2]
        assert shop.lane("ann").attempts == 1
        refused = [entry for entry in shop.record() if entry.what is What.REFUSED]
        assert {entry.partition for entry in refused} == {"ann", "bob"}
        assert first.id in {entry.message_id for entry in refused}
        assert late.report().sources[f"outbox:{SHOP}"].refused == 1

    def test_a_rescue_alone_takes_the_lease(self, opening: Opening, clock: ManualClock) -> None:
        """From the rescue on the late relay cannot settle, also before the next claim."""
        shop = opening()
        relay = shop.source()
        shop.publish(1, partition="ann")
        (claim,) = shop.ledger.run(partial(relay.claim, ask=ask()))
        relay.handler(claim).call(claim)
        clock.advance(LEASE + 1)
        shop.ledger.run(partial(relay.rescue, limit=10, crashes_max=CRASHES))

        refused = shop.ledger.run(partial(relay.settle, outcomes=[Outcome(claim, Out.DONE)]))

        assert len(refused) == 1
        assert shop.waiting() == [1]

    def test_settling_twice_is_no_refusal(self, opening: Opening) -> None:
        """A settlement whose answer was lost on the way is repeated, and nothing comes of it."""
        shop = opening()
        relay = shop.source()
        shop.publish(1, partition="ann")
        (claim,) = shop.ledger.run(partial(relay.claim, ask=ask()))
        relay.handler(claim).call(claim)
        outcomes = [Outcome(claim, Out.DONE)]
        shop.ledger.run(partial(relay.settle, outcomes=outcomes))

        refused = shop.ledger.run(partial(relay.settle, outcomes=outcomes))

        assert (list(refused), shop.record()) == ([], [])

    def test_extending_keeps_a_lane(self, opening: Opening, clock: ManualClock) -> None:
        """A relay that extends in time keeps its lanes, one that does not has lost them."""
        shop = opening()
        relay = shop.source()
        shop.publish(1, partition="ann")
        (claim,) = shop.ledger.run(partial(relay.claim, ask=ask()))
        clock.advance(LEASE - 1)
        kept = shop.ledger.run(lambda tx: relay.extend(tx, [claim], LEASE))
        clock.advance(LEASE - 1)
        rescued = shop.ledger.run(partial(relay.rescue, limit=10, crashes_max=CRASHES))

        clock.advance(2)
        late = shop.ledger.run(partial(relay.rescue, limit=10, crashes_max=CRASHES))
        lost = shop.ledger.run(lambda tx: relay.extend(tx, [claim], LEASE))

        assert (list(kept), rescued, late) == ([], 0, 1)
        assert list(lost) == [claim]

    def test_what_kills_relays_is_parked(self, opening: Opening, clock: ManualClock) -> None:
        """Where handlers run, a lane whose relays died too often waits for people, on record."""
        shop = opening(engine={"crashes_max": CRASHES}, destination=LOCAL)
        shop.publish("deadly", partition="ann")
        states = []

        for _ in range(CRASHES):
            claimed(shop)
            clock.advance(LEASE + 1)
            rescued(shop)
            states.append(shop.lane("ann").state)

        assert states == [LaneState.OPEN, LaneState.OPEN, LaneState.PARKED]
        (entry,) = shop.record()
        assert (entry.what, entry.code) == (What.PARKED, "crashed")
        assert shop.lane("ann").attempts == 0
        with shop.ledger.transaction() as tx:
            tx.outbox.resume(LOCAL, partition="ann")
        shop.tick()
        assert shop.shelf.bodies == ["deadly"]

    def test_a_neighbour_of_what_kills_relays(self, opening: Opening, clock: ManualClock) -> None:
        """A lane that only waited while another's handler killed the relay is not parked."""
        shop = opening(engine={"crashes_max": CRASHES}, destination=LOCAL)
        shop.publish("deadly", partition="ann")
        shop.publish("innocent", partition="bob")
        for _ in range(CRASHES - 1):
            claimed(shop)
            clock.advance(LEASE + 1)
            rescued(shop)

        marks = {c.round.lanes[0].held.partition: c.mark for c in claimed(shop, worker=WORKER)}
        reported(shop.ledger, WORKER, crashes_max=CRASHES, begun=[marks["ann"]])
        clock.advance(LEASE + 1)
        rescued(shop)
        shop.tick()

        assert shop.lane("ann").state is LaneState.PARKED
        assert shop.shelf.bodies == ["innocent"]

    def test_what_is_only_carried_kills_nobody(self, opening: Opening, clock: ManualClock) -> None:
        """Relays to elsewhere that die, as often as they like, cost no message anything."""
        shop = opening(engine={"crashes_max": CRASHES})
        shop.publish("innocent", partition="ann")

        for _ in range(CRASHES + 1):
            claimed(shop)
            clock.advance(LEASE + 1)
            assert rescued(shop) == 1
        shop.tick()

        assert shop.shelf.bodies == ["innocent"]
        assert shop.record() == []

    def test_an_answer_forgives_crashes(self, opening: Opening, clock: ManualClock) -> None:
        """Relays that died before the destination said anything do not count afterwards."""
        shop = opening(engine={"crashes_max": 2}, backoff_seconds=1, destination=LOCAL)
        shop.shelf.tell("poison", REFUSED)
        shop.publish("poison", partition="ann")

        for _ in range(4):
            claimed(shop)
            clock.advance(LEASE + 1)
            rescued(shop, 2)
            shop.tick()
            clock.advance(400)

        assert shop.lane("ann").state is LaneState.OPEN
