"""The inbox contract, against handlers that end their transaction: no message is ever gone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from ledgerstone.errors import Interrupted, TargetDown
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.messaging.brokers.transport import SendResult
from ledgerstone.messaging.brokers.transports.local import LocalTransport
from ledgerstone.messaging.failed.failed import Failed
from ledgerstone.messaging.inbox import inbox
from ledgerstone.messaging.inbox.inbox import TRANSACTION_ENDED, Result
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.registry import MessagingRegistry
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.contract.messaging.failed import found
from tests.contract.messaging.inbox import NAME, message_of, new_office, noted, receipts
from tests.harness.own_table import notes_kept

Act = Callable[[Transaction], Any]
SENDS_MAX = 10
MADE = "CREATE TABLE made_inside (a INTEGER)"


def driver_of(tx: Transaction) -> Any:
    """The driver's own connection."""
    return tx.connection.connection.dbapi_connection


def sent(words: str) -> Act:
    """A statement through SQLAlchemy."""

    def act(tx: Transaction) -> None:
        with suppress(Exception):
            tx.connection.execute(text(words))

    return act


def behind(*words: str) -> Act:
    """Statements behind SQLAlchemy's back; one that fails may have ended it all the same."""

    def act(tx: Transaction) -> None:
        cursor = driver_of(tx).cursor()
        for each in words:
            with suppress(Exception):
                cursor.execute(each)
        cursor.close()

    return act


def commit(tx: Transaction) -> None:
    """The driver's own commit."""
    driver_of(tx).commit()


def commit_and_go_on(tx: Transaction) -> None:
    """The driver's own commit, and a transaction that nobody asked for."""
    driver_of(tx).commit()
    behind("BEGIN")(tx)
    with suppress(Exception):
        noted(tx, "more")


def commit_for_good(tx: Transaction) -> None:
    """From now on every statement is committed by itself."""
    commit(tx)
    driver_of(tx).autocommit = True


EVERYWHERE = (commit, commit_and_go_on, behind("COMMIT"), behind("COMMIT", "BEGIN"), sent(MADE))
WAYS: dict[str, tuple[Act, ...]] = {
    "sqlite": (
        *EVERYWHERE,
        lambda tx: driver_of(tx).executescript("CREATE TABLE IF NOT EXISTS made_inside (a);"),
        lambda tx: driver_of(tx).executescript("BEGIN;"),
        behind("PRAGMA journal_mode=DELETE", "END"),
    ),
    "postgres": (
        *EVERYWHERE,
        behind("END", "CREATE TABLE made_there (a INTEGER)"),
        behind("COMMIT AND CHAIN"),
        commit_for_good,
    ),
    "mysql": (
        *EVERYWHERE,
        sent("TRUNCATE note"),
        sent("SET autocommit = 1"),
        behind("CREATE TABLE made_there (a INTEGER)"),
        # Of these two the first fails, and has committed.
        behind("CREATE TABLE note (a INTEGER)"),
        behind("DROP TABLE nowhere"),
        behind("TRUNCATE message_broker_deduplicated"),
        behind("SET autocommit = 1"),
        behind("SET autocommit = 1", "INSERT INTO note (name, count) VALUES ('more', 0)"),
        behind("LOCK TABLES note WRITE, message_broker_deduplication WRITE"),
        behind("/*!50000 CREATE TABLE made_third (a INTEGER) */"),
        behind("ANALYZE TABLE note"),
        behind("BEGIN NOT ATOMIC COMMIT; INSERT INTO note VALUES ('more', 0); END"),
        behind("EXECUTE IMMEDIATE 'COMMIT'"),
        behind("START TRANSACTION"),
    ),
}


