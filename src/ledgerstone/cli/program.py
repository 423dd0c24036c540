"""The program: its commands, and what is common to all of them."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ledgerstone import __version__
from ledgerstone.console import output
from ledgerstone.console.call import (
    ApplicationOption,
    Call,
    ConfigOption,
    JsonOption,
    UrlOption,
    VerboseOption,
    command,
    flag,
)
from ledgerstone.console.groups import show_help
from ledgerstone.settings.registered import Named

COMMANDS = {
    "up": "ledgerstone.cli.up:up",
    "work": "ledgerstone.cli.work:work",
    "status": "ledgerstone.cli.status:status",
    "doctor": "ledgerstone.cli.doctor:doctor",
    "migrate": "ledgerstone.cli.migrate:migrate",
    "demo": "ledgerstone.cli.demo:demo",
    "jobs": "ledgerstone.jobs.cli.jobs:app",
    "queues": "ledgerstone.jobs.cli.queues:app",
    "schedules": "ledgerstone.jobs.cli.schedules:app",
    "outbox": "ledgerstone.messaging.cli.outbox:app",
    "inbox": "ledgerstone.messaging.cli.inbox:app",
    "failed": "ledgerstone.messaging.cli.failed:app",
    "messaging": "ledgerstone.messaging.cli.messaging:app",
    "protocols": "ledgerstone.protocols.cli.protocols:app",
    "events": "ledgerstone.protocols.cli.events:app",
    "signing": "ledgerstone.signing.cli.commands:app",
    "blobs": "ledgerstone.blobs.cli.commands:app",
}
"""Where each is; only the one that is called is loaded.

The groups of the shipped rooms are written here again: to read them off the rooms would
import all of them before the help is shown.
"""
SUMMARIES = {
    "up": (
        "Run everything in one process: the jobs and consumers of your code, schedules and relays."
    ),
    "work": "Run the jobs, consumers and protocols of your code until Ctrl-C or SIGTERM.",
    "status": "Show the database, its schema, the workers, the leases, jobs and waiting messages.",
    "doctor": "Check settings, database, schema, clocks and workers; say what to do.",
    "migrate": "Bring Ledgerstone's tables up to date.",
    "demo": (
        "See it work: real processes, one killed, one paused; nothing lost, nothing done twice."
    ),
    "jobs": "Accept, list, show, watch, cancel, retry and explain jobs.",
    "queues": "List the queues; pause, resume and limit one.",
    "schedules": "List the schedules; pause, resume, trigger or remove one.",
    "outbox": "Publish messages, run relays, and list what waits.",
    "inbox": "Receive messages for your consumers, and list receipts.",
    "failed": "List failed messages, retry them, or remove them.",
    "messaging": "Set up the shared tables, and the topology of a broker.",
    "protocols": "Run protocols: their commands, tick, tests, and what waits in them.",
    "events": "List, import and export the events of a protocol.",
    "signing": "Sign payments as a group: M of N members agree and sign before money moves.",
    "blobs": "Files in slices: stored, resumed, verified, read by ranges.",
}
"""The first sentence of each help, again: to list the commands loads none of them."""


class Commands(TyperGroup):
    """The commands, loaded when they are called."""

    _is_listing = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *_of_rooms(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self._is_listing and cmd_name in SUMMARIES:
            return TyperCommand(cmd_name, help=SUMMARIES[cmd_name])
        if cmd_name not in self.commands:
            place = COMMANDS.get(cmd_name) or _of_rooms(ctx).get(cmd_name)
            if place is not None:
                self.commands[cmd_name] = _loaded(cmd_name, place)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS:
            # Suggestions for a mistyped name come from the loaded commands.
            for name in self.list_commands(ctx):
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def main(self, args: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """As typer does it; a program that asked for JSON gets it for wrong usage, too."""
        if "--json" not in (sys.argv[1:] if args is None else args):
            return super().main(args, **options)
        try:
            code = super().main(args, **{**options, "standalone_mode": False})
        except typer.TyperException as error:
            output.show_json({"error": _misused(error)})
            code = error.exit_code
        return sys.exit(code or 0)


def _misused(error: typer.TyperException) -> dict[str, object]:
    context: typer.Context | None = getattr(error, "ctx", None)
    path = "ledgerstone" if context is None else context.command_path
    return {
        "code": "usage",
        "message": error.format_message(),
        "hint": f"`{path} --help` shows what it takes",
        "retryable": False,
    }


def _of_rooms(context: Any) -> dict[str, str]:
    """The groups of rooms beside Ledgerstone's: those of the application, or of the settings.

    The called command reports errors of either, not the list of commands.
    """
    from ledgerstone.errors import LedgerstoneError
    from ledgerstone.settings.registered import rooms_of

    given = context.params
    rooms: list[Named]
    try:
        if given.get("application") is not None:
            from ledgerstone.console.application import loaded

            with loaded(given["application"]) as ledger:
                rooms = [*ledger.rooms]
        else:
            from ledgerstone.settings import Settings

            rooms = rooms_of(Settings.load(given.get("config")).rooms)
    except LedgerstoneError:
        return {}
    found = {name: place for room in rooms for name, place in room.cli.items()}
    return {name: place for name, place in found.items() if name not in COMMANDS}


def _loaded(name: str, place: str) -> Any:
    module, _, attribute = place.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        group = typer.main.get_command(found)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False)
    alone.command(name)(command(found))
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=Commands,
    help="Accept once, do later, prove what happened: durable work in the database you have.",
    epilog="Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 something to do,"
    " 4 try again later, 130 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    # A traceback with the values of variables would show passwords.
    pretty_exceptions_enable=False,
)


@app.callback()
def program(
    context: typer.Context,
    *,
    application: ApplicationOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    verbose: VerboseOption = False,
    version: Annotated[bool, flag("--version", help="Print the version and end.")] = False,
) -> None:
    """The options that every command takes before its name."""
    context.obj = Call(url=url, config=config, application=application, json=json, verbose=verbose)
    output.begin()
    if version:
        output.show({"version": __version__}, f"ledgerstone {__version__}", json=json)
        raise typer.Exit
    if context.invoked_subcommand is None:
        show_help(context)
