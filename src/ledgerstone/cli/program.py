"""The program: its commands, and what is common to all of them."""

from __future__ import annotations

from typing import Annotated

import typer

from ledgerstone import __version__
from ledgerstone.cli import jobs, output, queues, schedules
from ledgerstone.cli.call import (
    Call,
    ConfigOption,
    JsonOption,
    UrlOption,
    VerboseOption,
    command,
    flag,
)
from ledgerstone.cli.demo import demo
from ledgerstone.cli.doctor import doctor
from ledgerstone.cli.migrate import migrate
from ledgerstone.cli.status import status
from ledgerstone.cli.up import up
from ledgerstone.cli.work import work

app = typer.Typer(
    help="Accept once, do later, prove what happened: durable work in the database you have.",
    epilog="Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 something to do,"
    " 4 try again later, 130 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    # A traceback with the values of variables would show passwords.
    pretty_exceptions_enable=False,
)

for function in (up, work, status, doctor, migrate, demo):
    app.command()(command(function))
app.add_typer(jobs.app, name="jobs")
app.add_typer(queues.app, name="queues")
app.add_typer(schedules.app, name="schedules")


@app.callback()
def program(
    context: typer.Context,
    *,
    url: UrlOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    verbose: VerboseOption = False,
    version: Annotated[bool, flag("--version", help="Print the version and end.")] = False,
) -> None:
    """What may stand before every command."""
    context.obj = Call(url=url, config=config, json=json, verbose=verbose)
    if version:
        output.show({"version": __version__}, f"ledgerstone {__version__}", json=json)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
