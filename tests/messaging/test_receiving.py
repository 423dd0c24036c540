"""The receiver, on every database, behind a broker that is kept in memory."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.schema import DropTable

from ledgerstone import Ledger
from ledgerstone.cancellation import current
from ledgerstone.errors import (
    HandlerTimeout,
    Hopeless,
    Interrupted,
    SchemaMissing,
    StoreBusy,
    TargetDown,
)
from ledgerstone.ids import new_id
from ledgerstone.messaging.brokers.subscription import Delivery
from ledgerstone.messaging.cloudevents import attributes, of_attributes
from ledgerstone.messaging.failed.failed import Failed
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.registry import MessagingRegistry
from ledgerstone.messaging.tables import delivery_crash
from ledgerstone.settings import MessagingSettings, SubscriptionSettings
from ledgerstone.store.transaction import Transaction
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.servers import PrivateMariaDB, PrivatePostgres
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.contract.messaging.failed import found
from tests.contract.messaging.inbox import message_of, new_office, noted, receipts
from tests.harness.child import Child
from tests.harness.ledgers import opened
from tests.harness.own_table import notes_kept
from tests.harness.receiving import Receiving
from tests.harness.threads import aside, signaled

QUICK: dict[str, Any] = {"retry_seconds": 0.01}
"""Settings with pauses that a test can wait for."""
SOURCE = "test"


class Arrival:
    """One delivery out of a queue in memory."""

    content_type = "application/json"
    properties: Mapping[str, str] = {}

    def __init__(self, queue: Queue, number: int, item: Item, *, redelivered: bool) -> None:
        self._queue = queue
        self.number = number
        self.item = item
        self.body, self.headers = item
        self.redelivered = redelivered

    def ack(self) -> None:
        self._queue.at_ack(self.item)
        self._queue.settled(self, again=False)

    def back(self) -> None:
        self._queue.settled(self, again=True)


Item = tuple[bytes, Mapping[str, Any]]


class Queue:
    """A queue in memory: what is given back comes again, where it was before.

    `at_ack` is called for each that is acknowledged, before it is.
    """

    def __init__(self, prefetch: int = 100) -> None:
        self.prefetch = prefetch
        self.at_ack: Callable[[Item], None] = lambda _: None
        self.acknowledged: list[Item] = []
        self.given_back: list[Item] = []
        self._news = threading.Condition()
        self._ready: deque[tuple[int, Item, bool]] = deque()
        self._outstanding: dict[int, Arrival] = {}
        self._count = 0

    def add(self, *messages: Message, redelivered: bool = False) -> None:
        items = [(message.raw, attributes(message, SOURCE)) for message in messages]
        self.add_raw(*items, redelivered=redelivered)

    def add_raw(self, *items: Item, redelivered: bool = False) -> None:
        with self._news:
            for item in items:
                self._count += 1
                self._ready.append((self._count, item, redelivered))
            self._news.notify_all()

    def next(self, stopped: threading.Event) -> Arrival | None:
        with self._news:
            self._news.wait_for(
                lambda: stopped.is_set() or (self._ready and len(self._outstanding) < self.prefetch)
            )
            if stopped.is_set():
                return None
            number, item, redelivered = self._ready.popleft()
            arrival = Arrival(self, number, item, redelivered=redelivered)
            self._outstanding[number] = arrival
            return arrival

    def settled(self, arrival: Arrival, *, again: bool) -> None:
        with self._news:
            if self._outstanding.get(arrival.number) is not arrival:
                return
            del self._outstanding[arrival.number]
            (self.given_back if again else self.acknowledged).append(arrival.item)
            if again:
                self._return([arrival])
            self._news.notify_all()

    def lose(self, stopped: threading.Event | None = None) -> None:
        """The connection is cut: all that is outstanding comes again.

        `stopped` is set at the same moment, as seen by a handler that acknowledges.
        """
        with self._news:
            if stopped is not None:
                stopped.set()
            lost = list(self._outstanding.values())
            self._outstanding.clear()
            self._return(lost)
            self._news.notify_all()

    def wake(self) -> None:
        with self._news:
            self._news.notify_all()

    @property
    def bodies(self) -> list[bytes]:
        """What nobody has been given, in the order of the queue."""
        with self._news:
            return [item[0] for _, item, _ in self._ready]

    @property
    def left(self) -> int:
        with self._news:
            return len(self._ready) + len(self._outstanding)

    def _return(self, arrivals: list[Arrival]) -> None:
        rows = [*self._ready, *((each.number, each.item, True) for each in arrivals)]
        self._ready = deque(sorted(rows, key=lambda row: row[0]))


class MemorySubscription:
    """Receives from a queue in memory, on a thread of its own."""

    trouble: str | None = None

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def connected(self) -> bool:
        return self._thread is not None and not self._stopped.is_set()

    def start(self, deliver: Callable[[Delivery], None]) -> None:
        def receive() -> None:
            while (arrival := self._queue.next(self._stopped)) is not None:
                deliver(arrival)

        self._thread = threading.Thread(target=receive, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._queue.wake()
        if self._thread is not None:
            self._thread.join(WAIT_SECONDS_MAX)

    def close(self) -> None:
        self._queue.lose(self._stopped)
        self.stop()


class Tardy(MemorySubscription):
    """One that delivers what there is at the very end."""

    def start(self, deliver: Callable[[Delivery], None]) -> None:
        self._deliver = deliver

    def close(self) -> None:
        arrival = self._queue.next(threading.Event())
        assert arrival is not None
        self._deliver(arrival)


def parse(delivery: Delivery) -> Message:
    """The message in a delivery, as CloudEvents."""
    return of_attributes(delivery.headers, delivery.body, {})


@contextmanager
def receiving(
    ledger: Ledger,
    registry: MessagingRegistry,
    queue: Queue,
    *,
    concurrency: int = 4,
    **options: Any,
) -> Iterator[Receiving]:
    """A receiver at work; it is stopped at the end."""
    settings = SubscriptionSettings(
        url="amqp://x/", queue="orders", concurrency=concurrency, **options
    )
    subscription = MemorySubscription(queue)
    receiver = Receiving(ledger, registry, subscription, settings, name="orders", parse=parse)
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop()


def drained(queue: Queue) -> None:
    """Wait until the queue has nothing left."""
    until(lambda: queue.left == 0, what="an empty queue")


@pytest.fixture
def registry(ledger: Ledger) -> MessagingRegistry:
    return new_office(ledger, **QUICK)


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_handled_and_acknowledged(
    ledger: Ledger, registry: MessagingRegistry, queue: Queue
) -> None:
    """What arrives is handled by all its consumers, and then acknowledged."""
    registry.consumers.add(
        "order.*", lambda tx, came: noted(tx, f"mail {came.body}"), name="mailer"
    )
    registry.consumers.add("*", lambda tx, came: noted(tx, f"bill {came.body}"), name="biller")
    queue.add(*[message_of(body=b"%d" % i) for i in range(3)])

    with receiving(ledger, registry, queue) as receiver:
        drained(queue)

    assert notes_kept(ledger) == sorted(
        f"{what} {i}" for what in ("bill", "mail") for i in range(3)
    )
    assert len(queue.acknowledged) == 3
    assert (receiver.counters.received, receiver.counters.acknowledged) == (3, 3)
    assert (receiver.counters.handled, receiver.counters.duplicates) == (6, 0)
    assert receiver.failure is None


def test_duplicates(ledger: Ledger, registry: MessagingRegistry, queue: Queue) -> None:
    """What comes again is acknowledged and counted, and handled once."""
    registry.consumers.add("*", lambda tx, _: noted(tx, "sent"), name="mailer")
    came = message_of()
    queue.add(*[came] * 5)

    with receiving(ledger, registry, queue) as receiver:
        drained(queue)

    assert notes_kept(ledger) == ["sent"]
    assert len(queue.acknowledged) == 5
    assert (receiver.counters.handled, receiver.counters.duplicates) == (1, 4)


def test_tried_again(ledger: Ledger, registry: MessagingRegistry, queue: Queue) -> None:
    """A handler that fails is tried again in place, and the rest goes on meanwhile."""
    tries: Counter[str] = Counter()

    def send(tx: Transaction, came: Message) -> None:
        tries[came.body_as(str)] += 1
        noted(tx, came.body_as(str))
        if came.body == "bad" and tries["bad"] < 3:
            raise LookupError

    registry.consumers.add("*", send, name="mailer")
    queue.add(message_of(body=b'"bad"'), message_of(body=b'"good"'))

    with receiving(ledger, registry, queue, concurrency=1) as receiver:
        drained(queue)

    assert tries == {"bad": 3, "good": 1}
    assert notes_kept(ledger) == ["bad", "good"]
    assert receiver.counters.retried == 2
    assert queue.given_back == []
    assert found(ledger, registry) == []


def test_given_up(ledger: Ledger, registry: MessagingRegistry, queue: Queue) -> None:
    """After three retries it is in the failed table for that consumer, and acknowledged."""
    tries: list[str] = []

    def send(_: Any, came: Message) -> None:
        tries.append(came.id)
        raise LookupError("no such order")

    registry.consumers.add("*", send, name="mailer")
    registry.consumers.add("*", lambda tx, _: noted(tx, "billed"), name="biller")
    came = message_of(partition="ann")
    queue.add(came)

    with receiving(ledger, registry, queue) as receiver:
        drained(queue)

    assert len(tries) == 4
    (kept,) = found(ledger, registry)
    assert (kept.message_id, kept.consumer, kept.origin) == (came.id, "mailer", "orders")
    assert (kept.code, kept.reason, kept.attempts) == ("LookupError", "no such order", 4)
    assert notes_kept(ledger) == ["billed"]
    assert [receipt.consumer for receipt in receipts(ledger, registry)] == ["biller"]
    assert (receiver.counters.failed, len(queue.acknowledged)) == (1, 1)


@pytest.mark.parametrize(
    ("error", "tries"), [(Hopeless("never"), 1), (Interrupted(), 4)], ids=["hopeless", "own"]
)
def test_how_a_handler_fails(
    ledger: Ledger, registry: MessagingRegistry, queue: Queue, error: Exception, tries: int
) -> None:
    """Hopeless is not tried again; what a handler raises of ours is a failure like any other."""
    tried: list[str] = []

    def send(_: Any, came: Message) -> None:
        tried.append(came.id)
        raise error

    registry.consumers.add("*", send, name="mailer")
    queue.add(message_of())

    with receiving(ledger, registry, queue) as receiver:
        drained(queue)

    assert len(tried) == tries
    assert len(found(ledger, registry)) == 1
    assert receiver.failure is None


def test_a_target_that_is_down(ledger: Ledger, registry: MessagingRegistry, queue: Queue) -> None:
    """While a target is down a message stays and burns no attempt."""
    down = threading.Event()
    down.set()
    tried = threading.Event()

    def send(tx: Transaction, _: Message) -> None:
        tried.set()
        if down.is_set():
            raise TargetDown("mail")
        noted(tx, "sent")

    registry.consumers.add("*", send, name="mailer")
    queue.add(message_of())

    with receiving(ledger, registry, queue) as receiver:
        signaled(tried)
        trouble = until(lambda: receiver.trouble, what="trouble")
        down.clear()
        drained(queue)

    assert trouble is not None
    assert "mail" in trouble
    assert receiver.trouble is None
    assert notes_kept(ledger) == ["sent"]
    assert found(ledger, registry) == []


@pytest.mark.parametrize("settings", [{"retry_seconds": 3600.0}, {"retries_max": 0}])
def test_a_trouble_that_is_over(ledger: Ledger, queue: Queue, settings: dict[str, Any]) -> None:
    """A trouble is shown while something waits for its end, whatever becomes of it afterwards."""
    registry = new_office(ledger, **settings)
    tries: list[int] = []

    def send(_: Transaction, __: Message) -> None:
        tries.append(1)
        raise TargetDown("mail") if len(tries) == 1 else LookupError("no such order")

    registry.consumers.add("*", send, name="mailer")
    queue.add(message_of())

    with receiving(ledger, registry, queue) as receiver:
        until(lambda: len(tries) == 2, what="the second try")
        until(lambda: receiver.trouble is None, what="the end of the trouble")


@pytest.mark.parametrize(
    "item",
    [
        (b"{oops", {"specversion": "1.0", "type": "order.placed"}),
        (b"{}", {"specversion": "1.0", "type": "order.placed", "id": "7"}),
        (b"{}", {"specversion": "1.0", "id": new_id(), "type": "No\nName"}),
        (b"\xff\x00\xfe", {}),
    ],
    ids=["no id", "bad id", "bad name", "no message"],
)
def test_unreadable(ledger: Ledger, registry: MessagingRegistry, queue: Queue, item: Item) -> None:
    """What cannot be read is in the failed table at once, byte by byte, and acknowledged."""
    registry.consumers.add("*", lambda tx, _: noted(tx, "sent"), name="mailer")
    queue.add_raw(item)

    with receiving(ledger, registry, queue) as receiver:
        drained(queue)

    (kept,) = found(ledger, registry)
    with ledger.reading() as tx:
        assert Failed(tx, registry).get(kept.id).raw == item[0]
    assert (kept.message, kept.consumer, kept.origin) == (None, "", "orders")
    assert (receiver.counters.malformed, len(queue.acknowledged)) == (1, 1)
    assert notes_kept(ledger) == []


def test_nobody_is_there_for_it(ledger: Ledger, registry: MessagingRegistry, queue: Queue) -> None:
    """A message that nobody consumes is in the failed table at once, whole."""
    registry.consumers.add("order.*", lambda *_: None, name="mailer")
    came = message_of("stock.taken", partition="ann")
    queue.add(came)

    with receiving(ledger, registry, queue):
        drained(queue)

    (kept,) = found(ledger, registry)
    assert (kept.message_id, kept.code, kept.consumer) == (came.id, "no_consumer", "")
    assert (kept.name, kept.partition) == ("stock.taken", "ann")
    assert kept.message is not None


def test_order_within_a_partition(
    ledger: Ledger, registry: MessagingRegistry, queue: Queue
) -> None:
    """An ordered consumer sees each partition in the order of arrival, also over retries."""
    seen: dict[str, list[int]] = {}
    failed_once: set[int] = set()

    def send(_: Any, came: Message) -> None:
        number = came.body_as(int)
        if number % 7 == 0 and number not in failed_once:
            failed_once.add(number)
            raise LookupError
        seen.setdefault(came.partition, []).append(number)

    registry.consumers.add("*", send, name="mailer", ordered=True)
    queue.add(*[message_of(partition=f"p{i % 5}", body=b"%d" % i) for i in range(60)])

    with receiving(ledger, registry, queue, concurrency=8):
        drained(queue)
        # Those that come after all was quiet, too.
        queue.add(*[message_of(partition=f"p{i % 5}", body=b"%d" % i) for i in range(60, 65)])
        drained(queue)

    assert seen == {f"p{n}": list(range(n, 65, 5)) for n in range(5)}
    assert failed_once == set(range(0, 65, 7))


def test_a_stuck_partition_holds_no_other(
    ledger: Ledger, registry: MessagingRegistry, queue: Queue
) -> None:
    """Behind a message that is at work its partition waits; others, and free ones, go on."""
    go_on = threading.Event()
    seen: list[str] = []

    def send(_: Any, came: Message) -> None:
        if came.body == "first":
            signaled(go_on)
        seen.append(came.body_as(str))

    # A handler that waits must not hold up the others' transactions.
    writes_beside = not ledger.database.dialect.one_writer
    registry.consumers.add("order.*", send, name="mailer", ordered=True)
    registry.consumers.add("stock.*", send, name="counter")
    queue.add(
        message_of(partition="ann", body=b'"first"'),
        message_of(partition="ann", body=b'"second"'),
        message_of(partition="bob", body=b'"other"'),
        message_of("stock.counted", partition="ann", body=b'"free"'),
    )

    with receiving(ledger, registry, queue) as receiver:
        if writes_beside:
            until(lambda: sorted(seen) == ["free", "other"], what="the other partition")
            # Two threads are idle, and the second message is not theirs to take.
            until(lambda: receiver.running == 1, what="one that runs")
        until(lambda: receiver.counters.received == 4, what="four that arrived")
        held = receiver.waiting
        go_on.set()
        drained(queue)

    assert held == 1 if writes_beside else held >= 1
    assert seen.index("first") < seen.index("second")
    assert sorted(seen) == ["first", "free", "other", "second"]


def test_one_ordered_consumer_is_enough(
    ledger: Ledger, registry: MessagingRegistry, queue: Queue
) -> None:
    """A partition keeps its order if any of its consumers asks for it, whatever the others do."""
    seen: list[tuple[str, str]] = []
    failing = [True]

    def mail(_: Any, came: Message) -> None:
        seen.append(("mailer", came.body_as(str)))

    def bill(_: Any, came: Message) -> None:
        if failing:
            failing.clear()
            raise LookupError
        seen.append(("biller", came.body_as(str)))

    registry.consumers.add("*", mail, name="mailer")
    registry.consumers.add("*", bill, name="biller", ordered=True)
    queue.add(*[message_of(partition="ann", body=b'"%d"' % i) for i in range(3)])

    with receiving(ledger, registry, queue, concurrency=1):
        drained(queue)

    assert [body for name, body in seen if name == "biller"] == ["0", "1", "2"]
    assert [body for name, body in seen if name == "mailer"] == ["0", "1", "2"]


def test_who_has_dealt_with_it_is_not_asked_again(
    ledger: Ledger, registry: MessagingRegistry, queue: Queue
) -> None:
    """While one consumer is tried again, those that handled it or gave it up are left alone.

    Each has tries of its own.
    """
    asked: Counter[str] = Counter()

    def gives_up(_: Any, __: Message) -> None:
        asked["gives up"] += 1
        raise Hopeless("never")

    def fails_twice(name: str) -> Any:
        def handle(_: Any, __: Message) -> None:
            asked[name] += 1
            if asked[name] < 3:
                raise LookupError

        return handle

    registry.consumers.add("*", lambda *_: asked.update(["handles"]), name="handles")
    registry.consumers.add("*", gives_up, name="gives up")
    for name in ("fails twice", "so does this"):
        registry.consumers.add("*", fails_twice(name), name=name)
    queue.add(message_of())

    with receiving(ledger, registry, queue) as receiver:
        drained(queue)

    assert asked == {"handles": 1, "gives up": 1, "fails twice": 3, "so does this": 3}
    assert [kept.consumer for kept in found(ledger, registry)] == ["gives up"]
    assert (receiver.counters.handled, receiver.counters.duplicates) == (3, 0)
    assert (receiver.counters.failed, receiver.counters.retried) == (1, 4)


def test_acknowledged_before_the_next(
    ledger: Ledger, registry: MessagingRegistry, queue: Queue
) -> None:
    """The broker knows that a message is done before the next one of its partition may begin."""
    at_ack: list[tuple[int, int]] = []
    go_on = threading.Event()
    registry.consumers.add("*", lambda *_: signaled(go_on), name="mailer", ordered=True)
    queue.add(*[message_of(partition="ann", body=b"%d" % i) for i in range(2)])

    with receiving(ledger, registry, queue, concurrency=2) as receiver:
        queue.at_ack = lambda _: at_ack.append((receiver.running, receiver.waiting))
        until(lambda: receiver.waiting == 1, what="one that waits")
        go_on.set()
        drained(queue)

    assert at_ack == [(1, 1), (1, 0)]


@pytest.mark.parametrize("ordered", [False, True], ids=["free", "ordered"])
def test_a_busy_store(
    ledger: Ledger, registry: MessagingRegistry, queue: Queue, ordered: bool
) -> None:
    """What the store is too busy for goes back to the broker, unless order would suffer by it."""
    seen: list[str] = []
    busy = [True] * ledger.settings.store.transaction_tries_max

    def send(_: Any, came: Message) -> None:
        if came.body == "first" and busy:
            busy.pop()
            raise StoreBusy("locked")
        seen.append(came.body_as(str))

    registry.consumers.add("*", send, name="mailer", ordered=ordered)
    queue.add(*[message_of(partition="ann", body=b'"%s"' % word) for word in (b"first", b"second")])

    with receiving(ledger, registry, queue, concurrency=1) as receiver:
        drained(queue)

    assert [item[0] for item in queue.given_back] == ([] if ordered else [b'"first"'])
    assert seen == (["first", "second"] if ordered else ["second", "first"])
    assert (receiver.counters.retried, receiver.counters.failed) == (0, 0)


def test_free_unless_asked(ledger: Ledger, registry: MessagingRegistry, queue: Queue) -> None:
    """Without an ordered consumer those behind a failing message do not wait for it."""
    seen: list[str] = []

    def send(_: Any, came: Message) -> None:
        if came.body == "bad" and "good" not in seen:
            raise LookupError
        seen.append(came.body_as(str))

    registry.consumers.add("*", send, name="mailer")
    queue.add(
        message_of(partition="ann", body=b'"bad"'), message_of(partition="ann", body=b'"good"')
    )

    with receiving(ledger, registry, queue, concurrency=1):
        drained(queue)

    assert seen == ["good", "bad"]


def test_connection_lost(ledger: Ledger, registry: MessagingRegistry, queue: Queue) -> None:
    """What comes again because the connection was lost takes effect once."""
    begun, go_on = threading.Event(), threading.Event()

    def send(tx: Transaction, came: Message) -> None:
        begun.set()
        signaled(go_on)
        noted(tx, came.body_as(str))

    registry.consumers.add("*", send, name="mailer", ordered=True)
    queue.add(*[message_of(body=b'"%d"' % i) for i in range(5)])

    with receiving(ledger, registry, queue) as receiver:
        signaled(begun)
        queue.lose()
        go_on.set()
        drained(queue)

    assert notes_kept(ledger) == ["0", "1", "2", "3", "4"]
    assert receiver.counters.handled == 5
    assert len(queue.acknowledged) == 5


def test_stop(ledger: Ledger, queue: Queue) -> None:
    """Handlers that run finish and are acknowledged; the rest goes back with the connection.

    Whatever it waited for: the one before it, a free thread, or its time. None is nacked by itself:
    a broker puts such a message behind others.
    """
    begun, go_on = threading.Event(), threading.Event()

    def send(tx: Transaction, came: Message) -> None:
        if came.body == "later":
            raise LookupError
        begun.set()
        signaled(go_on)
        noted(tx, came.body_as(str))

    slow = new_office(ledger, retry_seconds=86_400)
    slow.consumers.add("*", send, name="mailer", ordered=True)
    queue.add(
        message_of(partition="cid", body=b'"later"'),
        message_of(partition="ann", body=b'"runs"'),
        message_of(partition="ann", body=b'"behind"'),
        message_of(partition="bob", body=b'"ready"'),
        message_of(partition="ann", body=b'"last"'),
    )

    with receiving(ledger, slow, queue, concurrency=1) as receiver:
        signaled(begun)
        until(lambda: receiver.waiting == 4, what="four that wait")
        with aside(receiver.stop):
            until(lambda: not receiver.connected, what="the stop")
            go_on.set()

    assert notes_kept(ledger) == ["runs"]
    assert [item[0] for item in queue.acknowledged] == [b'"runs"']
    assert queue.given_back == []
    assert receiver.counters.returned == 4
    assert queue.bodies == [b'"later"', b'"behind"', b'"ready"', b'"last"']


def test_what_arrives_after_the_end(
    ledger: Ledger, registry: MessagingRegistry, queue: Queue
) -> None:
    """What is delivered while the receiver ends stays the broker's, and waits for nobody there."""
    registry.consumers.add("*", lambda *_: None, name="mailer")
    queue.add(message_of())
    late = Tardy(queue)
    settings = SubscriptionSettings(url="amqp://x/", queue="orders", concurrency=1)
    receiver = Receiving(ledger, registry, late, settings, name="orders", parse=parse)
    receiver.start()

    receiver.stop()

    assert (receiver.counters.received, receiver.counters.returned, receiver.waiting) == (1, 1, 0)
    assert (queue.given_back, queue.acknowledged, queue.left) == ([], [], 1)


