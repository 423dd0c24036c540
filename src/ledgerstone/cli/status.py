"""`ledgerstone status`: the database, its schema, who works, who holds what, on one screen."""

from __future__ import annotations

import time
from collections import Counter
from enum import Enum
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from sqlalchemy import Integer, bindparam, inspect, select

from ledgerstone.cli import output
from ledgerstone.cli.call import Call, flag
from ledgerstone.cli.database import must_exist, opened
from ledgerstone.cli.job_calls import moment_of
from ledgerstone.cli.output import Text
from ledgerstone.cli.signing import standing
from ledgerstone.cli.signing.standing import SigningFacts
from ledgerstone.cli.up import DUTY, signing_work
from ledgerstone.engine import workers
from ledgerstone.errors import LedgerstoneError, SchemaMissing
from ledgerstone.jobs import Status, queues, unserved
from ledgerstone.jobs.unserved import Unserved
from ledgerstone.ledger import Transaction
from ledgerstone.messaging import Office
from ledgerstone.messaging.outbox import Backlog
from ledgerstone.settings import Settings
from ledgerstone.signing.kaspa import format_kas
from ledgerstone.store import migrating
from ledgerstone.store.database import Database
from ledgerstone.store.expressions import now_ms
from ledgerstone.store.faults import migrate_hint
from ledgerstone.store.statement import Statement
from ledgerstone.store.tables import leases

WATCH_SECONDS = 1.0
LEASES_MAX = 500
ROWS_SHOWN_MAX = 15
COUNTED_MAX = 10_000
"""Nothing is counted further than this."""


class WorkerState(Enum):
    """Whether a worker is there."""

    ALIVE = "alive"
    SILENT = "silent"
    """It has not been seen for longer than its claims hold: dead, paused or cut off."""
    STOPPED = "stopped"
    """It ended in good order."""


class WorkerFacts(msgspec.Struct, frozen=True):
    """One worker, by its last report."""

    id: str
    host: str
    pid: int
    state: WorkerState
    seen_ms_ago: int
    running: int
    done: int
    failed: int
    refused: int
    trouble: str | None
    duties: dict[str, int] = {}
    """How much it did, by duty."""


class LeaseFacts(msgspec.Struct, frozen=True):
    """One lease; where `expires_in_ms` is not above zero, nobody holds it."""

    name: str
    holder: str
    expires_in_ms: int


class BacklogFacts(msgspec.Struct, frozen=True):
    """What waits for a destination, and for how long the oldest does."""

    destination: str
    waiting: int
    oldest_ms: int | None
    parked: int
    """Partitions that wait for an operator."""
    paused: bool


class JobFacts(msgspec.Struct, frozen=True):
    """Jobs at a glance; a number that is `counted_max` says that there are at least so many."""

    queued: int
    running: int
    dead_letters: int
    counted_max: int
    unserved: list[Unserved]
    """Types that are queued and that no worker which is alive runs."""


class StatusFacts(msgspec.Struct, frozen=True):
    """What there is to know at a glance.

    `jobs`, `messages` and `failed_messages` are None where their tables are not there.
    """

    url: str
    database: dict[str, str]
    schema: migrating.Schema
    workers: list[WorkerFacts]
    leases: list[LeaseFacts]
    messages: list[BacklogFacts] | None
    jobs: JobFacts | None
    failed_messages: int | None
    """At most `COUNTED_MAX`."""
    signing: SigningFacts | None = None
    """None where there is no store of signing."""


_leases = Statement(
    "status.leases",
    select(leases.c.lease, leases.c.owner, leases.c.expires_at_ms - now_ms())
    .order_by(leases.c.lease)
    .limit(bindparam("limit", type_=Integer())),
)


def status(
    call: Call,
    watch: Annotated[bool, flag("--watch", help="Look again every second, until Ctrl-C.")] = False,
) -> None:
    """Show the database, its schema, the workers, the leases, jobs and waiting messages."""
    if watch and call.json:
        raise typer.BadParameter("--watch and --json do not go together")
    settings = call.settings()
    with opened(settings, tell=False) as database:
        facts = look(database, settings)
        if watch:
            _watch(database, settings, facts)
        else:
            output.show(facts, screen(facts), json=call.json)


