"""`ledgerstone outbox`: publish messages, carry them, and see what waits, for what and why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.console import RenderableType

from ledgerstone.console import bodies, moments, output
from ledgerstone.console.application import ByOption, ledger_of, who
from ledgerstone.console.call import Call, command, flag
from ledgerstone.console.groups import group
from ledgerstone.console.moments import now_of
from ledgerstone.console.output import Text
from ledgerstone.console.pages import LIST_ROWS, CursorOption, LimitOption
from ledgerstone.console.steps import removed_in_steps
from ledgerstone.errors import BadInput, KeyConflict
from ledgerstone.messaging.cli import outbox_views
from ledgerstone.messaging.cli.calls import first_with_rows, looking_at
from ledgerstone.messaging.cli.parked import confirmed, resume_parked
from ledgerstone.messaging.cli.relay import relay
from ledgerstone.messaging.outbox.publishing import Accepted, Published
from ledgerstone.messaging.states import LaneState

DestinationArgument = Annotated[
    str, typer.Argument(metavar="DESTINATION", help="The name of the destination.")
]
DestinationOption = Annotated[
    str | None,
    typer.Option("--destination", metavar="NAME", help="Only messages for this destination."),
]
PartitionOption = Annotated[
    str | None,
    typer.Option("--partition", metavar="PARTITION", help="Only this partition of it."),
]


def list_(
    call: Call,
    *,
    destination: DestinationOption = None,
    waiting: Annotated[bool, flag("--waiting", help="Only what is not delivered.")] = False,
    limit: LimitOption = LIST_ROWS,
    cursor: CursorOption = None,
) -> None:
    """List the messages in the outbox, newest first, a page at a time.

    With --waiting those of each partition in the order in which they leave.

    Example: ledgerstone outbox list --waiting --destination broker
    """
    with looking_at(call, "outbox") as (_, tx):
        page = first_with_rows(
            lambda at: tx.outbox.find(
                destination=destination, waiting=waiting, limit=limit, cursor=at
            ),
            cursor,
        )
        now = now_of(tx)
    seen: RenderableType = outbox_views.messages(page.rows, now)
    if not page.rows:
        filtered = cursor is not None or destination is not None or waiting
        seen = "no message meets these filters" if filtered else "the outbox is empty"
    output.show({"messages": page.rows, "next": page.next}, seen, json=call.json)
    output.say_next(page.next, json=call.json)


def publish(
    call: Call,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, as order.placed.")],
    body: Annotated[
        str, typer.Argument(metavar="BODY", help="Its body in JSON; - reads it from stdin.")
    ] = "null",
    partition: Annotated[
        str,
        typer.Option("--partition", metavar="PARTITION", help="Within which order is kept."),
    ] = "",
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Publish once: the same key, the same message."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="A header; again for more."),
    ] = None,
    available_at: Annotated[
        str | None,
        typer.Option(
            "--available-at", metavar="TIME", help="Not before then, as 2027-01-31T08:00:00Z."
        ),
    ] = None,
    delay: Annotated[
        float, typer.Option("--delay", metavar="SECONDS", min=0, help="So much later.")
    ] = 0.0,
) -> None:
    """Publish a message to every destination that its name leads to.

    Example: ledgerstone outbox publish order.placed '{"order": 7}' --partition order-7
    """
    if delay and available_at is not None:
        raise typer.BadParameter("--delay and --available-at do not go together")
    at = moments.given("--available-at", available_at)
    if delay:
        at = datetime.now(UTC) + timedelta(seconds=delay)
    headers = _headers(header or [])
    with ledger_of(call, make=True) as ledger:
        content = bodies.given(
            "the body",
            body,
            bytes_max=ledger.settings.messaging.body_bytes_max,
            setting="messaging.body_bytes_max",
            example="""'{"order": 7}', quoted for the shell, or text as '"hello"'""",
        )
        try:
            found = ledger.run(
                lambda tx: tx.outbox.publish(
                    name, content, partition=partition, key=key, headers=headers, available_at=at
                )
            )
        except KeyConflict as error:
            error.hint = error.hint or "other content needs another key"
            raise
    output.show(found, _accepted(found), json=call.json)


def _headers(given: list[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    for (name, equals, _), written in zip(pairs, given, strict=True):
        if not name or not equals:
            hint = "write --header tenant=seven"
            raise BadInput(f"a header is NAME=VALUE, not {written!r}", hint=hint)
    return {name: value for name, _, value in pairs}


def _accepted(found: Published) -> Text:
    if found.accepted is Accepted.EXISTING:
        return Text(f"{found.id}  existing: same key, same content")
    where = ", ".join(found.destinations)
    return Text.assemble(found.id, ("  published", "green"), (f", for {where}", "dim"))


def lanes(
    call: Call,
    *,
    destination: DestinationArgument,
    state: Annotated[
        LaneState | None, typer.Option("--state", help="Only partitions that stand there.")
    ] = None,
    limit: LimitOption = LIST_ROWS,
    cursor: CursorOption = None,
) -> None:
    """List the partitions of a destination: which wait, since when, and why.

    Example: ledgerstone outbox lanes broker --state parked
    """
    with ledger_of(call) as ledger, ledger.reading() as tx:
        page = tx.outbox.lanes(destination, state=state, limit=limit, cursor=cursor)
        now = now_of(tx)
    seen: RenderableType = outbox_views.lanes(destination, page.rows, now)
    if not page.rows:
        which = f"no partition of {destination} is {state.value}" if state else ""
        seen = which or f"nothing was ever published for {destination}"
    output.show({"lanes": page.rows, "next": page.next}, seen, json=call.json)
    output.say_next(page.next, json=call.json)


def pause(
    call: Call,
    destination: DestinationArgument,
    partition: PartitionOption = None,
    by: ByOption = None,
) -> None:
    """Let no message leave for a destination, or of one partition for it.

    Example: ledgerstone outbox pause broker --partition order-7 --by ann
    """
    with ledger_of(call) as ledger:
        ledger.run(lambda tx: tx.outbox.pause(destination, partition=partition, by=who(by)))
    which = _which(destination, partition)
    again = _quoted(destination, partition)
    facts = {"destination": destination, "partition": partition, "paused": True, "by": who(by)}
    told = f"{which} is paused; `ledgerstone outbox resume {again}` lets it go on"
    output.show(facts, Text(told), json=call.json)


def resume(
    call: Call,
    *,
    destination: DestinationArgument,
    partition: PartitionOption = None,
    every: Annotated[bool, flag("--all", help="All partitions of it that are parked.")] = False,
    code: Annotated[
        str | None,
        typer.Option(
            "--code", metavar="CODE", help="With --all: only those parked for it, as unroutable."
        ),
    ] = None,
    dry_run: Annotated[
        bool, flag("--dry-run", help="With --all: only show which would go on.")
    ] = False,
    yes: Annotated[bool, flag("--yes", help="With --all: do not ask.")] = False,
    by: ByOption = None,
) -> None:
    """Let messages leave again; of a parked partition the refused one is tried again.

    Example: ledgerstone outbox resume broker --all --code unroutable --dry-run
    """
    if every and partition is not None:
        raise typer.BadParameter("--partition and --all do not go together")
    if not every and (code is not None or dry_run or yes):
        raise typer.BadParameter("--code, --dry-run and --yes go with --all")
    if every:
        resume_parked(call, destination, code=code, dry_run=dry_run, yes=yes, by=who(by))
        return
    with ledger_of(call) as ledger:
        ledger.run(lambda tx: tx.outbox.resume(destination, partition=partition, by=who(by)))
    facts = {"destination": destination, "partition": partition, "paused": False, "by": who(by)}
    output.show(facts, Text(f"{_which(destination, partition)} goes on"), json=call.json)


def _which(destination: str, partition: str | None) -> str:
    return destination if partition is None else f"the partition {partition!r} of {destination}"


def _quoted(destination: str, partition: str | None) -> str:
    return destination if partition is None else f"{destination} --partition {partition!r}"


def cleanup(
    call: Call,
    days: Annotated[
        float | None,
        typer.Option(
            "--days",
            metavar="DAYS",
            min=0,
            help="Remove what was delivered so long ago; otherwise as the settings say.",
        ),
    ] = None,
    destination: DestinationOption = None,
) -> None:
    """Remove delivered messages, a bounded number in each transaction.

    Example: ledgerstone outbox cleanup --days 7
    """
    with ledger_of(call) as ledger:
        age = ledger.settings.messaging.keep_delivered_days if days is None else days
        removed = removed_in_steps(
            lambda: ledger.run(lambda tx: tx.outbox.cleanup(days=age, destination=destination)),
            "Delivered messages",
            json=call.json,
        )
    facts = {"removed": removed, "days": age, "destination": destination}
    told = f"{removed:,} removed that were delivered more than {age:g} days ago"
    output.show(facts, Text(told), json=call.json)


def discard(
    call: Call,
    *,
    destination: DestinationArgument,
    yes: Annotated[bool, flag("--yes", help="Do not ask.")] = False,
    by: ByOption = None,
) -> None:
    """Remove all messages for a destination that is not in the settings any more.

    Those that wait are lost: carry them first, or set the destination again.

    Example: ledgerstone outbox discard warehouse --yes
    """
    confirmed(call, f"All messages for {destination} would be removed", yes=yes)
    with ledger_of(call) as ledger:
        removed = removed_in_steps(
            lambda: ledger.run(lambda tx: tx.outbox.discard(destination, by=who(by))),
            "Messages",
            json=call.json,
        )
    facts = {"removed": removed, "destination": destination, "by": who(by)}
    output.show(facts, Text(f"{removed:,} rows removed"), json=call.json)


app = group(
    "Publish messages, carry them, and see what waits.",
)
app.command("relay")(command(relay))
app.command("list")(command(list_))
for function in (publish, lanes, pause, resume, cleanup, discard):
    app.command()(command(function))