def test_pauses(ledger: Ledger, clock: ManualClock, queue: Queue) -> None:
    """What failed waits longer each time, and so does what something was out of reach for."""
    tries: Counter[str] = Counter()
    registry = new_office(ledger, retry_seconds=60.0, retry_factor=2.0)

    def send(_: Any, came: Message) -> None:
        tries[came.body_as(str)] += 1
        if came.body == "fails":
            raise LookupError
        if came.body == "down":
            raise TargetDown("mail")

    def looked() -> tuple[int, int]:
        """Tries of both, when the only thread has come past everything that was due."""
        for _ in range(2):
            queue.add(message_of(body=b'"probe"'))
            until(lambda: len(queue.acknowledged) == tries["probe"] and queue.left == 2)
        return tries["fails"], tries["down"]

    registry.consumers.add("*", send, name="mailer")
    queue.add(message_of(body=b'"fails"'), message_of(body=b'"down"'))

    with receiving(ledger, registry, queue, concurrency=1):
        seen = [looked()]
        # Pauses after something was out of reach are up to a fifth shorter, by chance.
        for seconds in (0.39, 0.11, 0.28, 0.72, 58.49, 0.02, 119.9, 0.2):
            clock.advance(seconds)
            seen.append(looked())

    fails, down = zip(*seen, strict=True)
    assert fails == (1, 1, 1, 1, 1, 1, 2, 2, 3)
    assert down[:5] == (1, 1, 2, 2, 3)


