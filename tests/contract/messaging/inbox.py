"""The inbox contract: a message takes effect once for each consumer, or leaves nothing at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select

from ledgerstone.errors import (
    BadInput,
    Hopeless,
    Interrupted,
    NotAllowedNow,
    SchemaMissing,
    StoreBusy,
    StoreFull,
    StoreUnavailable,
    TargetDown,
)
from ledgerstone.ids import new_id
from ledgerstone.ledger import Ledger
from ledgerstone.messaging.inbox import inbox
from ledgerstone.messaging.inbox.consumers import Consumer
from ledgerstone.messaging.inbox.inbox import Handled, Inbox, Receipt, Result
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.outbox.publishing import NewMessage, publish
from ledgerstone.messaging.registry import MessagingRegistry
from ledgerstone.settings import MessagingSettings
from ledgerstone.store.transaction import Transaction
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from tests.harness.ledgers import opened
from tests.harness.own_table import note, notes_kept, tables
from tests.harness.threads import aside, signaled, still_waits

NAME = "order.placed"
DAY_SECONDS = 86_400

Handler = Callable[[Any, Message], Any]

AFTER_AN_ERROR = {
    "sqlite": (Result.HANDLED, 1, ["more", "sent"]),
    "postgres": (Result.FAILED, 0, []),
    "mysql": (Result.HANDLED, 1, ["more", "sent"]),
}
"""What becomes of a handler that goes on after an error: whether the transaction survives it."""


def message_of(name: str = NAME, *, partition: str = "", body: bytes = b"{}") -> Message:
    """A message that was just published."""
    now = datetime.now(UTC)
    return Message(id=new_id(), name=name, raw=body, partition=partition, created_at=now)


def noted(tx: Transaction, name: str) -> None:
    """What a handler does: a row in the user's table."""
    tx.execute(insert(note).values(name=name, count=0))


def new_office(ledger: Ledger, **settings: Any) -> MessagingRegistry:
    """A registry on this ledger's database, its tables made, with the user's table beside them."""
    registry = MessagingRegistry(MessagingSettings(**settings))
    registry.setup.apply(ledger.database)
    with ledger.transaction() as tx:
        tables.create_all(tx.connection, checkfirst=True)
    return registry


def receipts(ledger: Ledger, registry: MessagingRegistry) -> list[Receipt]:
    """The receipts that were committed, newest first."""
    with ledger.reading() as tx:
        return Inbox(tx, registry).find(limit=1000).rows


