"""Views of failed messages: a list, groups by cause, and one with all details."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Group as Parts
from rich.console import RenderableType

from ledgerstone.console import output
from ledgerstone.console.output import Text
from ledgerstone.messaging.cli.outbox_views import partition
from ledgerstone.messaging.failed.failed import Group, Groups
from ledgerstone.messaging.failed.rows import FailedMessage
from ledgerstone.messaging.record import MessageEvent

REASON_CHARS_SHOWN_MAX = 120
OURS = "X-Ledgerstone-"
STAMP = "X-Message-Stamp-"
NOBODY = "(nobody)"


def facts(found: FailedMessage, *, whole: bool = False) -> dict[str, Any]:
    """A failed message as JSON; a list has no body and headers."""
    told = {
        name: getattr(found, name)
        for name in found.__struct_fields__
        if name not in {"raw", "message", "headers", "traceback"}
    }
    if not whole:
        return told
    body: object = found.raw.decode("utf-8", "replace")
    if found.message is not None and not found.binary:
        body = _parsed(found.raw)
    return {**told, "traceback": found.traceback, "headers": dict(found.headers), "body": body}


def listing(
    rows: Sequence[FailedMessage], now: datetime, *, title: str = "Failed messages"
) -> RenderableType:
    """A table of failed messages."""
    table = output.table(
        title, "id", "message", "who", "tries", "age", "why", numbers=("id", "tries", "age")
    )
    for column in table.columns:
        column.no_wrap = column.header in {"id", "tries", "age"}
    for row in rows:
        table.add_row(
            str(row.id),
            Text(row.name),
            _who(row),
            str(row.attempts),
            output.since(row.failed_at, now),
            _why(row),
        )
    return table


def _who(row: FailedMessage | Group) -> Text:
    """The consumer that failed, or the destination that gave it up."""
    if row.consumer is None:
        return Text(f"→ {row.origin or ''}")
    return Text(row.consumer) if row.consumer else Text(NOBODY, "dim")


def _why(row: FailedMessage | Group) -> Text:
    words = ": ".join(filter(None, (row.code, output.one_line(row.reason))))
    return Text(_short(words), "red")


def _short(words: str) -> str:
    if len(words) <= REASON_CHARS_SHOWN_MAX:
        return words
    return f"{words[:REASON_CHARS_SHOWN_MAX]}…"


def groups(found: Groups, now: datetime) -> RenderableType:
    """A table of failed messages by cause."""
    columns = ("count", "message", "who", "newest", "oldest", "why")
    table = output.table(
        "Failed messages by cause", *columns, numbers=("count", "newest", "oldest")
    )
    for column in table.columns:
        column.no_wrap = column.header in {"count", "newest", "oldest"}
    for group in found.groups:
        table.add_row(
            Text(f"{group.count:,}", "bold"),
            Text(group.name),
            _who(group),
            output.since(group.newest, now),
            output.since(group.oldest, now),
            _why(group),
        )
    if found.counted_all:
        return table
    return Parts(table, Text("there are more: the oldest were not counted", "yellow"))


def portrait(found: FailedMessage, events: Sequence[MessageEvent], now: datetime) -> RenderableType:
    """Everything about one failed message."""
    rows = {name: told for name, told in _rows(found, now).items() if told is not None}
    parts: list[RenderableType] = [output.pairs(rows)]
    if events:
        parts += ["", _record(events)]
    if found.traceback:
        parts += ["", "[bold]Where it failed[/]", Text(found.traceback.rstrip(), "dim")]
    return Parts(*parts)


def _rows(found: FailedMessage, now: datetime) -> dict[str, RenderableType | None]:
    own = {
        name: value
        for name, value in found.headers.items()
        if not name.startswith((OURS, STAMP)) and name not in {"type", "Content-Type"}
    }
    destination = found.origin if found.consumer is None else None
    return {
        "failed": Text.assemble(str(found.id), (f"  {_next_step(found)}", "dim")),
        "message": Text(found.name, "bold"),
        "message id": found.message_id,
        "destination": Text(destination) if destination else None,
        "consumer": _who(found) if found.consumer is not None else None,
        "came from": Text(found.origin) if found.origin and not destination else None,
        "why": Text(f"{found.code}: {found.reason}", "red"),
        "attempts": str(found.attempts),
        "at": output.moment(found.failed_at, now),
        "partition": partition(found.partition),
        "place": str(found.place) if found.place is not None else None,
        "headers": Text("\n".join(f"{k}: {v}" for k, v in own.items())) if own else None,
        "body": _body(found),
    }


def _next_step(found: FailedMessage) -> str:
    if found.message is None or found.binary:
        return f"`ledgerstone failed remove {found.id}` removes it: it cannot be sent again"
    return f"`ledgerstone failed retry {found.id}` sends it again"


def _body(found: FailedMessage) -> Text:
    if found.message is not None and not found.binary:
        return output.document(_parsed(found.raw))
    text = found.raw.decode("utf-8", "backslashreplace")
    return Text(output.cut(text, output.BODY_CHARS_SHOWN_MAX))


def _parsed(raw: bytes) -> Any:
    """The decoded body; a row of another program may hold anything."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return raw.decode("utf-8", "replace")


def _record(events: Sequence[MessageEvent]) -> RenderableType:
    table = output.table("On record", "at (UTC)", "what", "where", "who", "why")
    table.columns[0].no_wrap = True
    for event in events:
        entry = event.entry
        words = ": ".join(filter(None, (entry.code, output.one_line(entry.reason))))
        table.add_row(
            f"{event.at:%Y-%m-%d %H:%M:%S}",
            entry.what.value,
            Text(entry.queue),
            Text(entry.who or ""),
            Text(_short(words)),
        )
    return table
