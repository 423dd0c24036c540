"""The group `ledgerstone signing`: its commands in the order of a request's life."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from ledgerstone.console.call import command
from ledgerstone.console.groups import group as command_group
from ledgerstone.signing.cli import events, groups, requests, seen, upkeep, voting

NOUNS = ("group", "event", "request")


class InOrder(TyperGroup):
    """The commands in the order of a request's life: first the groups of commands it begins with.

    Typer lists groups of commands after all others.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        others = [name for name in super().list_commands(ctx) if name not in NOUNS]
        return [*NOUNS, *others]


app = command_group(
    "Sign payments as a group: M of N members agree and sign before money moves.",
)
app.info.cls = InOrder
app.add_typer(groups.app, name="group")
app.add_typer(events.app, name="event")
app.add_typer(requests.app, name="request")
app.add_typer(seen.app, name="seen")
for function in (
    requests.propose,
    voting.ack,
    voting.sign,
    voting.finalize,
    voting.expire,
    voting.audit,
    upkeep.volume,
    upkeep.archive,
    upkeep.checkpoint,
    upkeep.backup,
    upkeep.verify,
    upkeep.restore,
    upkeep.compact,
    upkeep.health,
    upkeep.stats,
    upkeep.export,
):
    app.command()(command(function))
app.command("import")(command(upkeep.import_))