@pytest.mark.slow
def test_the_grace_is_over(ledger: Ledger, registry: MessagingRegistry, queue: Queue) -> None:
    """A handler that takes too long is told to stop; its delivery goes back, and is handled."""
    begun, go_on = threading.Event(), threading.Event()

    def send(tx: Transaction, _: Message) -> None:
        begun.set()
        signaled(go_on)
        noted(tx, "sent")

    registry.consumers.add("*", send, name="mailer")
    queue.add(message_of())

    with receiving(ledger, registry, queue) as first:
        signaled(begun)
        first.stop(grace_seconds=0.01)
        left = queue.left
        go_on.set()
        until(lambda: not first.pump.attempts, what="the end of the handler")
    with receiving(ledger, registry, queue) as second:
        drained(queue)

    assert left == 1
    assert notes_kept(ledger) == ["sent"]
    assert (first.counters.handled, second.counters.handled) == (0, 1)


def test_a_handler_that_takes_too_long(ledger: Ledger, queue: Queue) -> None:
    """One that runs past its limit has failed, is tried again, and is given up in the end."""
    registry = new_office(ledger, **QUICK, retries_max=1)
    tries: list[str] = []

    def send(tx: Transaction, message: Message) -> None:
        noted(tx, "begun")
        tries.append(message.id)
        until(lambda: current().reason, what="the end of the time")

    registry.consumers.add("*", send, name="mailer")
    came = message_of()
    queue.add(came)

    with receiving(ledger, registry, queue, timeout_seconds=0.2) as receiver:
        drained(queue)

    (kept,) = found(ledger, registry)
    # On a busy machine the time may be over before the handler begins.
    assert set(tries) <= {came.id}
    assert (kept.code, kept.attempts) == (HandlerTimeout.code, 2)
    assert (receiver.counters.retried, receiver.counters.failed) == (1, 1)
    assert notes_kept(ledger) == []


