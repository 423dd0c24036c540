"""Views of the outbox: its messages, and the lanes of a destination."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import RenderableType
from rich.table import Table

from ledgerstone.console import output
from ledgerstone.console.output import Text
from ledgerstone.messaging.outbox.outbox import OutboxRow
from ledgerstone.messaging.relay.lanes import LaneRow
from ledgerstone.messaging.states import LaneState

WIDE_COLUMNS = 120
REASON_CHARS_SHOWN_MAX = 160
NAMELESS = "(no name)"
EMPTY_PARTITION = "(empty)"

_LANE_STYLE = {"open": "green", "held": "bold blue", "paused": "yellow", "parked": "bold red"}


def messages(rows: Sequence[OutboxRow], now: datetime) -> RenderableType:
    """A table of messages, with their ids if the terminal is wide enough."""
    wide = output.console().width >= WIDE_COLUMNS
    columns = ("place", "message", "destination", "partition", "state", "age")
    table = output.table("Outbox", *columns, *(("id",) if wide else ()), numbers=("place", "age"))
    _on_one_line(table)
    for row in rows:
        table.add_row(
            str(row.place),
            Text(row.name or NAMELESS),
            Text(row.destination),
            partition(row.partition),
            _state(row, now),
            output.since(row.created_at, now),
            *((Text(row.message_id or "", "dim"),) if wide else ()),
        )
    return table


def partition(name: str) -> Text:
    """A partition; the empty one is shown as such."""
    return Text(name) if name else Text(EMPTY_PARTITION, "dim")


def _state(row: OutboxRow, now: datetime) -> Text:
    if row.delivered_at is not None:
        return Text("delivered", "green")
    if row.available_at > now:
        return Text(f"in {output.since(now, row.available_at)}", "dim cyan")
    return Text("waiting", "cyan")


def lanes(destination: str, rows: Sequence[LaneRow], now: datetime) -> RenderableType:
    """A table of lanes, with holder and reason if any lane has them."""
    held = any(row.held_by for row in rows)
    reasons = any(row.code or row.reason for row in rows)
    columns = ("partition", "state", "waiting since", "attempts")
    further = (*(("held by",) if held else ()), *(("reason",) if reasons else ()))
    table = output.table(f"Lanes of {destination}", *columns, *further, numbers=("attempts",))
    _on_one_line(table, but="reason")
    for row in rows:
        table.add_row(
            partition(row.partition),
            _lane_state(row),
            _since(row, now),
            str(row.attempts) if row.attempts else "",
            *((output.short(row.held_by),) if held else ()),
            *((_reason(row),) if reasons else ()),
        )
    return table


def _lane_state(row: LaneRow) -> Text:
    word = row.state.value
    if row.state is LaneState.OPEN and row.held_by is not None:
        word = "held"
    elif row.state is LaneState.OPEN and row.due_at is None:
        return Text("idle", "dim")
    return Text(word, _LANE_STYLE[word])


def _since(row: LaneRow, now: datetime) -> Text:
    if row.due_at is None:
        return Text("")
    if row.due_at > now:
        again = "again " if row.attempts else ""
        return Text(f"{again}in {output.since(now, row.due_at)}", "dim")
    return Text(output.since(row.due_at, now))


def _reason(row: LaneRow) -> Text:
    words = ": ".join(filter(None, (row.code, output.one_line(row.reason))))
    style = "red" if row.state is LaneState.PARKED else "yellow"
    return Text(output.cut(words, REASON_CHARS_SHOWN_MAX), style)


def _on_one_line(table: Table, *, but: str = "") -> None:
    """Cuts wide values, so that a row stays on one line."""
    for column in table.columns:
        if column.header != but:
            column.no_wrap = True
            column.overflow = "ellipsis"
