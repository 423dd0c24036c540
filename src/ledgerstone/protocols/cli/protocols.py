"""`ledgerstone protocols`: what they have to do, their commands, their tick, their tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from ledgerstone.console import output
from ledgerstone.console.application import ledger_of
from ledgerstone.console.bars import count_bar
from ledgerstone.console.byte_files import forget_the_rest
from ledgerstone.console.call import EXIT_REFUSED, Call, command
from ledgerstone.console.groups import group
from ledgerstone.console.output import Text
from ledgerstone.console.pages import LIST_ROWS, CursorOption, LimitOption
from ledgerstone.errors import BadInput
from ledgerstone.protocols import cases, load
from ledgerstone.protocols.cases import CaseResult
from ledgerstone.protocols.cli import retention
from ledgerstone.protocols.cli.arguments import NameArgument, registry_of
from ledgerstone.protocols.parked import Queue
from ledgerstone.protocols.read.status import BLOCKED, QueueFacts, Waiting, facts_of

ParamsOption = Annotated[
    str, typer.Option("--params", metavar="JSON", help="What the command is given, as an object.")
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", help="Run it once for this key; then answer the same."),
]
FollowOption = Annotated[
    float | None,
    typer.Option("--seconds", metavar="N", min=0, help="How long to follow; otherwise for ever."),
]
OutgoingOption = Annotated[
    bool, typer.Option("--outgoing", help="Items that go out, in place of those that came in.")
]
IdsOption = Annotated[
    list[int] | None,
    typer.Option("--id", metavar="ID", help="One item; may be repeated. Otherwise all."),
]
AfterOption = Annotated[
    int, typer.Option("--after", metavar="POSITION", min=0, help="Begin behind this position.")
]


def listed(call: Call) -> None:
    """List the protocols: what comes in, waits, is deferred, goes out and is parked.

    Example: ledgerstone protocols list
    """
    with ledger_of(call) as ledger, ledger.reading() as tx:
        found = facts_of(tx, registry_of(ledger))
    names = ("incoming", "blocked", "deferred", "outgoing", "parked")
    shown = output.table("Protocols", "protocol", *names, numbers=names)
    for facts in found:
        shown.add_row(facts.protocol, *_counts(facts, names))
    none = Text("there is no protocol; name folders in protocols.folders, or give -A MODULE:LEDGER")
    output.show({"protocols": found}, shown if found else none, json=call.json)


def run(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The protocol.")],
    command_: Annotated[str, typer.Argument(metavar="COMMAND", help="One of its commands.")],
    params: ParamsOption = "{}",
    key: KeyOption = None,
) -> None:
    """Run a command of a protocol, and show what it answers.

    Example: ledgerstone protocols run groups group.create --params '{"group": "g"}'
    """
    given = _object(params)
    with ledger_of(call) as ledger:
        answer = dict(ledger.protocol(name).command(command_, given, key=key))
    output.show(answer, output.document(answer), json=call.json)


def tick(call: Call, name: NameArgument = "") -> None:
    """Run the jobs of a protocol that are due, and what is due in its queues.

    Example: ledgerstone protocols tick groups
    """
    with ledger_of(call) as ledger:
        running = ledger.protocol(name)
        ticked, worked = running.tick(), running.work()
    facts = {"held": ticked.held, "jobs": [each._asdict() for each in ticked.ran], "items": worked}
    lines = ["another process ticks"] if ticked.held else []
    lines += [f"{each.name}: {each.error or 'done'}" for each in ticked.ran]
    lines.append(
        f"applied {worked.incoming:,} items, {worked.deferred:,} partitions,"
        f" {worked.rechecks:,} keys; sent {worked.outgoing:,}"
    )
    output.show(facts, Text("\n".join(lines)), json=call.json)


def run_tests(
    call: Call,
    folder: Annotated[
        str, typer.Argument(metavar="[FOLDER]", help="A protocol's folder; otherwise all of yours.")
    ] = "",
) -> None:
    """Run the JSON cases of a protocol: in every order, twice, and concurrently.

    Example: ledgerstone protocols test protocols/groups
    """
    if folder:
        protocols = [load(Path(folder))]
    else:
        with ledger_of(call) as ledger:
            protocols = list(registry_of(ledger))
    verdicts: list[CaseResult] = []
    for protocol in protocols:
        count = len(cases.cases_of(protocol))
        with count_bar(f"test {protocol.name}", count, json=call.json) as shown:
            begun = len(verdicts)

            def told(verdict: CaseResult, begun: int = begun, shown: Any = shown) -> None:
                verdicts.append(verdict)
                shown(len(verdicts) - begun)

            cases.run_cases(protocol, progress=told)
    failed = [verdict for verdict in verdicts if verdict.problems]
    lines = [f"{each.case}: {problem}" for each in failed for problem in each.problems]
    runs = sum(verdict.runs for verdict in verdicts)
    lines.append(f"{len(verdicts)} cases in {runs} runs, {len(failed)} failed")
    output.show(verdicts, Text("\n".join(lines)), json=call.json)
    if failed:
        raise typer.Exit(EXIT_REFUSED)


def blocked(
    call: Call, name: NameArgument = "", limit: LimitOption = LIST_ROWS, cursor: CursorOption = None
) -> None:
    """List the events that wait, the oldest first, and what each waits for.

    Example: ledgerstone protocols blocked groups
    """
    with ledger_of(call) as ledger, ledger.reading() as tx:
        found = registry_of(ledger).found(name)
        page = BLOCKED.read(tx, limit=limit, cursor=cursor, protocol_=found.name)
    columns = ("id", "event", "for", "waits for", "rechecks")
    shown = output.table("Blocked", *columns, numbers=("id", "rechecks"))
    for each in page.rows:
        shown.add_row(*_waiting(each))
    output.show(page, shown if page.rows else Text("no event waits"), json=call.json)
    output.say_next(page.next, json=call.json)


def parked(
    call: Call,
    name: NameArgument = "",
    outgoing: OutgoingOption = False,
    limit: LimitOption = LIST_ROWS,
    cursor: CursorOption = None,
) -> None:
    """List the parked items of a protocol, the oldest first, and why each failed.

    Example: ledgerstone protocols parked groups
    """
    queue = _queue(outgoing)
    with ledger_of(call) as ledger, ledger.reading() as tx:
        page = tx.protocols.parked(queue=queue, protocol=name, limit=limit, cursor=cursor)
    columns = ("id", "to", "bytes", "attempts", "error")
    shown = output.table(f"Parked in {queue}", *columns, numbers=("id", "bytes", "attempts"))
    for each in page.rows:
        error = output.visible(each.last_error or "")
        shown.add_row(
            *(str(each.id), output.visible(each.to), str(each.bytes), str(each.attempts), error)
        )
    output.show(page, shown if page.rows else Text(f"nothing is parked in {queue}"), json=call.json)
    output.say_next(page.next, json=call.json)


def retry(
    call: Call,
    name: NameArgument = "",
    outgoing: OutgoingOption = False,
    ids: IdsOption = None,
) -> None:
    """Queue the parked items of a protocol again: all, or those that are named.

    Example: ledgerstone protocols retry groups --id 7
    """
    queue = _queue(outgoing) if ids or outgoing else None
    with ledger_of(call) as ledger:
        count = ledger.run(
            lambda tx: tx.protocols.retry_parked(queue=queue, ids=ids or None, protocol=name)
        )
    output.show({"retried": count}, Text(f"{count:,} items are queued again"), json=call.json)


def drop(
    call: Call,
    ids: Annotated[list[int], typer.Option("--id", metavar="ID", help="An item; may be repeated.")],
    name: NameArgument = "",
    outgoing: OutgoingOption = False,
) -> None:
    """Remove parked items of a protocol for good.

    Example: ledgerstone protocols drop groups --id 7
    """
    queue = _queue(outgoing)
    with ledger_of(call) as ledger:
        count = ledger.run(lambda tx: tx.protocols.drop_parked(ids, queue=queue, protocol=name))
    output.show({"dropped": count}, Text(f"{count:,} items are removed"), json=call.json)


def tail(
    call: Call, name: NameArgument = "", after: AfterOption = 0, seconds: FollowOption = None
) -> None:
    """Follow the log: each event once, in the order of the commits, as JSON lines.

    Example: ledgerstone protocols tail groups --after 1200
    """
    with ledger_of(call) as ledger, ledger.protocol(name).tail(after=after) as following:
        monotonic = ledger.database.clock.monotonic
        until = None if seconds is None else monotonic() + seconds
        while True:
            left = 1.0 if until is None else min(1.0, until - monotonic())
            for position, event in following.wait(seconds=max(left, 0.0)):
                line = {"position": position, **msgspec.to_builtins(event)}
                try:
                    typer.echo(msgspec.json.encode(line).decode())
                except BrokenPipeError:
                    # The regular end of a tail that follows for ever: `tail | head`.
                    forget_the_rest()
                    return
            if until is not None and monotonic() >= until:
                return


def _queue(outgoing: bool) -> Queue:
    return "outgoing" if outgoing else "incoming"


def _object(words: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(words, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        message = f"--params is no JSON object: {error}"
        raise BadInput(message, hint='as in --params \'{"group": "g"}\'') from error


def _counts(facts: QueueFacts, names: tuple[str, ...]) -> list[str]:
    return [output.counted(getattr(facts, name), facts.counted_max) for name in names]


def _waiting(each: Waiting) -> list[str]:
    reason = output.visible(f"{each.reason_type} {each.reason_key}")
    event = output.visible(f"{each.event_type} {output.short(each.event_id)}")
    return [str(each.id), event, output.visible(each.received_by), reason, str(each.rechecks)]


app = group(
    "Run protocols: their commands, tick, tests, and what waits in them.\n\n"
    "Example: ledgerstone protocols list",
    alone=command(listed),
)
app.command("list")(command(listed))
app.command("test")(command(run_tests))
for function in (run, tick, blocked, parked, retry, drop, tail):
    app.command(function.__name__)(command(function))
for title, kept in retention.COMMANDS.items():
    app.command(title)(kept)