def test_the_last_chance_is_taken_alone(
    ledger: Ledger, registry: MessagingRegistry, queue: Queue
) -> None:
    """Of messages for which one more crash is the end, one at a time runs in a process."""
    at_work: list[str] = []
    most: list[int] = []
    others = threading.Event()

    def send(_: Any, came: Message) -> None:
        if came.body == "free":
            others.set()
            return
        at_work.append(came.id)
        most.append(len(at_work))
        if not ledger.database.dialect.one_writer:
            # Where there is one, no other handler could run meanwhile.
            signaled(others)
        at_work.remove(came.id)

    registry.consumers.add("*", send, name="mailer")
    suspects = [message_of(body=b'"suspect"') for _ in range(3)]
    with ledger.transaction() as tx:
        for each in suspects:
            row = {"message_id": each.id, "consumer": "mailer", "begun": 2, "begun_at_ms": 0}
            tx.execute(insert(delivery_crash).values(row))
    queue.add(*suspects, redelivered=True)

    with receiving(ledger, registry, queue):
        until(lambda: most, what="the first of them")
        queue.add(message_of(body=b'"free"'))
        drained(queue)

    assert most == [1, 1, 1]
    assert found(ledger, registry) == []


def test_a_handler_that_was_stopped_is_no_crash(ledger: Ledger, queue: Queue) -> None:
    """One that ran past its limit has not killed its process."""
    registry = new_office(ledger, **QUICK, retries_max=0)
    registry.consumers.add(
        "*", lambda *_: until(lambda: current().reason, what="the end of the time"), name="mailer"
    )
    queue.add(message_of(), redelivered=True)

    with receiving(ledger, registry, queue, timeout_seconds=0.05):
        drained(queue)

    assert [kept.code for kept in found(ledger, registry)] == [HandlerTimeout.code]
    with ledger.reading() as tx:
        assert tx.execute(select(delivery_crash)).all() == []


