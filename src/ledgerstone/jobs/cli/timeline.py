"""The timeline of a job for people: its newest events, and where it failed last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Group, RenderableType

from ledgerstone.console import output
from ledgerstone.console.output import Text
from ledgerstone.jobs import JobEvent
from ledgerstone.jobs.history import EARLIER_MAX, Happened

ROWS_SHOWN_MAX = 100
FOLDED_MIN = 3
"""So many reports of progress in a row become one line."""
WORDS_CHARS_SHOWN_MAX = 300

STYLE = {
    "queued": "cyan",
    "scheduled": "dim cyan",
    "blocked": "yellow",
    "running": "bold blue",
    "canceling": "yellow",
    "succeeded": "green",
    "failed": "red",
    "canceled": "dim",
    "dead_letter": "bold red",
}


def newest(happened: Happened) -> RenderableType:
    """The newest of what happened, with runs of progress folded; how much came earlier."""
    rows = list(_folded(happened.events))
    shown = rows[-ROWS_SHOWN_MAX:]
    earlier = happened.earlier + sum(row.times for row in rows[:-ROWS_SHOWN_MAX])
    parts: list[RenderableType] = [_table("Timeline", shown)]
    if earlier:
        count = f"more than {EARLIER_MAX:,}" if earlier > EARLIER_MAX else f"{earlier:,}"
        words = f"{count} came earlier: `ledgerstone jobs events` lists all"
        parts.insert(0, Text(words, "dim"))
    return Group(*parts)


def timeline(events: Sequence[JobEvent]) -> RenderableType:
    """All of what happened, oldest first."""
    return _table("Timeline", [_Row(event, event) for event in events])


def news(events: Sequence[JobEvent]) -> RenderableType:
    """The events since the last look."""
    return _table(None, list(_folded(events)))


class _Row(msgspec.Struct):
    """One event, or a run of them that are told as one."""

    first: JobEvent
    last: JobEvent
    times: int = 1


def _folded(events: Sequence[JobEvent]) -> Iterator[_Row]:
    run: list[JobEvent] = []
    for event in events:
        if not _is_progress(event):
            yield from _run(run)
            yield _Row(event, event)
            run = []
        else:
            run.append(event)
    yield from _run(run)


def _is_progress(event: JobEvent) -> bool:
    known = {"attempt", "progress", "stage"}
    return event.prev_status == event.next_status and set(event.detail) <= known


def _run(events: list[JobEvent]) -> list[_Row]:
    if len(events) < FOLDED_MIN:
        return [_Row(event, event) for event in events]
    return [_Row(events[0], events[-1], len(events))]


def _table(title: str | None, rows: Sequence[_Row]) -> RenderableType:
    table = output.table(title or "", "at (UTC)", "after", "move", "what", numbers=("after",))
    if title is None:
        table.title, table.show_header = None, False
    for whole in (0, 1):
        table.columns[whole].no_wrap = True
    before: datetime | None = None
    for row in rows:
        table.add_row(
            f"{row.last.ts:%Y-%m-%d %H:%M:%S}",
            output.since(before, row.last.ts) if before is not None else "",
            _move(row.last),
            Text(output.cut(_told(row), WORDS_CHARS_SHOWN_MAX)),
        )
        before = row.last.ts
    return table


def _move(event: JobEvent) -> Text:
    following = Text(event.next_status, STYLE.get(event.next_status, ""))
    if event.prev_status is None:
        return following
    if event.prev_status == event.next_status:
        return Text(f"still {event.next_status}", "dim")
    return Text.assemble((f"{event.prev_status} → ", "dim"), following)


def _told(row: _Row) -> str:
    last = _words(row.last.detail)
    if row.times == 1:
        return last
    began = row.first.detail.get("progress")
    begun = f" from {_percent(began)}" if began is not None else ""
    return f"{row.times:,} reports{begun}: {last}"


def _words(detail: dict[str, Any]) -> str:
    """The detail of an event in words; an unknown key is shown by its name."""
    rest = dict(detail)
    verdict = rest.pop("verdict", None)
    error = rest.pop("error", None)
    said: list[str] = []
    if verdict in {"returned", "snoozed"}:
        said.append(verdict)
    if rest.pop("cancel_requested", None):
        said.append("asked to stop")
    for name, spelled in _SPELLED.items():
        if (value := rest.pop(name, None)) is not None:
            said.append(spelled(value))
    if error is not None:
        said.append(f"{error.get('code')}: {error.get('message')}")
    said += [f"{name} {value}" for name, value in rest.items()]
    return ", ".join(filter(None, said))


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


_SPELLED: dict[str, Callable[[Any], str]] = {
    "attempt": lambda value: f"attempt {value}",
    "progress": _percent,
    "stage": str,
    "reason": str,
    "refused": lambda value: f"refused: {value}",
    "by": lambda value: f"by {value}",
    "worker": lambda value: f"on {output.short(str(value))}",
    "delay_ms": lambda value: f"again in {output.lasting(value)}" if value else "",
    "crashes": lambda value: f"crashes {value}",
    "correlation_id": lambda value: f"correlation {value}",
}


def traceback_of(event: JobEvent | None) -> str | None:
    """Where it failed, if that is known."""
    error = event.detail.get("error") if event is not None else None
    return error.get("traceback") if isinstance(error, dict) else None
