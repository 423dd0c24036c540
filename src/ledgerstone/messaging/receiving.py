"""Receiving: deliveries of a subscription are handed to consumers, and acknowledged when done.

    deliver ─▶ parsed ─▶ its lane ─▶ ready ─▶ ┌ so many threads ┐ ─▶ ack
                            ▲          ▲      └───────┬─────────┘
                            │          └── later ◀────┤ failed: again after a pause
              one at a time of an ordered partition   └─▶ failed table, when there is no more try

A delivery is acknowledged only when every consumer has dealt with its message. Until then it is the
broker's: a process that dies has taken nothing along.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.outcomes import failure_of
from ledgerstone.engine.source import Failure
from ledgerstone.errors import (
    HandlerTimeout,
    Interrupted,
    LeaseLost,
    LedgerstoneError,
    StoreBusy,
    StoreUnavailable,
)
from ledgerstone.failpoints import hit
from ledgerstone.messaging import failed
from ledgerstone.messaging.consumers import Consumer
from ledgerstone.messaging.failed_rows import Raw, raw_of
from ledgerstone.messaging.inbox import Handled, Result, handle, log_failed, pause_seconds
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.subscription import Delivery, Subscription
from ledgerstone.settings import SubscriptionSettings

if TYPE_CHECKING:
    from ledgerstone.messaging.office import Office
    from ledgerstone.store.database import Database

AGAIN = Backoff(seconds=0.5, multiplier=2.0, seconds_max=30.0)
"""The pauses while a database or a target is out of reach."""
LOOK_SECONDS_MAX = 0.25
"""How often a thread looks at the watch while something waits for its time."""
GRACE_SECONDS = 30.0
JOIN_SECONDS_MAX = 5.0
NO_CONSUMER = "no_consumer"

_log = logging.getLogger("ledgerstone.messaging")


class Tally(msgspec.Struct):
    """What a receiver did so far; a message counts once for each of its consumers."""

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
        self.lane: str | None = None
        self.consumers: dict[str, Consumer] = {}
        """Those that have not dealt with it."""
        self.failures: dict[str, int] = {}
        self.vain = 0
        """Times it was tried while something was out of reach."""
        self.in_vain = False
        """Whether that is so now."""
        self.goes_back = False
        """Whether it is given back to the broker when its pause is over."""


class Receiver:
    """Hands what a subscription delivers to the consumers of a ledger.

    - At most `concurrency` handlers run at once.
    - Messages of one partition are handled one after the other, in the order of arrival, if one of
      their consumers is `ordered`; a message that is tried again holds those behind it.
    - What is tried again stays where it is, unacknowledged, and takes up no thread.
    - What nobody can read, or nobody is there for, goes into the failed table at once.
    - While the database is out of reach deliveries stay and are tried again; none is blamed.
    - `stop` takes no more and lets handlers finish within the grace; the rest goes back to the
      queue with the connection, in its order.
    - An error that no waiting helps ends it: `failure` has it then, and `on_failure` is called.
    """

    def __init__(
        self,
        database: Database[Any],
        office: Office,
        subscription: Subscription,
        settings: SubscriptionSettings,
        *,
        name: str,
        parse: Callable[[Delivery], Message],
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.tally = Tally()
        self.failure: BaseException | None = None
        self._database = database
        self._office = office
        self._subscription = subscription
        self._settings = settings
        self._parse = parse
        self._on_failure = on_failure
        self._line = _Line(database.clock.monotonic)
        self._numbers = itertools.count()
        self._counting = threading.Lock()
        self._troubles: dict[int, str] = {}
        """By the number of a task that waits in vain, why."""
        self._threads: list[threading.Thread] = []
        self._stopped = False

    @property
    def connected(self) -> bool:
        return self._subscription.connected

    @property
    def trouble(self) -> str | None:
        """Why nothing arrives, or why nothing is handled."""
        return self._subscription.trouble or self.tally.trouble

    @property
    def running(self) -> int:
        """Handlers that are at work."""
        return self._line.running

    @property
    def waiting(self) -> int:
        """Deliveries that wait for a thread, for their time, or for the one before."""
        return self._line.waiting

    def start(self) -> None:
        """Begin, in threads of its own."""
        for i in range(self._settings.concurrency):
            thread = threading.Thread(
                target=self._work, name=f"ledgerstone-{self.name}-{i}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        self._subscription.start(self._deliver)

    def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Take no more, let handlers finish, and let the rest go back with the connection."""
        if self._stopped:
            return
        self._stopped = True
        self._line.close()
        self._subscription.stop()
        self._line.wait_idle(grace_seconds)
        # None is nacked: the broker would put it behind others of its partition.
        for _ in range(self._line.clear()):
            self._count("returned")
        self._subscription.close()
        if not self._line.running:
            for thread in self._threads:
                thread.join(JOIN_SECONDS_MAX)

    def _deliver(self, delivery: Delivery) -> None:
        """One arrival, on the thread of the subscription: read it and put it in line."""
        self._count("received")
        task = self._task(delivery)
        if not self._line.enter(task):
            # It goes back with the connection.
            self._count("returned")

    def _task(self, delivery: Delivery) -> _Task:
        number = next(self._numbers)
        try:
            message = self._parse(delivery)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is kept
            return _Task(number, delivery, raw_of(delivery), failure_of(error))
        consumers = self._office.consumers.of(message.name)
        if not consumers:
            failure = Failure(NO_CONSUMER, f"nobody here consumes {message.name}")
            return _Task(number, delivery, message, failure)
        task = _Task(number, delivery, message, None)
        task.consumers = {consumer.name: consumer for consumer in consumers}
        if any(consumer.ordered for consumer in consumers):
            task.lane = message.partition
        return task

    def _work(self) -> None:
        while (task := self._line.take()) is not None:
            task.in_vain = False
            if task.goes_back:
                self._give_back(task)
                self._over(task)
                self._line.leave(task, again_in=None)
                continue
            try:
                pause = self._done(task)
            except BaseException as error:  # noqa: BLE001 - reported by whoever drives this
                self._line.leave(task, again_in=0.0)
                self._fail(error)
                return
            if not task.in_vain:
                self._over(task)
            if pause is None:
                # Before the one behind it may begin: a broker that gives both back keeps the order.
                task.delivery.ack()
                self._count("acknowledged")
            self._line.leave(task, again_in=pause)

    def _done(self, task: _Task) -> float | None:
        """Have its consumers deal with it: None if all have, otherwise when to try again."""
        if task.failure is not None:
            pause = self._set_aside(task, failed.UNKNOWN, task.failure, attempts=0)
        else:
            pause = max(self._dealt_with(task), default=None)
        if pause is None:
            hit("inbox.committed")
        return pause

    def _dealt_with(self, task: _Task) -> list[float]:
        """Try each consumer that is left; the pauses of those that could not yet."""
        pauses = []
        for consumer in list(task.consumers.values()):
            pause = self._hand(task, consumer)
            if pause is None:
                del task.consumers[consumer.name]
            else:
                pauses.append(pause)
        return pauses

    def _hand(self, task: _Task, consumer: Consumer) -> float | None:
        assert isinstance(task.item, Message)
        settings = self._office.settings
        handled = self._handled(consumer, task.item)
        if handled.failure is None:
            self._count("handled" if handled.result is Result.HANDLED else "duplicates")
            return None
        if handled.result is Result.AGAIN:
            # Another process may have it in work: whoever is free then finds the receipt. In a lane
            # it would come again behind those that it is to go before.
            task.goes_back = handled.failure.code == StoreBusy.code and task.lane is None
            return self._vain(task, handled.failure)
        failures = task.failures.get(consumer.name, 0)
        if handled.result is Result.FAILED and failures < settings.retries_max:
            task.failures[consumer.name] = failures + 1
            self._count("retried")
            pause = pause_seconds(settings, failures)
            attempt = failures + 1
            log_failed(consumer, task.item, handled.failure, attempt=attempt, next_seconds=pause)
            return pause
        return self._set_aside(task, consumer.name, handled.failure, attempts=failures + 1)

    def _handled(self, consumer: Consumer, message: Message) -> Handled:
        try:
            return handle(self._database, self._office, consumer, message)
        except (LeaseLost, Interrupted, HandlerTimeout) as error:
            # Nobody interrupts these threads: it is the handler's own.
            return Handled(Result.FAILED, failure_of(error))

    def _set_aside(
        self, task: _Task, consumer: str, failure: Failure, *, attempts: int
    ) -> float | None:
        try:
            self._database.run(
                lambda tx: failed.put(
                    tx,
                    self._office,
                    task.item,
                    consumer=consumer,
                    failure=failure,
                    attempts=attempts,
                    origin=self.name,
                )
            )
        except LedgerstoneError as error:
            if not error.retryable:
                raise
            return self._vain(task, failure_of(error))
        self._count("failed" if consumer else "malformed")
        return None

    def _vain(self, task: _Task, failure: Failure) -> float:
        """Not the message's doing: how long to wait."""
        task.vain += 1
        task.in_vain = True
        # An outage of the database is logged once, by the store.
        if self.tally.trouble is None and failure.code != StoreUnavailable.code:
            _log.warning("%s: %s: %s", self.name, failure.code, failure.message)
        with self._counting:
            self._troubles[task.number] = f"{failure.code}: {failure.message}"
            self.tally.trouble = self._troubles[task.number]
        return AGAIN.after(task.vain)

    def _over(self, task: _Task) -> None:
        """It waits in vain no more; the trouble that is shown is one that is still there."""
        if not self._troubles:
            return
        with self._counting:
            self._troubles.pop(task.number, None)
            self.tally.trouble = next(reversed(self._troubles.values()), None)

    def _give_back(self, task: _Task) -> None:
        task.delivery.back()
        self._count("returned")

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        # What is there stays, and goes back when this is stopped: now it would only come again.
        self._line.close()
        self._on_failure()

    def _count(self, name: str) -> None:
        with self._counting:
            setattr(self.tally, name, getattr(self.tally, name) + 1)


