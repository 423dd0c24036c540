"""The contract of failed messages: kept whole, found by cause, retried once, all on record."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from sqlalchemy import Row, select

from ledgerstone.engine.source import Failure
from ledgerstone.errors import BadInput, NotAllowedNow, NotFound
from ledgerstone.ids import new_id
from ledgerstone.ledger import Ledger
from ledgerstone.messaging.brokers.transport import DELIVERED
from ledgerstone.messaging.brokers.transports.local import LocalTransport
from ledgerstone.messaging.failed import failed
from ledgerstone.messaging.failed.failed import Failed
from ledgerstone.messaging.failed.rows import FailedMessage, Raw
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.outbox.publishing import NewMessage, publish
from ledgerstone.messaging.outbox.routing import RETRY
from ledgerstone.messaging.record import of_message
from ledgerstone.messaging.registry import MessagingRegistry
from ledgerstone.messaging.states import RecordKind
from ledgerstone.messaging.symfony import envelope
from ledgerstone.messaging.tables import (
    event,
)
from ledgerstone.settings import DestinationSettings
from ledgerstone.store.sql import pages
from ledgerstone.store.sql.timestamps import moment_of
from ledgerstone.testing.clock import ManualClock
from tests.contract.messaging.inbox import new_office
from tests.harness.threads import together

NAME = "order.placed"
SHOP = "shop"
BODY = b'{"order":7,"to":"\xc3\xa4nn"}'
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LOST = Failure("LookupError", "no such order", "Traceback …\nLookupError: no such order")


def message_of(name: str = NAME, *, partition: str = "ann", raw: bytes = BODY) -> Message:
    """A message with everything."""
    return Message(
        id=new_id(),
        name=name,
        raw=raw,
        headers={"tenant": "acme", "traceparent": TRACE},
        partition=partition,
        key="order 7",
        created_at=datetime(2026, 2, 3, 4, 5, 6, 789000, UTC),
    )


def put(
    ledger: Ledger,
    registry: MessagingRegistry,
    item: Message | Raw | None = None,
    *,
    consumer: str | None = "mailer",
    failure: Failure = LOST,
    origin: str = "local",
) -> Message | Raw:
    """Something that failed."""
    item = item or message_of()
    ledger.run(
        lambda tx: failed.put(
            tx, registry, item, consumer=consumer, failure=failure, attempts=4, origin=origin
        )
    )
    return item


def found(ledger: Ledger, registry: MessagingRegistry, **filters: Any) -> list[FailedMessage]:
    """Those that are there, newest first."""
    with ledger.reading() as tx:
        return Failed(tx, registry).find(limit=1000, **filters).rows


def one(ledger: Ledger, registry: MessagingRegistry) -> FailedMessage:
    """The only one, with its body."""
    (listed,) = found(ledger, registry)
    with ledger.reading() as tx:
        return Failed(tx, registry).get(listed.id)


def waiting(ledger: Ledger, registry: MessagingRegistry) -> list[Row[Any]]:
    """The rows of the outbox, in the order of their places."""
    table = registry.shared.outbox
    with ledger.reading() as tx:
        return list(tx.execute(select(table).order_by(table.c.id)))


def message_in(row: Row[Any]) -> Message:
    """The message of a row of the outbox."""
    return envelope.message_of(
        place=row.id,
        body=row.body,
        headers=row.headers,
        partition=row.partition_key,
        created_at=moment_of(row.created_at),
        origin="outbox",
    )


class FailedContract:
    """Kept, found, retried and removed. Fixture: `ledger`."""

    @pytest.fixture
    def registry(self, ledger: Ledger) -> MessagingRegistry:
        return new_office(ledger, destinations={SHOP: DestinationSettings(url="amqp://shop/")})

    def test_kept_whole(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """A message that failed is kept with everything, and with what went wrong."""
        came = put(ledger, registry)

        kept = one(ledger, registry)

        assert kept.message == came
        assert (kept.consumer, kept.origin, kept.attempts) == ("mailer", "local", 4)
        assert (kept.code, kept.reason, kept.traceback) == (
            LOST.code,
            LOST.message,
            LOST.traceback,
        )
        assert kept.raw == BODY

    def test_other_queues_are_left_alone(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """What lies in the same table for another queue is neither shown nor removed."""
        put(ledger, registry)
        table = registry.shared.failed
        with ledger.transaction() as tx:
            tx.execute(table.update().values(queue_name="async"))
            (other,) = tx.execute(select(table.c.id)).scalars()

        with ledger.transaction() as tx:
            rooms = Failed(tx, registry)
            assert rooms.find().rows == []
            assert rooms.remove_all().ids == []
            for act in (rooms.get, rooms.retry, rooms.remove):
                with pytest.raises(NotFound):
                    act(other)

    @pytest.mark.parametrize("raw", [b"\xff\xfe\x00", b"a\x00b"], ids=["no text", "nul"])
    def test_no_text(self, ledger: Ledger, registry: MessagingRegistry, raw: bytes) -> None:
        """A body that is no text is kept byte by byte, and cannot go through the outbox."""
        put(ledger, registry, message_of(raw=raw))

        kept = one(ledger, registry)

        assert kept.raw == raw
        with ledger.transaction() as tx, pytest.raises(NotAllowedNow, match="not text"):
            Failed(tx, registry).retry(kept.id)

    def test_unreadable(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """What could not be read is kept with all that came with it; it can only be removed."""
        deep: dict[str, Any] = {}
        for _ in range(100):
            deep = {"deep": deep}
        headers = {
            "x-death": [{"count": 3, "at": datetime(2026, 1, 1, tzinfo=UTC)}],
            "binary": b"\xff",
            "large": 2**70,
            "nul\0": "a\0b",
            "half": "\ud800",
            "deep": deep,
        }
        raw = Raw(body=b"{oops\xff", content_type=None, headers=headers, properties={"type": "a.b"})
        failure = Failure("bad_input", "no JSON")
        put(ledger, registry, raw, consumer="", origin="orders", failure=failure)

        kept = one(ledger, registry)

        assert (kept.raw, kept.message, kept.message_id) == (b"{oops\xff", None, None)
        assert (kept.name, kept.consumer, kept.origin) == ("a.b", "", "orders")
        assert (kept.code, kept.reason) == ("bad_input", "no JSON")
        assert '"count":3' in kept.headers["X-Ledgerstone-Raw"]
        with ledger.transaction() as tx, pytest.raises(NotAllowedNow, match="not be read"):
            Failed(tx, registry).retry(kept.id)
        ledger.run(lambda tx: Failed(tx, registry).remove(kept.id))
        assert found(ledger, registry) == []

    def test_undone(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """What is put there in a transaction that is undone was never there."""
        with pytest.raises(LookupError), ledger.transaction() as tx:
            failed.put(
                tx, registry, message_of(), consumer="a", failure=LOST, attempts=1, origin="local"
            )
            raise LookupError

        assert found(ledger, registry) == []

    def test_filters(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """Those that failed are found by consumer, name, code and origin, newest first."""
        put(ledger, registry, consumer="mailer")
        put(ledger, registry, message_of("order.paid"), consumer="biller")
        put(ledger, registry, consumer=None, origin=SHOP, failure=Failure("unroutable", "nobody"))

        def consumers(**filters: Any) -> list[str | None]:
            return [each.consumer for each in found(ledger, registry, **filters)]

        assert consumers() == [None, "biller", "mailer"]
        assert consumers(consumer="mailer") == ["mailer"]
        assert consumers(name="order.paid") == ["biller"]
        assert consumers(code=LOST.code) == ["biller", "mailer"]
        assert consumers(origin=SHOP) == [None]
        assert consumers(consumer="mailer", name="order.paid") == []

    def test_an_unknown_filter(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """A filter that there is not is refused, and does not mean all."""
        put(ledger, registry)

        with ledger.transaction() as tx, pytest.raises(BadInput, match="kind"):
            Failed(tx, registry).remove_all(kind="mailer")  # type: ignore[call-arg]

    def test_pages(
        self, ledger: Ledger, registry: MessagingRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Pages of a filtered list lead through all of it, each row once."""
        for i in range(20):
            put(ledger, registry, consumer="mailer" if i % 7 == 0 or i in {1, 2} else "biller")
        expected = [each.id for each in found(ledger, registry) if each.consumer == "mailer"]
        monkeypatch.setattr(pages, "STEP_ROWS", 3)
        monkeypatch.setattr(pages, "STEPS_MAX", 2)

        seen = []
        cursor = None
        with ledger.reading() as tx:
            while True:
                page = Failed(tx, registry).find(consumer="mailer", limit=2, cursor=cursor)
                seen.append([each.id for each in page.rows])
                cursor = page.next
                if cursor is None:
                    break

        ids = [each for page in seen for each in page]
        assert ids == expected
        assert len(ids) == 5
        assert max(map(len, seen)) <= 2

    def test_groups(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """They are told by cause, the most frequent first; if not all were counted, that is too."""
        put(ledger, registry, consumer="biller")
        for i in range(3):
            put(ledger, registry, failure=Failure("LookupError", f"no order {i}"))

        with ledger.reading() as tx:
            told = Failed(tx, registry).groups()
            (one_consumer,) = Failed(tx, registry).groups(consumer="biller").groups
            some = Failed(tx, registry).groups(counted_max=3)

        assert (one_consumer.consumer, one_consumer.count) == ("biller", 1)
        assert ([group.count for group in some.groups], some.counted_all) == ([3], False)
        assert told.counted_all
        counts = [(group.consumer, group.count) for group in told.groups]
        assert counts == [("mailer", 3), ("biller", 1)]
        most = told.groups[0]
        assert (most.origin, most.name, most.code) == ("local", NAME, "LookupError")
        assert most.reason == "no order 2"
        assert most.oldest <= most.newest

    def test_retried_for_its_consumer(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """It goes into the line of retries for its consumer alone, and is the same message."""
        came = put(ledger, registry)
        assert isinstance(came, Message)

        ledger.run(lambda tx: Failed(tx, registry).retry(one(ledger, registry).id, by="ann"))

        assert found(ledger, registry) == []
        (row,) = waiting(ledger, registry)
        sent = message_in(row)
        assert (row.queue_name, sent.consumer) == (RETRY, "mailer")
        assert sent.partition == "mailer/ann"
        assert (sent.id, sent.key, sent.raw, sent.name) == (came.id, came.key, BODY, NAME)
        assert sent.headers == came.headers
        assert sent.attempt == 0
        # When it was published, and not when it was retried.
        assert sent.created_at == came.created_at

    def test_on_record(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """That it failed, was retried or removed, by whom, is on record."""
        came, gone = put(ledger, registry), put(ledger, registry)
        assert isinstance(came, Message)
        assert isinstance(gone, Message)
        newest, oldest = (each.id for each in found(ledger, registry))

        ledger.run(lambda tx: Failed(tx, registry).retry(oldest, by="ann"))
        ledger.run(lambda tx: Failed(tx, registry).remove(newest, by="bob"))

        with ledger.reading() as tx:
            retried = [each.entry for each in of_message(tx, came.id).rows]
            removed = [each.entry for each in of_message(tx, gone.id).rows]
        assert [(entry.what, entry.who) for entry in retried] == [
            (RecordKind.FAILED, None),
            (RecordKind.RETRIED, "ann"),
        ]
        assert [(entry.what, entry.who) for entry in removed] == [
            (RecordKind.FAILED, None),
            (RecordKind.REMOVED, "bob"),
        ]
        assert retried[0].reason == "mailer: no such order"
        assert (retried[0].code, retried[0].queue, retried[0].partition) == (
            LOST.code,
            "local",
            "ann",
        )

    def test_retried_twice(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """A second retry finds nothing: it is not sent twice."""
        put(ledger, registry)
        failed_id = one(ledger, registry).id
        ledger.run(lambda tx: Failed(tx, registry).retry(failed_id))

        with ledger.transaction() as tx, pytest.raises(NotFound):
            Failed(tx, registry).retry(failed_id)

        assert len(waiting(ledger, registry)) == 1

    def test_retried_twice_at_once(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """Of several retries at the same moment one takes effect."""
        put(ledger, registry)
        failed_id = one(ledger, registry).id

        def retry() -> bool:
            try:
                ledger.run(lambda tx: Failed(tx, registry).retry(failed_id))
            except (NotFound, NotAllowedNow):
                return False
            return True

        done = together(*[retry] * 4)

        assert sorted(done) == [False, False, False, True]
        assert len(waiting(ledger, registry)) == 1

    def test_retried_and_undone(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """A retry whose transaction is undone has not happened."""
        put(ledger, registry)
        failed_id = one(ledger, registry).id

        with pytest.raises(LookupError), ledger.transaction() as tx:
            Failed(tx, registry).retry(failed_id)
            raise LookupError

        assert one(ledger, registry).id == failed_id
        assert waiting(ledger, registry) == []

    def test_retried_to_its_destination(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """What a destination would not take goes back there, into the place that it had."""
        ledger.run(
            lambda tx: publish(
                tx, registry, [NewMessage(name=NAME, body=i, partition="ann") for i in range(3)]
            )
        )
        places = [row.id for row in waiting(ledger, registry)]
        first = message_in(waiting(ledger, registry)[0])
        table = registry.shared.outbox
        with ledger.transaction() as tx:
            tx.execute(table.delete().where(table.c.id == places[0]))
        put(ledger, registry, first, consumer=None, origin=SHOP)

        ledger.run(lambda tx: Failed(tx, registry).retry(one(ledger, registry).id))

        rows = waiting(ledger, registry)
        assert [row.id for row in rows] == places
        assert (rows[0].queue_name, rows[0].partition_key) == (SHOP, "ann")
        assert message_in(rows[0]).id == first.id
        assert message_in(rows[0]).consumer is None

    def test_its_place_is_taken(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """Where its place is taken it goes behind the others."""
        ledger.run(lambda tx: publish(tx, registry, [NewMessage(name=NAME, body=7)]))
        (row,) = waiting(ledger, registry)
        came = msgspec.structs.replace(message_of(), place=row.id)
        put(ledger, registry, came, consumer=None, origin=SHOP)

        ledger.run(lambda tx: Failed(tx, registry).retry(one(ledger, registry).id))

        rows = waiting(ledger, registry)
        assert rows[0].id == row.id
        assert message_in(rows[1]).id == came.id

    def test_a_destination_that_is_no_more(
        self, ledger: Ledger, registry: MessagingRegistry
    ) -> None:
        """What came from a destination that is not set any more is not lost in a retry."""
        put(ledger, registry, consumer=None, origin="gone")

        with ledger.transaction() as tx, pytest.raises(NotAllowedNow, match="named 'gone'"):
            Failed(tx, registry).retry(one(ledger, registry).id)

        assert len(found(ledger, registry)) == 1
        assert waiting(ledger, registry) == []

    def test_nobody_was_there_for_it(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """What no consumer was found for is retried for all that are there then."""
        came = put(ledger, registry, consumer="", origin="orders")
        assert isinstance(came, Message)

        ledger.run(lambda tx: Failed(tx, registry).retry(one(ledger, registry).id))

        (row,) = waiting(ledger, registry)
        sent = message_in(row)
        assert (row.queue_name, sent.consumer, sent.partition) == (RETRY, None, "ann")
        assert sent.id == came.id

    @pytest.mark.parametrize("partition", ["", "x" * 255, "y" * 300, "z \0"])
    def test_any_partition(
        self, ledger: Ledger, registry: MessagingRegistry, partition: str
    ) -> None:
        """Whatever partition it had, a message can be retried, and the same go the same way."""
        consumer = "m" * 190
        for _ in range(2):
            put(ledger, registry, message_of(partition=partition), consumer=consumer)

        chosen = ledger.run(lambda tx: Failed(tx, registry).retry_all())

        rows = waiting(ledger, registry)
        assert len(chosen.ids) == 2
        assert len({row.partition_key for row in rows}) == 1
        assert len(rows[0].partition_key) <= 255

    def test_retry_all(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """All that meet the filters are retried, oldest first; what cannot be is left and told."""
        sent = [put(ledger, registry) for _ in range(3)]
        put(ledger, registry, consumer="biller")
        put(ledger, registry, Raw(body=b"oops"), consumer="mailer")
        newest, *_ = found(ledger, registry)

        chosen = ledger.run(lambda tx: Failed(tx, registry).retry_all(consumer="mailer", by="ann"))

        assert (len(chosen.ids), chosen.left, chosen.next) == (3, [newest.id], None)
        assert [message_in(row).id for row in waiting(ledger, registry)] == [
            each.id for each in sent if isinstance(each, Message)
        ]
        assert [each.consumer for each in found(ledger, registry)] == ["mailer", "biller"]

    def test_a_limit(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """A call takes so many, the oldest, and says that there are more."""
        for _ in range(3):
            put(ledger, registry)
        *newer, oldest = (each.id for each in found(ledger, registry))

        retried = ledger.run(lambda tx: Failed(tx, registry).retry_all(limit=1))
        removed = ledger.run(lambda tx: Failed(tx, registry).remove_all(limit=1))

        assert retried.ids == [oldest]
        assert removed.ids == [newer[1]]
        assert None not in (retried.next, removed.next)
        with ledger.transaction() as tx, pytest.raises(BadInput, match="1 to"):
            Failed(tx, registry).retry_all(limit=failed.RETRY_MAX + 1)

    def test_those_that_stay_hide_none(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """The next call goes on behind what could not be retried."""
        for _ in range(3):
            put(ledger, registry, Raw(body=b"oops"))
        put(ledger, registry)

        first = ledger.run(lambda tx: Failed(tx, registry).retry_all(limit=3))
        rest = ledger.run(lambda tx: Failed(tx, registry).retry_all(limit=3, cursor=first.next))

        assert (len(first.left), first.ids) == (3, [])
        assert (rest.left, len(rest.ids), rest.next) == ([], 1, None)

    def test_a_dry_run(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """A dry run says what would happen, and changes nothing."""
        put(ledger, registry)
        put(ledger, registry, Raw(body=b"oops"))
        raw, whole = (each.id for each in found(ledger, registry))

        with ledger.transaction() as tx:
            retried = Failed(tx, registry).retry_all(dry_run=True)
            removed = Failed(tx, registry).remove_all(dry_run=True)

        assert (retried.ids, retried.left, retried.dry_run) == ([whole], [raw], True)
        assert removed.ids == [whole, raw]
        assert len(found(ledger, registry)) == 2
        assert waiting(ledger, registry) == []
        with ledger.reading() as tx:
            whats = set(tx.execute(select(event.c.what)).scalars())
        assert whats == {RecordKind.FAILED.value}

    def test_remove_all(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """All that meet the filters are removed, and no other."""
        put(ledger, registry)
        put(ledger, registry, Raw(body=b"oops"))
        put(ledger, registry, consumer="biller")

        chosen = ledger.run(lambda tx: Failed(tx, registry).remove_all(consumer="mailer", by="ann"))

        assert len(chosen.ids) == 2
        assert [each.consumer for each in found(ledger, registry)] == ["biller"]
        removed = select(event.c.who).where(event.c.what == "removed")
        with ledger.reading() as tx:
            assert tx.execute(removed).scalars().all() == ["ann", "ann"]

    def test_full_circle(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """A message fails, is retried and handled as what it was, by that consumer alone."""
        failing = [True]
        seen: list[Message] = []
        others: list[Message] = []

        def mail(_: Any, came: Message) -> None:
            if failing:
                raise LookupError("no such order")
            seen.append(came)

        registry.consumers.add(NAME, mail, name="mailer")
        registry.consumers.add(NAME, lambda _, came: others.append(came), name="biller")
        transport = LocalTransport(ledger.database, registry)
        came = msgspec.structs.replace(message_of(), attempt=registry.settings.retries_max)
        given_up = transport.send([came], seconds_max=30)
        failing.clear()

        ledger.run(lambda tx: Failed(tx, registry).retry(one(ledger, registry).id))
        (row,) = waiting(ledger, registry)
        again = transport.send([message_in(row)], seconds_max=30)

        assert given_up == again == [DELIVERED]
        assert [(each.id, each.partition, each.key) for each in seen] == [
            (came.id, "ann", "order 7")
        ]
        assert [each.id for each in others] == [came.id]

    def test_a_retried_one_fails_again(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """What the relay of retries gives up is the failed message of its consumer again."""
        put(ledger, registry)
        ledger.run(lambda tx: Failed(tx, registry).retry(one(ledger, registry).id))
        (row,) = waiting(ledger, registry)

        put(ledger, registry, message_in(row), consumer=None, origin=RETRY)

        kept = one(ledger, registry)
        assert (kept.consumer, kept.partition, kept.place) == ("mailer", "ann", None)


class FailedSinceContract:
    """Failed messages by time. Fixtures: `ledger`, `clock`."""

    def test_since(self, ledger: Ledger, clock: ManualClock) -> None:
        """Only those that failed at a moment or later are found."""
        registry = new_office(ledger)
        put(ledger, registry)
        clock.advance(60)
        put(ledger, registry, consumer="late")
        moment = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)

        assert [each.consumer for each in found(ledger, registry, since=moment)] == ["late"]
        assert len(found(ledger, registry, since=moment - timedelta(seconds=60))) == 2
        assert found(ledger, registry, since=moment + timedelta(seconds=1)) == []
        with pytest.raises(BadInput, match="time zone"):
            found(ledger, registry, since=moment.replace(tzinfo=None))
