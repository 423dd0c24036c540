"""The contract of failed messages in a table that is shared with Symfony Messenger."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import insert, literal_column, select, update

from ledgerstone.errors import NotAllowedNow, NotFound
from ledgerstone.ledger import Ledger
from ledgerstone.messaging.failed.failed import Failed
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.registry import MessagingRegistry
from ledgerstone.messaging.symfony import envelope
from ledgerstone.messaging.tables import OWN_FAILED_QUEUE, SYMFONY_DELETED, SYMFONY_FAILED_QUEUE
from ledgerstone.testing.fixtures import Home
from tests.contract.messaging.failed import BODY, LOST, NAME, one, put
from tests.contract.messaging.inbox import new_office
from tests.harness.ledgers import another

STAMP = "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\"
SYMFONYS = datetime(2026, 2, 3, 4, 5, 6)  # noqa: DTZ001 - as Symfony writes it


def put_by_symfony(ledger: Ledger, registry: MessagingRegistry, headers: Mapping[str, str]) -> None:
    """A row that is not ours."""
    at = str(SYMFONYS) if ledger.database.dialect.embedded else SYMFONYS
    row = {
        "body": "{}",
        "headers": msgspec.json.encode(headers).decode(),
        "queue_name": SYMFONY_FAILED_QUEUE,
        "created_at": at,
        "available_at": at,
    }
    with ledger.transaction() as tx:
        tx.execute(insert(registry.shared.failed).values(**row))


class FailedBesideSymfonyContract:
    """Rows of ours as Symfony could read them, and rows of its own. Fixtures: `ledger`, `home`."""

    @pytest.fixture
    def registry(self, ledger: Ledger) -> MessagingRegistry:
        return new_office(ledger)

    def test_as_symfony_has_it(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """The row is one that Symfony's own commands show: queue, body, type and stamps."""
        came = put(ledger, registry)
        assert isinstance(came, Message)

        with ledger.reading() as tx:
            (row,) = tx.execute(select(registry.shared.failed)).all()

        headers: Mapping[str, str] = msgspec.json.decode(row.headers, type=dict[str, str])
        stamps = {
            name.removeprefix(STAMP): msgspec.json.decode(value)
            for name, value in headers.items()
            if name.startswith(STAMP)
        }
        assert (row.queue_name, row.body.encode(), row.delivered_at) == (
            OWN_FAILED_QUEUE,
            BODY,
            None,
        )
        assert (headers["type"], headers["Content-Type"]) == (NAME, "application/json")
        assert envelope.stamp(headers, "MessageIdStamp") == {"messageId": came.id}
        (error,) = stamps["ErrorDetailsStamp"]
        assert (error["exceptionClass"], error["exceptionMessage"]) == (LOST.code, LOST.message)
        assert stamps["SentToFailureTransportStamp"] == [{"originalReceiverName": "local"}]
        (redelivery,) = stamps["RedeliveryStamp"]
        assert redelivery["retryCount"] == 3
        assert datetime.fromisoformat(redelivery["redeliveredAt"]).tzinfo is not None

    def test_put_there_by_symfony(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """What Symfony put there is shown with its reason, and cannot be retried from here."""
        headers = {
            "type": "App\\Message\\OrderPlaced",
            "Content-Type": "application/json",
            f"{STAMP}ErrorDetailsStamp": '[{"exceptionClass":"RuntimeException",'
            '"exceptionCode":0,"exceptionMessage":"no such order"}]',
            f"{STAMP}SentToFailureTransportStamp": '[{"originalReceiverName":"async"}]',
        }
        put_by_symfony(ledger, registry, headers)

        kept = one(ledger, registry)

        assert (kept.name, kept.origin) == ("App\\Message\\OrderPlaced", "async")
        assert (kept.code, kept.reason) == ("RuntimeException", "no such order")
        assert kept.failed_at == SYMFONYS.replace(tzinfo=UTC)
        with ledger.transaction() as tx, pytest.raises(NotAllowedNow, match="named 'async'"):
            Failed(tx, registry).retry(kept.id)

    def test_an_id_is_made_of_the_place(
        self, ledger: Ledger, home: Home, registry: MessagingRegistry, tmp_path: Path
    ) -> None:
        """A row without an id gets one that is the same each time, and another in each database."""
        ids = []
        put_by_symfony(ledger, registry, {"type": NAME})
        ids += [one(ledger, registry).message_id for _ in range(2)]
        with another(home, tmp_path) as other:
            elsewhere = new_office(other)
            put_by_symfony(other, elsewhere, {"type": NAME})
            ids.append(one(other, elsewhere).message_id)

        assert ids[0] == ids[1]
        assert None not in ids
        assert ids[2] != ids[0]

    def test_deleted_by_symfony(self, ledger: Ledger, registry: MessagingRegistry) -> None:
        """A row that Symfony has marked as deleted is gone, one that it has in hand is there."""
        for at in (SYMFONY_DELETED, "2026-02-03 04:05:06"):
            put_by_symfony(ledger, registry, {"type": NAME})
            with ledger.transaction() as tx:
                table = registry.shared.failed
                untaken = update(table).where(table.c.delivered_at.is_(None))
                tx.execute(untaken.values(delivered_at=literal_column(f"'{at}'")))

        with ledger.transaction() as tx:
            rooms = Failed(tx, registry)
            (shown,) = rooms.find().rows
            assert rooms.count(most=10) == 1
            with pytest.raises(NotFound):
                rooms.remove(shown.id - 1)
