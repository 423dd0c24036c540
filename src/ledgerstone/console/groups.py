"""Commands that have commands."""

from __future__ import annotations

from collections.abc import Callable

import typer

from ledgerstone.console.call import (
    ApplicationOption,
    Call,
    ConfigOption,
    JsonOption,
    UrlOption,
    VerboseOption,
    options_of,
    take,
)


def group(
    help: str,  # noqa: A002 - typer's word
    alone: Callable[[typer.Context], None] | None = None,
) -> typer.Typer:
    """A command that has commands; called alone it does what `alone` says, or shows its help.

    The options of every command may also stand before its commands.
    """
    made = typer.Typer(help=help, invoke_without_command=True, add_completion=False)

    def grouped(
        context: typer.Context,
        *,
        application: ApplicationOption = None,
        url: UrlOption = None,
        config: ConfigOption = None,
        json: JsonOption = False,
        verbose: VerboseOption = False,
    ) -> None:
        call = Call(url=url, config=config, application=application, json=json, verbose=verbose)
        context.obj = call.over(context.obj)
        if context.invoked_subcommand is None:
            (alone or show_help)(context)

    take(grouped, options_of(grouped))
    made.callback()(grouped)
    return made


def show_help(context: typer.Context) -> None:
    """Show the help of a command that has commands; for a program there is none."""
    if context.obj.json:
        names = ", ".join(context.command.list_commands(context))  # type: ignore[attr-defined]
        raise typer.BadParameter(f"a command is missing: one of {names}", ctx=context)
    typer.echo(context.get_help())
