"""The contract of relays at work: what takes its time holds up nothing else."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Sequence
from functools import partial

import pytest
from sqlalchemy import select

from ledgerstone.engine.worker import Worker
from ledgerstone.ledger import Transaction
from ledgerstone.messaging.brokers.transport import DELIVERED, Answer, Heard
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.outbox.publishing import lane_id
from ledgerstone.messaging.relay import sweep as sweeping
from ledgerstone.messaging.tables import lane
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.contract.messaging.destination import NAME, REFUSED, SHOP, Shelf, Shop
from tests.contract.messaging.relays import LEASE, rescued, run, symfony, write
from tests.harness.joinable import guest_on
from tests.harness.threads import PATIENCE_SECONDS, signaled, together
from tests.harness.workers import started

SLOW = "slow"
OTHERS = [f"p{number}" for number in range(10)]
EACH = 20
MANY = [f"m{number}" for number in range(99)]
EACH_OF_MANY = 3
PUBLISHERS = 4
TURNS = 15
WEIGHT_MAX = 300_000
SLOW_ONES = 24
"""More than a relay has calls at once."""
SLOW_PAIR = (f"{SLOW}-a", f"{SLOW}-b")
LARGE = "x" * 20_000


class RelayPaceContract:
    """What holds while relays run. Fixture: `home`."""

    def test_a_slow_partition_holds_no_other(self, home: Home) -> None:
        """While an answer is waited for, all other partitions are delivered and marked."""
        shelf = _Patient()
        with Shop(home.url, shelf=shelf) as shop:
            with shop.ledger.transaction() as tx:
                for number in range(EACH):
                    for partition in (SLOW, *OTHERS):
                        tx.outbox.publish(NAME, number, partition=partition)
            with started(shop.relay()):
                signaled(shelf.asked)
                until(lambda: len(shop.waiting()) == EACH, what="the delivery of all others")
                begun = shelf.bodies_of(SLOW)
                shelf.answer.set()
                until(lambda: not shop.waiting(), what="the delivery of the slow ones")

        assert begun == []
        for partition in (SLOW, *OTHERS):
            assert shelf.bodies_of(partition) == list(range(EACH))

    def test_an_open_transaction_holds_no_other_partition(self, home: Home) -> None:
        """One that has published to a partition under way, and stays open, holds that one alone."""
        shelf = _Patient()
        with Shop(home.url, shelf=shelf) as shop:
            if shop.ledger.database.dialect.one_writer:
                # Nothing at all is written beside an open transaction there.
                return
            with shop.ledger.transaction() as tx:
                for partition in (SLOW, *MANY):
                    tx.outbox.publish(NAME, 0, partition=partition)
            worker = shop.relay()
            with started(worker):
                signaled(shelf.asked)
                with shop.ledger.transaction() as tx:
                    tx.outbox.publish(NAME, 1, partition=SLOW)
                    # As where a driver's transaction is joined: from here on its lane is locked.
                    tx.finish()
                    shelf.answer.set()
                    until(lambda: _put_off(worker), what="that its settlement is put off")
                    for number in range(1, EACH_OF_MANY):
                        for partition in MANY:
                            shop.publish(number, partition=partition)
                    until(lambda: shop.waiting() == [0], what="the delivery of all others")
                until(lambda: not shop.waiting(), what="the delivery of the last")

        assert shelf.bodies_of(SLOW) == [0, 1]
        for partition in MANY:
            assert shelf.bodies_of(partition) == list(range(EACH_OF_MANY))
        assert len(shelf.sent) == 2 + EACH_OF_MANY * len(MANY)

    def test_an_open_transaction_past_the_lease(self, home: Home, clock: ManualClock) -> None:
        """Past a lease every relay has its lanes still, also the locked one: nothing goes twice."""
        locked, held = SLOW_PAIR
        shelf = _Patient()
        engine = {"lease_seconds": LEASE, "heartbeat_seconds": 0.1}
        with Shop(home.url, clock, shelf=shelf, engine=engine) as shop:
            if shop.ledger.database.dialect.one_writer:
                return
            with started(shop.relay()), started(shop.relay()):
                for partition in SLOW_PAIR:
                    shop.publish(0, partition=partition)
                until(lambda: shelf.asking == len(SLOW_PAIR), what="that both are sent")
                with guest_on("driver", home.url) as guest:
                    guest.begin()
                    guest.joined(shop.ledger, partial(_publish_one, 1, locked))
                    while _lease_left(shop, clock, locked) >= 0:
                        clock.advance(LEASE / 2)
                        until(
                            lambda: _lease_left(shop, clock, held) == LEASE,
                            what="that the other lease is extended",
                        )
                        shop.publish(1, partition=OTHERS[0])
                        until(lambda: shop.waiting() == [0, 0], what="the delivery of another")
                    guest.commit()
                rescued(shop)
                shelf.answer.set()
                until(lambda: not shop.waiting(), what="the delivery of all")

        assert shelf.bodies_of(locked) == [0, 1]
        assert shelf.bodies_of(held) == [0]
        assert len({message.id for message in shelf.sent}) == len(shelf.sent)
        assert shop.record() == []

    @pytest.mark.slow
    def test_many_slow_partitions_hold_no_other(self, home: Home) -> None:
        """Partitions that became due one by one, and all wait for their answers, hold no other."""
        shelf = _Patient()
        with Shop(home.url, shelf=shelf) as shop, started(shop.relay()):
            for number in range(SLOW_ONES):
                shop.publish(number, partition=f"{SLOW}-{number}")
                until(lambda: shelf.asking > number, what="that it is sent")  # noqa: B023
            for partition in OTHERS:
                shop.publish(*range(EACH), partition=partition)
            until(lambda: len(shop.waiting()) == SLOW_ONES, what="the delivery of all others")
            shelf.answer.set()
            until(lambda: not shop.waiting(), what="the delivery of the slow ones")

        for partition in OTHERS:
            assert shelf.bodies_of(partition) == list(range(EACH))

    def test_a_transaction_may_publish_to_what_is_settled(self, home: Home) -> None:
        """One that has a partition locked can lock another: no settlement waits with that one."""
        shelf = _Patient()
        with Shop(home.url, shelf=shelf) as shop:
            if shop.ledger.database.dialect.one_writer:
                return
            with shop.ledger.transaction() as tx:
                for partition in SLOW_PAIR:
                    tx.outbox.publish(NAME, 0, partition=partition)
            worker = shop.relay()
            with started(worker):
                signaled(shelf.asked)
                # Both ways round: one of them is against the order in which they are settled.
                for first, second in (SLOW_PAIR, SLOW_PAIR[::-1]):
                    with shop.ledger.transaction() as tx:
                        tx.outbox.publish(NAME, 1, partition=first)
                        tx.finish()
                        shelf.answer.set()
                        until(lambda: _put_off(worker), what="that a settlement is put off")
                        tx.outbox.publish(NAME, 1, partition=second)
                        tx.finish()
                    until(lambda: not shop.waiting(), what="the delivery of all")
                    if first == SLOW_PAIR[0]:
                        shelf.patient_again()
                        # In one transaction: the relay claims both, and has both at the end.
                        with shop.ledger.transaction() as tx:
                            for partition in SLOW_PAIR:
                                tx.outbox.publish(NAME, 2, partition=partition)
                        signaled(shelf.asked)

        for partition in SLOW_PAIR:
            assert shelf.bodies_of(partition) == [0, 1, 2, 1]

    def test_what_is_put_off_stays_whole(self, home: Home) -> None:
        """A message that is given up while its partition is locked is set aside with its text."""
        shelf = _Patient()
        shelf.tell(LARGE, REFUSED, times=1)
        with Shop(home.url, shelf=shelf, on_failure="skip", max_attempts=1) as shop:
            if shop.ledger.database.dialect.one_writer:
                return
            shop.publish(LARGE, partition=SLOW)
            worker = shop.relay()
            with started(worker):
                signaled(shelf.asked)
                with shop.ledger.transaction() as tx:
                    tx.outbox.publish(NAME, 1, partition=SLOW)
                    tx.finish()
                    shelf.answer.set()
                    until(lambda: _put_off(worker), what="that its settlement is put off")
                until(lambda: not shop.waiting(), what="the delivery of the other")
                with shop.ledger.transaction() as tx:
                    for each in tx.failed.find().rows:
                        tx.failed.retry(each.id)
                until(lambda: not shop.waiting(), what="the delivery of the first")

        assert shelf.bodies_of(SLOW) == [1, LARGE]

    def test_a_sweep_waits_for_no_transaction(self, home: Home, clock: ManualClock) -> None:
        """One that has published and stays open keeps no row of others from being found."""
        with Shop(home.url, clock) as shop:
            if shop.ledger.database.dialect.one_writer:
                return
            for partition in SLOW_PAIR:
                shop.publish(0, partition=partition)
            shop.tick(2)
            for partition in SLOW_PAIR:
                write(shop, clock, "1", symfony(NAME), partition)
            sweep = sweeping.Sweep(shop.ledger.registry, SHOP)
            with shop.ledger.transaction() as tx:
                tx.outbox.publish(NAME, 2, partition=SLOW_PAIR[0])
                tx.finish()
                told = shop.ledger.run(sweep)
                shop.tick()
                meanwhile = list(shop.shelf.bodies)
            shop.tick()

        assert told == 1
        assert meanwhile == [0, 0, 1]
        assert shop.shelf.bodies_of(SLOW_PAIR[0]) == [0, 1, 2]

    def test_a_retry_locks_no_partition_before_its_commit(self, home: Home) -> None:
        """While a transaction puts failed messages back, others publish beside them, and commit."""
        with Shop(home.url, on_failure="skip", max_attempts=1) as shop:
            if shop.ledger.database.dialect.one_writer:
                return
            shop.shelf.tell("poison", REFUSED, times=2)
            for partition in SLOW_PAIR:
                shop.publish("poison", partition=partition)
            relays = [shop.relay()]
            run(relays, shop)

            with shop.ledger.transaction() as tx:
                for each in tx.failed.find().rows:
                    tx.failed.retry(each.id)
                for partition in SLOW_PAIR:
                    shop.publish("behind", partition=partition)
            run(relays, shop)

        for partition in SLOW_PAIR:
            assert shop.shelf.bodies_of(partition) == ["poison", "behind"]

    @pytest.mark.slow
    @pytest.mark.parametrize("mode", ["ordered", "competing"])
    def test_memory_is_bounded_in_bytes(self, home: Home, mode: str) -> None:
        """A relay never has more bytes of messages than it may, whatever their number."""
        shelf = _Weighing()
        with Shop(home.url, shelf=shelf, mode=mode, in_flight_bytes_max=WEIGHT_MAX) as shop:
            for number in range(30):
                shop.publish(*(["x" * 20_000] * 3), partition=f"p{number}")
            with started(shop.relay()):
                until(lambda: not shop.waiting(), what="the delivery of all")

        assert shelf.count == 90
        assert 0 < shelf.most <= WEIGHT_MAX

    @pytest.mark.slow
    @pytest.mark.parametrize("mode", ["ordered", "competing"])
    def test_a_message_larger_than_the_memory(self, home: Home, mode: str) -> None:
        """A message that is larger than what a relay may hold is carried, alone."""
        shelf = _Weighing()
        with Shop(home.url, shelf=shelf, mode=mode, in_flight_bytes_max=WEIGHT_MAX) as shop:
            for number in range(3):
                shop.publish("x" * 2 * WEIGHT_MAX, partition=f"p{number}")
            with started(shop.relay()):
                until(lambda: not shop.waiting(), what="the delivery of all")

        assert shelf.count == 3
        assert shelf.most == 2 * WEIGHT_MAX + len('""')

    def test_lanes_in_hand_have_an_end(self, home: Home) -> None:
        """A relay holds so many lanes and no more, however many wait for their answers."""
        shelf = _Patient()
        with Shop(home.url, shelf=shelf, batch_max=3) as shop:
            for number in range(6):
                shop.publish(number, partition=f"{SLOW}-{number}")
            worker = shop.relay()
            with started(worker):
                until(lambda: _in_hand(worker) >= 3, what="that it holds its most")
                shelf.answer.wait(PATIENCE_SECONDS)  # Nobody gives it: time for a claim too many.
                most = _in_hand(worker)
                shelf.answer.set()
                until(lambda: not shop.waiting(), what="the delivery of all")

        assert most == 3

    @pytest.mark.parametrize("way", ["own", "joined"])
    def test_publishers_meet_no_deadlock(self, home: Home, way: str) -> None:
        """Transactions that publish to many partitions beside two relays are never undone."""
        publish = _publish if way == "own" else _publish_joined
        with Shop(home.url) as shop:
            if way == "joined" and shop.ledger.database.dialect.one_writer:
                # Two transactions that read before they write exclude each other there.
                return
            for partition in OTHERS:
                shop.publish(-1, partition=partition)
            with started(shop.relay()), started(shop.relay()):
                together(*[partial(publish, shop, seed) for seed in range(PUBLISHERS)])
                until(lambda: not shop.waiting(), what="the delivery of all")

            for partition in OTHERS:
                assert len(shop.shelf.bodies_of(partition)) == 1 + PUBLISHERS * TURNS
            assert len(shop.shelf.sent) == len(OTHERS) * (1 + PUBLISHERS * TURNS)


class _Patient(Shelf):
    """Takes everything at once, but for slow partitions, whose answers come when they are let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.answer = threading.Event()
        self.asking = 0
        self._counting = threading.Lock()

    def patient_again(self) -> None:
        """From now on slow partitions wait for their answers again."""
        self.asked.clear()
        self.answer.clear()

    def send(
        self, messages: Sequence[Message], *, seconds_max: float, heard: Heard | None = None
    ) -> list[Answer]:
        answers: dict[int, Answer] = {}
        for slow in (False, True):
            chosen = [
                i for i, each in enumerate(messages) if each.partition.startswith(SLOW) is slow
            ]
            if slow and chosen:
                with self._counting:
                    self.asking += len(chosen)
                self.asked.set()
                # Longer than the test waits: a send that gives up would let the others go on.
                assert self.answer.wait(2 * WAIT_SECONDS_MAX), "the answer was not let go"
            said = super().send([messages[i] for i in chosen], seconds_max=seconds_max)
            answers |= dict(zip(chosen, said, strict=True))
            for i in chosen:
                if heard is not None:
                    heard(i, answers[i])
        return [answers[i] for i in range(len(messages))]


