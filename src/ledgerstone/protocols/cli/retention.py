"""`ledgerstone protocols snapshot|snapshots|prune|verify`: what is kept of a protocol's events."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from ledgerstone.console import output
from ledgerstone.console.application import ledger_of
from ledgerstone.console.bars import count_bar
from ledgerstone.console.call import EXIT_REFUSED, Call, command
from ledgerstone.console.output import Text
from ledgerstone.errors import NotAllowedNow
from ledgerstone.protocols.cli.arguments import NameArgument, registry_of
from ledgerstone.protocols.retention import pruning, records
from ledgerstone.protocols.retention.records import PrunedRange, Snapshot
from ledgerstone.protocols.retention.source import Retained

LISTED = 20
COUNTED_MAX = 100_000

DaysOption = Annotated[
    float | None,
    typer.Option(
        "--keep-days", metavar="N", min=0, help="In place of what the settings or protocol say."
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be pruned, and change nothing.")
]


class Kept(msgspec.Struct, frozen=True):
    """What is on record of a protocol's events."""

    protocol: str
    keep_days: float | None
    snapshots: list[Snapshot]
    pruned: list[PrunedRange]


def snapshot(call: Call, name: NameArgument = "") -> None:
    """Copy the tables of a protocol, so that older events can be pruned.

    Example: ledgerstone protocols snapshot groups
    """
    with ledger_of(call) as ledger, count_bar("snapshot", None, json=call.json) as shown:
        made = ledger.protocol(name).snapshot(progress=shown)
    _refuse_busy(made)
    none = "no event came since the last snapshot"
    words = f"{made.snapshot_rows:,} rows at position {made.snapshot_position}"
    output.show(made, Text(none if made.snapshot_position is None else words), json=call.json)


def snapshots(call: Call, name: NameArgument = "") -> None:
    """List the snapshots of a protocol, the newest first, and which events were pruned.

    Example: ledgerstone protocols snapshots groups
    """
    with ledger_of(call) as ledger, ledger.reading() as tx:
        registry = registry_of(ledger)
        found = registry.found(name)
        kept = Kept(
            found.name,
            registry.retention(found).keep_days,
            records.snapshots(tx, found.name, limit=LISTED),
            records.pruned_ranges(tx, found.name, limit=LISTED),
        )
    shown = output.table("Snapshots", "position", "rows", "is", numbers=("position", "rows"))
    for each in kept.snapshots:
        shown.add_row(f"{each.position:,}", f"{each.row_count:,}", _state(each))
    lines = [
        f"positions {each.after_position + 1:,} to {each.to_position:,} are pruned:"
        f" {each.events:,} events"
        for each in kept.pruned
    ]
    days = "everything is kept" if kept.keep_days is None else f"kept for {kept.keep_days:g} days"
    if not call.json and kept.snapshots:
        output.console().print(shown)
    output.show(kept, Text("\n".join([*lines, days])), json=call.json)


def prune(
    call: Call, name: NameArgument = "", keep_days: DaysOption = None, dry_run: DryRunOption = False
) -> None:
    """Remove the content of events that a snapshot has, and that are old enough.

    Example: ledgerstone protocols prune groups --keep-days 30 --dry-run
    """
    with ledger_of(call) as ledger:
        registry = registry_of(ledger)
        found = registry.found(name)
        days = registry.retention(found).keep_days if keep_days is None else keep_days
        if days is None:
            message = f"{found.name} keeps everything"
            raise NotAllowedNow(message, hint="give --keep-days, or set protocols.retention")
        if dry_run:
            with ledger.reading() as tx:
                within = pruning.bounds(tx, found.name, keep_days=days)
                most = COUNTED_MAX
                count = 0 if within is None else pruning.prunable(tx, found.name, within, most=most)
            words = f"{output.counted(count, COUNTED_MAX)} events would be pruned"
            output.show({"would_prune": count}, Text(words), json=call.json)
            return
        done = ledger.protocol(found.name).prune(keep_days=days)
    _refuse_busy(done)
    output.show(done, Text(f"{done.pruned:,} events were pruned"), json=call.json)


def verify(call: Call, name: NameArgument = "") -> None:
    """Make the tables of a protocol anew from snapshot and log, beside, and compare them.

    Example: ledgerstone protocols verify groups
    """
    with ledger_of(call) as ledger, count_bar("apply events", None, json=call.json) as shown:
        found = ledger.protocol(name).verify(progress=shown)
    lines = [*found.problems]
    lines.append(
        f"{found.rows:,} rows in {found.tables} tables, made of {found.restored_rows:,} rows"
        f" of the snapshot and {found.applied_events:,} events: {len(found.problems)} problems"
    )
    output.show(found, Text("\n".join(lines)), json=call.json)
    if found.problems:
        raise typer.Exit(EXIT_REFUSED)


def _state(each: Snapshot) -> str:
    if each.completed_at_ms is None:
        return "not complete"
    return "followed by a newer one" if each.removed_at_ms is not None else "whole"


def _refuse_busy(done: Retained) -> None:
    if done.busy:
        message = "another process makes a snapshot or prunes this protocol"
        raise NotAllowedNow(message, hint="wait until it is done")


COMMANDS = {each.__name__: command(each) for each in (snapshot, snapshots, prune, verify)}
