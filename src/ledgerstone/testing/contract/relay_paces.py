"""The contract of relays at work: what takes its time holds up nothing else."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from functools import partial

from ledgerstone.engine.worker import Worker
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.transport import Answer, Heard
from ledgerstone.testing.contract import PATIENCE_SECONDS, signaled, together
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.shelf import NAME, Shelf, Shop
from ledgerstone.testing.waiting import until
from ledgerstone.testing.workshop import started

SLOW = "slow"
OTHERS = [f"p{number}" for number in range(10)]
EACH = 20
PUBLISHERS = 4
TURNS = 15


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
            shop.publish(0, partition=SLOW)
            worker = shop.relay()
            with started(worker):
                signaled(shelf.asked)
                with shop.ledger.transaction() as tx:
                    tx.outbox.publish(NAME, 1, partition=SLOW)
                    # As where a driver's transaction is joined: from here on its lane is locked.
                    tx.finish()
                    shelf.answer.set()
                    until(lambda: _put_off(worker), what="that its settlement is put off")
                    for partition in OTHERS:
                        shop.publish(*range(EACH), partition=partition)
                    until(lambda: shop.waiting() == [0], what="the delivery of all others")
                until(lambda: not shop.waiting(), what="the delivery of the last")

        assert shelf.bodies_of(SLOW) == [0, 1]
        for partition in OTHERS:
            assert shelf.bodies_of(partition) == list(range(EACH))
        assert len(shelf.sent) == 2 + EACH * len(OTHERS)

    def test_lanes_in_hand_have_an_end(self, home: Home) -> None:
        """A relay holds so many lanes and no more, however many wait for their answers."""
        shelf = _Patient()
        with Shop(home.url, shelf=shelf, batch_max=3) as shop:
            for number in range(6):
                shop.publish(number, partition=f"{SLOW}-{number}")
            worker = shop.relay()
            with started(worker):
                until(lambda: _in_hand(worker) >= 3, what="that it holds its most")
                time.sleep(PATIENCE_SECONDS)
                most = _in_hand(worker)
                shelf.answer.set()
                until(lambda: not shop.waiting(), what="the delivery of all")

        assert most == 3

    def test_publishers_meet_no_deadlock(self, home: Home) -> None:
        """Transactions that publish to many partitions beside two relays are never undone."""
        with Shop(home.url) as shop:
            for partition in OTHERS:
                shop.publish(-1, partition=partition)
            with started(shop.relay()), started(shop.relay()):
                together(*[partial(_publish, shop, seed) for seed in range(PUBLISHERS)])
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

    def send(
        self, messages: Sequence[Message], *, seconds_max: float, heard: Heard | None = None
    ) -> list[Answer]:
        answers: dict[int, Answer] = {}
        for slow in (False, True):
            chosen = [
                i for i, each in enumerate(messages) if each.partition.startswith(SLOW) is slow
            ]
            if slow and chosen:
                self.asked.set()
                signaled(self.answer)
            said = super().send([messages[i] for i in chosen], seconds_max=seconds_max)
            answers |= dict(zip(chosen, said, strict=True))
            for i in chosen:
                if heard is not None:
                    heard(i, answers[i])
        return [answers[i] for i in range(len(messages))]


def _put_off(worker: Worker) -> int:
    return sum(pump.locked for pump in worker.pumps)


def _in_hand(worker: Worker) -> int:
    return sum(len(pump.held()) for pump in worker.pumps)


def _publish(shop: Shop, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - repeatable, no secret
    for turn in range(TURNS):
        with shop.ledger.transaction() as tx:
            for partition in dice.sample(OTHERS, len(OTHERS)):
                tx.outbox.publish(NAME, turn, partition=partition)
