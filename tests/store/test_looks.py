"""What the store finds out: pairs of an index, who is writing, what was refused, what is new."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import insert

from ledgerstone import Ledger
from ledgerstone.jobs import NewJob
from ledgerstone.jobs.accepting import NO_ORG
from ledgerstone.jobs.claim_order import _list
from ledgerstone.store.sql.distinct import ASKED_MAX
from ledgerstone.store.sql.rows import InsertRows
from ledgerstone.store.wakeup import WakeSignal
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.harness.own_table import note, tables
from tests.harness.threads import PATIENCE_SECONDS

OWN = {
    "sqlite": "SELECT 0",
    "postgres": "SELECT CAST(CAST(pg_current_xact_id() AS TEXT) AS BIGINT)",
    "mysql": (
        "SELECT trx_id FROM information_schema.innodb_trx"
        " WHERE trx_mysql_thread_id = CONNECTION_ID()"
    ),
}
"""The number of the own transaction, by the kind of database."""


@pytest.mark.parametrize("most", [ASKED_MAX - 1, ASKED_MAX, ASKED_MAX + 5, 1000])
def test_pairs_of_an_index(ledger: Ledger, most: int) -> None:
    """Each pair once, in order, as many as asked for, however many rows each has."""
    types = [f"type.{number:02}" for number in range(ASKED_MAX + 10)]
    new = [NewJob(type=each) for each in types for _ in range(2)]
    ledger.run(lambda tx: tx.jobs.enqueue_many(new))

    with ledger.reading() as tx:
        found = _list.rows(tx, begin=NO_ORG, most=most, queue_="default")

    assert [row[1] for row in found] == types[:most]
    assert {str(row[0]) for row in found} == {NO_ORG}


def test_who_is_writing(ledger: Ledger, home: Home) -> None:
    """Of the transactions that are under way the own one is none."""
    tables.create_all(ledger.database.engine)
    own: list[int] = []

    with ledger.transaction() as tx:
        tx.connection.execute(insert(note).values(name="a", count=0))
        found = ledger.database.dialect.under_way(tx)

        def is_told() -> bool:
            own.extend(row[0] for row in tx.connection.exec_driver_sql(OWN[home.kind]))
            return bool(own)

        until(is_told, every_seconds=0.2)
        again = ledger.database.dialect.under_way(tx)

    assert isinstance(found, frozenset)
    assert isinstance(again, frozenset)
    assert int(own[0]) not in found | again


def test_refused_rows_are_counted(ledger: Ledger) -> None:
    """Rows that are left out because of a unique value are measured as refused."""
    tables.create_all(ledger.database.engine)
    adding = InsertRows("test.add", note, columns=("name", "count"))
    rows = [{"name_": name, "count_": 0} for name in "abc"]

    added = [ledger.run(lambda tx, some=some: adding.run(tx, some)) for some in (rows[:2], rows)]  # type: ignore[misc]

    assert added == [2, 1]
    assert ledger.database.measure.by_name()["test.add"].refused == 2


def test_no_news_is_no_wake_up(tmp_path: Path) -> None:
    """A watcher wakes for each commit of others, and is quiet when there is none."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    with Ledger(url) as ledger, Ledger(url) as other:
        ledger.migrate()
        tables.create_all(other.database.engine)
        watcher, signal = ledger.database.watcher(), WakeSignal()
        assert watcher is not None
        ledger.database.wake_signals.subscribe("notes", signal)
        watcher.start()
        try:
            until(lambda: not signal.wait(PATIENCE_SECONDS), what="silence before")
            other.run(lambda tx: tx.connection.execute(insert(note).values(name="a", count=0)))
            woken = signal.wait(WAIT_SECONDS_MAX)
            until(lambda: not signal.wait(PATIENCE_SECONDS), what="silence afterwards")
        finally:
            watcher.stop()

    assert woken
