"""Jobs as people see them: a list, one of them with its timeline, and either of them live."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from ledgerstone.cli import output
from ledgerstone.errors import LedgerstoneError
from ledgerstone.jobs import JobEvent, JobRow, Status
from ledgerstone.jobs.accepting import NO_ORG
from ledgerstone.jobs.states import FINISHED, Gate

WATCH_SECONDS = 1.0
WORDS_CHARS_SHOWN_MAX = 300
BAR_CHARS = 30
WIDE_COLUMNS = 100

_STYLE = {
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


def facts(row: JobRow) -> dict[str, Any]:
    """A job for programs; its gate by name, and only while it stands before one."""
    gate = row.gate.name.lower() if row.status is Status.QUEUED else None
    return {**msgspec.structs.asdict(row), "gate": gate}


def standing(row: JobRow) -> Text:
    """Where a job stands, in one word."""
    word = row.status.value
    if row.status is Status.QUEUED and row.gate is not Gate.OPEN:
        word = row.gate.name.lower()
    elif row.status is Status.RUNNING and row.cancel_requested:
        word = "canceling"
    return Text(word, _STYLE[word])


def listing(rows: Sequence[JobRow], now: datetime, *, title: str = "Jobs") -> RenderableType:
    """A table of jobs, with the columns that have something to say.

    On a narrow terminal an error takes the place of the queue, and attempts are left out: `show`
    has them, and the id stays in one piece.
    """
    wide = output.console().width >= WIDE_COLUMNS
    failed = any(row.last_error_code for row in rows)
    columns: dict[str, Callable[[JobRow], RenderableType]] = {
        "id": lambda row: row.id,
        "status": standing,
        "type": lambda row: Text(row.type),
    }
    if wide or not failed:
        columns["queue"] = lambda row: Text(row.queue)
    if wide:
        columns["tries"] = lambda row: f"{row.attempt}/{row.max_attempts}"
    columns["age"] = lambda row: output.since(row.created_at, now)
    if failed:
        columns["last error"] = lambda row: Text(row.last_error_code or "", "red")
    if any(row.org_id != NO_ORG for row in rows):
        columns["organisation"] = lambda row: Text(row.org_id if row.org_id != NO_ORG else "")
    table = output.table(title, *columns, numbers=("tries", "age"))
    for column in table.columns:
        column.no_wrap = column.header in {"id", "status", "tries", "age"}
    for row in rows:
        table.add_row(*(seen(row) for seen in columns.values()))
    return table


def portrait(row: JobRow, events: Sequence[JobEvent], now: datetime) -> RenderableType:
    """Everything about a job."""
    parts: list[RenderableType] = [
        output.pairs({name: told for name, told in _rows(row, now).items() if told is not None}),
        "",
        timeline(events),
    ]
    traceback = next((found for event in reversed(events) if (found := _traceback(event))), None)
    if traceback and row.status is not Status.SUCCEEDED:
        parts += ["", "[bold]Where it failed[/]", Text(traceback.rstrip(), "dim")]
    return Group(*parts)


def _rows(row: JobRow, now: datetime) -> dict[str, RenderableType | None]:
    return {
        "job": row.id,
        "type": Text(row.type, "bold"),
        "status": _status_words(row, now),
        "progress": _progress(row),
        "error": _error(row),
        "attempts": _attempts(row),
        "queue": Text(f"{row.queue}, priority {row.priority}" if row.priority else row.queue),
        "created": output.moment(row.created_at, now),
        "due": output.moment(row.run_at, now) if row.status is Status.QUEUED else None,
        "started": output.moment(row.started_at, now),
        "finished": output.moment(row.finished_at, now),
        "worker": Text(row.worker) if row.worker and row.status is Status.RUNNING else None,
        "key": _text(row.key),
        "limited by": _text(row.limit_key),
        "requested by": _text(row.requested_by),
        "correlation": _text(row.correlation_id),
        "trace": _text(row.trace_context),
        "organisation": row.org_id if row.org_id != NO_ORG else None,
        "arguments": _body(row.payload),
        "result": _body(row.result) if row.status is Status.SUCCEEDED else None,
    }


def _status_words(row: JobRow, now: datetime) -> Text:
    words = standing(row)
    if row.status is Status.QUEUED and row.gate is Gate.SCHEDULED and row.run_at > now:
        words.append(f", due in {output.since(now, row.run_at)}", "default")
    elif row.status is Status.QUEUED:
        words.append("; `ledgerstone jobs explain` says what it waits for", "dim")
    elif row.status is Status.DEAD_LETTER:
        words.append("; `ledgerstone jobs retry` queues it again", "dim")
    elif row.finished_at is not None and row.started_at is not None:
        words.append(f" after {output.since(row.started_at, row.finished_at)}", "default")
    return words


def _progress(row: JobRow) -> Text | None:
    if row.progress is None and row.stage is None:
        return None
    done = round(BAR_CHARS * (row.progress or 0.0))
    return Text.assemble(
        ("█" * done, "green"),
        ("░" * (BAR_CHARS - done), "dim"),
        f" {100 * (row.progress or 0.0):.0f} %",
        f"  {row.stage}" if row.stage else "",
    )


def _error(row: JobRow) -> Text | None:
    if row.last_error_code is None:
        return None
    style = "dim" if row.status is Status.SUCCEEDED else "red"
    return Text(f"{row.last_error_code}: {row.last_error_message or ''}", style)


def _attempts(row: JobRow) -> str:
    crashed = f", {row.crashes} of its workers died" if row.crashes else ""
    return f"{row.attempt} of {row.max_attempts}{crashed}"


def _text(words: str | None) -> Text | None:
    return Text(words) if words is not None else None


def _body(body: object) -> Text | None:
    return None if body is None else output.document(body)


def timeline(events: Sequence[JobEvent]) -> RenderableType:
    """What happened, oldest first."""
    table = output.table("Timeline", "at (UTC)", "after", "move", "what", numbers=("after",))
    for whole in (0, 1):
        table.columns[whole].no_wrap = True
    before: datetime | None = None
    for event in events:
        table.add_row(
            f"{event.ts:%Y-%m-%d %H:%M:%S}",
            output.since(before, event.ts) if before is not None else "",
            _move(event),
            Text(output.cut(_words(event.detail), WORDS_CHARS_SHOWN_MAX)),
        )
        before = event.ts
    return table


def _move(event: JobEvent) -> Text:
    following = Text(event.next_status, _STYLE.get(event.next_status, ""))
    if event.prev_status is None:
        return following
    if event.prev_status == event.next_status:
        return Text(f"still {event.next_status}", "dim")
    return Text.assemble((f"{event.prev_status} → ", "dim"), following)


def _words(detail: dict[str, Any]) -> str:
    """What the detail of an event says; what it holds beside the known is said by its name."""
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


_SPELLED: dict[str, Callable[[Any], str]] = {
    "attempt": lambda value: f"attempt {value}",
    "progress": lambda value: f"{100 * value:.0f} %",
    "stage": str,
    "reason": str,
    "refused": lambda value: f"refused: {value}",
    "by": lambda value: f"by {value}",
    "worker": lambda value: f"on {output.short(str(value))}",
    "delay_ms": lambda value: f"again in {output.lasting(value)}" if value else "",
    "crashes": lambda value: f"crashes {value}",
    "correlation_id": lambda value: f"correlation {value}",
}


def _traceback(event: JobEvent) -> str | None:
    error = event.detail.get("error")
    return error.get("traceback") if isinstance(error, dict) else None


class Seen(msgspec.Struct, frozen=True):
    """One look: what is shown, what of it counts as news, and whether it was the last."""

    screen: RenderableType
    news: object
    over: bool = False


def watch(look: Callable[[], Seen], *, silent: bool = False) -> None:
    """Look again and again until it is over; a database out of reach for a while ends nothing.

    On a terminal it is drawn over itself; elsewhere it is written when there is news.
    """
    console = output.console()
    console.quiet = silent
    seen, said = look(), object()
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            if console.is_terminal:
                live.update(seen.screen, refresh=True)
            elif seen.news != said:
                console.print(seen.screen)
            said = seen.news
            if seen.over:
                return
            time.sleep(WATCH_SECONDS)
            try:
                seen = look()
            except LedgerstoneError as error:
                if not error.retryable:
                    raise
                seen = Seen(Text(f"{error.code}: {error}", "red"), error.code)


def is_over(row: JobRow) -> bool:
    """Whether nothing more happens to it by itself."""
    return row.status in FINISHED
