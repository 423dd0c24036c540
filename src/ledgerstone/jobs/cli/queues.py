"""`ledgerstone queues`: what waits and runs in each; pause, resume and limit one."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType

from ledgerstone.console import output
from ledgerstone.console.application import ByOption, ledger_of, who
from ledgerstone.console.call import Call, command
from ledgerstone.console.groups import group
from ledgerstone.console.output import Text
from ledgerstone.errors import BadInput
from ledgerstone.jobs import Status
from ledgerstone.jobs.read import queues as jobs_queues
from ledgerstone.jobs.read.queues import COUNTED_MAX, Queues, QueueState

NO_LIMIT = "none"

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The queue.")]


def listed(call: Call) -> None:
    """List the queues: what waits and runs in each, and what holds it back.

    Example: ledgerstone queues list
    """
    with ledger_of(call) as ledger, ledger.reading() as tx:
        found = jobs_queues.look(tx)
    output.show(found, screen(found), json=call.json)


def pause(call: Call, name: NameArgument, by: ByOption = None) -> None:
    """Let no job of a queue begin any more; those that run go on.

    Example: ledgerstone queues pause mail --by ann
    """
    with ledger_of(call) as ledger:
        ledger.run(lambda tx: tx.jobs.pause(name, by=who(by)))
    told = f"{name} is paused; `ledgerstone queues resume {name}` lets it go on"
    output.show({"queue": name, "paused": True, "by": who(by)}, Text(told), json=call.json)


def resume(call: Call, name: NameArgument) -> None:
    """Let the jobs of a queue begin again.

    Example: ledgerstone queues resume mail
    """
    with ledger_of(call) as ledger:
        ledger.run(lambda tx: tx.jobs.resume(name))
    output.show({"queue": name, "paused": False}, Text(f"{name} goes on"), json=call.json)


def limit(
    call: Call,
    name: NameArgument,
    most: Annotated[str, typer.Argument(metavar="N", help="A number, or none for no limit.")],
) -> None:
    """Let at most N jobs of a queue run at once, on all workers together.

    Example: ledgerstone queues limit mail 5
    """
    concurrency_max = _number(most)
    with ledger_of(call) as ledger:
        ledger.run(lambda tx: tx.jobs.limit(name, concurrency_max))
    told = f"{name} runs any number of jobs at once"
    if concurrency_max is not None:
        told = f"{name} runs at most {concurrency_max:,} jobs at once, on all workers together"
    facts = {"queue": name, "concurrency_max": concurrency_max}
    output.show(facts, Text(told), json=call.json)


def _number(given: str) -> int | None:
    if given == NO_LIMIT:
        return None
    if not given.isdecimal():
        raise BadInput(
            f"a limit is a number or {NO_LIMIT}, not {given!r}", hint="as in: limit mail 5"
        )
    return int(given)


app = group(
    "List the queues; pause, resume and limit one.\n\nExample: ledgerstone queues",
    alone=command(listed),
)
app.command("list")(command(listed))
for function in (pause, resume, limit):
    app.command()(command(function))


def screen(found: Queues) -> RenderableType:
    """The queues as people see them."""
    if not found.queues:
        return "no queue has jobs that wait, run or are dead; none is paused or limited"
    numbers = ("queued", "scheduled", "blocked", "running", "dead", "oldest")
    held = any(queue.paused_ms is not None or queue.concurrency_max for queue in found.queues)
    table = output.table(
        "Queues",
        "queue",
        *numbers,
        *(("limit", "paused") if held else ()),
        numbers=(*numbers, "limit"),
    )
    for queue in found.queues:
        table.add_row(*_row(queue, found.more, held=held))
    parts: list[RenderableType] = [table]
    if not found.counted_all:
        told = f"+: at least so many; {COUNTED_MAX:,} jobs of each state are counted, the oldest"
        parts.append(Text(told, "yellow"))
    return Group(*parts)


def _row(queue: QueueState, more: list[str], *, held: bool) -> list[RenderableType]:
    waiting, running = Status.QUEUED.value in more, Status.RUNNING.value in more
    row: list[RenderableType] = [
        Text(queue.name, "bold"),
        _count(queue.queued, "cyan", more=waiting),
        _count(queue.scheduled, "", more=waiting),
        _count(queue.blocked, "yellow", more=waiting),
        _count(queue.running, "bold blue", more=running),
        _count(queue.dead_letters, "bold red", more=Status.DEAD_LETTER.value in more),
        output.lasting(queue.oldest_due_ms) if queue.oldest_due_ms is not None else "",
    ]
    if held:
        row.append(f"{queue.concurrency_max:,}" if queue.concurrency_max is not None else "")
        row.append(_paused(queue))
    return row


def _count(count: int, style: str, *, more: bool) -> Text:
    return Text(f"{count:,}{'+' if more and count else ''}", style if count else "dim")


def _paused(queue: QueueState) -> Text:
    if queue.paused_ms is None:
        return Text("")
    by = f" by {queue.paused_by}" if queue.paused_by else ""
    return Text(f"{output.lasting(queue.paused_ms)}{by}", "yellow")