def look(database: Database[Transaction], settings: Settings) -> StatusFacts:
    """Look once, in one reading transaction; SchemaMissing where the tables are not there."""
    must_exist(database)
    outbox = outbox_of(database, settings)
    with database.reading() as tx:
        schema = migrating.look(tx.connection)
        if schema.current is None:
            message = "Ledgerstone's tables are not in this database"
            raise SchemaMissing(message, hint=migrate_hint(database.url))
        return StatusFacts(
            url=settings.url_masked,
            database=dict(database.dialect.describe(tx.connection)),
            schema=schema,
            workers=workers_of(tx, settings),
            leases=leases_of(tx),
            messages=backlog_of(tx) if outbox and schema.up_to_date else None,
            jobs=jobs_of(tx) if schema.up_to_date else None,
            failed_messages=failed_messages_of(tx, settings) if schema.up_to_date else None,
            signing=standing.facts_of(settings.signing),
        )


def outbox_of(database: Database[Transaction], settings: Settings) -> bool:
    """Whether the outbox is there as it should be: only then can it be looked at."""
    office = Office(settings.messaging)
    lacking = office.setup.plan(database)
    return not any(office.shared.outbox.name in step.words.split() for step in lacking)


def backlog_of(tx: Transaction) -> list[BacklogFacts]:
    """What waits, for each destination."""
    now = moment_of(tx)

    def facts(found: Backlog) -> BacklogFacts:
        age = None if found.oldest_at is None else now - found.oldest_at
        return BacklogFacts(
            destination=found.destination,
            waiting=found.waiting,
            oldest_ms=None if age is None else max(0, round(age.total_seconds() * 1000)),
            parked=found.parked,
            paused=found.paused,
        )

    return [facts(found) for found in tx.outbox.backlog(counted_max=COUNTED_MAX)]


def jobs_of(tx: Transaction) -> JobFacts:
    """Jobs at a glance, each number counted up to a most."""
    counts = queues.totals(tx, counted_max=COUNTED_MAX)
    return JobFacts(
        queued=counts[Status.QUEUED],
        running=counts[Status.RUNNING],
        dead_letters=counts[Status.DEAD_LETTER],
        counted_max=COUNTED_MAX,
        unserved=unserved.look(tx),
    )


def failed_messages_of(tx: Transaction, settings: Settings) -> int | None:
    """How many messages are in the failed table, up to a most; None where there is no table."""
    if not inspect(tx.connection).has_table(Office(settings.messaging).shared.failed.name):
        return None
    return tx.failed.count(most=COUNTED_MAX)


def workers_of(tx: Transaction, settings: Settings) -> list[WorkerFacts]:
    """The workers: those that are there first, then the latest seen."""
    # A heartbeat comes at least twice within a lease.
    silent_after_ms = 1000 * settings.engine.lease_seconds
    found = [_worker(seen, silent_after_ms) for seen in workers.listed(tx)]
    order = list(WorkerState)
    return sorted(found, key=lambda worker: order.index(worker.state))


def _worker(seen: workers.WorkerSeen, silent_after_ms: float) -> WorkerFacts:
    state = WorkerState.ALIVE
    if seen.state == WorkerState.STOPPED.value:
        state = WorkerState.STOPPED
    elif seen.silent_ms > silent_after_ms:
        state = WorkerState.SILENT
    tallies: list[dict[str, Any]] = list(seen.report.get("sources", {}).values())

    def total(name: str) -> int:
        return sum(tally.get(name, 0) for tally in tallies)

    return WorkerFacts(
        id=seen.id,
        host=seen.host,
        pid=seen.pid,
        state=state,
        seen_ms_ago=seen.silent_ms,
        running=seen.report.get("running", 0),
        done=total("done"),
        failed=total("failed"),
        refused=total("refused"),
        trouble=output.one_line(next(filter(None, map(_trouble, tallies)), _duty_trouble(seen))),
        duties=seen.report.get("duties", {}),
    )


