"""Deliveries: the messages of a subscription as a source of work, acknowledged when handled.

    broker ─▶ parsed ─▶ its partition ─▶ ready ─claim─▶ the engine runs its consumers ─▶ ack
                            ▲              ▲                        │
                            │              └── later ◀──────────────┤ failed: again after a pause
                one at a time of an ordered partition               └─▶ failed table

A delivery is acknowledged after every consumer has handled its message. Until then the broker keeps
it, and redelivers it if the process dies. So there is no lease to extend and nothing to rescue: the
broker holds the lease, and the receipt in the inbox is the fence.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ledgerstone.cancellation import current
from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.outcomes import failure_of
from ledgerstone.engine.source import (
    Ask,
    Claim,
    ExchangeResult,
    Failure,
    Handler,
    NotSettled,
    Outcome,
    OutcomeKind,
    Settled,
)
from ledgerstone.errors import (
    HandlerTimeout,
    Interrupted,
    LeaseLost,
    LedgerstoneError,
    StoreBusy,
    StoreUnavailable,
)
from ledgerstone.failpoints import hit
from ledgerstone.messaging.brokers.subscription import Delivery, Subscription
from ledgerstone.messaging.failed import failed
from ledgerstone.messaging.failed.rows import Raw, raw_of
from ledgerstone.messaging.inbox.consumers import Consumer
from ledgerstone.messaging.inbox.crashes import guarded
from ledgerstone.messaging.inbox.inbox import Handled, Result, handle, log_failed, pause_seconds
from ledgerstone.messaging.message import Message
from ledgerstone.settings import SubscriptionSettings

if TYPE_CHECKING:
    from ledgerstone.messaging.registry import MessagingRegistry
    from ledgerstone.store.database import Database

AGAIN = Backoff(seconds=0.5, multiplier=2.0, seconds_max=30.0)
"""The back-off while a database or a target is unreachable."""
NO_CONSUMER = "no_consumer"

_log = logging.getLogger("ledgerstone.messaging")


class Received(msgspec.Struct):
    """The counters of deliveries. A message counts once for each of its consumers."""

    received: int = 0
    """Deliveries that arrived."""
    acknowledged: int = 0
    handled: int = 0
    duplicates: int = 0
    retried: int = 0
    """Failures of a handler that are retried."""
    failed: int = 0
    """Messages that were moved to the failed table after the last attempt of a consumer."""
    malformed: int = 0
    """Messages in the failed table because they are malformed or have no consumer."""
    returned: int = 0
    """Deliveries that were returned to the broker."""
    trouble: str | None = None
    """The current outage for which messages are retried."""


class _Task:
    """A delivery that consumers have to handle."""

    def __init__(
        self, number: int, delivery: Delivery, item: Message | Raw, failure: Failure | None
    ) -> None:
        self.number = number
        self.delivery = delivery
        self.item = item
        self.failure = failure
        """Why the message is moved to the failed table at once."""
        self.partition: str | None = None
        """The partition, if a consumer is ordered: one delivery of it is handed out at a time."""
        self.consumers: dict[str, Consumer] = {}
        """The consumers that have not handled it."""
        self.at_work: Consumer | None = None
        """The consumer whose handler runs or was told to stop."""
        self.failures: dict[str, int] = {}
        self.attempt = 0
        self.token = 0
        """Raised by every claim and outcome: an abandoned handler cannot end the delivery."""
        self.vain = 0
        """Attempts that an outage ended."""
        self.goes_back = False
        """Whether it is returned to the broker when its pause ends."""


class DeliveryClaim(Claim, frozen=True, eq=False, kw_only=True):
    """A delivery that was handed out."""

    task: _Task

    @property
    def title(self) -> str:
        item = self.task.item
        what = f"{item.name} {item.id}" if isinstance(item, Message) else "an unreadable message"
        return f"{what}, attempt {self.attempt}"


class _Pause(NamedTuple):
    """Why a message is not handled yet, and when it is tried again."""

    seconds: float
    failure: Failure
    vain: bool = False
    """Whether an outage is the cause, and not the message."""


class Deliveries:
    """The source of work that receives from a subscription for the consumers of a ledger.

    - If one of their consumers is `ordered`, messages of one partition are handed out one at a
      time, in their order. A message that is retried holds those behind it.
    - A message that is retried stays unacknowledged and uses no thread.
    - A malformed message, or one without a consumer, is moved to the failed table at once.
    - While the database is unreachable, deliveries stay and are tried again without counting an
      attempt.
    - A stop keeps the order of the queue. It sends no basic.cancel and no basic.nack: handlers
      finish, their deliveries are acknowledged, and the broker requeues the rest when the
      connection ends.
    - An error that is not retryable ends the pump.
    """

    one_writer = True
    """No call here waits for a disk: one thread takes outcomes and hands out claims."""
    local = True

    def __init__(
        self,
        database: Database[Any],
        registry: MessagingRegistry,
        subscription: Subscription,
        settings: SubscriptionSettings,
        *,
        name: str,
        parse: Callable[[Delivery], Message],
    ) -> None:
        self.name = name
        self.channel = f"deliveries:{name}"
        self.places = settings.concurrency
        self.counters = Received()
        self._database = database
        self._registry = registry
        self._subscription = subscription
        self._settings = settings
        self._parse = parse
        self._last_chance = threading.Lock()
        """Held while a message is handled that is given up after one more crash."""
        self._waiting = _Waiting(database.clock.monotonic)
        self._numbers = itertools.count()
        self._counting = threading.Lock()
        self._troubles: dict[int, str] = {}
        """The outages, by the number of the waiting task."""
        self._failure: BaseException | None = None
        self._started = False
        self._handler = Handler(self._deal)

    @property
    def connected(self) -> bool:
        return self._subscription.connected

    @property
    def trouble(self) -> str | None:
        """Why no message arrives, or why none is handled."""
        return self._subscription.trouble or self.counters.trouble

    @property
    def waiting(self) -> int:
        """Deliveries that wait for their retry or for the one before in their partition."""
        return self._waiting.count

    def start(self) -> None:
        """Starts to receive."""
        if not self._started:
            self._started = True
            self._subscription.start(self._deliver)

    def stop(self) -> None:
        """Stops receiving. Deliveries that were handed out can still be acknowledged."""
        self._subscription.stop()

    def close(self) -> None:
        """Drops the connection. The broker requeues unacknowledged messages in their order."""
        # A nack would put the message behind others of its partition.
        for _ in range(self._waiting.clear()):
            self._count("returned")
        self._subscription.close()

    def handler(self, claim: Claim) -> Handler:
        return self._handler

    def extend(self, claims: Sequence[Claim], lease_seconds: float) -> NotSettled[Claim]:
        # The broker keeps an unacknowledged message as long as the connection lives.
        return NotSettled()

    def due_seconds(self) -> float:
        """The seconds until the next retry is due."""
        return self._waiting.due_seconds()

    def exchange(self, outcomes: Sequence[Outcome], ask: Ask | None) -> ExchangeResult:
        if self._failure is not None:
            raise self._failure
        for outcome in outcomes:
            self._settle(outcome)
        claims: list[Claim] = []
        while ask is not None and len(claims) < ask.limit:
            task = self._waiting.take()
            if task is None:
                break
            if task.goes_back:
                self._give_back(task)
            else:
                claims.append(self._claim(task))
        return ExchangeResult(claims, NotSettled())

    def _deliver(self, delivery: Delivery) -> None:
        """Takes one delivery on the thread of the subscription: parses it and queues it."""
        self._count("received")
        task = self._task(delivery)
        entered = self._waiting.enter(task)
        if entered is None:
            # The broker requeues it when the connection ends.
            self._count("returned")
        elif entered:
            self._database.wake_signals.notify([self.channel])

    def _task(self, delivery: Delivery) -> _Task:
        number = next(self._numbers)
        try:
            message = self._parse(delivery)
        except Exception as error:  # noqa: BLE001 - a message that cannot be parsed is kept
            return _Task(number, delivery, raw_of(delivery), failure_of(error))
        consumers = self._registry.consumers.of(message.name)
        if not consumers:
            failure = Failure(NO_CONSUMER, f"this process has no consumer for {message.name}")
            return _Task(number, delivery, message, failure)
        task = _Task(number, delivery, message, None)
        task.consumers = {consumer.name: consumer for consumer in consumers}
        if any(consumer.ordered for consumer in consumers):
            task.partition = message.partition
        return task

    def _claim(self, task: _Task) -> DeliveryClaim:
        task.attempt += 1
        task.token += 1
        task.at_work = None
        only = next(iter(task.consumers)) if len(task.consumers) == 1 else None
        return DeliveryClaim(
            str(task.number),
            task.attempt,
            task.token,
            target=only,
            timeout_seconds=self._settings.timeout_seconds,
            task=task,
        )

    def _deal(self, claim: DeliveryClaim) -> Settled | Outcome:
        """The handler: calls the consumers that have not handled the message."""
        task = claim.task
        try:
            pause = self._done(task)
        except BaseException as error:
            if current().reason is None:
                self._failure = error
            raise
        if not (pause is not None and pause.vain):
            self._over(task)
        if pause is None:
            self._finish(task, claim.token)
            return Settled()
        verdict = OutcomeKind.RETURNED if pause.vain else OutcomeKind.FAILED
        return Outcome(claim, verdict, failure=pause.failure, delay_seconds=pause.seconds)

    def _done(self, task: _Task) -> _Pause | None:
        """Handles the message; returns None if all consumers have, otherwise the pause."""
        if task.failure is not None:
            pause = self._set_aside(task, failed.UNKNOWN, task.failure, attempts=0)
        else:
            pause = max(self._dealt_with(task), key=lambda each: each.seconds, default=None)
        if pause is None:
            hit("inbox.committed")
        return pause

    def _dealt_with(self, task: _Task) -> list[_Pause]:
        """Calls each remaining consumer; returns the pauses of those that did not handle it."""
        pauses = []
        for consumer in list(task.consumers.values()):
            task.at_work = consumer
            pause = self._hand(task, consumer)
            if pause is None:
                task.consumers.pop(consumer.name, None)
            else:
                pauses.append(pause)
        return pauses

    def _hand(self, task: _Task, consumer: Consumer) -> _Pause | None:
        assert isinstance(task.item, Message)
        handled = self._handled(consumer, task.item, redelivered=task.delivery.redelivered)
        if handled.failure is None:
            self._count("handled" if handled.result is Result.HANDLED else "duplicates")
            return None
        if handled.result is Result.AGAIN:
            # Another process may be handling it; any consumer that is free later finds the receipt.
            # A message of a partition is not returned: it would come back behind later ones.
            task.goes_back = handled.failure.code == StoreBusy.code and task.partition is None
            return self._vain(task, handled.failure)
        return self._failed(task, consumer, handled.failure, dead=handled.result is Result.DEAD)

    def _handled(self, consumer: Consumer, message: Message, *, redelivered: bool) -> Handled:
        run = partial(handle, self._database, self._registry, consumer, message)
        most = self._settings.crashes_max
        try:
            if redelivered:
                last, database = self._last_chance, self._database
                return guarded(
                    database, consumer.name, message, run, crashes_max=most, last_chance=last
                )
            return run()
        except (LeaseLost, Interrupted, HandlerTimeout) as error:
            if current().reason is not None:
                raise
            # The engine has not raised this: the handler has.
            return Handled(Result.FAILED, failure_of(error))

    def _failed(
        self, task: _Task, consumer: Consumer, failure: Failure, *, dead: bool
    ) -> _Pause | None:
        """A consumer failed: schedules a retry, or moves the message to the failed table."""
        assert isinstance(task.item, Message)
        settings = self._registry.settings
        failures = task.failures.get(consumer.name, 0)
        if not dead and failures < settings.retries_max:
            task.failures[consumer.name] = failures + 1
            self._count("retried")
            pause = pause_seconds(settings, failures)
            attempt = failures + 1
            log_failed(consumer, task.item, failure, attempt=attempt, next_seconds=pause)
            return _Pause(pause, failure)
        return self._set_aside(task, consumer.name, failure, attempts=failures + 1)

    def _set_aside(
        self, task: _Task, consumer: str, failure: Failure, *, attempts: int
    ) -> _Pause | None:
        try:
            self._database.run(
                lambda tx: failed.put(
                    tx,
                    self._registry,
                    task.item,
                    consumer=consumer,
                    failure=failure,
                    attempts=attempts,
                    origin=self.name,
                )
            )
        except LedgerstoneError as error:
            if not error.retryable or current().reason is not None:
                raise
            return self._vain(task, failure_of(error))
        self._count("failed" if consumer else "malformed")
        return None

    def _settle(self, outcome: Outcome) -> None:
        """Takes an outcome that left the message unhandled, and schedules the next attempt."""
        assert isinstance(outcome.claim, DeliveryClaim)
        task = outcome.claim.task
        if not self._ends(task, outcome.claim.token):
            # Its handler has acknowledged it, or an outcome of this claim came before.
            return
        seconds = outcome.delay_seconds or 0.0
        consumer, failure = task.at_work, outcome.failure
        if outcome.verdict is OutcomeKind.FAILED and outcome.delay_seconds is None and failure:
            # The engine told the handler to stop, so `_deal` has not counted the failure.
            pause = self._failed(task, consumer, failure, dead=False) if consumer else None
            if pause is None and consumer is not None:
                del task.consumers[consumer.name]
            seconds = pause.seconds if pause is not None else 0.0
        if task.failure is None and not task.consumers:
            self._finish(task, task.token)
        else:
            self._waiting.again(task, seconds)

    def _finish(self, task: _Task, token: int) -> None:
        """Acknowledges the delivery; does nothing if this handler was abandoned meanwhile."""
        if not self._ends(task, token):
            return
        # Before the next of its partition begins: a broker that requeues both keeps their order.
        task.delivery.ack()
        self._count("acknowledged")
        if self._waiting.leave(task):
            self._database.wake_signals.notify([self.channel])

    def _ends(self, task: _Task, token: int) -> bool:
        """Whether this is the first end of the claim with this token."""
        with self._counting:
            first = task.token == token
            task.token += first
        return first

    def _vain(self, task: _Task, failure: Failure) -> _Pause:
        """Notes an outage; returns the pause."""
        task.vain += 1
        # The store logs an outage of the database once.
        if self.counters.trouble is None and failure.code != StoreUnavailable.code:
            _log.warning("%s: %s: %s", self.name, failure.code, failure.message)
        with self._counting:
            self._troubles[task.number] = f"{failure.code}: {failure.message}"
            self.counters.trouble = self._troubles[task.number]
        return _Pause(AGAIN.after(task.vain), failure, vain=True)

    def _over(self, task: _Task) -> None:
        """The task is not blocked any more; `trouble` shows another blocked task, or None."""
        if not self._troubles:
            return
        with self._counting:
            self._troubles.pop(task.number, None)
            self.counters.trouble = next(reversed(self._troubles.values()), None)

    def _give_back(self, task: _Task) -> None:
        task.delivery.back()
        self._count("returned")
        self._over(task)
        self._waiting.leave(task)

    def _count(self, name: str) -> None:
        with self._counting:
            setattr(self.counters, name, getattr(self.counters, name) + 1)


class _Waiting:
    """Deliveries that are ready, or wait for a retry or for the one before in their partition."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.count = 0
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._ready: deque[_Task] = deque()
        self._later: list[tuple[float, int, _Task]] = []
        self._partitions: dict[str, deque[_Task]] = {}
        """By partition, the deliveries behind the one that is handed out or waits for a retry."""
        self._cleared = False

    def enter(self, task: _Task) -> bool | None:
        """Adds a delivery; True if it is the only ready one, None if the source has ended."""
        with self._lock:
            if self._cleared:
                return None
            self.count += 1
            if task.partition is not None:
                behind = self._partitions.get(task.partition)
                if behind is not None:
                    behind.append(task)
                    return False
                self._partitions[task.partition] = deque()
            self._ready.append(task)
            return len(self._ready) == 1

    def take(self) -> _Task | None:
        """The next ready delivery."""
        with self._lock:
            now = self._monotonic()
            while self._later and self._later[0][0] <= now:
                self._ready.append(heapq.heappop(self._later)[2])
            if not self._ready:
                return None
            self.count -= 1
            return self._ready.popleft()

    def again(self, task: _Task, seconds: float) -> None:
        """Schedules a retry; the deliveries behind it in its partition wait too."""
        with self._lock:
            if self._cleared:
                return
            self.count += 1
            heapq.heappush(self._later, (self._monotonic() + seconds, task.number, task))

    def leave(self, task: _Task) -> bool:
        """Ends a delivery; returns whether that made another one ready."""
        if task.partition is None:
            return False
        with self._lock:
            behind = self._partitions.get(task.partition)
            if behind:
                self._ready.append(behind.popleft())
                return True
            self._partitions.pop(task.partition, None)
            return False

    def due_seconds(self) -> float:
        """The seconds until the next retry; infinity if none is scheduled."""
        with self._lock:
            if self._ready:
                return 0.0
            if not self._later:
                return float("inf")
            return max(self._later[0][0] - self._monotonic(), 0.0)

    def clear(self) -> int:
        """Drops all waiting deliveries and takes no more; returns how many were dropped."""
        with self._lock:
            self._cleared = True
            self._ready.clear()
            self._later.clear()
            self._partitions.clear()
            cleared, self.count = self.count, 0
            return cleared