class InboxContract:
    """Receipt, handler and its writes in one transaction. Fixture: `ledger`."""

    @pytest.fixture
    def registry(self, ledger: Ledger) -> MessagingRegistry:
        return new_office(ledger)

    def handled(
        self, ledger: Ledger, consumer: Consumer, registry: MessagingRegistry, came: Message
    ) -> Handled:
        return inbox.handle(ledger.database, registry, consumer, came)

    def test_handled(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """What the handler wrote and its receipt are there together."""
        consumer = registry.consumers.add(NAME, lambda tx, _: noted(tx, "sent"), name="mailer")
        came = message_of()
        before = datetime.now(UTC) - timedelta(seconds=5)

        answer = self.handled(ledger, consumer, registry, came)

        assert answer == Handled(Result.HANDLED)
        assert notes_kept(ledger) == ["sent"]
        (receipt,) = receipts(ledger, registry)
        assert (receipt.message_id, receipt.consumer) == (came.id, "mailer")
        assert receipt.message_name == NAME
        assert before <= receipt.processed_at <= datetime.now(UTC) + timedelta(seconds=5)

    def test_a_duplicate(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """What was handled is recognised, and nothing runs."""
        ran: list[str] = []
        consumer = registry.consumers.add(NAME, lambda _, came: ran.append(came.id), name="mailer")
        came = message_of()
        self.handled(ledger, consumer, registry, came)

        answer = self.handled(ledger, consumer, registry, came)

        assert answer == Handled(Result.DUPLICATE)
        assert ran == [came.id]

    def test_another_message(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """Messages with the same content and other ids are other messages."""
        ran: list[str] = []
        consumer = registry.consumers.add(NAME, lambda _, came: ran.append(came.id), name="mailer")
        both = [message_of(), message_of()]

        answers = [self.handled(ledger, consumer, registry, came) for came in both]

        assert answers == [Handled(Result.HANDLED)] * 2
        assert ran == [came.id for came in both]

    def test_two_consumers(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """Two consumers of one message each handle it once."""
        mail = registry.consumers.add(NAME, lambda tx, _: noted(tx, "mail"), name="mailer")
        bill = registry.consumers.add("order.*", lambda tx, _: noted(tx, "bill"), name="biller")
        came = message_of()

        answers = [self.handled(ledger, each, registry, came).result for each in [mail, bill] * 2]

        assert answers == [Result.HANDLED] * 2 + [Result.DUPLICATE] * 2
        assert notes_kept(ledger) == ["bill", "mail"]
        assert {receipt.consumer for receipt in receipts(ledger, registry)} == {"mailer", "biller"}

    def test_a_handler_that_fails(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """What raises leaves nothing, no receipt either, and the next try is the first."""
        failing = [True]

        def send(tx: Transaction, _: Message) -> None:
            noted(tx, "sent")
            if failing:
                failing.clear()
                raise LookupError("no such order")

        consumer = registry.consumers.add(NAME, send, name="mailer")
        came = message_of()

        first = self.handled(ledger, consumer, registry, came)

        assert first.result is Result.FAILED
        assert first.failure is not None
        assert (first.failure.code, first.failure.message) == ("LookupError", "no such order")
        assert receipts(ledger, registry) == []
        assert notes_kept(ledger) == []
        assert self.handled(ledger, consumer, registry, came).result is Result.HANDLED
        assert notes_kept(ledger) == ["sent"]

    @pytest.mark.parametrize(
        ("error", "result"),
        [
            (Hopeless("never"), Result.DEAD),
            (TargetDown("mail"), Result.AGAIN),
            (StoreFull("no space"), Result.AGAIN),
            (StoreUnavailable("gone"), Result.AGAIN),
            (SystemExit(1), Result.FAILED),
        ],
        ids=["hopeless", "target down", "full", "away", "exit"],
    )
    def test_how_a_handler_fails(
        self, ledger: Ledger, registry: MessagingRegistry, error: BaseException, result: Result
    ) -> None:
        """Hopeless is for good, what is down or full is nobody's doing, all else is a failure."""

        def send(tx: Transaction, _: Message) -> None:
            noted(tx, "sent")
            raise error

        consumer = registry.consumers.add(NAME, send, name="mailer")

        answer = self.handled(ledger, consumer, registry, message_of())

        assert answer.result is result
        assert receipts(ledger, registry) == []
        assert notes_kept(ledger) == []

    def test_meant_for_the_driver(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """What is raised into the thread from outside goes through, and leaves nothing."""

        def send(tx: Transaction, _: Message) -> None:
            noted(tx, "sent")
            raise Interrupted

        consumer = registry.consumers.add(NAME, send, name="mailer")

        with pytest.raises(Interrupted):
            self.handled(ledger, consumer, registry, message_of())

        assert receipts(ledger, registry) == []
        assert notes_kept(ledger) == []

    def test_met_another_transaction(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """A transaction that met another one is run again from the beginning."""
        tries: list[int] = []

        def send(tx: Transaction, _: Message) -> None:
            noted(tx, "sent")
            tries.append(1)
            if len(tries) < 3:
                raise StoreBusy("deadlock")

        consumer = registry.consumers.add(NAME, send, name="mailer")

        answer = self.handled(ledger, consumer, registry, message_of())

        assert answer.result is Result.HANDLED
        assert len(tries) == 3
        assert notes_kept(ledger) == ["sent"]

    def test_meets_others_always(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """It is run again so often as is set; then it is to come again, and is not to blame."""
        tries: list[int] = []

        def send(_: Transaction, __: Message) -> None:
            tries.append(1)
            raise StoreBusy("deadlock")

        consumer = registry.consumers.add(NAME, send, name="mailer")

        answer = self.handled(ledger, consumer, registry, message_of())

        assert answer.result is Result.AGAIN
        assert len(tries) == ledger.settings.store.transaction_tries_max
        assert receipts(ledger, registry) == []

    def test_a_duplicate_while_the_first_is_in_work(
        self, ledger: Ledger, registry: MessagingRegistry
    ) -> None:
        """It waits for the first, and is then a duplicate."""
        begun, go_on = threading.Event(), threading.Event()
        ran: list[str] = []

        def send(_: Transaction, came: Message) -> None:
            ran.append(came.id)
            begun.set()
            signaled(go_on)

        consumer = registry.consumers.add(NAME, send, name="mailer")
        came = message_of()

        def handle() -> Handled:
            return self.handled(ledger, consumer, registry, came)

        with aside(handle) as first:
            signaled(begun)
            with aside(handle) as second:
                waited = still_waits(second)
                go_on.set()

        assert waited
        assert (first.result().result, second.result().result) == (
            Result.HANDLED,
            Result.DUPLICATE,
        )
        assert ran == [came.id]

    def test_the_first_in_work_fails(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """A duplicate that waited for one that failed is handled."""
        begun, go_on = threading.Event(), threading.Event()

        def send(tx: Transaction, _: Message) -> None:
            noted(tx, "sent")
            if not begun.is_set():
                begun.set()
                signaled(go_on)
                raise LookupError

        consumer = registry.consumers.add(NAME, send, name="mailer")
        came = message_of()

        def handle() -> Handled:
            return self.handled(ledger, consumer, registry, came)

        with aside(handle) as first:
            signaled(begun)
            with aside(handle) as second:
                waited = still_waits(second)
                go_on.set()

        assert waited
        assert (first.result().result, second.result().result) == (Result.FAILED, Result.HANDLED)
        assert notes_kept(ledger) == ["sent"]

    def test_the_first_is_in_work_for_long(self, ledger: Ledger, home: Home) -> None:
        """A duplicate waits no longer than for any lock, and is then to come again."""
        store = {"lock_timeout_seconds": 1, "busy_timeout_seconds": 0.5}
        begun, go_on = threading.Event(), threading.Event()

        def send(_: Transaction, __: Message) -> None:
            begun.set()
            signaled(go_on)

        came = message_of()
        with opened(home.url, store=store) as hasty:
            registry = new_office(hasty)
            consumer = registry.consumers.add(NAME, send, name="mailer")
            with aside(lambda: self.handled(hasty, consumer, registry, came)) as first:
                signaled(begun)
                second = self.handled(hasty, consumer, registry, came)
                go_on.set()

        assert second.result is Result.AGAIN
        assert second.failure is not None
        assert second.failure.code == StoreBusy.code
        assert first.result().result is Result.HANDLED

    def test_an_error_that_the_handler_keeps_to_itself(
        self, ledger: Ledger, home: Home, registry: MessagingRegistry
    ) -> None:
        """A handler that swallows an error of the database has all its writes kept, or none."""

        def send(tx: Transaction, _: Message) -> None:
            noted(tx, "sent")
            for name in ("sent", "more"):
                # What many handlers do.
                with suppress(Exception):
                    noted(tx, name)

        consumer = registry.consumers.add(NAME, send, name="mailer")

        answer = self.handled(ledger, consumer, registry, message_of())

        kept = (len(receipts(ledger, registry)), notes_kept(ledger))
        assert (answer.result, *kept) == AFTER_AN_ERROR[home.kind]

    def test_a_handler_that_rolls_back_behind_our_back(
        self, ledger: Ledger, registry: MessagingRegistry
    ) -> None:
        """A handler that undoes its receipt with the driver's own means and goes on has failed."""

        def send(tx: Transaction, _: Message) -> None:
            driver = tx.connection.connection.dbapi_connection
            assert driver is not None
            driver.rollback()
            if ledger.database.dialect.embedded:
                # There a driver begins nothing by itself.
                driver.cursor().execute("BEGIN")
            noted(tx, "sent")

        consumer = registry.consumers.add(NAME, send, name="mailer")

        answer = self.handled(ledger, consumer, registry, message_of())

        assert answer.result is Result.FAILED
        assert answer.failure is not None
        assert answer.failure.code == NotAllowedNow.code
        assert "the transaction" in answer.failure.message
        assert (receipts(ledger, registry), notes_kept(ledger)) == ([], [])

    def test_a_handler_that_removes_its_receipt(
        self, ledger: Ledger, registry: MessagingRegistry
    ) -> None:
        """Without its receipt nothing that a handler wrote is kept."""

        def send(tx: Transaction, _: Message) -> None:
            noted(tx, "sent")
            tx.execute(delete(registry.shared.receipt))

        consumer = registry.consumers.add(NAME, send, name="mailer")

        answer = self.handled(ledger, consumer, registry, message_of())

        assert answer.result is Result.FAILED
        assert answer.failure is not None
        assert answer.failure.code == NotAllowedNow.code
        assert "was rolled back" in answer.failure.message
        assert (receipts(ledger, registry), notes_kept(ledger)) == ([], [])

    def test_a_handler_that_rolls_back(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """A handler that ends the transaction on its own has failed, and is told why."""

        def send(tx: Transaction, _: Message) -> None:
            tx.connection.rollback()
            noted(tx, "sent")

        consumer = registry.consumers.add(NAME, send, name="mailer")

        answer = self.handled(ledger, consumer, registry, message_of())

        assert answer.result is Result.FAILED
        assert answer.failure is not None
        assert answer.failure.code == NotAllowedNow.code
        assert "savepoint" in answer.failure.message
        assert receipts(ledger, registry) == []
        assert notes_kept(ledger) == []

    def test_the_connection_is_lost(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """When the connection goes nobody knows what was kept: it is to come again."""
        cut = [True]

        def send(tx: Transaction, _: Message) -> None:
            noted(tx, "sent")
            if cut:
                cut.clear()
                driver = tx.connection.connection.dbapi_connection
                assert driver is not None
                driver.close()

        consumer = registry.consumers.add(NAME, send, name="mailer")
        came = message_of()

        first = self.handled(ledger, consumer, registry, came)
        second = self.handled(ledger, consumer, registry, came)

        assert (first.result, second.result) == (Result.AGAIN, Result.HANDLED)
        assert notes_kept(ledger) == ["sent"]

    def test_async(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """An async handler runs to its end in the same transaction."""

        async def send(tx: Transaction, came: Message) -> None:
            noted(tx, came.body_as(dict[str, str])["to"])

        consumer = registry.consumers.add(NAME, send, name="mailer")

        answer = self.handled(ledger, consumer, registry, message_of(body=b'{"to":"ann"}'))

        assert answer.result is Result.HANDLED
        assert notes_kept(ledger) == ["ann"]

    @pytest.mark.parametrize("fails", [False, True], ids=["handled", "fails"])
    def test_what_the_handler_publishes(
        self, ledger: Ledger, registry: MessagingRegistry, fails: bool
    ) -> None:
        """Its own messages are in the outbox if it was handled, and not if it failed."""

        def send(tx: Transaction, came: Message) -> None:
            publish(tx, registry, [NewMessage(name="order.mailed", body={"after": came.id})])
            if fails:
                raise LookupError

        consumer = registry.consumers.add(NAME, send, name="mailer")

        self.handled(ledger, consumer, registry, message_of())

        with ledger.reading() as tx:
            count = select(func.count()).select_from(registry.shared.outbox)
            assert tx.execute(count).scalar() == (0 if fails else 1)

    def test_names_of_others(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """The name of a message that others sent is no obstacle, however it looks."""
        consumer = registry.consumers.add("*", lambda *_: None, name="all")
        came = message_of("App\\Message\\\0" + "x" * 400)

        answer = self.handled(ledger, consumer, registry, came)

        assert answer.result is Result.HANDLED

    def test_without_the_table(self, ledger: Ledger) -> None:
        """Where the table of receipts is missing, it is made or the error says what to run."""
        registry = MessagingRegistry(MessagingSettings(deduplication_table="elsewhere"))
        ran: list[str] = []
        consumer = registry.consumers.add(NAME, lambda _, came: ran.append(came.id), name="mailer")
        came = message_of()

        if ledger.database.dialect.embedded:
            self.handled(ledger, consumer, registry, came)
        else:
            with pytest.raises(SchemaMissing, match="messaging setup"):
                self.handled(ledger, consumer, registry, came)

        assert ran == ([came.id] if ledger.database.dialect.embedded else [])


class ReceiptContract:
    """Receipts are found, counted, and removed when they are old. Fixtures: `ledger`, `clock`."""

    @pytest.fixture
    def registry(self, ledger: Ledger) -> MessagingRegistry:
        return new_office(ledger)

    def take(self, ledger: Ledger, registry: MessagingRegistry, consumer: str) -> str:
        """A receipt of this moment."""
        known = registry.consumers.get(consumer)
        if known is None:
            known = registry.consumers.add("*", lambda *_: None, name=consumer)
        came = message_of()
        assert inbox.handle(ledger.database, registry, known, came).result is Result.HANDLED
        return came.id

    def test_pages(self, ledger: Ledger, clock: ManualClock, registry: MessagingRegistry) -> None:
        """Receipts are read in pages, newest first, those of one second too."""
        taken = []
        for i in range(9):
            taken.append(self.take(ledger, registry, "mailer"))
            if i % 3 == 2:
                clock.advance(1)

        found: list[Receipt] = []
        cursor = None
        with ledger.reading() as tx:
            while True:
                page = Inbox(tx, registry).find(limit=2, cursor=cursor)
                found += page.rows
                cursor = page.next
                if cursor is None:
                    break

        assert [receipt.message_id for receipt in found] == sorted(taken, reverse=True)
        moments = [receipt.processed_at for receipt in found]
        assert moments == sorted(moments, reverse=True)

    def test_of_one_consumer(
        self, ledger: Ledger, clock: ManualClock, registry: MessagingRegistry
    ) -> None:
        """Receipts are found and counted by consumer."""
        mailed = self.take(ledger, registry, "mailer")
        self.take(ledger, registry, "biller")

        with ledger.reading() as tx:
            found = Inbox(tx, registry).find(consumer="mailer").rows
            counts = [Inbox(tx, registry).count(consumer=each) for each in (None, "mailer", "x")]

        assert [receipt.message_id for receipt in found] == [mailed]
        assert counts == [2, 1, 0]

    def test_a_cursor_of_another_list(
        self, ledger: Ledger, clock: ManualClock, registry: MessagingRegistry
    ) -> None:
        """A cursor of another list is refused."""
        for _ in range(3):
            self.take(ledger, registry, "mailer")

        with ledger.reading() as tx:
            page = Inbox(tx, registry).find(limit=1)

            with pytest.raises(BadInput, match="cursor"):
                Inbox(tx, registry).find(limit=1, cursor=page.next, consumer="mailer")

    def test_cleanup(self, ledger: Ledger, clock: ManualClock, registry: MessagingRegistry) -> None:
        """What is older is removed and counted; what is recent stays."""
        for _ in range(3):
            self.take(ledger, registry, "mailer")
        clock.advance(20 * DAY_SECONDS)
        recent = self.take(ledger, registry, "mailer")
        clock.advance(11 * DAY_SECONDS)

        removed = inbox.cleanup(ledger.database, registry, days=30)

        assert removed == 3
        assert [receipt.message_id for receipt in receipts(ledger, registry)] == [recent]

    def test_cleanup_in_pieces(
        self,
        ledger: Ledger,
        clock: ManualClock,
        registry: MessagingRegistry,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """One transaction removes a bounded piece, and those of its last second."""
        monkeypatch.setattr(inbox, "CLEANUP_MAX", 4)
        for _ in range(5):
            self.take(ledger, registry, "mailer")
            self.take(ledger, registry, "mailer")
            clock.advance(1)
        clock.advance(40 * DAY_SECONDS)

        pieces = [ledger.run(lambda tx: Inbox(tx, registry).cleanup(days=30)) for _ in range(4)]

        assert pieces == [4, 4, 2, 0]

    def test_what_can_still_arrive(
        self, ledger: Ledger, clock: ManualClock, registry: MessagingRegistry
    ) -> None:
        """Receipts of what can still be delivered again are not removed."""
        self.take(ledger, registry, "mailer")
        clock.advance(5 * DAY_SECONDS)

        with pytest.raises(BadInput, match="redelivery_days_max"):
            inbox.cleanup(ledger.database, registry, days=3)

        assert len(receipts(ledger, registry)) == 1

    @pytest.mark.parametrize("days", [-1, float("nan"), "30", None])
    def test_no_days(
        self, ledger: Ledger, clock: ManualClock, registry: MessagingRegistry, days: Any
    ) -> None:
        """What is no number of days is refused."""
        with ledger.transaction() as tx, pytest.raises(BadInput, match="days"):
            Inbox(tx, registry).cleanup(days=days)

    def test_the_duty(self, ledger: Ledger, clock: ManualClock) -> None:
        """A worker removes receipts as the settings say, and none that is still needed."""
        brief = new_office(ledger, keep_receipts_days=1.0, redelivery_days_max=7.0)
        self.take(ledger, brief, "mailer")
        clock.advance(3 * DAY_SECONDS)

        early = ledger.run(inbox.duty(brief).do)
        clock.advance(5 * DAY_SECONDS)
        late = ledger.run(inbox.duty(brief).do)

        assert (early, late) == (0, 1)