def test_what_no_waiting_helps(ledger: Ledger, registry: MessagingRegistry, queue: Queue) -> None:
    """An error that nobody is to blame for ends the receiver; its deliveries go back."""
    registry.consumers.add("*", lambda tx, _: noted(tx, "sent"), name="mailer")
    came = message_of()
    queue.add(came)
    with receiving(ledger, registry, queue):
        drained(queue)
    with ledger.transaction() as tx:
        tx.execute(DropTable(registry.shared.receipt))
    queue.add(*[message_of() for _ in range(3)])

    with receiving(ledger, registry, queue) as receiver:
        until(lambda: receiver.failure, what="the end of the worker")

    assert isinstance(receiver.failure, SchemaMissing)
    assert queue.left == 3
    assert len(queue.acknowledged) == 1
    assert notes_kept(ledger) == ["sent"]


def test_two_receivers(ledger: Ledger, home: Home, queue: Queue) -> None:
    """Two that receive from one queue have every message take effect once."""
    queue.prefetch = 8
    messages = [message_of(body=b'"%02d"' % i) for i in range(30)]
    offices = []
    with opened(home.url) as other:
        for each in (ledger, other):
            registry = new_office(each, **QUICK)
            registry.consumers.add(
                "*", lambda tx, came: noted(tx, came.body_as(str)), name="mailer"
            )
            offices.append(registry)
        queue.add(*messages, *messages)

        with (
            receiving(ledger, offices[0], queue) as first,
            receiving(other, offices[1], queue) as second,
        ):
            drained(queue)

    assert notes_kept(ledger) == [f"{i:02d}" for i in range(30)]
    assert first.counters.handled + second.counters.handled == 30
    assert first.counters.duplicates + second.counters.duplicates == 30
    assert found(ledger, offices[0]) == []