def _duty_trouble(seen: workers.WorkerSeen) -> str | None:
    troubles: dict[str, str] = seen.report.get("duty_troubles", {})
    return next((f"{DUTY}{name}: {words}" for name, words in troubles.items()), None)


def _trouble(tally: dict[str, Any]) -> str | None:
    return tally.get("trouble") or tally.get("stalled")


def leases_of(tx: Transaction) -> list[LeaseFacts]:
    """The leases, by name."""
    return [LeaseFacts(*row) for row in _leases.rows(tx, limit=LEASES_MAX)]


def screen(facts: StatusFacts) -> RenderableType:
    """The facts as people see them."""
    parts: list[RenderableType] = [output.pairs(_database_rows(facts)), ""]
    if facts.workers:
        parts.append(_workers_table(facts.workers))
    else:
        parts.append("no worker was seen in the last day; `ledgerstone up` starts one")
        parts.append("")
    if facts.leases:
        parts.append(_leases_table(facts.leases))
    if facts.jobs is not None:
        parts += [*_jobs_lines(facts.jobs), ""]
    standing = [each for each in facts.messages or [] if each.waiting or each.parked or each.paused]
    if standing:
        parts.append(_messages_table(standing))
    elif facts.messages is not None:
        parts.append("[bold]Messages[/]  none waits")
    if facts.failed_messages:
        failed = output.counted(facts.failed_messages, COUNTED_MAX)
        parts.append(
            f"[bold]Failed messages[/]  [bold red]{failed}[/]; `ledgerstone failed show --group`"
        )
    if facts.signing is not None:
        parts.append(_signing_line(facts.signing))
        parts.append(_signing_work(facts.workers))
    return Group(*parts)


def _signing_work(found: list[WorkerFacts]) -> RenderableType:
    """Whether a living worker looks after the store, and what it did."""
    total: Counter[str] = Counter()
    for each in found:
        if each.state is WorkerState.ALIVE:
            total.update(signing_work(each.duties))
    if not total:
        return Text("  no worker looks after it; `ledgerstone up` does", "yellow")
    told = ", ".join(f"{name} {count:,}" for name, count in total.items())
    return Text(f"  workers so far: {told}", "dim")


def _signing_line(facts: SigningFacts) -> RenderableType:
    words = Text.assemble(("Signing", "bold"), "  ")
    if facts.trouble is not None:
        return words.append(output.one_line(facts.trouble) or "", "bold red")

    def number(count: int) -> str:
        return output.counted(count, facts.counted_max)

    words.append(f"open {number(facts.open_requests)}")
    words.append(f"  paid today {format_kas(facts.paid_today_sompi)} KAS")
    words.append(f"  reserved {format_kas(facts.reserved_sompi)} KAS")
    if facts.overdue:
        words.append(f"  overdue {number(facts.overdue)}", "yellow")
    if facts.unpublished:
        words.append(f"  to publish {number(facts.unpublished)}", "cyan")
    return words


def _jobs_lines(jobs: JobFacts) -> list[RenderableType]:
    """One line of numbers; one more for dead letters, and one for each type that nobody runs."""

    def number(count: int) -> str:
        return output.counted(count, jobs.counted_max)

    dead = number(jobs.dead_letters)
    style = "bold red" if jobs.dead_letters else "bold"
    counts = f"queued [bold]{number(jobs.queued)}[/]  running [bold]{number(jobs.running)}[/]"
    lines: list[RenderableType] = [f"[bold]Jobs[/]  {counts}  dead letters [{style}]{dead}[/]"]
    if jobs.dead_letters:
        lines.append("  `ledgerstone jobs list --status dead_letter` shows the dead letters")
    for each in jobs.unserved[:ROWS_SHOWN_MAX]:
        waiting = output.counted(each.jobs, unserved.LOOKED_AT_MAX)
        told = f"  nobody runs {each.type} of the queue {each.queue}: {waiting} wait"
        lines.append(Text(told, "yellow"))
    return [*lines, *_rest(jobs.unserved)]


