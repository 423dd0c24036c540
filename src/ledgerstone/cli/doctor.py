"""`ledgerstone doctor`: every check, and what to do."""

from __future__ import annotations

import typer
from rich.console import Group, RenderableType
from rich.table import Table

from ledgerstone.cli.checks import Diagnosis, diagnose
from ledgerstone.console import output
from ledgerstone.console.call import EXIT_REFUSED, Call
from ledgerstone.console.output import Text
from ledgerstone.room import CheckStatus

_STYLE = {CheckStatus.OK: "green", CheckStatus.WARNING: "yellow", CheckStatus.PROBLEM: "bold red"}


def doctor(call: Call) -> None:
    """Check settings, database, schema, clocks and workers; say what to do."""
    diagnosis = diagnose(call.settings)
    output.show(diagnosis, screen(diagnosis), json=call.json)
    if diagnosis.problems:
        raise typer.Exit(EXIT_REFUSED)


def screen(diagnosis: Diagnosis) -> RenderableType:
    """The diagnosis as people see it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for check in diagnosis.checks:
        grid.add_row(
            Text(check.verdict.value, _STYLE[check.verdict]), check.name, Text(check.found)
        )
        if check.todo:
            grid.add_row("", "", Text(f"→ {check.todo}", "cyan"))
    summary = f"ok {diagnosis.ok}, warnings {diagnosis.warnings}, problems {diagnosis.problems}"
    return Group(grid, "", f"[bold]{summary}[/]")
