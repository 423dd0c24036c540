"""What calls about messages share: the tables that they need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Table

from ledgerstone.console.application import ledger_of
from ledgerstone.console.call import Call
from ledgerstone.ledger import Ledger, Transaction


def ready(ledger: Ledger, *tables: Table) -> None:
    """As at the first use: what may be made unasked is made, for the rest an error says how."""
    with ledger.transaction() as tx:
        for table in tables:
            ledger.office.setup.ensure(tx, table)


@contextmanager
def looking_at(call: Call, name: str) -> Iterator[tuple[Ledger, Transaction]]:
    """A ledger on the database of the call, and a transaction that reads a shared table."""
    with ledger_of(call) as ledger:
        ready(ledger, getattr(ledger.office.shared, name))
        with ledger.reading() as tx:
            yield ledger, tx
