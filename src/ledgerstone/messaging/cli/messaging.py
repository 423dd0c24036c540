"""`ledgerstone messaging`: set up the shared tables and the topology of a broker."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.table import Table

from ledgerstone.console import output
from ledgerstone.console.call import EXIT_REFUSED, Call, command, flag
from ledgerstone.console.database import must_exist, opened
from ledgerstone.console.groups import group
from ledgerstone.console.output import Text
from ledgerstone.errors import BadInput, NotFound, TargetDown, Unsupported
from ledgerstone.messaging import MessagingRegistry
from ledgerstone.messaging.brokers.amqp import topology
from ledgerstone.messaging.brokers.amqp.topology import Item
from ledgerstone.settings import (
    DestinationSettings,
    MessagingSettings,
    Settings,
    SubscriptionSettings,
)
from ledgerstone.settings.messaging import masked
from ledgerstone.store.dialects.by_url import dialect_of
from ledgerstone.store.schema.ddl import DdlStep

Broker = DestinationSettings | SubscriptionSettings


class Kind(Enum):
    """The databases for which SQL can be printed."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    MYSQL = "mysql"
    MARIADB = "mariadb"


def setup(
    call: Call,
    *,
    apply: Annotated[
        bool, flag("--apply", help="Create what is missing; existing rows are kept.")
    ] = False,
    dry_run: Annotated[bool, flag("--dry-run", help="With --apply: only list the steps.")] = False,
    consumer: Annotated[
        str | None,
        typer.Option(
            "--consumer",
            metavar="NAME",
            help="With --apply: the consumer of receipts that name none.",
        ),
    ] = None,
    kind: Annotated[
        Kind | None,
        typer.Option("--dialect", help="Without --apply: print SQL for this database."),
    ] = None,
) -> None:
    """Print the SQL of the tables that are shared with Symfony Messenger, or create them.

    Example: ledgerstone messaging setup --apply
    """
    if not apply and (consumer is not None or dry_run):
        raise typer.BadParameter("--consumer and --dry-run go with --apply")
    if apply and kind is not None:
        raise typer.BadParameter("--dialect goes without --apply")
    settings = call.settings()
    if apply:
        _apply(call, settings, consumer, dry_run=dry_run)
        return
    url, _ = dialect_of(settings.url)
    kind = kind or Kind(url.get_backend_name())
    sql = MessagingRegistry(settings.messaging).setup.sql(kind.value)
    output.show_json({"kind": kind, "sql": sql}) if call.json else sys.stdout.write(sql)


def _apply(call: Call, settings: Settings, consumer: str | None, *, dry_run: bool) -> None:
    with opened(settings) as database:
        must_exist(database)
        making = MessagingRegistry(settings.messaging).setup
        steps = making.plan(database) if dry_run else making.apply(database, consumer=consumer)
    facts = {"steps": steps, "dry_run": dry_run}
    output.show(facts, _steps(steps, dry_run=dry_run), json=call.json)


def _steps(steps: list[DdlStep], *, dry_run: bool) -> RenderableType:
    if not steps:
        return "everything exists, nothing to do"
    words = list(dict.fromkeys(step.words for step in steps))
    if not dry_run:
        return Group("done:", *(Text(f"  {each}") for each in words))
    return Group(
        "would be done:",
        *(Text(f"  {each}") for each in words),
        "",
        *(Text(f"{step.sql};\n") for step in steps),
    )


class DeclaredFacts(msgspec.Struct, frozen=True):
    """The result for an item of the topology; `ok` is None if it was only planned."""

    broker: str
    item: str
    ok: bool | None
    reason: str = ""


