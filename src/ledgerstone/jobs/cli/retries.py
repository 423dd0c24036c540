"""`ledgerstone jobs retry`: queue one dead letter again, or many after showing them."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType

from ledgerstone.console import output
from ledgerstone.console.application import ByOption, ledger_of, who
from ledgerstone.console.call import EXIT_REFUSED, Call, flag
from ledgerstone.console.moments import now_of
from ledgerstone.console.output import Text
from ledgerstone.errors import NotAllowedNow, NotFound
from ledgerstone.jobs import JobRow, Status
from ledgerstone.jobs.cli import views as job_views
from ledgerstone.jobs.cli.calls import OrgOption, QueueOption, TypeOption, hinting, id_of
from ledgerstone.jobs.operating import RETRY_MAX
from ledgerstone.ledger import Transaction

RETRY_ROWS_SHOWN_MAX = 15


def retry(
    call: Call,
    *,
    job_id: Annotated[str | None, typer.Argument(metavar="ID", help="The id of the job.")] = None,
    every: Annotated[
        bool, flag("--all", help="All dead letters that the options name, the oldest first.")
    ] = False,
    org: OrgOption = None,
    type_: TypeOption = None,
    queue: QueueOption = None,
    error_code: Annotated[
        str | None,
        typer.Option("--error-code", metavar="CODE", help="Only those that ended with this error."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", help=f"With --all: at most so many, up to {RETRY_MAX}."
        ),
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run", help="Only show what would be retried.")] = False,
    yes: Annotated[bool, flag("--yes", help="Do not ask, however many there are.")] = False,
    by: ByOption = None,
) -> None:
    """Queue dead letters again, with all their attempts: one, or all that the options name.

    Example: ledgerstone jobs retry --all --queue mail --error-code timeout --dry-run
    """
    filters = {"org": org, "type": type_, "queue": queue, "error_code": error_code}
    if (job_id is None) is not every:
        raise typer.BadParameter("name one ID, or --all")
    if not every and any(value is not None for value in (*filters.values(), limit)):
        raise typer.BadParameter("--org, --type, --queue, --error-code and --limit go with --all")
    if job_id is not None:
        _retry_one(call, id_of(job_id), dry_run=dry_run, by=who(by))
    else:
        most = RETRY_MAX if limit is None else limit
        _retry_all(call, filters, limit=most, dry_run=dry_run, yes=yes, by=who(by))


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters that were retried or, in a dry run, would be.

    `changed` are those that were dead when they were looked up, and not any more a moment later.
    `full`: as many as one call retries, so that there may be more.
    """

    retried: list[str]
    changed: list[str]
    dry_run: bool
    full: bool = False


def _retry_one(call: Call, job_id: str, *, dry_run: bool, by: str | None) -> None:
    with hinting(job_id), ledger_of(call) as ledger:
        if dry_run:
            with ledger.reading() as tx:
                status = tx.jobs.get(job_id).status
            if status is not Status.DEAD_LETTER:
                raise NotAllowedNow(f"the job {job_id} is {status.value}, not a dead letter")
        else:
            ledger.run(lambda tx: tx.jobs.retry(job_id, by=by))
    facts = Retried(retried=[job_id], changed=[], dry_run=dry_run)
    told = "would be queued again" if dry_run else "is queued again"
    output.show(facts, Text(f"{job_id}  {told}"), json=call.json)


def _retry_all(
    call: Call,
    filters: dict[str, str | None],
    *,
    limit: int,
    dry_run: bool,
    yes: bool,
    by: str | None,
) -> None:
    with ledger_of(call) as ledger:
        with ledger.reading() as tx:
            found = tx.jobs.retry_all(
                org=filters["org"],
                type=filters["type"],
                queue=filters["queue"],
                error_code=filters["error_code"],
                limit=limit,
                dry_run=True,
            ).ids
            rows = [tx.jobs.get(job_id) for job_id in found[:RETRY_ROWS_SHOWN_MAX]]
            now = now_of(tx)
        if found and not call.json:
            output.say_database()
            output.console().print(_dead(rows, len(found), now))
        if dry_run or not found:
            retried = Retried(retried=found, changed=[], dry_run=dry_run)
        else:
            if len(found) > 1 and not yes:
                _confirm(call, len(found))
            retried = ledger.run(lambda tx: _retried(tx, found, by))
    retried = msgspec.structs.replace(retried, full=len(found) == RETRY_MAX)
    output.show(retried, _told(retried), json=call.json)


def _dead(rows: list[JobRow], count: int, now: datetime) -> RenderableType:
    parts = [job_views.listing(rows, now, title="Dead letters")]
    if count > len(rows):
        parts.append(f"and {count - len(rows):,} more (--json names them)")
    return Group(*parts, "")


def _confirm(call: Call, count: int) -> None:
    """Ask whoever sits there; where nobody does, --yes must have been said."""
    if call.json or not sys.stdin.isatty():
        raise NotAllowedNow(
            f"{count:,} dead letters would be queued again; nothing was done",
            hint="--yes does it, --dry-run shows them, --limit takes fewer",
        )
    if not typer.confirm(f"Queue these {count:,} again?"):
        typer.echo("nothing was done")
        raise typer.Exit(EXIT_REFUSED)


def _retried(tx: Transaction, found: list[str], by: str | None) -> Retried:
    """Retry exactly those that were shown."""
    retried, changed = [], []
    for job_id in found:
        try:
            tx.jobs.retry(job_id, by=by)
        except (NotAllowedNow, NotFound):
            changed.append(job_id)
        else:
            retried.append(job_id)
    return Retried(retried=retried, changed=changed, dry_run=False)


def _told(retried: Retried) -> str:
    if not retried.retried and not retried.changed:
        return "no dead letter meets these filters"
    count = f"{len(retried.retried):,}"
    more = ", the oldest; call again for the rest" if retried.full else ""
    if retried.dry_run:
        return f"{count} would be queued again{more}"
    changed = f"; {len(retried.changed):,} were dead no more" if retried.changed else ""
    return f"{count} queued again{more}{changed}"
