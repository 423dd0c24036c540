"""A call of the program: the options that every command takes, and how it ends when refused."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import msgspec
import typer

from ledgerstone.console import logs, output
from ledgerstone.errors import BadInput, LedgerstoneError, SchemaMissing, SchemaOutdated
from ledgerstone.settings import Settings

EXIT_REFUSED = 1
EXIT_SOMETHING_TO_DO = 3
EXIT_RETRYABLE = 4

Own = ParamSpec("Own")

PANEL = "Options of every command"


def flag(*names: str, help: str, panel: str | None = None) -> Any:  # noqa: A002 - typer's word
    """An option that is given or not; unlike typer's own it is not shown to take a <bool>."""
    return typer.Option(*names, help=help, metavar="", rich_help_panel=panel)


UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The database; otherwise that of the settings.",
        rich_help_panel=PANEL,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The settings; otherwise ledgerstone.toml, if it is here.",
        rich_help_panel=PANEL,
    ),
]
JsonOption = Annotated[
    bool, flag("--json", help="Print one JSON document, also for an error.", panel=PANEL)
]
VerboseOption = Annotated[
    bool, flag("--verbose", "-v", help="Log everything; show where an error arose.", panel=PANEL)
]
ApplicationOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        "-A",
        metavar="MODULE:LEDGER",
        help="The database of your code: where it makes its Ledger, as shop.jobs:ledger.",
        rich_help_panel=PANEL,
    ),
]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """How the program was called: on which database, and how it should speak."""

    url: str | None = None
    config: Path | None = None
    application: str | None = None
    json: bool = False
    verbose: bool = False

    def settings(self) -> Settings:
        """The settings: what the call says before environment, file and defaults.

        With an application they are those of its ledger.
        """
        if self.application is not None:
            # Not at the top: it imports the whole package, which most commands do not need.
            from ledgerstone.console.application import settings_of

            return settings_of(self)
        if self.url is None:
            return Settings.load(self.config)
        return Settings.load(self.config, url=self.url)

    def over(self, earlier: Call) -> Call:
        """This one, completed by what was said earlier on the command line."""
        return Call(
            url=self.url if self.url is not None else earlier.url,
            config=self.config if self.config is not None else earlier.config,
            application=self.application if self.application is not None else earlier.application,
            json=self.json or earlier.json,
            verbose=self.verbose or earlier.verbose,
        )


def command(run: Callable[Concatenate[Call, Own], None]) -> Callable[..., None]:
    """The function as a command that also takes the options of every command.

    - A refusal is told on stderr, or as the one JSON document on stdout, and decides the exit code.
    """

    def with_shared_options(
        context: typer.Context,
        *,
        app: ApplicationOption = None,
        url: UrlOption = None,
        config: ConfigOption = None,
        json: JsonOption = False,
        verbose: VerboseOption = False,
        **own: Any,
    ) -> None:
        call = Call(url=url, config=config, application=app, json=json, verbose=verbose)
        call = call.over(context.obj)
        logs.to_stderr(level="DEBUG" if call.verbose else "ERROR")
        output.begin()
        try:
            _check_text({**own, "url": call.url, "app": call.application}, context)
            run(call, **own)  # type: ignore[call-arg]
        except Exception as error:
            # Not above: it imports SQLAlchemy, which takes longer than all else.
            from ledgerstone.store.connections.faults import translated

            fault = translated(error)
            if not isinstance(fault, LedgerstoneError):
                raise
            if call.verbose:
                sys.stderr.write(output.visible("".join(traceback.format_exception(error))))
            if isinstance(fault, SchemaMissing | SchemaOutdated) and call.application is not None:
                fault.hint = _by_application(fault.hint, call.application)
            output.complain(fault, json=call.json)
            raise typer.Exit(EXIT_RETRYABLE if fault.retryable else EXIT_REFUSED) from error

    _present(with_shared_options, run)
    return with_shared_options


def _by_application(hint: str | None, application: str) -> str | None:
    """The hint, with -A in the place of the URL: that one leads to the same database for sure."""
    if hint is None or "--url " not in hint:
        return hint
    return re.sub(r"--url (\S+)", rf"-A {application} (\1)", hint)


def _check_text(given: dict[str, Any], context: typer.Context) -> None:
    """BadInput for what the shell handed over and is no UTF-8: no database would take it."""
    for name, value in given.items():
        words = value if isinstance(value, list) else [value]
        if any(isinstance(each, str) and _torn(each) for each in words):
            # An argument has no other name for people than what stands in its place.
            spelled = {
                each.name: each.opts[0] if each.opts[0].startswith("-") else str(each.metavar)
                for each in context.command.params
            }
            message = f"what was given for {spelled.get(name, name)} is no text"
            raise BadInput(message, hint="write it in UTF-8")


def _torn(words: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in words)


def _present(command: Callable[..., None], run: Callable[..., None]) -> None:
    """The parts of a command that typer reads: name, words, its own options, then ours."""
    _call, *own = options_of(run)
    context, *shared, _own = options_of(command)
    named = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in own]
    command.__name__ = run.__name__
    command.__doc__ = run.__doc__
    take(command, [context, *named, *shared])


def options_of(function: Callable[..., None]) -> list[inspect.Parameter]:
    """The parameters of a function."""
    return list(inspect.signature(function, eval_str=True).parameters.values())


def take(function: Callable[..., None], options: list[inspect.Parameter]) -> None:
    """Let a function take these, for who reads its signature."""
    function.__annotations__ = {option.name: option.annotation for option in options}
    function.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
