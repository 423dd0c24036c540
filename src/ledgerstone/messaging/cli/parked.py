"""`ledgerstone outbox resume --all`: resumes parked partitions in bulk."""

from __future__ import annotations

from rich.console import RenderableType

from ledgerstone.console import output
from ledgerstone.console.application import ledger_of
from ledgerstone.console.call import Call
from ledgerstone.console.output import Text
from ledgerstone.console.steps import removed_in_steps
from ledgerstone.ledger import Ledger
from ledgerstone.messaging.cli import outbox_views
from ledgerstone.messaging.cli.calls import confirmed
from ledgerstone.messaging.relay.parked import RESUME_MAX

SHOWN_MAX = 15


def resume_parked(
    call: Call, destination: str, *, code: str | None, dry_run: bool, yes: bool, by: str | None
) -> None:
    """Resumes all of them, RESUME_MAX in a transaction, after listing them."""
    with ledger_of(call) as ledger:
        with ledger.reading() as tx:
            found = tx.outbox.resume_parked(destination, code=code, dry_run=True)
        many = f"{len(found):,}{'+' if len(found) == RESUME_MAX else ''}"
        if found and not call.json:
            output.console().print(_names(found))
        resumed = 0
        if found and not dry_run:
            confirmed(call, f"{many} partitions of {destination} would be resumed", yes=yes)
            resumed = removed_in_steps(
                lambda: _step(ledger, destination, code, by),
                "Parked partitions",
                json=call.json,
                verb="go on",
            )
    facts = {
        "destination": destination,
        "found": found,
        "full": len(found) == RESUME_MAX,
        "resumed": resumed,
        "dry_run": dry_run,
        "by": by,
    }
    told = f"{resumed:,} partitions of {destination} are resumed"
    if dry_run:
        told = f"{many} partitions of {destination} would be resumed"
    if not found:
        told = f"no partition of {destination} is parked{f' with {code}' if code else ''}"
    output.show(facts, Text(told), json=call.json)


def _step(ledger: Ledger, destination: str, code: str | None, by: str | None) -> int:
    return len(ledger.run(lambda tx: tx.outbox.resume_parked(destination, code=code, by=by)))


def _names(found: list[str]) -> RenderableType:
    shown = [outbox_views.partition(name) for name in found[:SHOWN_MAX]]
    if len(found) > SHOWN_MAX:
        shown.append(Text("… (--json names more)", "dim"))
    return Text(", ").join(shown)