@pytest.mark.slow
def test_a_duplicate_in_work_elsewhere(ledger: Ledger, home: Home, queue: Queue) -> None:
    """A duplicate of what another has in work for long goes back, and is recognised later."""
    begun, go_on = threading.Event(), threading.Event()

    def send(tx: Transaction, _: Message) -> None:
        begun.set()
        signaled(go_on)
        noted(tx, "sent")

    slow = new_office(ledger, **QUICK)
    slow.consumers.add("*", send, name="mailer")
    came = message_of()
    queue.add(came)
    store = {"lock_timeout_seconds": 1, "busy_timeout_seconds": 0.2}
    with opened(home.url, store=store) as other, receiving(ledger, slow, queue):
        signaled(begun)
        hasty = new_office_beside(**QUICK)
        hasty.consumers.add("*", lambda tx, _: noted(tx, "again"), name="mailer")
        beside = Queue()
        beside.add(came)

        with receiving(other, hasty, beside) as second:
            until(lambda: beside.given_back, what="one that was given back")
            go_on.set()
            drained(beside)
            drained(queue)

    assert notes_kept(ledger) == ["sent"]
    assert second.counters.duplicates == 1
    assert second.counters.returned >= 1
    assert second.counters.handled == 0


def new_office_beside(**settings: Any) -> MessagingRegistry:
    """A registry on tables that are there already."""
    return MessagingRegistry(MessagingSettings(**settings))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(PrivatePostgres, id="postgres", marks=pytest.mark.postgres),
        pytest.param(PrivateMariaDB, id="mysql", marks=pytest.mark.mysql),
    ],
)
def test_the_database_goes_away(kind: Callable[[], Any], queue: Queue) -> None:
    """While the database is gone deliveries stay; when it is back each takes effect once."""
    with kind() as server, opened(server.create_database("ledger")) as ledger:
        registry = new_office(ledger, **QUICK)
        registry.consumers.add("*", lambda tx, came: noted(tx, came.body_as(str)), name="mailer")
        queue.add(message_of(body=b'"before"'))

        with receiving(ledger, registry, queue) as receiver:
            drained(queue)
            server.kill()
            queue.add(*[message_of(body=b'"%d"' % i) for i in range(5)])
            queue.add_raw((b"{oops", {}))
            until(lambda: receiver.trouble, what="trouble")
            left = queue.left
            server.restart()
            drained(queue)

        assert left == 6
        assert notes_kept(ledger) == ["0", "1", "2", "3", "4", "before"]
        assert [kept.raw for kept in found(ledger, registry)] == [b""]
        assert receiver.counters.failed == 0
        assert receiver.counters.malformed == 1


