"""`ledgerstone schedules`: what comes again and again, when it is next, and what can be done."""

from __future__ import annotations

import time
from datetime import UTC, datetime, tzinfo
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType

from ledgerstone.console import output
from ledgerstone.console.application import ByOption, ledger_of, who
from ledgerstone.console.call import Call, command
from ledgerstone.console.groups import group
from ledgerstone.console.output import Text
from ledgerstone.errors import BadInput
from ledgerstone.jobs.cli.calls import hinting
from ledgerstone.jobs.schedules.cron import zone_of
from ledgerstone.jobs.schedules.rows import Schedule
from ledgerstone.jobs.schedules.schedules import Schedules, now_of, previewed

LIST_DEFAULT = 100
PREVIEW_DEFAULT = 5

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")]


class ScheduleFacts(msgspec.Struct, frozen=True):
    """A schedule, its moments by the clocks of its zone, and how far away they are."""

    schedule: Schedule
    next: datetime | None
    next_in_ms: int | None
    last: datetime | None
    last_ms_ago: int | None
    paused_ms_ago: int | None
    trouble: str | None
    """Why its zone cannot be read here; its moments are told in UTC then."""


class ListFacts(msgspec.Struct, frozen=True):
    """Some schedules, and the cursor that leads to the next ones."""

    schedules: list[ScheduleFacts]
    next: str | None


def listed(
    call: Call,
    limit: Annotated[
        int, typer.Option("--limit", metavar="COUNT", help="How many are listed.")
    ] = LIST_DEFAULT,
    cursor: Annotated[
        str | None,
        typer.Option("--cursor", metavar="CURSOR", help="Go on where an earlier list ended."),
    ] = None,
) -> None:
    """List the schedules by name, with their next and last runs.

    Example: ledgerstone schedules list --limit 20
    """
    with hinting(), ledger_of(call) as ledger, ledger.reading() as tx:
        page = Schedules(tx, ledger.kinds).list(limit=limit, cursor=cursor)
        now = now_of(tx)
    facts = ListFacts([_facts(schedule, now) for schedule in page.rows], page.next)
    output.show(facts, _screen(facts), json=call.json)
    output.say_next(facts.next, json=call.json)


def pause(call: Call, name: NameArgument) -> None:
    """Let the moments of a schedule pass without a job.

    Example: ledgerstone schedules pause nightly
    """
    _change(call, name, "pause", "paused")


def resume(call: Call, name: NameArgument) -> None:
    """Let a paused schedule go on with its first moment after now.

    Example: ledgerstone schedules resume nightly
    """
    _change(call, name, "resume", "resumed")


def remove(call: Call, name: NameArgument) -> None:
    """Remove a schedule; jobs that it has enqueued stay.

    Example: ledgerstone schedules remove nightly
    """
    with ledger_of(call) as ledger:
        ledger.run(lambda tx: Schedules(tx, ledger.kinds).remove(name))
    output.show({"name": name, "removed": True}, Text(f"{name} is removed"), json=call.json)


def trigger(call: Call, name: NameArgument, by: ByOption = None) -> None:
    """Enqueue the job of a schedule now; its own moments stay as they are.

    Example: ledgerstone schedules trigger nightly --by ann
    """
    with ledger_of(call) as ledger:
        enqueued = ledger.run(lambda tx: Schedules(tx, ledger.kinds).trigger(name, by=who(by)))
    facts = {"name": name, "job_id": enqueued.id}
    output.show(facts, Text(f"{name} is triggered: job {enqueued.id}"), json=call.json)


