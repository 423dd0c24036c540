"""Jobs as people see them: a list, one of them with its timeline, and either of them live."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.console import ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment

from ledgerstone.console import output
from ledgerstone.console.output import AnyConsole, Text
from ledgerstone.errors import LedgerstoneError
from ledgerstone.jobs import JobRow, Status
from ledgerstone.jobs.accepting import NO_ORG
from ledgerstone.jobs.cli import timeline as job_timeline
from ledgerstone.jobs.cli.timeline import STYLE
from ledgerstone.jobs.history import Happened
from ledgerstone.jobs.states import FINISHED, Gate

WATCH_SECONDS = 1.0
BAR_CHARS = 30
IMPORTANT = (
    *("id", "status", "type", "last error", "org", "age"),
    *("organisation", "queue", "tries"),
)
"""Columns of a list, the last to be left out first."""
FOLDED = {"type", "last error", "queue"}
FOLDED_CHARS = 14
"""So much room is enough for those that can go on in the next line."""
COLUMN_GAP = 2
ID_AND_ORG = "id, organisation"


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
    return Text(word, STYLE[word])


def listing(rows: Sequence[JobRow], now: datetime, *, title: str = "Jobs") -> RenderableType:
    """A table of jobs, with the columns that have something to say and fit; `show` has all.

    The id stays in one piece. Organisations are cut short where the terminal is narrow, and stand
    below the ids where it is narrower; narrower still, everything stands there.
    """
    columns = _fitting(_columns(rows, now))
    if "status" not in columns:
        return _stacked(rows, now, title)
    table = output.table(title, *columns, numbers=("tries", "age"))
    for column in table.columns:
        column.no_wrap = column.header not in FOLDED
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table


Columns = dict[str, list[Text]]


def _columns(rows: Sequence[JobRow], now: datetime) -> Columns:
    """The facts of a job, in the order in which they are shown."""
    columns = {
        "id": [Text(row.id) for row in rows],
        "status": [standing(row) for row in rows],
        "type": [Text(row.type) for row in rows],
        "queue": [Text(row.queue) for row in rows],
        "tries": [Text(f"{row.attempt}/{row.max_attempts}") for row in rows],
        "age": [Text(output.since(row.created_at, now)) for row in rows],
    }
    if any(row.last_error_code for row in rows):
        columns["last error"] = [Text(row.last_error_code or "", "red") for row in rows]
    if any(_org(row) for row in rows):
        columns["organisation"] = [Text(_org(row)) for row in rows]
    return columns


def _org(row: JobRow) -> str:
    return row.org_id if row.org_id != NO_ORG else ""


def _fitting(columns: Columns) -> Columns:
    chosen = _chosen(columns)
    if "organisation" not in columns or "organisation" in chosen:
        return chosen
    orgs = columns.pop("organisation")
    short = [Text(output.short(org.plain) if org else "") for org in orgs]
    chosen = _chosen({**columns, "org": short})
    if "org" not in chosen:
        below = [
            Text.assemble(job_id, (f"\n{org}" if org else "", "dim"))
            for job_id, org in zip(columns["id"], orgs, strict=True)
        ]
        chosen = _chosen({**columns, "id": below})
        return {ID_AND_ORG if name == "id" else name: chosen[name] for name in chosen}
    return chosen


def _chosen(columns: Columns) -> Columns:
    """As many as fit, the most important first."""
    room = output.console().width + COLUMN_GAP
    kept = set()
    for name in IMPORTANT:
        needed = _width(name, columns.get(name, [])) + COLUMN_GAP
        if name in columns and needed <= room:
            kept.add(name)
            room -= needed
    return {name: cells for name, cells in columns.items() if name in kept}


def _width(name: str, cells: list[Text]) -> int:
    lines = [line for cell in cells for line in cell.plain.splitlines()]
    widest = max(map(cell_len, [name, *lines]))
    return min(widest, FOLDED_CHARS) if name in FOLDED else widest


def _stacked(rows: Sequence[JobRow], now: datetime, title: str) -> RenderableType:
    parts: list[RenderableType] = [Text(title, "bold")]
    for row in rows:
        parts.append(Text(row.id))
        if _org(row):
            parts.append(Text(f"  {_org(row)}", "dim"))
        age = output.since(row.created_at, now)
        parts.append(Text.assemble("  ", standing(row), f"  {row.type}  {age}"))
        if row.last_error_code:
            parts.append(Text(f"  {row.last_error_code}", "red"))
    return Group(*parts)


def portrait(
    row: JobRow, happened: Happened, now: datetime, *, live: bool = False
) -> RenderableType:
    """Everything about a job; on a live screen that is too small, what matters most now."""
    head = output.pairs({name: told for name, told in _rows(row, now).items() if told is not None})
    tail = Group("", job_timeline.newest(happened), *_where_it_failed(row, happened))
    return Fitted(head, tail) if live else Group(head, tail)


def outcome(row: JobRow, happened: Happened, now: datetime) -> RenderableType:
    """How a job came out."""
    known = ("status", "error", "attempts", "result")
    rows = {name: told for name, told in _rows(row, now).items() if name in known and told}
    return Group("", output.pairs(rows), *_where_it_failed(row, happened))


def _where_it_failed(row: JobRow, happened: Happened) -> list[RenderableType]:
    traceback = job_timeline.traceback_of(happened.failed)
    if not traceback or row.status is Status.SUCCEEDED:
        return []
    return ["", "[bold]Where it failed[/]", Text(traceback.rstrip(), "dim")]


class Fitted(msgspec.Struct, frozen=True):
    """Two parts, one below the other, in the height of the terminal.

    Where they do not fit, the beginning of the first stays in sight and the end of the second, each
    in half of it or in what the other leaves.
    """

    head: RenderableType
    tail: RenderableType

    def __rich_console__(self, console: AnyConsole, options: ConsoleOptions) -> RenderResult:
        head, tail = (console.render_lines(part, options) for part in (self.head, self.tail))
        room = options.size.height - 1
        lines = [*head, *tail]
        if len(lines) > room:
            above = min(len(head), max(room // 2, room - 1 - len(tail)))
            below = max(room - 1 - above, 1)
            cut = console.render_lines(Text("…", "dim"), options)
            lines = [*head[:above], *cut, *tail[-below:]]
        for line in lines:
            yield from line
            yield Segment.line()


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


class Seen(msgspec.Struct, frozen=True):
    """One look: what is shown, what of it counts as news, and whether it was the last.

    `added` is what is written instead where nothing can be drawn over, if that is less.
    """

    screen: RenderableType
    news: object
    over: bool = False
    added: RenderableType | None = None


def watch(look: Callable[[], Seen], *, silent: bool = False) -> None:
    """Look again and again until it is over; a database out of reach for a while ends nothing.

    On a terminal it is drawn over itself; elsewhere what is new is written when there is news.
    """
    output.say_database()
    console = output.console()
    console.quiet = silent
    seen, said = look(), object()
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            if console.is_terminal:
                live.update(seen.screen, refresh=True)
            elif seen.news != said:
                console.print(seen.screen if seen.added is None else seen.added)
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


class Follower:
    """Looks at one job; knows what was seen of it before."""

    def __init__(self) -> None:
        self._seen: set[str] | None = None

    def look(self, row: JobRow, happened: Happened, now: datetime) -> Seen:
        over = row.status in FINISHED
        added = self._added(row, happened, now, over=over)
        self._seen = {event.id for event in happened.events}
        screen = portrait(row, happened, now, live=True)
        return Seen(screen, (row, happened.events[-1:]), over, added)

    def _added(
        self, row: JobRow, happened: Happened, now: datetime, *, over: bool
    ) -> RenderableType:
        if self._seen is None:
            return portrait(row, happened, now)
        new = [event for event in happened.events if event.id not in self._seen]
        parts = [job_timeline.news(new) if new else standing(row)]
        return Group(*parts, *([outcome(row, happened, now)] if over else []))