class _Line:
    """Tasks that wait: for a thread, for their time, or for the one before them in their lane."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.running = 0
        self.waiting = 0
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._ready: deque[_Task] = deque()
        self._later: list[tuple[float, int, _Task]] = []
        self._lanes: dict[str, deque[_Task]] = {}
        """By lane, those behind the one that is at work or waits for its time."""
        self._closed = False
        self._cleared = False

    def enter(self, task: _Task) -> bool:
        """A new one; False if it comes too late."""
        with self._lock:
            if self._cleared:
                return False
            self.waiting += 1
            if task.lane is not None:
                behind = self._lanes.get(task.lane)
                if behind is not None:
                    behind.append(task)
                    return True
                self._lanes[task.lane] = deque()
            self._ready.append(task)
            self._news.notify()
            return True

    def take(self) -> _Task | None:
        """The next one, when there is one; None at the end."""
        with self._lock:
            while not self._closed:
                self._due()
                if self._ready:
                    self.running += 1
                    self.waiting -= 1
                    return self._ready.popleft()
                self._news.wait(self._next_look())
            return None

    def leave(self, task: _Task, *, again_in: float | None) -> None:
        """It is done, or tried again after a pause; then those behind it wait as well."""
        with self._lock:
            self.running -= 1
            if again_in is not None:
                self.waiting += 1
                due = self._monotonic() + again_in
                heapq.heappush(self._later, (due, task.number, task))
                self._news.notify()
            elif task.lane is not None:
                self._pass_on(task.lane)
            if self.running == 0:
                self._idle.notify_all()

    def close(self) -> None:
        """Nothing is taken any more."""
        with self._lock:
            self._closed = True
            self._news.notify_all()

    def wait_idle(self, seconds: float) -> bool:
        """Until nothing is at work, or the time is up."""
        with self._lock:
            return self._idle.wait_for(lambda: self.running == 0, seconds)

    def clear(self) -> int:
        """Forget all that wait; how many those were. None is let in any more."""
        with self._lock:
            self._cleared = True
            self._ready.clear()
            self._later.clear()
            self._lanes.clear()
            cleared, self.waiting = self.waiting, 0
            return cleared

    def _due(self) -> None:
        """Those whose time has come are ready."""
        now = self._monotonic()
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
            self._news.notify()

    def _next_look(self) -> float | None:
        if not self._later:
            return None
        return min(max(self._later[0][0] - self._monotonic(), 0.0), LOOK_SECONDS_MAX)

    def _pass_on(self, lane: str) -> None:
        behind = self._lanes.get(lane)
        if behind:
            self._ready.append(behind.popleft())
            self._news.notify()
        else:
            self._lanes.pop(lane, None)