class InboxEndedContract:
    """A handler that ends its transaction, and fails. Fixtures: `ledger`, `home`."""

    @pytest.fixture
    def registry(self, ledger: Ledger) -> MessagingRegistry:
        return new_office(ledger)

    def test_none_is_gone(self, ledger: Ledger, home: Home, registry: MessagingRegistry) -> None:
        """The message is in the failed table, whichever way the transaction was ended."""
        act: list[Act] = []

        def send(tx: Transaction, _: Message) -> None:
            act[-1](tx)
            raise LookupError("no such order")

        registry.consumers.add(NAME, send, name="mailer")
        transport = LocalTransport(ledger.database, registry)
        came = []
        for way in WAYS[home.kind]:
            act.append(way)
            came.append(message_of())
            deliver(transport, came[-1])

        failed = {str(each.message_id): each for each in found(ledger, registry)}
        assert sorted(failed) == sorted(each.id for each in came)
        # What is in the failed table has no receipt: a retry would be taken for a duplicate.
        assert receipts(ledger, registry) == []
        assert all("no such order" in each.reason for each in failed.values())

    def test_what_ends_it_is_noticed(
        self, ledger: Ledger, home: Home, registry: MessagingRegistry
    ) -> None:
        """A handler that ends it and returns was not handled, or was and has a receipt."""
        act: list[Act] = []
        consumer = registry.consumers.add(NAME, lambda tx, _: act[-1](tx), name="mailer")
        results = []
        for way in WAYS[home.kind]:
            act.append(way)
            came = message_of()
            tries = [
                inbox.handle(ledger.database, registry, consumer, came).result for _ in range(2)
            ]
            results.append(tries)
            known = [
                each.finished for each in receipts(ledger, registry) if each.message_id == came.id
            ]
            if tries[0] is Result.HANDLED:
                assert (tries[1], known) == (Result.DUPLICATE, [True])
            else:
                assert Result.DUPLICATE not in tries
                assert known in ([], [False])
        # The driver's own commit is seen everywhere.
        assert results[0] == [Result.DEAD, Result.DEAD]

    @pytest.mark.parametrize("error", [Interrupted, TargetDown("mail")], ids=["dies", "down"])
    def test_no_proof(self, ledger: Ledger, registry: MessagingRegistry, error: Any) -> None:
        """A receipt that was left by a try that was not done is no proof: not a duplicate."""

        def send(tx: Transaction, _: Message) -> None:
            noted(tx, "before")
            commit(tx)
            raise error

        consumer = registry.consumers.add(NAME, send, name="mailer")
        came = message_of()
        with suppress(Interrupted):
            inbox.handle(ledger.database, registry, consumer, came)

        again = inbox.handle(ledger.database, registry, consumer, came)

        assert again.result is Result.DEAD
        assert again.failure is not None
        assert again.failure.code == TRANSACTION_ENDED
        assert "mailer" in again.failure.message
        assert [each.finished for each in receipts(ledger, registry)] == [False]
        assert notes_kept(ledger) == ["before"]

    def test_retried(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """Such a message is in the failed table once, and a retry hands it to the handler again."""
        ends = [True]

        def send(tx: Transaction, _: Message) -> None:
            if ends:
                commit(tx)
                raise LookupError
            noted(tx, "sent")

        registry.consumers.add(NAME, send, name="mailer")
        transport = LocalTransport(ledger.database, registry)
        came = message_of()
        deliver(transport, came)
        (failed,) = found(ledger, registry)
        ends.clear()

        ledger.run(lambda tx: Failed(tx, registry).retry(failed.id))
        deliver(transport, came)

        assert notes_kept(ledger) == ["sent"]
        assert [each.finished for each in receipts(ledger, registry)] == [True]
        assert found(ledger, registry) == []

    def test_an_ordinary_failure(
        self, ledger: Ledger, registry: MessagingRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A message that another try handles meanwhile is a duplicate, though this try failed."""
        failing = [True]

        def send(_: Transaction, __: Message) -> None:
            if failing:
                failing.clear()
                raise LookupError

        consumer = registry.consumers.add(NAME, send, name="mailer")
        came = message_of()
        look = inbox._is_left

        def look_later(*given: Any) -> bool:
            other = inbox.handle(ledger.database, registry, consumer, came)
            assert other.result is Result.HANDLED
            return look(*given)

        monkeypatch.setattr(inbox, "_is_left", look_later)

        first = inbox.handle(ledger.database, registry, consumer, came)
        second = inbox.handle(ledger.database, registry, consumer, came)

        assert (first.result, second.result) == (Result.FAILED, Result.DUPLICATE)
        assert [each.finished for each in receipts(ledger, registry)] == [True]


def deliver(transport: LocalTransport, message: Message) -> None:
    """Send it as often as it takes, as a relay does."""
    for attempt in range(SENDS_MAX):
        message = msgspec.structs.replace(message, attempt=attempt)
        (answer,) = transport.send([message], seconds_max=WAIT_SECONDS_MAX)
        if answer.result is SendResult.DELIVERED:
            return
    raise AssertionError(message)