def preview(
    call: Call,
    cron: Annotated[
        str, typer.Argument(metavar="CRON", help='Five fields in quotes: "30 6 * * MON-FRI".')
    ],
    time_zone: Annotated[
        str, typer.Option("--time-zone", metavar="ZONE", help="The time zone of the expression.")
    ] = "UTC",
    count: Annotated[
        int, typer.Option("--count", metavar="COUNT", help="How many moments are shown.")
    ] = PREVIEW_DEFAULT,
) -> None:
    """Show the next moments of a cron expression; needs no database.

    Example: ledgerstone schedules preview "0 6 * * *" --count 3
    """
    now = time.time_ns() // 1_000_000
    moments = previewed(cron, time_zone, count, now)
    facts = {"cron": cron, "time_zone": time_zone, "moments": moments}
    table = output.table(f"{cron} ({time_zone})", "moment", "UTC", "")
    for moment in moments:
        away = _ms(moment) - now
        table.add_row(_clock(moment), f"{moment.astimezone(UTC):%m-%d %H:%M}", _ahead(away))
    output.show(facts, table, json=call.json)


app = group(
    "List the schedules; pause, resume, trigger or remove one.\n\nExample: ledgerstone schedules",
    alone=command(listed),
)
app.command("list")(command(listed))
app.command()(command(preview))
for function in (pause, resume, trigger, remove):
    app.command()(command(function))


def _change(call: Call, name: str, act: str, done: str) -> None:
    with ledger_of(call) as ledger, ledger.transaction() as tx:
        found = Schedules(tx, ledger.kinds)
        getattr(found, act)(name)
        facts = _facts(found.get(name), now_of(tx))
    seen = f"{name} is {done}"
    if facts.next is not None and facts.next_in_ms is not None:
        seen += f"; next {_clock(facts.next)}, {_ahead(facts.next_in_ms)}"
    output.show(facts, Text(seen), json=call.json)


def _facts(schedule: Schedule, now: int) -> ScheduleFacts:
    zone: tzinfo = UTC
    trouble = None
    try:
        zone = zone_of(schedule.time_zone)
    except BadInput as error:
        trouble = error.message

    def here(moment: datetime | None) -> datetime | None:
        return None if moment is None else moment.astimezone(zone)

    def ago(moment: datetime | None) -> int | None:
        return None if moment is None else now - _ms(moment)

    ahead = None if schedule.next_at is None else _ms(schedule.next_at) - now
    return ScheduleFacts(
        schedule=schedule,
        next=here(schedule.next_at),
        next_in_ms=ahead,
        last=here(schedule.last_at),
        last_ms_ago=ago(schedule.last_at),
        paused_ms_ago=ago(schedule.paused_at),
        trouble=trouble,
    )


def _screen(facts: ListFacts) -> RenderableType:
    if not facts.schedules:
        return "there are no schedules"
    table = output.table("Schedules", "name", "cron", "next", "last")
    for found in facts.schedules:
        schedule = found.schedule
        table.add_row(
            Text.assemble(schedule.name, "\n", (schedule.type, "dim")),
            Text.assemble(schedule.cron, "\n", (schedule.time_zone, "dim")),
            _next(found),
            _last(found),
        )
    parts: list[RenderableType] = [table]
    parts += [Text(told, "yellow") for told in _troubles(facts)]
    return Group(*parts)


def _troubles(facts: ListFacts) -> list[str]:
    return [f"{f.schedule.name}: {f.trouble}; told in UTC" for f in facts.schedules if f.trouble]


def _next(facts: ScheduleFacts) -> Text:
    if facts.next is None or facts.next_in_ms is None:
        since = f"for {output.lasting(facts.paused_ms_ago or 0)}"
        return Text.assemble(("paused", "yellow"), "\n", (since, "dim"))
    return Text.assemble(_clock(facts.next), "\n", (_ahead(facts.next_in_ms), "dim"))


def _last(facts: ScheduleFacts) -> Text:
    if facts.last is None or facts.last_ms_ago is None:
        return Text("never", "dim")
    ago = f"{output.lasting(facts.last_ms_ago)} ago"
    return Text.assemble(_clock(facts.last), "\n", (ago, "dim"))


def _clock(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M %Z}"


def _ahead(milliseconds: int) -> str:
    if milliseconds <= 0:
        return f"due for {output.lasting(-milliseconds)}"
    return f"in {output.lasting(milliseconds)}"


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
