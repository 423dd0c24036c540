"""`ledgerstone inbox`: receive messages, and list receipts."""

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
        typer.Option("--consumer", metavar="NAME", help="Only receipts of this consumer."),
    ] = None,
    limit: LimitOption = LIST_ROWS,
    cursor: CursorOption = None,
) -> None:
    """List receipts of handled messages, newest first, a page at a time.

    Example: ledgerstone inbox list --consumer mailer
    """
    with looking_at(call, "receipt") as (_, tx):
        page = tx.inbox.find(consumer=consumer, limit=limit, cursor=cursor)
        now = now_of(tx)
    seen = _screen(page.rows, now)
    if not page.rows:
        filtered = cursor is not None or consumer is not None
        seen = "no receipt matches these filters" if filtered else "no message was handled yet"
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
            help="Remove receipts older than this; default: as in the settings.",
        ),
    ] = None,
) -> None:
    """Remove old receipts, a bounded number in each transaction.

    A message without a receipt is handled again if it is redelivered. So receipts are kept for at
    least messaging.redelivery_days_max.

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
    "Receive messages for your consumers, and list receipts.",
)
app.command("consume")(command(consume))
app.command("list")(command(list_))
app.command("cleanup")(command(cleanup))
