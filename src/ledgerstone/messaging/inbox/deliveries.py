"""Deliveries: what a subscription receives is a source of work, acknowledged when it is done.

    broker ─▶ parsed ─▶ its partition ─▶ ready ─claim─▶ the engine runs its consumers ─▶ ack
                            ▲              ▲                        │
                            │              └── later ◀──────────────┤ failed: again after a pause
                one at a time of an ordered partition               └─▶ failed table

A delivery is acknowledged only when every consumer has dealt with its message. Until then it is the
broker's: a process that dies has taken nothing along. So there is nothing to extend and nothing to
rescue: the lease is the broker's, and the receipt in the inbox is the fence.
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
"""The pauses while a database or a target is out of reach."""
NO_CONSUMER = "no_consumer"

_log = logging.getLogger("ledgerstone.messaging")


class Received(msgspec.Struct):
    """What was done with deliveries so far; a message counts once for each of its consumers."""

    received: int = 0
    """Deliveries that arrived."""
    acknowledged: int = 0
    handled: int = 0
    duplicates: int = 0
    retried: int = 0
    """Times a handler failed and is tried again."""
    failed: int = 0
    """Put into the failed table by a consumer that gave up."""
    malformed: int = 0
    """Put into the failed table because nobody could read it or nobody is there for it."""
    returned: int = 0
    """Given back to the broker."""
    trouble: str | None = None
    """Why something is tried again that no message is to blame for."""


class _Task:
    """A delivery on its way through the consumers."""

    def __init__(
        self, number: int, delivery: Delivery, item: Message | Raw, failure: Failure | None
    ) -> None:
        self.number = number
        self.delivery = delivery
        self.item = item
        self.failure = failure
        """Why it goes into the failed table at once."""
        self.partition: str | None = None
        """That of an ordered consumer: one delivery of it is handed out at a time."""
        self.consumers: dict[str, Consumer] = {}
        """Those that have not dealt with it."""
        self.at_work: Consumer | None = None
        """The one whose handler runs, or was told to stop."""
        self.failures: dict[str, int] = {}
        self.attempt = 0
        self.token = 0
        """Raised by every claim and every outcome: a handler that was given up ends nothing."""
        self.vain = 0
        """Times it was tried while something was out of reach."""
        self.goes_back = False
        """Whether it is given back to the broker when its pause is over."""


class DeliveryClaim(Claim, frozen=True, eq=False, kw_only=True):
    """A delivery that is handed out."""

    task: _Task

    @property
    def title(self) -> str:
        item = self.task.item
        what = f"{item.name} {item.id}" if isinstance(item, Message) else "an unreadable message"
        return f"{what}, attempt {self.attempt}"


class _Pause(NamedTuple):
    """Why a message is not dealt with yet, and when it is tried again."""

    seconds: float
    failure: Failure
    vain: bool = False
    """Whether the message is not to blame."""


class Deliveries:
    """What a subscription delivers, for the consumers of a ledger: the work of a pump.

    - Messages of one partition are handed out one after the other, in the order of arrival, if one
      of their consumers is `ordered`; a message that is tried again holds those behind it.
    - What is tried again stays where it is, unacknowledged, and takes up no thread.
    - What nobody can read, or nobody is there for, goes into the failed table at once.
    - While the database is out of reach deliveries stay and are tried again; none is blamed.
    - The end keeps the order of the queue: nothing is cancelled and nothing is nacked. Handlers
      finish, what they did is acknowledged, and the rest goes back with the connection.
    - An error that no waiting helps ends the pump.
    """

    one_writer = True
    """Nothing here waits for a disk: one thread takes outcomes and hands out."""
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
        """Held while a message is handled for which one more death of a process is the end."""
        self._waiting = _Waiting(database.clock.monotonic)
        self._numbers = itertools.count()
        self._counting = threading.Lock()
        self._troubles: dict[int, str] = {}
        """By the number of a task that waits in vain, why."""
        self._failure: BaseException | None = None
        self._started = False
        self._handler = Handler(self._deal)

    @property
    def connected(self) -> bool:
        return self._subscription.connected

    @property
    def trouble(self) -> str | None:
        """Why nothing arrives, or why nothing is handled."""
        return self._subscription.trouble or self.counters.trouble

    @property
    def waiting(self) -> int:
        """Deliveries that are not handed out: they wait for their time, or for the one before."""
        return self._waiting.count

    def start(self) -> None:
        """Begin to receive."""
        if not self._started:
            self._started = True
            self._subscription.start(self._deliver)

    def stop(self) -> None:
        """Receive no more; what is handed out may still be acknowledged."""
        self._subscription.stop()

    def close(self) -> None:
        """End the connection; what is not acknowledged goes back to the queue, in its order."""
        # None is nacked: the broker would put it behind others of its partition.
        for _ in range(self._waiting.clear()):
            self._count("returned")
        self._subscription.close()

    def handler(self, claim: Claim) -> Handler:
        return self._handler

    def extend(self, claims: Sequence[Claim], lease_seconds: float) -> NotSettled[Claim]:
        # The broker keeps what is not acknowledged for as long as the connection lives.
        return NotSettled()

    def due_seconds(self) -> float:
        """How long until the pause of a delivery is over."""
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
        """One arrival, on the thread of the subscription: read it and let it wait."""
        self._count("received")
        task = self._task(delivery)
        entered = self._waiting.enter(task)
        if entered is None:
            # It goes back with the connection.
            self._count("returned")
        elif entered:
            self._database.wake_signals.notify([self.channel])

    def _task(self, delivery: Delivery) -> _Task:
        number = next(self._numbers)
        try:
            message = self._parse(delivery)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is kept
            return _Task(number, delivery, raw_of(delivery), failure_of(error))
        consumers = self._registry.consumers.of(message.name)
        if not consumers:
            failure = Failure(NO_CONSUMER, f"nobody here consumes {message.name}")
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
        """The handler: have the consumers that are left deal with the message."""
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
        """Have its consumers deal with it: None if all have, otherwise when to try again."""
        if task.failure is not None:
            pause = self._set_aside(task, failed.UNKNOWN, task.failure, attempts=0)
        else:
            pause = max(self._dealt_with(task), key=lambda each: each.seconds, default=None)
        if pause is None:
            hit("inbox.committed")
        return pause

    def _dealt_with(self, task: _Task) -> list[_Pause]:
        """Try each consumer that is left; the pauses of those that could not yet."""
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
            # Another process may have it in work: whoever is free then finds the receipt. One of a
            # partition would come again behind those that it is to go before.
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
            # The engine has told it nothing: it is the handler's own.
            return Handled(Result.FAILED, failure_of(error))

    def _failed(
        self, task: _Task, consumer: Consumer, failure: Failure, *, dead: bool
    ) -> _Pause | None:
        """A consumer failed: it is tried again, or the message is set aside for it."""
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
        """It was not dealt with: it waits for its next try."""
        assert isinstance(outcome.claim, DeliveryClaim)
        task = outcome.claim.task
        task.token += 1
        seconds = outcome.delay_seconds or 0.0
        consumer, failure = task.at_work, outcome.failure
        if outcome.verdict is OutcomeKind.FAILED and outcome.delay_seconds is None and failure:
            # The engine has told the handler to stop: nothing else counts the failure.
            pause = self._failed(task, consumer, failure, dead=False) if consumer else None
            if pause is None and consumer is not None:
                del task.consumers[consumer.name]
            seconds = pause.seconds if pause is not None else 0.0
        if task.failure is None and not task.consumers:
            self._finish(task, task.token)
        else:
            self._waiting.again(task, seconds)

    def _finish(self, task: _Task, token: int) -> None:
        """All have dealt with it; nothing happens if this handler was given up meanwhile."""
        with self._counting:
            mine, task.token = task.token == token, task.token + 1
        if not mine:
            return
        # Before the one behind it may begin: a broker that gives both back keeps the order.
        task.delivery.ack()
        self._count("acknowledged")
        if self._waiting.leave(task):
            self._database.wake_signals.notify([self.channel])

    def _vain(self, task: _Task, failure: Failure) -> _Pause:
        """Not the message's doing: how long to wait."""
        task.vain += 1
        # An outage of the database is logged once, by the store.
        if self.counters.trouble is None and failure.code != StoreUnavailable.code:
            _log.warning("%s: %s: %s", self.name, failure.code, failure.message)
        with self._counting:
            self._troubles[task.number] = f"{failure.code}: {failure.message}"
            self.counters.trouble = self._troubles[task.number]
        return _Pause(AGAIN.after(task.vain), failure, vain=True)

    def _over(self, task: _Task) -> None:
        """It waits in vain no more; the trouble that is shown is one that is still there."""
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
    """Deliveries that are ready, wait for their time, or for the one before in their partition."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.count = 0
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._ready: deque[_Task] = deque()
        self._later: list[tuple[float, int, _Task]] = []
        self._partitions: dict[str, deque[_Task]] = {}
        """By partition, those behind the one that is handed out or waits for its time."""
        self._cleared = False

    def enter(self, task: _Task) -> bool | None:
        """A new one; whether it is the only one that is ready, None if it comes too late."""
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
        """The next one that is ready."""
        with self._lock:
            now = self._monotonic()
            while self._later and self._later[0][0] <= now:
                self._ready.append(heapq.heappop(self._later)[2])
            if not self._ready:
                return None
            self.count -= 1
            return self._ready.popleft()

    def again(self, task: _Task, seconds: float) -> None:
        """It is tried again after a pause; those behind it wait as well."""
        with self._lock:
            if self._cleared:
                return
            self.count += 1
            heapq.heappush(self._later, (self._monotonic() + seconds, task.number, task))

    def leave(self, task: _Task) -> bool:
        """It is done; whether that makes another one ready."""
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
        """How long until a pause is over; without end if none waits for that."""
        with self._lock:
            if self._ready:
                return 0.0
            if not self._later:
                return float("inf")
            return max(self._later[0][0] - self._monotonic(), 0.0)

    def clear(self) -> int:
        """Forget all that wait; how many those were. None is let in any more."""
        with self._lock:
            self._cleared = True
            self._ready.clear()
            self._later.clear()
            self._partitions.clear()
            cleared, self.count = self.count, 0
            return cleared