def _database_rows(facts: StatusFacts) -> dict[str, RenderableType]:
    settings = dict(facts.database)
    server, driver = settings.pop("database"), settings.pop("driver")
    schema = facts.schema
    standing = f"{schema.current}, up to date"
    if not schema.up_to_date:
        needed = f"{schema.current}, {schema.newest} is needed: `ledgerstone migrate`"
        standing = f"[yellow]{needed} on this database[/]"
    return {
        "database": Text(facts.url),
        "server": Text(f"{server}, driver {driver}"),
        "settings": Text(
            "; ".join(f"{name} {output.foldable(settings[name])}" for name in settings)
        ),
        "schema": standing,
    }


_STATE_STYLE = {
    WorkerState.ALIVE: "green",
    WorkerState.SILENT: "yellow",
    WorkerState.STOPPED: "dim",
}


def _workers_table(found: list[WorkerFacts]) -> RenderableType:
    numbers = ("running", "done", "refused")
    troubled = any(worker.trouble for worker in found)
    columns = ("id", "where", "state", "seen", *numbers, *(("trouble",) if troubled else ()))
    table = output.table("Workers", *columns, numbers=numbers)
    for worker in found[:ROWS_SHOWN_MAX]:
        table.add_row(
            output.short(worker.id),
            Text(f"{worker.host}:{worker.pid}"),
            Text(worker.state.value, _STATE_STYLE[worker.state]),
            f"{output.lasting(worker.seen_ms_ago)} ago",
            f"{worker.running:,}",
            f"{worker.done:,}",
            f"{worker.refused:,}",
            *((Text(worker.trouble or "", "red"),) if troubled else ()),
        )
    return Group(table, *_rest(found), "")


def _leases_table(found: list[LeaseFacts]) -> RenderableType:
    table = output.table("Leases", "name", "holder", "expires in", numbers=("expires in",))
    for lease in found[:ROWS_SHOWN_MAX]:
        held = lease.expires_in_ms > 0
        table.add_row(
            Text(lease.name),
            output.short(lease.holder) if held else "",
            output.lasting(lease.expires_in_ms) if held else Text("free", "dim"),
        )
    return Group(table, *_rest(found), "")


def _messages_table(found: list[BacklogFacts]) -> RenderableType:
    numbers = ("waiting", "oldest", "parked")
    table = output.table("Messages", "destination", *numbers, "", numbers=numbers)
    for each in found[:ROWS_SHOWN_MAX]:
        table.add_row(
            Text(each.destination),
            Text(output.counted(each.waiting, COUNTED_MAX), "cyan" if each.waiting else "dim"),
            output.lasting(each.oldest_ms) if each.oldest_ms is not None else "",
            Text(f"{each.parked:,}", "bold red" if each.parked else "dim"),
            Text("paused", "yellow") if each.paused else "",
        )
    return Group(table, *_rest(found))


def _rest(found: list[Any]) -> list[RenderableType]:
    rest = len(found) - ROWS_SHOWN_MAX
    return [f"and {rest:,} more (--json shows them)"] if rest > 0 else []


def _watch(database: Database[Transaction], settings: Settings, facts: StatusFacts) -> None:
    """Look again and again; a database that is out of reach for a while ends nothing."""
    console = output.console()
    seen: RenderableType = screen(facts)
    with Live(seen, console=console, auto_refresh=False, transient=False) as live:
        while True:
            if console.is_terminal:
                live.update(seen, refresh=True)
            else:
                console.print(seen)
            time.sleep(WATCH_SECONDS)
            try:
                seen = screen(look(database, settings))
            except LedgerstoneError as error:
                if not error.retryable:
                    raise
                seen = Text(f"{error.code}: {error}", "red")
