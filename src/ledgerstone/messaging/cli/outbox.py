"""`ledgerstone outbox`: publish messages, run relays, and list what waits and why."""

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
from ledgerstone.messaging.cli.calls import NONE_SO_FAR, confirmed, first_with_rows, looking_at
from ledgerstone.messaging.cli.parked import resume_parked
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
    waiting: Annotated[bool, flag("--waiting", help="Only undelivered messages.")] = False,
    limit: LimitOption = LIST_ROWS,
    cursor: CursorOption = None,
) -> None:
    """List the messages in the outbox, newest first, a page at a time.

    With --waiting the messages of each partition are in the order in which they are sent.

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
        seen = "no message matches these filters" if filtered else "the outbox is empty"
        if page.next is not None:
            seen = NONE_SO_FAR
    output.show({"messages": page.rows, "next": page.next}, seen, json=call.json)
    output.say_next(page.next, json=call.json)


def publish(
    call: Call,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, such as order.placed.")],
    body: Annotated[
        str, typer.Argument(metavar="BODY", help="Its body as JSON; - reads it from stdin.")
    ] = "null",
    partition: Annotated[
        str,
        typer.Option("--partition", metavar="PARTITION", help="Messages of one keep their order."),
    ] = "",
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", help="Publish once: a repeated call has the same key."
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="A header; repeat it for more."),
    ] = None,
    available_at: Annotated[
        str | None,
        typer.Option(
            "--available-at", metavar="TIME", help="Send it not before, as 2027-01-31T08:00:00Z."
        ),
    ] = None,
    delay: Annotated[
        float, typer.Option("--delay", metavar="SECONDS", min=0, help="Send it so much later.")
    ] = 0.0,
) -> None:
    """Publish a message to every destination that its name is routed to.

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
            error.hint = error.hint or "different content needs another key"
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
        LaneState | None, typer.Option("--state", help="Only partitions in this state.")
    ] = None,
    limit: LimitOption = LIST_ROWS,
    cursor: CursorOption = None,
) -> None:
    """List the partitions of a destination: their state, since when, and why.

    Example: ledgerstone outbox lanes broker --state parked
    """
    with ledger_of(call) as ledger, ledger.reading() as tx:
        page = tx.outbox.lanes(destination, state=state, limit=limit, cursor=cursor)
        now = now_of(tx)
    seen: RenderableType = outbox_views.lanes(destination, page.rows, now)
    if not page.rows:
        which = f"no partition of {destination} is {state.value}" if state else ""
        seen = which or f"nothing was published for {destination} yet"
    output.show({"lanes": page.rows, "next": page.next}, seen, json=call.json)
    output.say_next(page.next, json=call.json)


def pause(
    call: Call,
    destination: DestinationArgument,
    partition: PartitionOption = None,
    by: ByOption = None,
) -> None:
    """Stop sending to a destination, or one of its partitions.

    Example: ledgerstone outbox pause broker --partition order-7 --by ann
    """
    with ledger_of(call) as ledger:
        ledger.run(lambda tx: tx.outbox.pause(destination, partition=partition, by=who(by)))
    which = _which(destination, partition)
    again = _quoted(destination, partition)
    facts = {"destination": destination, "partition": partition, "paused": True, "by": who(by)}
    told = f"{which} is paused; `ledgerstone outbox resume {again}` resumes it"
    output.show(facts, Text(told), json=call.json)


def resume(
    call: Call,
    *,
    destination: DestinationArgument,
    partition: PartitionOption = None,
    every: Annotated[bool, flag("--all", help="All its parked partitions.")] = False,
    code: Annotated[
        str | None,
        typer.Option(
            "--code", metavar="CODE", help="With --all: only those parked with it, as unroutable."
        ),
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run", help="With --all: only list them.")] = False,
    yes: Annotated[bool, flag("--yes", help="With --all: do not ask.")] = False,
    by: ByOption = None,
) -> None:
    """Resume a destination, or partitions. A parked one continues with the refused message.

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
    output.show(facts, Text(f"{_which(destination, partition)} is resumed"), json=call.json)


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
            help="Remove messages delivered longer ago; default: as in the settings.",
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
    """Remove all messages of a destination that is no longer in the settings.

    Undelivered messages are lost: add the destination again to send them.

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
    "Publish messages, run relays, and list what waits.",
)
app.command("relay")(command(relay))
app.command("list")(command(list_))
for function in (publish, lanes, pause, resume, cleanup, discard):
    app.command()(command(function))
