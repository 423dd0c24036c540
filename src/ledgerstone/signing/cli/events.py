"""`ledgerstone signing event`: the payments that something outside asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from ledgerstone.console import output
from ledgerstone.console.application import who
from ledgerstone.console.call import Call, command
from ledgerstone.console.groups import group as command_group
from ledgerstone.console.output import Text
from ledgerstone.console.pages import LIST_ROWS, LimitOption
from ledgerstone.signing.cli import views
from ledgerstone.signing.cli.documents import bytes_of, record
from ledgerstone.signing.cli.opening import DataOption, reading_of, signing_of
from ledgerstone.signing.cli.pages import CursorOption, cursor_of, encoded
from ledgerstone.signing.hexadecimal import in_hex
from ledgerstone.signing.kaspa import parse_address, parse_kas
from ledgerstone.signing.values import EventHash, Manual, SigningEvent, Stored

UNKNOWN = 0
"""The time of an event that was given none, until the store gives it one."""


def new(
    call: Call,
    *,
    event_id: Annotated[
        str, typer.Argument(metavar="ID", help="What its source calls it; accepted once.")
    ],
    to: Annotated[str, typer.Option("--to", metavar="ADDRESS", help="Who is paid.")],
    amount: Annotated[str, typer.Option("--amount", metavar="KAS", help="How much, as 12.5.")],
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why it is paid.")
    ] = None,
    index: Annotated[
        int, typer.Option("--index", metavar="N", min=0, help="The derivation index.")
    ] = 0,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="WHO", help="The operator; otherwise your login."),
    ] = None,
    data: DataOption = None,
) -> None:
    """Accept a payment that an operator asks for.

    Its time is that of the first call. The same call again is the same event;
    the same id with other content is refused.

    Example: ledgerstone signing event new invoice-7 --to kaspa:… --amount 12.5
    """
    event = SigningEvent(
        event_id=event_id,
        event_source=Manual(operator=who(by) or ""),
        derivation_path="",
        derivation_index=index,
        destination_address=str(parse_address(to)),
        amount_sompi=parse_kas(amount),
        metadata={} if reason is None else {"reason": reason},
        timestamp_nanos=UNKNOWN,
    )
    _accept(call, data, event, stamp=True)


def add(
    call: Call,
    *,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The event in JSON, bytes in hex; - reads stdin.")
    ],
    data: DataOption = None,
) -> None:
    """Accept an event from a file, as `event show --json` prints one.

    Example: ledgerstone signing event add event.json
    """
    _accept(call, data, record(SigningEvent, file, "the event"))


def _accept(call: Call, data: Path | None, event: SigningEvent, *, stamp: bool = False) -> None:
    with signing_of(call, data) as signing:
        if stamp:
            event = signing.stamped_event(event)
        found = signing.insert_event(event)
    facts = {"event_hash": found.event_hash.hex(), "stored": found.stored}
    words = ("  accepted", "green")
    if found.stored is Stored.SAME:
        words = ("  existing: the same event", "dim")
    output.show(facts, Text.assemble(found.event_hash.hex(), words), json=call.json)


def list_(
    call: Call,
    *,
    limit: LimitOption = LIST_ROWS,
    cursor: CursorOption = None,
    data: DataOption = None,
) -> None:
    """List the events, by their hashes.

    Example: ledgerstone signing event list --limit 100
    """
    after = cursor_of(cursor)
    with reading_of(call, data) as signing:
        page = signing.list_events(after=after, rows_max=limit)
    seen: RenderableType = views.events(page.events)
    if not page.events:
        seen = "there are no events"
    listed = [{"event_hash": key.hex(), "event": in_hex(each)} for key, each in page.events.items()]
    output.show({"events": listed, "next": encoded(page.after)}, seen, json=call.json)
    output.say_next(encoded(page.after), json=call.json)


def show(
    call: Call,
    *,
    event_hash: Annotated[
        str, typer.Argument(metavar="EVENT", help="The event hash, 64 hex digits.")
    ],
    data: DataOption = None,
) -> None:
    """Show an event.

    Example: ledgerstone signing event show EVENT
    """
    wanted = EventHash(bytes_of(event_hash, "an event hash"))
    with reading_of(call, data) as signing:
        event = signing.get_event(wanted)
    output.show(in_hex(event), views.event(wanted, event), json=call.json)


app = command_group(
    "Accept, list and show events: payments that something outside asks for.\n\n"
    "Example: ledgerstone signing event list"
)
app.command("list")(command(list_))
for function in (new, add, show):
    app.command()(command(function))
