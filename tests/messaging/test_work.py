"""The deliveries of a subscription as work of a pump: settled once, returned, lost, and a crash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ledgerstone import Ledger
from ledgerstone.engine.source import Ask, Claim, Failure, Outcome, OutcomeKind, Settled
from ledgerstone.messaging.cloudevents import attributes, of_attributes
from ledgerstone.messaging.inbox.deliveries import Deliveries
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.registry import MessagingRegistry
from ledgerstone.settings import SubscriptionSettings
from ledgerstone.store.transaction import Transaction
from ledgerstone.testing.clock import ManualClock
from tests.contract.messaging.failed import found
from tests.contract.messaging.inbox import message_of, new_office, noted
from tests.harness.own_table import notes_kept

LATE = Failure("handler_timeout", "it ran for too long")


class Arrival:
    """One delivery, which counts what was said of it."""

    content_type = "application/json"
    properties: Mapping[str, str] = {}
    redelivered = False

    def __init__(self, message: Message) -> None:
        self.body = message.raw
        self.headers: Mapping[str, Any] = attributes(message, "test")
        self.acks = self.backs = 0

    def ack(self) -> None:
        self.acks += 1

    def back(self) -> None:
        self.backs += 1


class Queue:
    """A subscription that hands over what a test delivers."""

    connected = True
    trouble: str | None = None

    def __init__(self) -> None:
        self.deliver: Any = None

    def start(self, deliver: Any) -> None:
        self.deliver = deliver

    def stop(self) -> None:
        """Nothing more is delivered."""

    def close(self) -> None:
        """Nothing is open."""


class Scene:
    """Deliveries of a queue to a consumer that notes what it handles."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.registry: MessagingRegistry = new_office(ledger, retries_max=2)
        self.registry.consumers.add("*", self._handle, name="mailer", ordered=True)
        self.fails = False
        self._queue = Queue()
        self.work = Deliveries(
            ledger.database,
            self.registry,
            self._queue,
            SubscriptionSettings(url="amqp://x/", queue="q"),
            name="q",
            parse=lambda came: of_attributes(came.headers, came.body, {}),
        )
        self.work.start()

    def _handle(self, tx: Transaction, came: Message) -> None:
        if self.fails:
            raise LookupError("no such order")
        noted(tx, str(came.body))

    def arrive(self, *bodies: str, partition: str = "ann") -> list[Arrival]:
        """So many messages of a partition."""
        came = [
            Arrival(message_of(partition=partition, body=f'"{body}"'.encode())) for body in bodies
        ]
        for each in came:
            self._queue.deliver(each)
        return came

    def claim(self, limit: int = 10) -> list[Claim]:
        """What is handed out now."""
        return list(self.work.exchange([], Ask(limit, "a worker", 30.0)).claims)

    def settle(self, *outcomes: Outcome) -> None:
        """Outcomes alone."""
        assert self.work.exchange(outcomes, None).claims == []

    def run(self, claim: Claim) -> Any:
        """What the handler answers."""
        return self.work.handler(claim).call(claim)


@pytest.fixture
def scene(ledger: Ledger) -> Scene:
    return Scene(ledger)


@pytest.mark.usefixtures("clock")
def test_handed_out_once(scene: Scene) -> None:
    """A claim takes at most its limit, of a partition one at a time, each delivery once."""
    scene.arrive("a", "behind a")
    scene.arrive("b", partition="bob")
    scene.arrive("c", partition="cid")

    first, second, third = scene.claim(2), scene.claim(), scene.claim()

    assert [len(first), len(second), len(third)] == [2, 1, 0]
    assert len({each.key for each in (*first, *second)}) == 3


@pytest.mark.usefixtures("clock")
def test_acknowledged_when_handled(scene: Scene) -> None:
    """A delivery is acknowledged once, after the commit, and the next of its partition follows."""
    first, second = scene.arrive("a", "b")
    (claim,) = scene.claim()
    before = first.acks

    ended = scene.run(claim)

    assert isinstance(ended, Settled)
    assert (before, first.acks, second.acks) == (0, 1, 0)
    assert notes_kept(scene.ledger) == ["a"]
    (following,) = scene.claim()
    scene.run(following)
    assert (first.acks, second.acks, scene.claim()) == (1, 1, [])