def topology_(
    call: Call,
    *,
    dry_run: Annotated[
        bool, flag("--dry-run", help="Only list the items and their broker.")
    ] = False,
    export: Annotated[
        bool, flag("--export", help="Print definitions for rabbitmqctl import_definitions.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="With --export: write them to a file."),
    ] = None,
    vhost: Annotated[
        str | None, typer.Option("--vhost", metavar="VHOST", help="With --export: the vhost.")
    ] = None,
    destination: Annotated[
        str | None,
        typer.Option(
            "--destination",
            metavar="NAME",
            help="Only on the broker of this destination or subscription.",
        ),
    ] = None,
) -> None:
    """Declare the exchanges, queues and bindings of the settings on RabbitMQ.

    An item that exists as planned is fine; one with other properties is an error. Nothing is
    deleted.

    Example: ledgerstone messaging topology --dry-run
    """
    if not export and (file is not None or vhost is not None):
        raise typer.BadParameter("--output and --vhost go with --export")
    if export and (dry_run or destination is not None):
        raise typer.BadParameter("--export connects to no broker: omit the other options")
    settings = call.settings().messaging
    items = topology.plan(settings)
    if not items:
        hint = "add [messaging.exchanges.NAME] and [messaging.queues.NAME] to ledgerstone.toml"
        raise BadInput("the settings have no exchange and no queue", hint=hint)
    if export:
        _export(call, items, vhost or "/", file)
        return
    found = [
        each
        for name, broker in brokers(settings, destination).items()
        for each in _on_broker(name, broker, items, dry_run=dry_run)
    ]
    output.show({"items": found, "dry_run": dry_run}, _screen(found), json=call.json)
    if any(each.ok is False for each in found):
        raise typer.Exit(EXIT_REFUSED)


def _export(call: Call, items: list[Item], vhost: str, file: Path | None) -> None:
    definitions = topology.definitions(items, vhost=vhost)
    if file is None:
        output.show_json(definitions)
        return
    text = msgspec.json.format(msgspec.json.encode(definitions), indent=2)
    try:
        file.write_bytes(text + b"\n")
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}") from error
    facts = {"file": str(file), "items": len(items)}
    told = f"{len(items)} written; import them with `rabbitmqctl import_definitions {file}`"
    output.show(facts, Text(told), json=call.json)


def brokers(settings: MessagingSettings, named: str | None = None) -> dict[str, Broker]:
    """The brokers of the settings, each once, with a destination or subscription that names it."""
    known: dict[str, Broker] = {**settings.subscriptions, **settings.destinations}
    known = {name: each for name, each in known.items() if each.url.startswith("amqp")}
    if named is not None:
        if named not in known:
            hint = f"there are {', '.join(known)}" if known else "the settings have no RabbitMQ"
            message = f"no destination or subscription named {named!r} is on RabbitMQ"
            raise NotFound(message, hint=hint)
        return {named: known[named]}
    if not known:
        hint = 'add [messaging.destinations.NAME] with url = "amqp://…" to ledgerstone.toml'
        raise BadInput("the settings have no RabbitMQ", hint=hint)
    by_url = {each.url: (name, each) for name, each in known.items()}
    return dict(by_url.values())


def _on_broker(
    name: str, broker: Broker, items: list[Item], *, dry_run: bool
) -> list[DeclaredFacts]:
    where = f"{name} ({masked(broker.url)})"
    if dry_run:
        return [DeclaredFacts(where, str(item), None) for item in items]
    try:
        declared = topology.declare(name, broker, items)
    except TargetDown as down:
        raise TargetDown(name, down.message, hint="run it again when the broker is up") from down
    except ModuleNotFoundError as error:
        message = f"the library {error.name} is not installed"
        raise Unsupported(message, hint="install ledgerstone[amqp]") from error
    return [DeclaredFacts(where, str(each.what), each.ok, each.reason) for each in declared]


def _screen(found: list[DeclaredFacts]) -> RenderableType:
    parts: list[RenderableType] = []
    for where in dict.fromkeys(each.broker for each in found):
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for each in found:
            if each.broker == where:
                grid.add_row(*_row(each))
        parts += [Text(where, "bold"), grid]
    return Group(*parts)


def _row(each: DeclaredFacts) -> tuple[Text, Text]:
    match each.ok:
        case None:
            return Text("would declare", "dim"), Text(each.item)
        case True:
            return Text("OK", "green"), Text(each.item)
        case False:
            return Text("ERROR", "bold red"), Text(f"{each.item}\n{each.reason}")


app = group(
    "Set up the shared tables, and the topology of a broker.",
)
app.command("setup")(command(setup))
app.command("topology")(command(topology_))