class _Weighing(Shelf):
    """Takes everything, keeps nothing, and weighs all messages that this process has in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.most = self.count = 0
        self._weighing = threading.Lock()
        # What other tests have left: held here, so that each is known by its identity.
        self._others = {id(each): each for each in _messages()}

    def send(
        self, messages: Sequence[Message], *, seconds_max: float, heard: Heard | None = None
    ) -> list[Answer]:
        with self._weighing:
            found = [each.raw for each in _messages() if id(each) not in self._others]
            self.most = max(self.most, sum(map(len, {id(raw): raw for raw in found}.values())))
            self.count += len(messages)
        return [DELIVERED] * len(messages)


def _messages() -> list[Message]:
    """Those in memory that somebody holds."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is Message]


def _put_off(worker: Worker) -> int:
    return sum(pump.locked for pump in worker.pumps)


def _in_hand(worker: Worker) -> int:
    return sum(len(pump.held()) for pump in worker.pumps)


def _lease_left(shop: Shop, clock: ManualClock, partition: str) -> float:
    """The seconds that are left of the lease of a partition."""
    key = lane_id(SHOP, partition)
    with shop.ledger.reading() as tx:
        until_ms = tx.execute(select(lane.c.lease_until_ms).where(lane.c.id == key)).scalar_one()
    return (until_ms - clock.now_ms()) / 1000 if until_ms is not None else -1.0


def _publish(shop: Shop, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - repeatable, no secret
    for turn in range(TURNS):
        with shop.ledger.transaction() as tx:
            for partition in dice.sample(OTHERS, len(OTHERS)):
                tx.outbox.publish(NAME, turn, partition=partition, key=f"{seed}-{turn}-{partition}")


def _publish_joined(shop: Shop, seed: int) -> None:
    """In transactions of the user's own, at the isolation level of the database."""
    dice = random.Random(seed)  # noqa: S311 - repeatable, no secret
    with guest_on("connection", shop.ledger.settings.url) as guest:
        for turn in range(TURNS):
            partitions = dice.sample(OTHERS, len(OTHERS))
            guest.begin()
            for partition in partitions:
                guest.joined(shop.ledger, partial(_publish_one, turn, partition))
            guest.commit()


def _publish_one(turn: int, partition: str, tx: Transaction) -> None:
    tx.outbox.publish(NAME, turn, partition=partition)
