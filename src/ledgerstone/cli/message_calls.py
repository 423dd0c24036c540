"""What calls about messages share: options, tables that may have to be made, removing in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import Table

from ledgerstone.cli import output
from ledgerstone.cli.application import ledger_of
from ledgerstone.cli.call import Call
from ledgerstone.ledger import Ledger, Transaction

LIST_ROWS = 20
STEPS_MAX = 10_000
"""Steps of one call: while others go on delivering there would be no end."""

LimitOption = Annotated[
    int, typer.Option("--limit", metavar="N", help="At most so many, up to 1000.")
]
CursorOption = Annotated[
    str | None,
    typer.Option("--cursor", metavar="CURSOR", help="Go on where the page before ended."),
]


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


def removed_in_steps(
    step: Callable[[], int], words: str, *, json: bool, verb: str = "removed"
) -> int:
    """Call it until it does nothing more, so often at most; how many it were.

    On a terminal it is shown.
    """
    console = output.console()
    removed = 0
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} " + verb),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=json or not console.is_terminal,
    ) as progress:
        # How many there are nobody has counted: the bar shows that it goes on.
        task = progress.add_task(words, total=None)
        for _ in range(STEPS_MAX):
            piece = step()
            if not piece:
                break
            removed += piece
            progress.update(task, completed=removed)
    return removed
