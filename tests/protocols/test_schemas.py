"""Schemas that cannot be read: limits, names of ours, and the line that is told."""

from __future__ import annotations

import pytest

from ledgerstone import Ledger, errors
from ledgerstone.protocols import Envelope, Protocol, Running
from ledgerstone.protocols.read.status import facts_of, waits
from ledgerstone.protocols.schema import TABLES_MAX, Schema
from ledgerstone.testing.clock import ManualClock
from tests.protocols.letters import arrive, seat

TABLE = "CREATE TABLE t{} (id INTEGER PRIMARY KEY);\n"


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("CREATE TABLE Events (a TEXT PRIMARY KEY);", "cannot have a table Events"),
        (TABLE.format(1) * 2, "the table t1 is made twice"),
        (TABLE.format("\n") + "\n\nDROP TABLE t;", "line 5: only CREATE TABLE"),
        ("-- a\n/* b\n c */\n" + TABLE.format(1) + "DROP TABLE t;", "line 5: only CREATE TABLE"),
    ],
)
def test_what_cannot_be_read(sql: str, why: str) -> None:
    """The error names the table, or the line of the file."""
    with pytest.raises(errors.BadInput, match=why):
        Protocol("wrong", schema=sql)


def test_so_many_tables() -> None:
    """A protocol has a bounded number of tables."""
    most = "".join(TABLE.format(number) for number in range(TABLES_MAX))

    assert len(Schema.parse(most, "large").tables) == TABLES_MAX
    with pytest.raises(errors.BadInput, match=f"more than {TABLES_MAX} tables"):
        Schema.parse(most + TABLE.format("one_more"), "large")


def test_what_is_counted(ledger: Ledger, clock: ManualClock, running: Running) -> None:
    """What is parked waits for people, and what is due later is not late."""
    arrive(running, Envelope(type="nobody knows it"), Envelope(type="broken"))
    with ledger.reading() as tx:
        before = waits(tx)
    running.work()
    arrive(running, seat("late"))

    with ledger.reading() as tx:
        (facts,) = facts_of(tx, [running.protocol])
        due = waits(tx)
    running.work()
    with ledger.reading() as tx:
        later = waits(tx)
    clock.advance(3600)
    with ledger.reading() as tx:
        again = waits(tx)

    assert (facts.incoming, facts.parked) == (2, 1)
    assert (before, due, later, again) == (True, True, False, True)
