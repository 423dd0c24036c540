"""`ledgerstone jobs`: accept, list, show, watch, cancel, retry and explain jobs."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group, RenderableType

from ledgerstone.console import bodies, moments, output
from ledgerstone.console.application import ByOption, ledger_of, who
from ledgerstone.console.call import EXIT_REFUSED, Call, command
from ledgerstone.console.groups import group
from ledgerstone.console.moments import now_of
from ledgerstone.console.output import Text
from ledgerstone.engine import worker_rows
from ledgerstone.errors import BadInput
from ledgerstone.jobs import Accepted, Enqueued, Status, history
from ledgerstone.jobs.accepting import NO_ORG
from ledgerstone.jobs.cli import queues
from ledgerstone.jobs.cli import timeline as job_timeline
from ledgerstone.jobs.cli import views as job_views
from ledgerstone.jobs.cli.calls import (
    IdArgument,
    OrgOption,
    QueueOption,
    TypeOption,
    hinting,
    id_of,
)
from ledgerstone.jobs.cli.retries import retry
from ledgerstone.jobs.cli.views import Follower, Seen
from ledgerstone.jobs.read import queues as jobs_queues
from ledgerstone.ledger import Ledger

LIST_ROWS = 20
EVENT_ROWS = 100
WATCH_ROWS = 15

CursorOption = Annotated[
    str | None,
    typer.Option("--cursor", metavar="CURSOR", help="Go on where the page before ended."),
]


def enqueue(
    call: Call,
    *,
    job_type: Annotated[str, typer.Argument(metavar="TYPE", help="The type of the job.")],
    arguments: Annotated[
        str,
        typer.Option(
            "--args", metavar="JSON", help="Its arguments, a JSON object; - reads it from stdin."
        ),
    ] = "{}",
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Accept it once: the same key, the same job."),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="NAME", help="The queue; otherwise that of its type."),
    ] = None,
    org: Annotated[
        str, typer.Option("--org", metavar="UUID", help="The organisation it belongs to.")
    ] = NO_ORG,
    priority: Annotated[
        int | None, typer.Option("--priority", metavar="N", help="Higher runs earlier.")
    ] = None,
    delay: Annotated[
        float, typer.Option("--delay", metavar="SECONDS", help="Run it so much later.")
    ] = 0.0,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="Run it then, as 2027-01-31T08:00:00Z."),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", metavar="N", help="Give up after so many.")
    ] = None,
    requested_by: Annotated[
        str | None, typer.Option("--requested-by", metavar="WHO", help="The requester.")
    ] = None,
) -> None:
    """Accept a job. With -A its type and arguments are checked first, without they are not.

    Example: ledgerstone jobs enqueue mail.send --args '{"to": "ann"}' --key mail-7 -A shop:ledger
    """
    if delay and at is not None:
        raise typer.BadParameter("--delay and --at do not go together")
    options: dict[str, Any] = {
        "key": key,
        "queue": queue,
        "org": org,
        "priority": priority,
        "delay_seconds": delay,
        "run_at": moments.given("--at", at),
        "max_attempts": max_attempts,
        "requested_by": requested_by,
    }
    with ledger_of(call, make=True) as ledger, hinting(key=key):
        if call.application is not None:
            _check_known(ledger, call.application, job_type)
        payload = _parsed(ledger, arguments)
        found = ledger.run(lambda tx: tx.jobs.enqueue(job_type, payload, **options))
        with ledger.reading() as tx:
            waits = not worker_rows.alive(tx)
    seen = _accepted(found, checked=call.application is not None, waits=waits)
    output.show(found, seen, json=call.json)


def _parsed(ledger: Ledger, arguments: str) -> dict[str, Any]:
    example = """--args '{"order": 7}', quoted for the shell"""
    parsed = bodies.given(
        "--args",
        arguments,
        bytes_max=ledger.settings.store.body_bytes_max,
        setting="store.body_bytes_max",
        example=example,
    )
    if not isinstance(parsed, dict):
        message = "--args is a JSON object, with the arguments by name"
        raise BadInput(message, hint=f"as in {example}")
    return parsed


def _check_known(ledger: Ledger, application: str, job_type: str) -> None:
    known = sorted(ledger.kinds.all())
    if job_type not in known:
        hint = f"it has: {', '.join(known)}" if known else "decorate one with @ledger.job(name)"
        raise BadInput(f"{application} has no job {job_type!r}", hint=hint)


def _accepted(found: Enqueued, *, checked: bool, waits: bool) -> RenderableType:
    if found.accepted is Accepted.EXISTING:
        return Text(f"{found.id}  existing: same key, same content")
    note = "" if checked else ", unchecked: -A would check it"
    if waits:
        note += "\n  no worker runs on this database"
    return Text.assemble(found.id, ("  created", "green"), (note, "dim"))


def list_(
    call: Call,
    *,
    status: Annotated[
        Status | None, typer.Option("--status", help="Only jobs that stand there.")
    ] = None,
    type_: TypeOption = None,
    queue: QueueOption = None,
    org: OrgOption = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Only the job with this key.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", help="At most so many, up to 1000.")
    ] = LIST_ROWS,
    cursor: CursorOption = None,
) -> None:
    """List jobs, newest first, a page at a time.

    Example: ledgerstone jobs list --status dead_letter --queue mail
    """
    filters: dict[str, Any] = {
        "status": status,
        "type": type_,
        "queue": queue,
        "org": org,
        "key": key,
    }
    with hinting(), ledger_of(call) as ledger, ledger.reading() as tx:
        page = tx.jobs.find(**filters, limit=limit, cursor=cursor)
        now = now_of(tx)
    facts = {"jobs": [job_views.facts(row) for row in page.rows], "next": page.next}
    seen: RenderableType = job_views.listing(page.rows, now)
    if not page.rows:
        filtered = cursor is not None or any(value is not None for value in filters.values())
        seen = "no job meets these filters" if filtered else "there are no jobs"
    output.show(facts, seen, json=call.json)
    output.say_next(page.next, json=call.json)


def show(call: Call, job_id: IdArgument) -> None:
    """Show everything about a job: how it stands, its arguments, its result, its timeline.

    Of a long timeline the newest is shown, and where it failed last; `jobs events` lists all.

    Example: ledgerstone jobs show 01982f60-7a5e-7c11-a3a4-5f7e9b1c2d3e
    """
    job_id = id_of(job_id)
    with hinting(job_id), ledger_of(call) as ledger, ledger.reading() as tx:
        row, now = tx.jobs.get(job_id), now_of(tx)
        happened = history.newest(tx, job_id)
    facts = {"job": job_views.facts(row), **msgspec.structs.asdict(happened)}
    output.show(facts, job_views.portrait(row, happened, now), json=call.json)


def events(
    call: Call,
    job_id: IdArgument,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", help="At most so many, up to 1000.")
    ] = EVENT_ROWS,
    cursor: CursorOption = None,
) -> None:
    """List what happened to a job, oldest first.

    Example: ledgerstone jobs events 01982f60-7a5e-7c11-a3a4-5f7e9b1c2d3e
    """
    job_id = id_of(job_id)
    with hinting(job_id), ledger_of(call) as ledger, ledger.reading() as tx:
        tx.jobs.get(job_id)
        page = tx.jobs.events(job_id, limit=limit, cursor=cursor)
    facts = {"events": page.rows, "next": page.next}
    output.show(facts, job_timeline.timeline(page.rows), json=call.json)
    output.say_next(page.next, json=call.json)


def cancel(
    call: Call,
    job_id: IdArgument,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="WORDS", help="Why, for the record.")
    ] = None,
    by: ByOption = None,
) -> None:
    """Cancel a queued job; ask a running one to stop.

    Example: ledgerstone jobs cancel 01982f60-7a5e-7c11-a3a4-5f7e9b1c2d3e --reason "sent by hand"
    """
    job_id = id_of(job_id)
    with hinting(job_id), ledger_of(call) as ledger:
        status = ledger.run(lambda tx: tx.jobs.cancel(job_id, by=who(by), reason=reason))
    told = "canceled"
    if status is Status.RUNNING:
        told = "is running and was asked to stop; `ledgerstone jobs watch` shows when it has"
    output.show({"id": job_id, "status": status}, Text(f"{job_id}  {told}"), json=call.json)


def watch(
    call: Call,
    job_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Only this job, until it is over.")
    ] = None,
) -> None:
    """Watch the queues and the newest jobs until Ctrl-C, or one job until it is over.

    For one job, exit code 1 says that it did not succeed; --json prints it when it is over.

    Example: ledgerstone jobs watch 01982f60-7a5e-7c11-a3a4-5f7e9b1c2d3e
    """
    if job_id is None:
        if call.json:
            raise typer.BadParameter("--json goes with the ID of a job, which ends some time")
        with ledger_of(call) as ledger:
            job_views.watch(lambda: _overview(ledger))
        return
    job_id = id_of(job_id)
    with hinting(job_id), ledger_of(call) as ledger:
        follower = job_views.Follower()
        job_views.watch(lambda: _one(ledger, job_id, follower), silent=call.json)
        with ledger.reading() as tx:
            row = tx.jobs.get(job_id)
    if call.json:
        output.show_json({"job": job_views.facts(row)})
    if row.status is not Status.SUCCEEDED:
        raise typer.Exit(EXIT_REFUSED)


def _overview(ledger: Ledger) -> Seen:
    with ledger.reading() as tx:
        found = jobs_queues.look(tx)
        rows = tx.jobs.find(limit=WATCH_ROWS).rows
        now = now_of(tx)
    newest = job_views.listing(rows, now, title="Newest jobs")
    counts = [(queue.name, queue.queued, queue.running) for queue in found.queues]
    news = (counts, [(row.id, row.updated_at) for row in rows])
    return Seen(Group(queues.screen(found), "", newest), news)


def _one(ledger: Ledger, job_id: str, follower: Follower) -> Seen:
    with ledger.reading() as tx:
        row, now = tx.jobs.get(job_id), now_of(tx)
        happened = history.newest(tx, job_id)
    return follower.look(row, happened, now)


def explain(call: Call, job_id: IdArgument) -> None:
    """Say why a job is not running, or how it stands.

    Example: ledgerstone jobs explain 01982f60-7a5e-7c11-a3a4-5f7e9b1c2d3e
    """
    job_id = id_of(job_id)
    with hinting(job_id), ledger_of(call) as ledger, ledger.reading() as tx:
        found = tx.jobs.explain(job_id)
    facts = {"id": job_id, "summary": found.summary, "reasons": found.reasons}
    seen = Text("\n").join(
        [Text(found.summary, "bold"), *(Text(f"- {reason}") for reason in found.reasons)]
    )
    output.show(facts, seen, json=call.json)


app = group("Accept, list, show, watch, cancel, retry and explain jobs.")
app.command("enqueue")(command(enqueue))
app.command("list")(command(list_))
for function in (show, events, watch, explain, cancel, retry):
    app.command()(command(function))