@pytest.mark.parametrize("verdict", [OutcomeKind.FAILED, OutcomeKind.RETURNED])
def test_an_outcome_after_the_acknowledgement(
    scene: Scene, clock: ManualClock, verdict: OutcomeKind
) -> None:
    """A handler that was given up at the moment of its end is settled: nothing follows."""
    (came,) = scene.arrive("a")
    (claim,) = scene.claim()
    scene.run(claim)

    scene.settle(Outcome(claim, verdict, failure=LATE))
    clock.advance(3600)

    assert (scene.claim(), came.acks, came.backs) == ([], 1, 0)
    assert (scene.work.counters.retried, scene.work.waiting) == (0, 0)


def test_an_abandoned_handler(scene: Scene, clock: ManualClock) -> None:
    """One that ends after its attempt was given up acknowledges nothing; the next attempt does."""
    (came,) = scene.arrive("a")
    (claim,) = scene.claim()
    scene.settle(Outcome(claim, OutcomeKind.FAILED, failure=LATE))
    scene.run(claim)
    late = came.acks
    clock.advance(3600)

    (again,) = scene.claim()
    scene.run(again)

    assert (late, came.acks, again.attempt) == (0, 1, 2)
    assert notes_kept(scene.ledger) == ["a"]


def test_settled_twice(scene: Scene, clock: ManualClock) -> None:
    """The same outcome again is no second failure, and no second attempt."""
    scene.arrive("a", "b")
    scene.fails = True
    (claim,) = scene.claim()
    outcome = scene.run(claim)

    scene.settle(outcome, outcome)
    scene.settle(outcome)
    clock.advance(3600)

    assert (scene.work.counters.retried, len(scene.claim())) == (1, 1)


def test_returned(scene: Scene, clock: ManualClock) -> None:
    """What was returned counts as no failure, however often, and comes after its pause."""
    (came,) = scene.arrive("a")
    for _ in range(10):
        (claim,) = scene.claim()
        scene.settle(Outcome(claim, OutcomeKind.RETURNED, failure=LATE, delay_seconds=5.0))
        assert (scene.claim(), scene.work.due_seconds()) == ([], 5.0)
        clock.advance(5)

    (claim,) = scene.claim()
    scene.run(claim)

    assert (came.acks, found(scene.ledger, scene.registry)) == (1, [])


def test_given_up(scene: Scene, clock: ManualClock) -> None:
    """After so many failures it is in the failed table, acknowledged, and the next one follows."""
    first, second = scene.arrive("a", "b")
    scene.fails = True
    for attempt in (1, 2):
        (claim,) = scene.claim()
        scene.settle(scene.run(claim))
        assert (claim.attempt, first.acks) == (attempt, 0)
        clock.advance(3600)
    (last,) = scene.claim()

    ended = scene.run(last)

    assert isinstance(ended, Settled)
    (kept,) = found(scene.ledger, scene.registry)
    assert (kept.attempts, kept.code, first.acks, second.acks) == (3, "LookupError", 1, 0)
    (following,) = scene.claim()
    assert following.key != last.key


@pytest.mark.usefixtures("clock")
def test_an_end_without_a_word(scene: Scene) -> None:
    """What was not handled when its process ends was neither acknowledged nor given back."""
    came = scene.arrive("a", "b") + scene.arrive("c", partition="cid")
    held, other = scene.claim()
    scene.settle(Outcome(other, OutcomeKind.RETURNED, delay_seconds=60.0))
    scene.work.stop()

    scene.work.close()
    scene.settle(Outcome(held, OutcomeKind.RETURNED))
    late = scene.arrive("too late")

    assert [(each.acks, each.backs) for each in (*came, *late)] == [(0, 0)] * 4
    assert (scene.claim(), scene.work.waiting) == ([], 0)
    assert notes_kept(scene.ledger) == []
