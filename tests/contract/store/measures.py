"""The measuring contract: every row is counted once, and no payload is ever logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from sqlalchemy import BigInteger, bindparam, select

from ledgerstone import errors
from ledgerstone.ledger import Ledger
from ledgerstone.store.sql.measure import StatementCounters
from ledgerstone.store.sql.statement import Statement
from ledgerstone.testing.fixtures import Home
from tests.chores import Chores, NewChore
from tests.chores.workshop import opened
from tests.contract.store.batches import add, change, insert, item, tables, take

SECRET = "the payload that nobody may read"

look = Statement(
    "items.look",
    select(item.c.number).where(item.c.number >= bindparam("least", type_=BigInteger())),
)


class MeasureContract:
    """What holds for counters and the slow log. Fixtures: `ledger`, `home`, `caplog`."""

    @pytest.fixture(autouse=True)
    def own_table(self, ledger: Ledger) -> None:
        """The table of the batches."""
        tables.create_all(ledger.database.engine)

    def test_rows_are_counted(self, ledger: Ledger) -> None:
        """Each statement counts by its name the rows it read, wrote, and refused as duplicates."""
        with ledger.transaction() as tx:
            add(tx, [(i, None, None) for i in range(10)])
            add(tx, [(9, None, None), (10, None, None), (11, None, None)])
            change.run(tx, [(0, 1, "x"), (1, 1, "x"), (2, 7, "refused, no duplicate")], extra_=None)
            take.run(tx, limit=4, rank_max=100)
            look.rows(tx, least=7)

        counted = ledger.database.measure.by_name()
        assert rows(counted[insert.name]) == (0, 12, 1)
        assert rows(counted[change.name]) == (0, 2, 0)
        assert counted[take.name].written == 4
        assert rows(counted[look.name]) == (5, 0, 0)

    def test_all_together(self, ledger: Ledger) -> None:
        """The total is the sum of all names, and what was answered does not change afterwards."""
        before = ledger.database.measure.by_name()
        ledger.run(lambda tx: Chores(tx).enqueue_many([NewChore(body=i) for i in range(3)]))

        after = ledger.database.measure.by_name()

        total = ledger.database.measure.total()
        assert total.written == sum(counters.written for counters in after.values()) >= 6
        assert total.calls == sum(counters.calls for counters in after.values())
        assert sum(counters.written for counters in before.values()) == 0

    def test_siblings_count_together(self, ledger: Ledger) -> None:
        """What goes through the same database's other connections is in the same counters."""
        sibling = ledger.database.sibling(connections=1)

        sibling.run(lambda tx: add(tx, [(1, None, None)]))

        sibling.close()
        assert ledger.database.measure.by_name()[insert.name].written == 1

    def test_slow_statements_are_logged(
        self, home: Home, slow_log: pytest.LogCaptureFixture
    ) -> None:
        """A statement slower than the setting is logged and counted, by its name and its rows."""
        with opened(home.url, store={"slow_statement_ms": 0}) as ledger:
            ledger.run(lambda tx: add(tx, [(1, None, SECRET), (2, None, SECRET)]))

            assert ledger.database.measure.by_name()[insert.name].slow == 1

        said = [record.getMessage() for record in slow_log.records]
        lines = [line for line in said if line.startswith("slow statements")]
        assert any(f"{insert.name} took" in line and "2 written)" in line for line in lines)

    def test_quick_statements_are_not(self, home: Home, slow_log: pytest.LogCaptureFixture) -> None:
        """A statement quicker than the setting is counted and not logged."""
        with opened(home.url, store={"slow_statement_ms": 60_000}) as ledger:
            ledger.run(lambda tx: add(tx, [(1, None, SECRET)]))

            counters = ledger.database.measure.by_name()[insert.name]

        assert (counters.calls, counters.slow) == (1, 0)
        assert counters.seconds > 0
        assert not [record for record in slow_log.records if "slow" in record.getMessage()]

    def test_no_payload_is_logged(self, home: Home, slow_log: pytest.LogCaptureFixture) -> None:
        """Bodies, keys and names stand in no record of the log, whatever goes slowly or wrong."""
        with opened(home.url, store={"slow_statement_ms": 0}) as ledger:
            ledger.run(lambda tx: Chores(tx).enqueue({"secret": SECRET}, key=SECRET))
            ledger.run(lambda tx: add(tx, [(1, SECRET[:10], SECRET), (2, SECRET[:10], SECRET)]))
            with pytest.raises(errors.KeyConflict):
                ledger.run(lambda tx: Chores(tx).enqueue({"other": SECRET}, key=SECRET))
            with pytest.raises(errors.StoreError):
                ledger.run(lambda tx: tx.connection.exec_driver_sql(f"SELECT '{SECRET}' FROM no"))  # noqa: S608 - fixed

        assert slow_log.records
        formatter = logging.Formatter()
        for record in slow_log.records:
            assert SECRET not in formatter.format(record)
            assert SECRET not in str(record.args)

    @pytest.fixture
    def slow_log(self, caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
        """Everything that Ledgerstone and what it stands on log."""
        with caplog.at_level(logging.INFO), caplog.at_level(logging.DEBUG, "ledgerstone"):
            yield caplog


def rows(counters: StatementCounters) -> tuple[int, int, int]:
    """Read, written, refused."""
    return (counters.read, counters.written, counters.refused)
