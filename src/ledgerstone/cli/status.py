"""`ledgerstone status`: the database, its schema, who works, who holds what, on one screen."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.live import Live

from ledgerstone.blobs.read.status import BlobFacts
from ledgerstone.console import output
from ledgerstone.console.call import Call, flag
from ledgerstone.console.database import must_exist, opened
from ledgerstone.console.output import Text
from ledgerstone.console.serving import signing_work
from ledgerstone.engine.status import (
    LeaseFacts,
    WorkerFacts,
    WorkerState,
    leases_of,
    workers_of,
)
from ledgerstone.errors import LedgerstoneError
from ledgerstone.jobs.read import unserved
from ledgerstone.jobs.read.status import JobFacts
from ledgerstone.ledger import Transaction
from ledgerstone.messaging.read.status import COUNTED_MAX, BacklogFacts
from ledgerstone.protocols.read.status import QueueFacts
from ledgerstone.room import Rooms
from ledgerstone.settings import Settings
from ledgerstone.signing.kaspa import format_kas
from ledgerstone.signing.read.status import SigningFacts
from ledgerstone.store.database import Database
from ledgerstone.store.dialects.sqlite.dialect import MAIN
from ledgerstone.store.schema import revisions

WATCH_SECONDS = 1.0
ROWS_SHOWN_MAX = 15


class StatusFacts(msgspec.Struct, frozen=True):
    """The state of a ledger at a glance.

    `rooms` are the facts of the rooms, by name; None where a room cannot tell. As JSON they stand
    beside the others.
    """

    url: str
    database: dict[str, str]
    schema: revisions.Schema
    workers: list[WorkerFacts]
    leases: list[LeaseFacts]
    rooms: dict[str, object]

    def as_json(self) -> dict[str, object]:
        """The document that programs get."""
        facts: dict[str, object] = msgspec.structs.asdict(self)
        del facts["rooms"]
        return facts | self.rooms


def status(
    call: Call,
    watch: Annotated[bool, flag("--watch", help="Look again every second, until Ctrl-C.")] = False,
) -> None:
    """Show the database, its schema, the workers, the leases, jobs and waiting messages."""
    if watch and call.json:
        raise typer.BadParameter("--watch and --json do not go together")
    settings = call.settings()
    with opened(settings, tell=False) as database:
        facts = look(database, settings)
        if watch:
            _watch(database, settings, facts)
        else:
            output.show(facts.as_json(), screen(facts), json=call.json)


def look(database: Database[Transaction], settings: Settings) -> StatusFacts:
    """Look once, in one reading transaction; SchemaMissing where the tables are not there."""
    must_exist(database)
    with database.reading() as tx:
        names = database.namespace
        schema = revisions.look(tx.connection, names, database.rooms)
        if schema.current is None or schema.moves:
            revisions.check(schema, database.url)
        return StatusFacts(
            url=settings.url_masked,
            database=dict(database.dialect.describe(tx.connection)),
            schema=schema,
            workers=workers_of(tx, lease_seconds=settings.engine.lease_seconds),
            leases=leases_of(tx),
            rooms=facts_of(tx.rooms, database, tx if schema.up_to_date else None),
        )


def facts_of(
    rooms: Rooms, database: Database[Transaction], tx: Transaction | None
) -> dict[str, object]:
    """The facts of the rooms, by name."""
    return {
        name: look(rooms.opened(room, database), tx)
        for room in rooms
        for name, look in room.status.items()
    }


def screen(facts: StatusFacts) -> RenderableType:
    """The facts as people see them."""
    parts: list[RenderableType] = [output.pairs(_database_rows(facts)), ""]
    if facts.workers:
        parts.append(_workers_table(facts.workers))
    else:
        parts.append("no worker was seen in the last day; `ledgerstone up` starts one")
        parts.append("")
    if facts.leases:
        parts.append(_leases_table(facts.leases))
    for name, found in facts.rooms.items():
        if found is not None:
            view = _VIEWS.get(name)
            parts += [_plain_line(name, found)] if view is None else view(found, facts)
    return Group(*parts)


def _plain_line(name: str, facts: object) -> RenderableType:
    """The facts of a room that has no view of its own, in one line."""
    plain = msgspec.to_builtins(facts)
    named = plain if isinstance(plain, dict) else {"": plain}
    words = Text.assemble((name.replace("_", " ").capitalize(), "bold"))
    for key, value in named.items():
        words.append(f"  {f'{key} {value}'.replace('_', ' ').strip()}")
    return words


def _messages_lines(messages: list[BacklogFacts], _: StatusFacts) -> list[RenderableType]:
    standing = [each for each in messages if each.waiting or each.parked or each.paused]
    return [_messages_table(standing) if standing else "[bold]Messages[/]  none waits"]


def _failed_lines(count: int, _: StatusFacts) -> list[RenderableType]:
    if not count:
        return []
    failed = output.counted(count, COUNTED_MAX)
    return [f"[bold]Failed messages[/]  [bold red]{failed}[/]; `ledgerstone failed show --group`"]


def _signing_lines(facts: SigningFacts, status: StatusFacts) -> list[RenderableType]:
    words = Text.assemble(("Signing", "bold"), "  ")
    if facts.trouble is not None:
        words.append(output.one_line(facts.trouble) or "", "bold red")
        return [words, _signing_work(status.workers)]

    def number(count: int) -> str:
        return output.counted(count, facts.counted_max)

    words.append(f"open {number(facts.open_requests)}")
    words.append(f"  paid today {format_kas(facts.paid_today_sompi)} KAS")
    words.append(f"  reserved {format_kas(facts.reserved_sompi)} KAS")
    if facts.overdue:
        words.append(f"  overdue {number(facts.overdue)}", "yellow")
    if facts.unpublished:
        words.append(f"  to publish {number(facts.unpublished)}", "cyan")
    return [words, _signing_work(status.workers)]


def _protocols_lines(protocols: list[QueueFacts], _: StatusFacts) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for each in protocols:
        words = Text.assemble(("Protocol", "bold"), f" {each.protocol}")
        for name in ("incoming", "blocked", "deferred", "outgoing", "parked"):
            count = getattr(each, name)
            style = "bold red" if count and name == "parked" else ""
            words.append(f"  {name} {output.counted(count, each.counted_max)}", style)
        if each.failing_jobs:
            words.append(f"  failing {', '.join(each.failing_jobs)}", "bold red")
        lines.append(words)
    return lines


def _blobs_lines(blobs: BlobFacts, _: StatusFacts) -> list[RenderableType]:
    if not blobs.completed + blobs.uploading + blobs.expired:
        return []
    words = Text.assemble(("Files", "bold"))
    for name in ("completed", "uploading", "expired"):
        count = output.counted(getattr(blobs, name), blobs.counted_max)
        words.append(f"  {name} {count}", "yellow" if name == "expired" and blobs.expired else "")
    words.append(f"  {decimal(blobs.bytes)}")
    return [words]


def _jobs_lines(jobs: JobFacts, _: StatusFacts) -> list[RenderableType]:
    """One line of numbers; one more for dead letters, and one for each type that nobody runs."""

    def number(count: int) -> str:
        return output.counted(count, jobs.counted_max)

    dead = number(jobs.dead_letters)
    style = "bold red" if jobs.dead_letters else "bold"
    counts = f"queued [bold]{number(jobs.queued)}[/]  running [bold]{number(jobs.running)}[/]"
    lines: list[RenderableType] = [f"[bold]Jobs[/]  {counts}  dead letters [{style}]{dead}[/]"]
    if jobs.dead_letters:
        lines.append("  `ledgerstone jobs list --status dead_letter` shows the dead letters")
    for each in jobs.unserved[:ROWS_SHOWN_MAX]:
        waiting = output.counted(each.jobs, unserved.LOOKED_AT_MAX)
        told = f"  nobody runs {each.type} of the queue {each.queue}: {waiting} wait"
        lines.append(Text(told, "yellow"))
    return [*lines, *_rest(jobs.unserved), ""]


def _signing_work(found: list[WorkerFacts]) -> RenderableType:
    """Whether a living worker looks after the store, and what it did."""
    total: Counter[str] = Counter()
    for each in found:
        if each.state is WorkerState.ALIVE:
            total.update(signing_work(each.duties))
    if not total:
        return Text("  no worker looks after it; `ledgerstone up` does", "yellow")
    told = ", ".join(f"{name} {count:,}" for name, count in total.items())
    return Text(f"  workers so far: {told}", "dim")


def _database_rows(facts: StatusFacts) -> dict[str, RenderableType]:
    settings = dict(facts.database)
    server, driver = settings.pop("database"), settings.pop("driver")
    schema = facts.schema
    at = f", in {schema.place}" if schema.place != MAIN else ""
    standing = f"{schema.current}, up to date{at}"
    if not schema.up_to_date:
        needed = f"{schema.current}, {schema.newest} is needed: `ledgerstone migrate`"
        standing = f"[yellow]{needed} on this database[/]"
    return {
        "database": Text(facts.url),
        "server": Text(f"{server}, driver {driver}"),
        "settings": Text(
            "; ".join(f"{name} {output.foldable(settings[name])}" for name in settings)
        ),
        "schema": standing,
    }


_STATE_STYLE = {
    WorkerState.ALIVE: "green",
    WorkerState.SILENT: "yellow",
    WorkerState.STOPPED: "dim",
}


def _workers_table(found: list[WorkerFacts]) -> RenderableType:
    abandoned = any(worker.abandoned for worker in found)
    numbers = ("running", "done", "refused", *(("abandoned",) if abandoned else ()))
    troubled = any(worker.trouble for worker in found)
    columns = ("id", "where", "state", "seen", *numbers, *(("trouble",) if troubled else ()))
    table = output.table("Workers", *columns, numbers=numbers)
    for worker in found[:ROWS_SHOWN_MAX]:
        table.add_row(
            output.short(worker.id),
            Text(f"{worker.host}:{worker.pid}"),
            Text(worker.state.value, _STATE_STYLE[worker.state]),
            f"{output.lasting(worker.seen_ms_ago)} ago",
            f"{worker.running:,}",
            f"{worker.done:,}",
            f"{worker.refused:,}",
            *((f"{worker.abandoned:,}",) if abandoned else ()),
            *((Text(worker.trouble or "", "red"),) if troubled else ()),
        )
    return Group(table, *_rest(found), "")


def _leases_table(found: list[LeaseFacts]) -> RenderableType:
    table = output.table("Leases", "name", "holder", "expires in", numbers=("expires in",))
    for lease in found[:ROWS_SHOWN_MAX]:
        held = lease.expires_in_ms > 0
        table.add_row(
            Text(lease.name),
            output.short(lease.holder) if held else "",
            output.lasting(lease.expires_in_ms) if held else Text("free", "dim"),
        )
    return Group(table, *_rest(found), "")


def _messages_table(found: list[BacklogFacts]) -> RenderableType:
    numbers = ("waiting", "oldest", "parked")
    table = output.table("Messages", "destination", *numbers, "", numbers=numbers)
    for each in found[:ROWS_SHOWN_MAX]:
        table.add_row(
            Text(each.destination),
            Text(output.counted(each.waiting, COUNTED_MAX), "cyan" if each.waiting else "dim"),
            output.lasting(each.oldest_ms) if each.oldest_ms is not None else "",
            Text(f"{each.parked:,}", "bold red" if each.parked else "dim"),
            Text("paused", "yellow") if each.paused else "",
        )
    return Group(table, *_rest(found))


_VIEWS: dict[str, Callable[[Any, StatusFacts], list[RenderableType]]] = {
    "jobs": _jobs_lines,
    "messages": _messages_lines,
    "failed_messages": _failed_lines,
    "signing": _signing_lines,
    "protocols": _protocols_lines,
    "blobs": _blobs_lines,
}
"""How facts are shown that deserve more than a line of names and values."""


def _rest(found: list[Any]) -> list[RenderableType]:
    rest = len(found) - ROWS_SHOWN_MAX
    return [f"and {rest:,} more (--json shows them)"] if rest > 0 else []


def _watch(database: Database[Transaction], settings: Settings, facts: StatusFacts) -> None:
    """Look again and again; a database that is out of reach for a while ends nothing."""
    console = output.console()
    seen: RenderableType = screen(facts)
    with Live(seen, console=console, auto_refresh=False, transient=False) as live:
        while True:
            if console.is_terminal:
                live.update(seen, refresh=True)
            else:
                console.print(seen)
            time.sleep(WATCH_SECONDS)
            try:
                seen = screen(look(database, settings))
            except LedgerstoneError as error:
                if not error.retryable:
                    raise
                seen = Text(f"{error.code}: {error}", "red")
