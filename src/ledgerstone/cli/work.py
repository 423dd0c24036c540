"""`ledgerstone work`: run the jobs and consumers of an application, in this process or in several.

    ledgerstone work --processes 2
      ├─ worker process 1 ──┐  its counters, every second
      └─ worker process 2 ──┴──▶ this process says it, and the sum at the end

The first Ctrl-C or SIGTERM: no more is claimed, jobs finish within the grace period, the rest is
returned with its attempt refunded. The second: everything is returned at once. This process passes
both on; a worker process that dies is replaced, and when this one dies they end by themselves.
"""

from __future__ import annotations

import logging
import time
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType

from ledgerstone import __version__
from ledgerstone.cli.team import Team, TeamCounters, WorkOrder, other_sources
from ledgerstone.console import logs, output
from ledgerstone.console.application import application_of, loaded
from ledgerstone.console.call import Call
from ledgerstone.console.output import Text
from ledgerstone.console.serving import serve
from ledgerstone.errors import BadInput
from ledgerstone.jobs import Kind
from ledgerstone.jobs.tables import QUEUE_CHARS_MAX
from ledgerstone.ledger import Ledger
from ledgerstone.messaging.cli.calls import ready
from ledgerstone.messaging.cli.carrying import consumers_table
from ledgerstone.messaging.relay.watched_transport import OF_CONSUMERS
from ledgerstone.store.sql.names import check_name

PROCESSES_MAX = 256
CONCURRENCY_MAX = 10_000

_log = logging.getLogger("ledgerstone.work")


class WorkFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a run and its outcomes; `died` counts processes that were replaced."""

    application: str
    url: str
    queues: tuple[str, ...]
    types: tuple[str, ...]
    concurrency: int
    processes: int
    up_ms: int
    claimed: int
    done: int
    failed: int
    returned: int
    refused: int
    messages: int
    died: int = 0


def work(
    call: Call,
    *,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            metavar="NAME",
            help="A queue; again for more. Otherwise all, and the consumers.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            metavar="N",
            min=1,
            max=CONCURRENCY_MAX,
            help="Jobs of a queue that a process runs at once; otherwise as the settings say.",
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            metavar="N",
            min=1,
            max=PROCESSES_MAX,
            help="Worker processes; one that dies is replaced.",
        ),
    ] = 1,
) -> None:
    """Run the jobs, consumers and protocols of your code until Ctrl-C or SIGTERM.

    With --queue only jobs are run. A store of signing is looked after, too, every
    `signing.work_seconds`.

    Example: ledgerstone work -A shop.jobs:ledger --queue mail --concurrency 20 --processes 2
    """
    application = application_of(call)
    with loaded(application) as ledger:
        output.on_database(ledger.settings.url_masked, tell=False)
        log = ledger.settings.log
        level = "DEBUG" if call.verbose else log.level
        process = "main" if processes > 1 else None
        logs.to_stderr(level=level, json=log.json, application=True, process=process)
        order = WorkOrder(
            application=application,
            queues=_queues(ledger, application, queue or []),
            destinations=OF_CONSUMERS if _consumers(ledger) and not queue else (),
            concurrency=concurrency or ledger.settings.engine.concurrency,
            level=level,
            json=log.json,
            rooms=() if queue else tuple(other_sources(ledger)),
        )
        if order.destinations:
            ready(ledger, *ledger.registry.setup.tables)
        _announce(ledger, order, processes, json=call.json)
        if processes == 1:
            facts = _alone(ledger, order, json=call.json)
        else:
            facts = _many(ledger, order, processes)
    if call.json:
        output.show_json(facts)


def _queues(ledger: Ledger, application: str, named: list[str]) -> tuple[str, ...]:
    kinds = ledger.kinds.all().values()
    if not kinds and (named or not (_consumers(ledger) or other_sources(ledger))):
        hint = "decorate a function with @ledger.job(name) in it, or import the module that does"
        raise BadInput(f"{application} has no jobs", hint=hint)
    for name in named:
        check_name(name, "a queue", chars_max=QUEUE_CHARS_MAX)
    return tuple(dict.fromkeys(named)) or tuple(sorted({kind.queue for kind in kinds}))


def _consumers(ledger: Ledger) -> list[str]:
    return list(ledger.registry.consumers.all())


def _served(ledger: Ledger, order: WorkOrder) -> list[Kind]:
    """The types whose own queue is served, by queue and name."""
    kinds = [kind for kind in ledger.kinds.all().values() if kind.queue in order.queues]
    return sorted(kinds, key=lambda kind: (kind.queue, kind.name))


def _announce(ledger: Ledger, order: WorkOrder, processes: int, *, json: bool) -> None:
    console = output.console()
    served = _served(ledger, order)
    for queue in order.queues:
        if queue not in {kind.queue for kind in served}:
            _log.warning(
                "no job of %s has the queue %s: only what is put there by name is run",
                *(order.application, queue),
            )
    if console.is_terminal and not json:
        console.print(_jobs_table(ledger, order, served, processes))
        return
    _log.info(
        "work: ledgerstone %s on %s runs %s, %d at a time each, in %d %s",
        *(
            __version__,
            ledger.settings.url_masked,
            _words(ledger, order, served),
            order.concurrency,
            processes,
            "processes" if processes > 1 else "process",
        ),
    )


def _words(ledger: Ledger, order: WorkOrder, served: list[Kind]) -> str:
    """The sources that are run, and where they come from."""
    others = [f"the consumers {', '.join(_consumers(ledger))}"] if order.destinations else []
    others += [f"the queues of {', '.join(order.rooms)}"] if order.rooms else []
    if not order.queues:
        return f"{', and '.join(others)} of {order.application}"
    jobs = ", ".join(kind.name for kind in served) or "nothing"
    where = "the queues " + ", ".join(order.queues) if order.queues[1:] else order.queues[0]
    return ", and ".join([f"{jobs} of {order.application} from {where}", *others])


def _jobs_table(
    ledger: Ledger, order: WorkOrder, served: list[Kind], processes: int
) -> RenderableType:
    table = output.table("Jobs", "type", "queue", "attempts", "timeout", numbers=("attempts",))
    for kind in served:
        limit = kind.timeout_seconds
        table.add_row(
            Text(kind.name),
            Text(kind.queue),
            str(kind.max_attempts),
            output.lasting(limit * 1000) if limit is not None else "",
        )
    each = f"{order.concurrency:,} at a time of each queue"
    if processes > 1:
        each += f" in each of {processes} processes"
    title = Text(f"{order.application} on {ledger.settings.url_masked}, {each}")
    parts: list[RenderableType] = [title, ""]
    if served:
        parts += [table, ""]
    if order.destinations:
        parts += [consumers_table(ledger), ""]
    return Group(*parts)


def _alone(ledger: Ledger, order: WorkOrder, *, json: bool) -> WorkFacts:
    up = serve(ledger, order.sources(ledger), json=json, stores=ledger.store_duties())
    counters = TeamCounters(
        claimed=up.claimed,
        done=up.done,
        failed=up.failed,
        returned=up.returned,
        refused=up.refused,
        messages=sum(each.delivered for each in up.carried),
    )
    return _facts(ledger, order, counters, processes=1, up_ms=up.up_ms, died=0)


def _many(ledger: Ledger, order: WorkOrder, processes: int) -> WorkFacts:
    # Report once, before a process is started, what would stop each of them.
    with ledger.reading():
        pass
    ledger.close()
    began = time.monotonic()
    team = Team(order, processes, grace_seconds=ledger.settings.engine.grace_seconds)
    team.run()
    up_ms = round((time.monotonic() - began) * 1000)
    replaced = f"; processes replaced: {team.died}" if team.died else ""
    _log.info("stopped after %s: %s%s", output.lasting(up_ms), team.counters.words, replaced)
    return _facts(ledger, order, team.counters, processes=processes, up_ms=up_ms, died=team.died)


def _facts(
    ledger: Ledger,
    order: WorkOrder,
    counters: TeamCounters,
    *,
    processes: int,
    up_ms: int,
    died: int,
) -> WorkFacts:
    return WorkFacts(
        application=order.application,
        url=ledger.settings.url_masked,
        queues=order.queues,
        types=tuple(kind.name for kind in _served(ledger, order)),
        concurrency=order.concurrency,
        processes=processes,
        up_ms=up_ms,
        claimed=counters.claimed,
        done=counters.done,
        failed=counters.failed,
        returned=counters.returned,
        refused=counters.refused,
        messages=counters.messages,
        died=died,
    )
