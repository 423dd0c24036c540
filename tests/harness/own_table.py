"""A table of the user's own, beside those of the ledger."""

from __future__ import annotations

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, insert, select

from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.store.schema.columns import MYSQL_TABLE, NAMING

tables = MetaData(naming_convention=NAMING)


note = Table(
    "note",
    tables,
    Column("name", String(60), primary_key=True),
    Column("count", Integer, nullable=False, default=0),
    **MYSQL_TABLE,
)
"""A table of the user's own."""


class OwnTable:
    """For clauses about what a user writes beside the ledger. Fixtures: `ledger`."""

    @pytest.fixture(autouse=True)
    def own_table(self, ledger: Ledger) -> None:
        """A table of the user's own beside the ledger's."""
        tables.create_all(ledger.database.engine)


def notes(connection: Connection) -> list[str]:
    """The names in the user's table, as this connection sees them."""
    return sorted(connection.execute(select(note.c.name)).scalars())


def notes_kept(ledger: Ledger) -> list[str]:
    """The names in the user's table that were committed."""
    with ledger.reading() as tx:
        return notes(tx.connection)


def write(tx: Transaction, name: str) -> str:
    """A row of the user's own."""
    tx.connection.execute(insert(note).values(name=name, count=0))
    return name
