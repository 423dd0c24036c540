"""The contract of the leases of lanes: who lost one marks nothing, and who dies is noticed."""

from __future__ import annotations

from functools import partial

from ledgerstone.engine.source import Batch, Claim, Outcome
from ledgerstone.engine.source import OutcomeKind as Out
from ledgerstone.messaging.states import LaneState, RecordKind
from ledgerstone.settings.messaging import LOCAL
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.worker_reports import reported
from tests.contract.messaging.destination import NOWHERE, REFUSED, SHOP, UNKNOWN
from tests.contract.messaging.relays import (
    CRASHES,
    LEASE,
    WORKER,
    Opened,
    Opening,
    ask,
    call,
    claimed,
    rescued,
)

DAY_SECONDS = 86_400
TWO = {"destinations": {SHOP: {"url": NOWHERE}}, "routes": {"order.*": [SHOP]}}
"""Orders go to the shop, everything else to the consumers of the ledger."""


class RelayLeaseContract(Opened):
    """What holds for relays that are late, and for those that die. Fixtures: `home`, `clock`."""

    def test_a_lost_lease_marks_nothing(self, opening: Opening, clock: ManualClock) -> None:
        """A relay that was paused past its lease marks nothing of it, and that is on record."""
        shop = opening()
        late, prompt = shop.relay(), shop.relay()
        (first, _) = shop.publish(1, 2, partition="ann")
        shop.publish(3, partition="bob")
        # The relay that overtakes is refused both; the late one is then told that they arrived.
        shop.shelf.tell(1, REFUSED, times=1)
        shop.shelf.tell(3, REFUSED, times=1)

        def overtaken() -> None:
            clock.advance(LEASE + 1)
            prompt.tick()

        shop.shelf.meanwhile = overtaken
        late.tick()

        assert sorted(shop.shelf.bodies) == [1, 3]
        assert shop.waiting() == [1, 2, 3]
        assert (shop.lane("ann").attempts, shop.lane("bob").attempts) == (1, 1)
        refused = [entry for entry in shop.record() if entry.what is RecordKind.REFUSED]
        assert {entry.partition for entry in refused} == {"ann", "bob"}
        assert first.id in {entry.message_id for entry in refused}
        assert late.report().sources[f"outbox:{SHOP}"].refused == 2

    def test_a_late_relay_settles_no_claim_of_another(
        self, opening: Opening, clock: ManualClock
    ) -> None:
        """While another relay holds the lane, the late one neither marks nor lets it go."""
        shop = opening()
        late, other = shop.source(), shop.source()
        shop.publish(1, partition="ann")
        (lost,) = shop.ledger.run(partial(late.claim, ask=ask()))
        late.handler(lost).call(lost)
        clock.advance(LEASE + 1)
        rescued(shop)
        (held,) = shop.ledger.run(partial(other.claim, ask=ask(worker=WORKER)))

        refused = shop.ledger.run(partial(late.settle, outcomes=[Outcome(lost, Out.DONE)])).lost
        kept = shop.ledger.run(lambda tx: late.extend(tx, [lost], LEASE)).lost

        assert [outcome.claim for outcome in refused] == [lost]
        assert list(kept) == [lost]
        assert (shop.waiting(), shop.lane("ann").held_by) == ([1], WORKER)
        assert [entry.what for entry in shop.record()] == [RecordKind.REFUSED]
        other.handler(held).call(held)
        assert not shop.ledger.run(partial(other.settle, outcomes=[Outcome(held, Out.DONE)])).lost
        assert shop.waiting() == []

    def test_a_lane_that_was_removed_keeps_late_relays_out(
        self, opening: Opening, clock: ManualClock
    ) -> None:
        """A relay that slept while its lane was removed cannot settle the one made again."""
        shop = opening()
        late, other = shop.source(), shop.source()
        shop.publish(1, partition="ann")
        (lost,) = shop.ledger.run(partial(late.claim, ask=ask()))
        late.handler(lost).call(lost)
        clock.advance(LEASE + 1)
        shop.tick()
        clock.advance(8 * DAY_SECONDS)
        shop.tick()
        with shop.ledger.reading() as tx:
            removed = tx.outbox.lanes(SHOP).rows
        shop.publish(2, partition="ann")
        shop.ledger.run(partial(other.claim, ask=ask(worker=WORKER)))

        refused = shop.ledger.run(partial(late.settle, outcomes=[Outcome(lost, Out.DONE)])).lost

        assert removed == []
        assert len(refused) == 1
        assert shop.lane("ann").held_by == WORKER

    def test_a_lost_lane_is_not_carried_on(self, opening: Opening, clock: ManualClock) -> None:
        """A relay that learns in the middle that it lost a lane sends nothing more of that lane."""
        shop = opening()
        relay = shop.source()
        for partition in ("ann", "bob"):
            shop.publish(1, 2, partition=partition)
        claims = shop.ledger.run(partial(relay.claim, ask=ask()))
        lost: list[Claim] = []

        def one_is_lost() -> None:
            clock.advance(LEASE + 1)
            shop.ledger.run(partial(relay.rescue, limit=1, crashes_max=CRASHES))
            lost.extend(shop.ledger.run(lambda tx: relay.extend(tx, claims, LEASE)).lost)

        shop.shelf.meanwhile = one_is_lost
        relay.handler(claims[0]).call(Batch.of(claims))
        outcomes = [Outcome(claim, Out.DONE) for claim in claims]
        refused = shop.ledger.run(partial(relay.settle, outcomes=outcomes)).lost

        (gone,) = [entry.partition for entry in shop.record()]
        (kept,) = {"ann", "bob"} - {gone}
        assert (shop.shelf.bodies_of(gone), shop.shelf.bodies_of(kept)) == ([1], [1, 2])
        assert [outcome.claim for outcome in refused] == lost
        assert (len(lost), shop.waiting()) == (1, [1, 2])

    def test_nothing_is_sent_after_the_lease(self, opening: Opening, clock: ManualClock) -> None:
        """A relay whose lease has run out sends nothing more, also if no other has noticed."""
        shop = opening()
        relay = shop.source()
        shop.publish(1, 2, partition="ann")
        (claim,) = shop.ledger.run(partial(relay.claim, ask=ask()))

        shop.shelf.meanwhile = lambda: clock.advance(LEASE)
        relay.handler(claim).call(claim)
        shop.ledger.run(partial(relay.settle, outcomes=[Outcome(claim, Out.DONE)]))

        assert (shop.shelf.bodies, shop.waiting()) == ([1], [2])
        assert shop.lane("ann").due_at is not None

    def test_a_rescue_alone_takes_the_lease(self, opening: Opening, clock: ManualClock) -> None:
        """From the rescue on the late relay cannot settle, also before the next claim."""
        shop = opening()
        relay = shop.source()
        shop.publish(1, partition="ann")
        (claim,) = shop.ledger.run(partial(relay.claim, ask=ask()))
        relay.handler(claim).call(claim)
        clock.advance(LEASE + 1)
        shop.ledger.run(partial(relay.rescue, limit=10, crashes_max=CRASHES))

        refused = shop.ledger.run(partial(relay.settle, outcomes=[Outcome(claim, Out.DONE)])).lost

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

        refused = shop.ledger.run(partial(relay.settle, outcomes=outcomes)).lost
        lost = shop.ledger.run(lambda tx: relay.extend(tx, [claim], LEASE)).lost

        assert (list(refused), shop.record()) == ([], [])
        assert list(lost) == [claim]
        shop.publish(2, partition="ann")
        shop.tick()
        assert shop.shelf.bodies == [1, 2]

    def test_settling_twice_touches_no_later_claim(self, opening: Opening) -> None:
        """A settlement that is repeated after another relay claimed the lane leaves it alone."""
        shop = opening()
        relay, other = shop.source(), shop.source()
        shop.publish(1, partition="ann")
        (claim,) = shop.ledger.run(partial(relay.claim, ask=ask()))
        relay.handler(claim).call(claim)
        outcomes = [Outcome(claim, Out.DONE)]
        shop.ledger.run(partial(relay.settle, outcomes=outcomes))
        shop.publish(2, partition="ann")
        shop.ledger.run(partial(other.claim, ask=ask(worker=WORKER)))

        shop.ledger.run(partial(relay.settle, outcomes=outcomes))

        assert (shop.lane("ann").held_by, shop.waiting()) == (WORKER, [2])

    def test_a_relay_rescues_its_own_destination(
        self, opening: Opening, clock: ManualClock
    ) -> None:
        """A relay leaves lanes of other destinations to their own relays, who count crashes."""
        shop = opening(engine={"crashes_max": 1}, messaging=TWO)
        shop.publish("deadly", name="stock.counted", partition="ann")
        here, there = shop.source(LOCAL), shop.source(SHOP)
        shop.ledger.run(partial(here.claim, ask=ask()))
        clock.advance(LEASE + 1)

        first = shop.ledger.run(partial(there.rescue, limit=10, crashes_max=1))
        second = shop.ledger.run(partial(here.rescue, limit=10, crashes_max=1))

        assert (first, second) == (0, 1)
        assert shop.lane("ann", LOCAL).state is LaneState.PARKED

    def test_extending_keeps_a_lane(self, opening: Opening, clock: ManualClock) -> None:
        """A relay that extends in time keeps its lanes, one that does not has lost them."""
        shop = opening()
        relay = shop.source()
        shop.publish(1, partition="ann")
        (claim,) = shop.ledger.run(partial(relay.claim, ask=ask()))
        clock.advance(LEASE - 1)
        kept = shop.ledger.run(lambda tx: relay.extend(tx, [claim], LEASE)).lost
        clock.advance(LEASE - 1)
        rescued = shop.ledger.run(partial(relay.rescue, limit=10, crashes_max=CRASHES))

        clock.advance(2)
        late = shop.ledger.run(partial(relay.rescue, limit=10, crashes_max=CRASHES))
        lost = shop.ledger.run(lambda tx: relay.extend(tx, [claim], LEASE)).lost

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
        assert (entry.what, entry.code) == (RecordKind.PARKED, "crashed")
        assert shop.lane("ann").attempts == 0
        call(shop, lambda tx: tx.outbox.resume(LOCAL, partition="ann"))
        claimed(shop)
        clock.advance(LEASE + 1)
        rescued(shop)
        assert shop.lane("ann").state is LaneState.OPEN
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

        marks = {c.lane.held.partition: c.mark for c in claimed(shop, worker=WORKER)}
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

    def test_without_an_answer_crashes_count_on(self, opening: Opening, clock: ManualClock) -> None:
        """A destination that was out of reach or silent in between has forgiven no crash."""
        shop = opening(engine={"crashes_max": CRASHES}, destination=LOCAL)
        shop.shelf.tell("deadly", UNKNOWN)
        shop.publish("deadly", partition="ann")

        def crash() -> LaneState:
            claimed(shop)
            clock.advance(LEASE + 1)
            rescued(shop)
            return shop.lane("ann").state

        states = [crash()]
        for down in (True, False):
            shop.shelf.down = down
            shop.tick()
            clock.advance(400)
            states.append(crash())

        assert len(shop.shelf.sent) == 1
        assert states == [LaneState.OPEN, LaneState.OPEN, LaneState.PARKED]
