"""The sources of Ledgerstone at work, as subjects of the effect contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import select

from ledgerstone.engine.source import Source
from ledgerstone.engine.worker import Worker
from ledgerstone.errors import TargetDown
from ledgerstone.ids import new_id
from ledgerstone.jobs import Job, NewJob
from ledgerstone.jobs.states import Status as JobStatus
from ledgerstone.jobs.tables import MAX_ATTEMPTS as JOB_ATTEMPTS_MAX
from ledgerstone.jobs.tables import job
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.messaging.brokers.subscription import Delivery
from ledgerstone.messaging.brokers.transport import DELIVERED, Answer, Heard, SendResult
from ledgerstone.messaging.cloudevents import attributes, of_attributes
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.relay.relays import relay_of
from ledgerstone.messaging.states import LaneState
from ledgerstone.messaging.tables import lane
from ledgerstone.settings import SubscriptionSettings
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.waiting import until
from tests.contract.messaging.destination import NAME, Shop
from tests.harness.receiving import Receiving
from tests.harness.threads import together

TRIES_MAX = 3
PAUSE_SECONDS = 3600.0
"""Longer than any wait between two tries."""
MOMENT_SECONDS = 1.0
"""Shorter than a lease."""
EVENTS = "executors"


def _nothing(_: str) -> None:
    """Nothing happens before an item takes effect."""


class _Work:
    """What all of them have."""

    def __init__(self) -> None:
        self.before: Callable[[str], None] = _nothing
        self.effects: list[str] = []

    def perform(self, key: str) -> None:
        self.before(key)
        self.effects.append(key)


class SourceWork(_Work):
    """Work of a source, done by workers that take step after step."""

    def __init__(self, ledger: Ledger, clock: ManualClock) -> None:
        super().__init__()
        self.ledger = ledger
        self._clock = clock

    def source(self) -> Source:
        raise NotImplementedError

    def is_left(self, tx: Transaction) -> bool:
        raise NotImplementedError

    def execute(self, executors: int = 1) -> None:
        with ExitStack() as stack:
            workers = [self.ledger.worker(self.source()) for _ in range(executors)]
            for worker in workers:
                stack.callback(worker.stop, grace_seconds=0)
            # No number of rounds is enough: an item that another worker locks is settled later.
            until(partial(self._round, workers), what="the end of all work")

    def _round(self, workers: Sequence[Worker]) -> bool:
        """Every worker takes what is due now; whether nothing is left."""
        together(*[partial(_drained, worker) for worker in workers])
        # What another worker locked is settled later: the clock must not pass its lease.
        put_off = any(pump.held() for worker in workers for pump in worker.pumps)
        self._clock.advance(MOMENT_SECONDS if put_off else PAUSE_SECONDS)
        for worker in workers:
            worker.beat()
        with self.ledger.reading() as tx:
            return not self.is_left(tx)


def _drained(worker: Worker) -> None:
    """One worker takes steps until it finds nothing."""
    while any(tick.claimed for tick in worker.tick()):
        pass


class JobWork(SourceWork):
    """Jobs."""

    tries_max = JOB_ATTEMPTS_MAX

    def __init__(self, ledger: Ledger, clock: ManualClock) -> None:
        super().__init__(ledger, clock)
        ledger.kinds.add("executed", self._run)

    def source(self) -> Source:
        return self.ledger.job_source()

    def add(self, count: int) -> list[str]:
        new = [NewJob(type="executed") for _ in range(count)]
        return self.ledger.run(lambda tx: [each.id for each in tx.jobs.enqueue_many(new)])

    def is_left(self, tx: Transaction) -> bool:
        open_ = {JobStatus.QUEUED.value, JobStatus.RUNNING.value}
        found = tx.execute(select(job).where(job.c.status.in_(open_)))
        return found.first() is not None

    def given_up(self) -> dict[str, str]:
        dead = select(job.c.id, job.c.last_error_message).where(
            job.c.status == JobStatus.DEAD_LETTER.value
        )
        with self.ledger.reading() as tx:
            return {str(row[0]): str(row[1]) for row in tx.execute(dead)}

    def _run(self, job: Job) -> None:
        self.perform(job.id)


class RelayWork(SourceWork):
    """Messages of a shop that relays carry to this, which is their transport.

    One that is given up is in the failed table, or its lane is parked.
    """

    tries_max = TRIES_MAX

    def __init__(self, shop: Shop, clock: ManualClock) -> None:
        super().__init__(shop.ledger, clock)
        self._shop = shop

    def source(self) -> Source:
        return relay_of(self._shop.destination, self.ledger.registry, self.ledger.database, self)

    def add(self, count: int) -> list[str]:
        return [
            published.id
            for number in range(count)
            for published in self._shop.publish(number, partition=f"p{number}")
        ]

    def is_left(self, tx: Transaction) -> bool:
        outbox = self.ledger.registry.shared.outbox
        parked = select(lane.c.partition_key).where(lane.c.state == LaneState.PARKED.value)
        waits = select(outbox.c.id).where(
            outbox.c.delivered_at.is_(None), outbox.c.partition_key.not_in(parked)
        )
        return tx.execute(waits).first() is not None

    def given_up(self) -> dict[str, str]:
        parked = [entry for entry in self._shop.record() if entry.code is not None]
        return {str(entry.message_id): str(entry.reason) for entry in parked}

    def send(
        self, messages: Sequence[Message], *, seconds_max: float, heard: Heard | None = None
    ) -> list[Answer]:
        assert seconds_max > 0
        return [self._answer(message) for message in messages]

    def close(self) -> None:
        """Nothing is open."""

    def _answer(self, message: Message) -> Answer:
        try:
            self.perform(message.id)
        except TargetDown as error:
            return Answer(SendResult.UNKNOWN, error.code, str(error))
        except ValueError as error:
            return Answer(SendResult.REFUSED, "full", str(error))
        return DELIVERED


class _Arrival:
    """A delivery of a broker in memory."""

    content_type = "application/json"
    properties: Mapping[str, str] = {}
    redelivered = False

    def __init__(self, broker: _Broker, message: Message) -> None:
        self.body: bytes = message.raw
        self.headers: Mapping[str, Any] = attributes(message, EVENTS)
        self._broker = broker
        self._message = message

    def ack(self) -> None:
        self._broker.outstanding.discard(self._message.id)

    def back(self) -> None:
        self._broker.deliver(self._message)


class _Broker:
    """A broker in memory with one queue; who subscribes takes all of it."""

    connected = True
    trouble: str | None = None

    def __init__(self) -> None:
        self.outstanding: set[str] = set()
        self._waiting: list[Message] = []
        self._deliver: list[Callable[[Delivery], None]] = []
        self._turn = 0

    def publish(self, message: Message) -> None:
        self.outstanding.add(message.id)
        self._waiting.append(message)

    def start(self, deliver: Callable[[Delivery], None]) -> None:
        self._deliver.append(deliver)

    def share_out(self) -> None:
        """Everything that waits goes to the subscribers in turns."""
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self.deliver(message)

    def deliver(self, message: Message) -> None:
        if self._deliver:
            self._turn += 1
            self._deliver[self._turn % len(self._deliver)](_Arrival(self, message))

    def stop(self) -> None:
        self._deliver.clear()

    def close(self) -> None:
        """Nothing is open."""


class DeliveryWork(_Work):
    """Messages that are delivered to a consumer of the ledger."""

    def __init__(self, shop: Shop, clock: ManualClock) -> None:
        super().__init__()
        self._ledger = shop.ledger
        self._clock = clock
        self._broker = _Broker()
        self._ledger.registry.consumers.add(NAME, self._run, name=EVENTS)
        self.tries_max = self._ledger.settings.messaging.retries_max + 1

    def add(self, count: int) -> list[str]:
        now = datetime.now(UTC)
        messages = [
            Message(id=new_id(), name=NAME, raw=b"{}", partition=f"p{number}", created_at=now)
            for number in range(count)
        ]
        for message in messages:
            self._broker.publish(message)
        return [message.id for message in messages]

    def execute(self, executors: int = 1) -> None:
        settings = SubscriptionSettings(url="amqp://x/", queue=EVENTS, concurrency=2)
        receivers = [
            Receiving(
                self._ledger,
                self._ledger.registry,
                self._broker,
                settings,
                name=EVENTS,
                parse=lambda came: of_attributes(came.headers, came.body, {}),
            )
            for _ in range(executors)
        ]
        for receiver in receivers:
            receiver.start()
        try:
            self._broker.share_out()
            until(self._is_over, what="every message to be acknowledged")
        finally:
            for receiver in receivers:
                receiver.stop()

    def given_up(self) -> dict[str, str]:
        with self._ledger.reading() as tx:
            rows = tx.failed.find().rows
        return {str(row.message_id): str(row.reason) for row in rows}

    def _run(self, tx: Transaction, message: Message) -> None:
        assert tx.connection is not None
        self.perform(message.id)

    def _is_over(self) -> bool:
        self._clock.advance(PAUSE_SECONDS)
        return not self._broker.outstanding
