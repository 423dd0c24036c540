"""`ledgerstone inbox`: receive messages, and see what was handled."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer
from rich.console import RenderableType

from ledgerstone.console import output
from ledgerstone.console.application import ledger_of
from ledgerstone.console.call import Call, command
from ledgerstone.console.groups import group
from ledgerstone.console.moments import now_of
from ledgerstone.console.output import Text
from ledgerstone.console.pages import LIST_ROWS, CursorOption, LimitOption
from ledgerstone.console.steps import removed_in_steps
from ledgerstone.messaging.cli.calls import looking_at
from ledgerstone.messaging.cli.consume import consume
from ledgerstone.messaging.inbox.inbox import Receipt


def list_(
    call: Call,
    *,
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", metavar="NAME", help="Only what this consumer handled."),
    ] = None,
    limit: LimitOption = LIST_ROWS,
    cursor: CursorOption = None,
) -> None:
    """List what was handled, the latest first, a page at a time.

    Example: ledgerstone inbox list --consumer mailer
    """
    with looking_at(call, "receipt") as (_, tx):
        page = tx.inbox.find(consumer=consumer, limit=limit, cursor=cursor)
        now = now_of(tx)
    seen = _screen(page.rows, now)
    if not page.rows:
        filtered = cursor is not None or consumer is not None
        seen = "nothing that meets these filters" if filtered else "nothing was handled yet"
    output.show({"receipts": page.rows, "next": page.next}, seen, json=call.json)
    output.say_next(page.next, json=call.json)


def _screen(rows: Sequence[Receipt], now: datetime) -> RenderableType:
    table = output.table("Handled", "id", "message", "consumer", "ago", numbers=("ago",))
    for column in table.columns:
        column.no_wrap = column.header in {"id", "ago"}
    for row in rows:
        table.add_row(
            row.message_id,
            Text(row.message_name if row.finished else f"{row.message_name} (unfinished)"),
            Text(row.consumer),
            output.since(row.processed_at, now),
        )
    return table


def cleanup(
    call: Call,
    days: Annotated[
        float | None,
        typer.Option(
            "--days",
            metavar="DAYS",
            min=0,
            help="Forget what was handled so long ago; otherwise as the settings say.",
        ),
    ] = None,
) -> None:
    """Forget what was handled long ago, a bounded number in each transaction.

    What is forgotten is handled again if it arrives again, so it is refused to forget what still
    can: messaging.redelivery_days_max.

    Example: ledgerstone inbox cleanup --days 30
    """
    with ledger_of(call) as ledger:
        age = ledger.settings.messaging.keep_receipts_days if days is None else days
        removed = removed_in_steps(
            lambda: ledger.run(lambda tx: tx.inbox.cleanup(days=age)),
            "Receipts",
            json=call.json,
        )
    told = f"{removed:,} receipts removed that are older than {age:g} days"
    output.show({"removed": removed, "days": age}, Text(told), json=call.json)


app = group(
    "Receive messages for your consumers, and see what was handled.",
)
app.command("consume")(command(consume))
app.command("list")(command(list_))
app.command("cleanup")(command(cleanup))
