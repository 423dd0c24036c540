"""The parts that commands of messaging share: checks of tables, and pages of filtered lists."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import typer
from sqlalchemy import Table

from ledgerstone.console.application import ledger_of
from ledgerstone.console.call import EXIT_REFUSED, Call
from ledgerstone.errors import NotAllowedNow
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.store.sql.pages import Page

PAGES_MAX = 20
"""Pages that are read until one has rows, because filters leave rows out."""
NONE_SO_FAR = "no message so far matches these filters"
"""The pages that were read have no row, and there are more."""

T = TypeVar("T")


def ready(ledger: Ledger, *tables: Table) -> None:
    """Checks that the tables exist; creates what `messaging.auto_setup` allows, as at first use."""
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
    """The first page that has rows, starting at the cursor; reads at most PAGES_MAX pages."""
    page = read(cursor)
    for _ in range(PAGES_MAX):
        if page.rows or page.next is None:
            break
        page = read(page.next)
    return page


def confirmed(call: Call, words: str, *, yes: bool, hint: str = "--yes does it") -> None:
    """Asks at a terminal; elsewhere `yes` is required, and `hint` says by which option."""
    if yes:
        return
    if call.json or not sys.stdin.isatty():
        raise NotAllowedNow(f"{words}; nothing was done", hint=hint)
    if not typer.confirm(f"{words}. Continue?"):
        typer.echo("nothing was done")
        raise typer.Exit(EXIT_REFUSED)
