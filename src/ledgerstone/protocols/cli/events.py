"""`ledgerstone events`: the log of a protocol, listed, imported and exported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from ledgerstone.console import output
from ledgerstone.console.application import ledger_of
from ledgerstone.console.bars import count_bar
from ledgerstone.console.byte_files import STDIO, read_from, written_to
from ledgerstone.console.call import Call, command
from ledgerstone.console.groups import group
from ledgerstone.console.output import Text
from ledgerstone.console.pages import LIST_ROWS, CursorOption, LimitOption
from ledgerstone.errors import BadInput, TooLarge
from ledgerstone.protocols.cli.arguments import NameArgument, registry_of
from ledgerstone.protocols.events import Envelope, decode, encode
from ledgerstone.protocols.moving import BATCH_EVENTS_MAX, FRAME_BYTES_MAX
from ledgerstone.protocols.read.status import EVENTS
from ledgerstone.protocols.running import IMPORT_EVENTS

COUNT_BYTES = 1 << 20

ProtocolOption = Annotated[
    str,
    typer.Option("--protocol", metavar="NAME", help="The protocol; not needed where there is one."),
]
BatchOption = Annotated[
    int,
    typer.Option("--batch", metavar="N", min=1, max=BATCH_EVENTS_MAX, help="Events in one commit."),
]
ResumeOption = Annotated[
    str | None,
    typer.Option("--resume", metavar="NAME", help="Go on where an import of this name has ended."),
]
OutputOption = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE", help="Where to; otherwise to stdout.")
]


def listed(
    call: Call, name: NameArgument = "", limit: LimitOption = LIST_ROWS, cursor: CursorOption = None
) -> None:
    """List the events of a protocol, the newest first.

    Example: ledgerstone events list groups
    """
    with ledger_of(call) as ledger, ledger.reading() as tx:
        found = registry_of(ledger).found(name)
        page = EVENTS.read(tx, limit=limit, cursor=cursor, protocol_=found.name)
    shown = output.table("Events", "id", "type", "identity", "for", numbers=("id",))
    for each in page.rows:
        words = (each.event_type, output.short(each.event_id), each.received_by)
        shown.add_row(str(each.id), *map(output.visible, words))
    output.show(page, shown if page.rows else Text("there is no event"), json=call.json)
    output.say_next(page.next, json=call.json)


def import_(
    call: Call,
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON lines, or - for stdin.")],
    protocol: ProtocolOption = "",
    batch: BatchOption = IMPORT_EVENTS,
    resume: ResumeOption = None,
) -> None:
    """Apply events from a file of JSON lines, each an envelope; in batches, which are kept.

    Example: ledgerstone events import events.jsonl --resume first
    """
    with (
        ledger_of(call) as ledger,
        read_from(file) as source,
        count_bar(f"import {file}", _count(file), json=call.json) as shown,
    ):
        running = ledger.protocol(protocol)
        line_bytes_max = ledger.settings.store.body_bytes_max + FRAME_BYTES_MAX
        moved = running.import_events(
            _envelopes(source, line_bytes_max),
            name=resume,
            batch=batch,
            progress=lambda told: shown(told.all),
        )
        running.work()
    words = (
        f"{moved.new:,} new, {moved.known:,} known, {moved.blocked:,} wait,"
        f" {moved.failed:,} failed, {moved.resumed:,} done before"
    )
    output.show(moved, Text(words), json=call.json)


def export(
    call: Call,
    name: NameArgument = "",
    output_: OutputOption = STDIO,
    after: Annotated[
        int, typer.Option("--after", metavar="ID", min=0, help="Begin behind this event.")
    ] = 0,
    kept: Annotated[
        bool, typer.Option("--kept", help="Pass over events whose content was pruned.")
    ] = False,
) -> None:
    """Write the log of a protocol as JSON lines that `import` takes.

    Example: ledgerstone events export groups --output events.jsonl
    """
    count = 0
    with (
        ledger_of(call) as ledger,
        written_to(output_) as target,
        count_bar("export", None, json=call.json) as shown,
    ):
        for _, event in ledger.protocol(name).export_events(after=after, kept_only=kept):
            target.write(encode(event) + b"\n")
            count += 1
            if count % BATCH_EVENTS_MAX == 0:
                shown(count)
    if output_ != STDIO:
        output.show({"exported": count}, Text(f"{count:,} events"), json=call.json)


def _envelopes(source: BinaryIO, line_bytes_max: int) -> Iterator[Envelope]:
    # One byte more than a line with its end may have shows that a line is too long.
    for number, line in enumerate(iter(lambda: source.readline(line_bytes_max + 2), b""), start=1):
        if len(line.rstrip(b"\n")) > line_bytes_max:
            message = f"line {number} has more than {line_bytes_max} bytes"
            raise TooLarge(message, hint="raise store.body_bytes_max, or send it as a file")
        if not line.strip():
            continue
        try:
            yield decode(line)
        except BadInput as error:
            raise BadInput(f"line {number}: {error.message}") from error


def _count(file: str) -> int | None:
    """How many lines a file has; None for a pipe, which can be read once."""
    if file == STDIO or not Path(file).is_file():
        return None
    with Path(file).open("rb") as source:
        return sum(part.count(b"\n") for part in iter(lambda: source.read(COUNT_BYTES), b""))


app = group(
    "List, import and export the events of a protocol.\n\nExample: ledgerstone events list",
    alone=command(listed),
)
app.command("list")(command(listed))
app.command("import")(command(import_))
app.command("export")(command(export))
