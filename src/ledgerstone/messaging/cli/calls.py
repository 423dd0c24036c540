"""What calls about messages share: the tables that they need, and pages that have something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Table

from ledgerstone.console.application import ledger_of
from ledgerstone.console.call import Call
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.store.sql.pages import Page

PAGES_MAX = 20
"""Pages that are read until one has something: filters leave rows out."""

T = TypeVar("T")


def ready(ledger: Ledger, *tables: Table) -> None:
    """As at the first use: what may be made unasked is made, for the rest an error says how."""
    with ledger.transaction() as tx:
        for table in tables:
            ledger.registry.setup.ensure(tx, table)


@contextmanager
def looking_at(call: Call, name: str) -> Iterator[tuple[Ledger, Transaction]]:
    """A ledger on the database of the call, and a transaction that reads a shared table."""
    with ledger_of(call) as ledger:
        ready(ledger, getattr(ledger.registry.shared, name))
        with ledger.reading() as tx:
            yield ledger, tx


def first_with_rows(read: Callable[[str | None], Page[T]], cursor: str | None) -> Page[T]:
    """The first page that has something, among so many; from the cursor on."""
    page = read(cursor)
    for _ in range(PAGES_MAX):
        if page.rows or page.next is None:
            break
        page = read(page.next)
    return page