CRASH = """
from datetime import UTC, datetime
from ledgerstone import Ledger, failpoints
from ledgerstone.messaging.inbox import inbox
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.registry import MessagingRegistry
from ledgerstone.settings import MessagingSettings, Settings

url, message_id, failpoint = sys.argv[1:]
ledger = Ledger(url, settings=Settings.load(url=url, environ={}))
registry = MessagingRegistry(MessagingSettings())
note = "INSERT INTO note (name, count) VALUES ('sent', 0)"
write = lambda tx, _: tx.connection.exec_driver_sql(note)
mailer = registry.consumers.add("*", write, name="mailer")
came = Message(id=message_id, name="order.placed", raw=b"{}", created_at=datetime.now(UTC))
ledger.database.identity
ready()
failpoints.arm(failpoint)
inbox.handle(ledger.database, registry, mailer, came)
"""


@pytest.mark.parametrize("where", ["transaction.before_commit", "transaction.after_commit"])
def test_killed_around_the_commit(ledger: Ledger, home: Home, where: str) -> None:
    """Killed with -9 before or after the commit, the message that comes again takes effect once."""
    registry = new_office(ledger, **QUICK)
    registry.consumers.add("*", lambda tx, _: noted(tx, "sent"), name="mailer")
    came = message_of()
    with Child(CRASH, home.url, came.id, f"{where}=kill") as child:
        child.go()
        code, _ = child.ended()
    kept = notes_kept(ledger)
    queue = Queue()
    queue.add(came)

    with receiving(ledger, registry, queue) as receiver:
        drained(queue)

    assert code == -9
    assert kept == (["sent"] if where == "transaction.after_commit" else [])
    assert receiver.counters.duplicates == len(kept)
    assert notes_kept(ledger) == ["sent"]
    assert len(receipts(ledger, registry)) == 1
