"""The contract of lists over long tables: a page reads a page of an index, whatever is there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Table, insert, select, update

from ledgerstone.engine.source import Failure
from ledgerstone.ledger import Transaction
from ledgerstone.messaging.failed import failed
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.relay.competing import CompetingRelay
from ledgerstone.messaging.tables import lane
from ledgerstone.testing.fixtures import Home
from tests.contract.messaging.destination import MISSING, REFUSED, SHOP, Shop
from tests.contract.messaging.failed import message_of
from tests.contract.messaging.relays import Opened, Opening, ask
from tests.harness.reads import rows_read

DOUBLINGS = 12
LENGTH = 2**DOUBLINGS
PAGE = 20
READ_MAX = LENGTH // 8
"""Far less than all, and more than a page of each of a few indexes."""
OTHER = "other"

Look = Callable[[Transaction], object]
YESTERDAY = datetime.now(UTC) - timedelta(days=1)
TOMORROW = datetime.now(UTC) + timedelta(days=1)
NEXT_YEAR = datetime.now(UTC) + timedelta(days=365)


def listed(**given: Any) -> Look:
    """A page of the outbox, and the one behind it."""

    def look(tx: Transaction) -> None:
        cursor = tx.outbox.find(limit=PAGE, **given).next
        if cursor is not None:
            tx.outbox.find(limit=PAGE, cursor=cursor, **given)

    return look


def failed_listed(**given: Any) -> Look:
    """A page of the failed messages, and the one behind it."""

    def look(tx: Transaction) -> None:
        cursor = tx.failed.find(limit=PAGE, **given).next
        if cursor is not None:
            tx.failed.find(limit=PAGE, cursor=cursor, **given)

    return look


LOOKS: dict[str, Look] = {
    "outbox": listed(),
    "of none": listed(destination="retry"),
    "waiting": listed(waiting=True),
    "waiting of one": listed(waiting=True, destination=SHOP),
    "waiting of none": listed(waiting=True, destination="retry"),
    "lanes": lambda tx: tx.outbox.lanes(SHOP, limit=PAGE),
    "parked": lambda tx: tx.outbox.lanes(SHOP, state="parked", limit=PAGE),
    "paused": lambda tx: tx.outbox.lanes(SHOP, state="paused", limit=PAGE),
    "parked for it": lambda tx: tx.outbox.resume_parked(
        SHOP, code=REFUSED.code, limit=PAGE, dry_run=True
    ),
    "parked for nothing": lambda tx: tx.outbox.resume_parked(
        SHOP, code=MISSING.code, limit=PAGE, dry_run=True
    ),
    "failed": failed_listed(),
    "failed since": failed_listed(since=YESTERDAY),
    "failed tomorrow": failed_listed(since=TOMORROW),
    "groups": lambda tx: tx.failed.groups(counted_max=PAGE),
    "groups since": lambda tx: tx.failed.groups(counted_max=PAGE, since=YESTERDAY),
    "to be retried": lambda tx: tx.failed.retry_all(limit=PAGE, since=TOMORROW, dry_run=True),
}


class LongListContract(Opened):
    """What a page costs. Fixtures: `home`, `clock`."""

    @pytest.mark.parametrize("waits", [True, False], ids=["a backlog", "all delivered"])
    def test_a_page_is_of_an_index(self, opening: Opening, home: Home, *, waits: bool) -> None:
        """Each list reads about a page, also where nothing is found and in the middle."""
        shop = opening()
        fill(shop, waits=waits)

        read = {}
        with shop.ledger.reading() as tx:
            for name, look in LOOKS.items():
                look(tx)
                read[name] = rows_read(home.kind, tx, lambda: look(tx))  # noqa: B023

        assert {name: count for name, count in read.items() if count > READ_MAX} == {}

    def test_delayed_messages_are_not_read(self, opening: Opening, home: Home) -> None:
        """A competing relay that takes a batch reads none of many messages that are delayed."""
        shop = opening(mode="competing")
        relay = shop.source()
        if not isinstance(relay, CompetingRelay):
            # With one writer every relay is an ordered one.
            return
        shop.publish("later", available_at=NEXT_YEAR)
        outbox = shop.ledger.registry.shared.outbox
        with shop.ledger.transaction() as tx:
            double(tx, outbox)
        shop.publish(1, 2)
        analyze(shop, outbox)

        found = []
        with shop.ledger.transaction() as tx:
            claims = relay.claim(tx, ask())
            read = rows_read(home.kind, tx, lambda: found.append(relay._take(tx)))

        assert claims
        assert len(found[0][0]) == 2
        assert read < READ_MAX


def fill(shop: Shop, *, waits: bool) -> None:
    """A long outbox, a long table of failed messages among those of others, and many lanes."""
    shop.publish("x", partition="ann")
    came = message_of()
    assert isinstance(came, Message)
    shop.ledger.run(
        lambda tx: failed.put(
            tx,
            shop.ledger.registry,
            came,
            consumer="mailer",
            failure=Failure("LookupError", "no such order"),
            attempts=1,
            origin="local",
        )
    )
    shared = shop.ledger.registry.shared
    with shop.ledger.transaction() as tx:
        for table in (shared.outbox, shared.failed):
            double(tx, table)
        others = update(shared.failed).where(shared.failed.c.id % 2 == 0)
        tx.execute(others.values(queue_name=OTHER))
        if not waits:
            rows = update(shared.outbox).values(delivered_at=shared.outbox.c.created_at)
            tx.execute(rows)
        tx.execute(insert(lane), [lane_of(number) for number in range(LENGTH)])
    analyze(shop, shared.outbox, shared.failed, lane)


def analyze(shop: Shop, *tables: Table) -> None:
    """Let the planner know how long the tables are."""
    with shop.ledger.database.engine.connect() as connection:
        names = ", ".join(table.name for table in tables)
        figures = {"sqlite": "ANALYZE", "postgresql": "ANALYZE"}
        command = figures.get(connection.dialect.name, f"ANALYZE TABLE {names}")
        connection.exec_driver_sql(command)
        connection.commit()


def double(tx: Transaction, table: Table) -> None:
    """As many rows as that, all like the first."""
    columns = [column for column in table.c if column.name != "id"]
    for _ in range(DOUBLINGS):
        names = [column.name for column in columns]
        tx.execute(insert(table).from_select(names, select(*columns)))


def lane_of(number: int) -> dict[str, Any]:
    """One of many that stand, none of them for a target that is missing."""
    return {
        "id": f"00000000-0000-4000-8000-{number:012d}",
        "queue_name": SHOP,
        "partition_key": f"p{number}",
        "state": "parked",
        "last_id": 0,
        "token": 0,
        "attempts": 0,
        "crashes": 0,
        "code": REFUSED.code,
        "changed_at_ms": 0,
    }
