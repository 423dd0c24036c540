"""Pages and claims are answered from their indexes, on every database, by its own plan."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import text

from ledgerstone import Ledger
from ledgerstone.chores import NewChore
from ledgerstone.chores.source import _claim, _expired
from ledgerstone.ledger import Transaction
from ledgerstone.store.statement import Statement
from ledgerstone.testing.contract import batches, pages
from ledgerstone.testing.contract.pages import newest_first, of_kind, oldest_first
from ledgerstone.testing.fixtures import Home

ROWS = 3000
AFTER = {"after_0": 1500, "after_1": "00000000-0000-0000-0000-000000000000"}
EXPLAIN = {"sqlite": "EXPLAIN QUERY PLAN", "postgres": "EXPLAIN", "mysql": "EXPLAIN"}
ANALYZE = {"sqlite": "ANALYZE", "postgres": "ANALYZE {}", "mysql": "ANALYZE TABLE {}"}
# What a plan says that reads the whole table, or sorts.
SLOW = {
    "sqlite": r"SCAN (entry|chore)(?! USING INDEX)|TEMP B-TREE",
    "postgres": r"Seq Scan|Sort",
    "mysql": r"ALL|filesort",
}


def plan(home: Home, tx: Transaction, statement: Statement, **values: Any) -> str:
    """How the database would carry out the statement."""
    compiled = statement.compiled(tx)
    if compiled.takes_now:
        values["now"] = None
    cursor = tx.cursor()
    cursor.execute(f"{EXPLAIN[home.kind]} {compiled.text}", compiled.parameters(values))
    lines = [" ".join(map(str, row)) for row in cursor.fetchall()]
    cursor.close()
    return "\n".join(lines)


def analyze(home: Home, ledger: Ledger, table: str) -> None:
    with ledger.transaction() as tx:
        tx.connection.execute(text(ANALYZE[home.kind].format(table)))


@pytest.fixture
def entries(ledger: Ledger, home: Home) -> None:
    """Many entries of some kinds."""
    pages.tables.create_all(ledger.database.engine)
    pages.add(ledger, [(i, f"kind {i % 3}") for i in range(ROWS)])
    analyze(home, ledger, "entry")


@pytest.mark.usefixtures("entries")
def test_pages_come_from_an_index(ledger: Ledger, home: Home) -> None:
    """First and later pages, in both directions and filtered, scan an index and sort nothing."""
    cases: list[tuple[Statement, str, dict[str, Any]]] = [
        (oldest_first._first, "idx_entry_at_ms_id", {}),
        (oldest_first._next, "idx_entry_at_ms_id", AFTER),
        (newest_first._first, "idx_entry_at_ms_id", {}),
        (newest_first._next, "idx_entry_at_ms_id", AFTER),
        (of_kind._first, "idx_entry_kind_at_ms_id", {"kind": "kind 1"}),
        (of_kind._next, "idx_entry_kind_at_ms_id", {"kind": "kind 1", **AFTER}),
    ]

    with ledger.reading() as tx:
        for statement, index, values in cases:
            told = plan(home, tx, statement, limit=10, **values)

            assert index in told, statement.name
            assert not re.search(SLOW[home.kind], told), told


def test_claims_come_from_an_index(ledger: Ledger, home: Home) -> None:
    """What is due, and what has expired, is found by its index and not by looking at everything."""
    ledger.run(lambda tx: tx.chores.enqueue_many([NewChore(body=i) for i in range(ROWS)]))
    ledger.run(lambda tx: _claim.run(tx, limit=50, lease_ms=1, worker="w"))
    analyze(home, ledger, "chore")

    with ledger.transaction() as tx:
        _claim.run(tx, limit=1, lease_ms=1, worker="w")
        name = ledger.database.dialect.name
        claim = _claim.statements.get(f"{name}.pick") or _claim.statements[name]
        told = plan(home, tx, claim, limit=10, lease_ms=1, worker="w")
        expired = plan(home, tx, _expired, limit=10)

    assert "idx_chore_due" in told
    assert "idx_chore_held" in expired
    assert not re.search(SLOW[home.kind], told), told


@pytest.mark.mysql
@pytest.mark.parametrize("home", ["mysql"], indirect=True)
def test_changes_look_their_rows_up(ledger: Ledger, home: Home) -> None:
    """MySQL locks what it reads: so a batch looks its rows up by key, also in a tiny table."""
    batches.tables.create_all(ledger.database.engine)
    ledger.run(lambda tx: batches.add(tx, [(i, str(i), None) for i in range(4)]))

    with ledger.transaction() as tx:
        batches.change.run(tx, [(1, 1, "x"), (2, 1, "x")], extra_=None)
        batches.rename.run(tx, [("1", "x"), ("2", "x")])
        by_number = batches.change.statements["mysql"]
        by_name = batches.rename.statements["mysql"]
        told = plan(home, tx, by_number, rows="[[1, 2, null]]", extra_=None)
        told_by_name = plan(home, tx, by_name, rows='[["1", "x"]]')

    assert re.search(r"item \S* ?eq_ref PRIMARY", told), told
    assert re.search(r"item \S* ?eq_ref uq_item_name", told_by_name), told_by_name
