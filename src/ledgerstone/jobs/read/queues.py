"""Queues at a glance: what waits, runs and lies dead in each, and what holds it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Select,
    bindparam,
    case,
    func,
    literal_column,
    null,
    select,
    union_all,
)

from ledgerstone.engine import worker_rows as workers
from ledgerstone.jobs.states import Gate, Status
from ledgerstone.jobs.tables import channel_of, job, job_queue, stands
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

COUNTED_MAX = 10_000
"""Jobs of one state that are counted: looking has a bounded cost, however many there are."""
QUEUES_MAX = 1000
"""Queues whose pause and limit are read."""


class QueueState(msgspec.Struct, kw_only=True):
    """One queue. Jobs that wait are `queued` (for a worker), `scheduled` or `blocked`."""

    name: str
    queued: int = 0
    scheduled: int = 0
    blocked: int = 0
    running: int = 0
    dead_letters: int = 0
    oldest_due_ms: int | None = None
    """For how long the one that waits longest for a worker has been due."""
    paused_ms: int | None = None
    """For how long it has been paused; None: it is not."""
    paused_by: str | None = None
    concurrency_max: int | None = None


class Queues(msgspec.Struct, frozen=True):
    """Every queue that has jobs which wait, run or are dead, or that is paused or limited.

    Where `counted_all` is false there were more jobs than are counted: of the states in `more`
    there are at least so many as the numbers say.
    """

    queues: list[QueueState]
    counted_all: bool
    more: list[str] = []


def _counted(status: Status) -> Select[Any]:
    """Jobs that stand here, by queue and gate: how many, how many are due, and for how long.

    The status alone chooses the rows: every database finds them by an index and passes no others,
    so that the maximum bounds what is read and not only what is counted.
    """
    some = (
        select(job.c.queue, job.c.gate, job.c.run_at_ms)
        .where(stands(status))
        .limit(bindparam("counted_max", type_=BigInteger()))
        .subquery(f"some_{status.value}")
    )
    return select(
        literal_column(f"'{status.value}'").label("status"),
        some.c.queue,
        some.c.gate,
        func.count().label("jobs"),
        func.sum(case((some.c.run_at_ms <= now_ms(), 1), else_=0)).label("due"),
        (now_ms() - func.min(some.c.run_at_ms)).label("due_ms"),
    ).group_by(some.c.queue, some.c.gate)


_LOOKED_AT = (Status.QUEUED, Status.RUNNING, Status.DEAD_LETTER)
_counts = Statement(
    "jobs.queues",
    union_all(*(_counted(status) for status in _LOOKED_AT)),
)
_totals = {
    status: Statement(
        f"jobs.total_{status.value}",
        select(func.count()).select_from(
            select(job.c.id)
            .where(stands(status))
            .limit(bindparam("counted_max", type_=BigInteger()))
            .subquery(f"some_{status.value}")
        ),
    )
    for status in _LOOKED_AT
}
_some_of_queue = (
    select(job.c.run_at_ms)
    .where(
        stands(Status.QUEUED, gate=Gate.OPEN),
        job.c.queue == bindparam("queue_", type_=job.c.queue.type),
    )
    .limit(bindparam("counted_max", type_=BigInteger()))
    .subquery("some_of_queue")
)
_of_queue = Statement(
    "jobs.of_queue",
    select(func.count(), now_ms() - func.min(_some_of_queue.c.run_at_ms)),
)
_held_back = Statement(
    "jobs.queues_held_back",
    select(
        job_queue.c.name,
        now_ms() - job_queue.c.paused_at_ms,
        job_queue.c.paused_by,
        job_queue.c.concurrency_max,
    )
    .where(job_queue.c.paused_at_ms.is_not(null()) | job_queue.c.concurrency_max.is_not(null()))
    .order_by(job_queue.c.name)
    .limit(bindparam("limit", type_=BigInteger())),
)


def totals(tx: Transaction, *, counted_max: int = COUNTED_MAX) -> dict[Status, int]:
    """How many jobs wait, run and are dead, each counted up to a most."""
    found = {}
    for status, statement in _totals.items():
        ((count,),) = statement.rows(tx, counted_max=counted_max)
        found[status] = int(count)
    return found


def look(tx: Transaction, *, counted_max: int = COUNTED_MAX) -> Queues:
    """Every queue, by name."""
    found: dict[str, QueueState] = {}
    counted: dict[str, int] = {}
    for status, name, gate, jobs, due, due_ms in _counts.rows(tx, counted_max=counted_max):
        counted[status] = counted.get(status, 0) + int(jobs)
        queue = found.setdefault(name, QueueState(name=name))
        _add(queue, Status(status), Gate(gate), int(jobs), (int(due), int(due_ms)))
    more = [status for status, count in counted.items() if count >= counted_max]
    if Status.QUEUED.value in more:
        _add_served(tx, found, counted_max)
    for name, paused_ms, paused_by, most in _held_back.rows(tx, limit=QUEUES_MAX):
        queue = found.setdefault(name, QueueState(name=name))
        queue.paused_ms, queue.paused_by, queue.concurrency_max = paused_ms, paused_by, most
    queues = [found[name] for name in sorted(found)]
    return Queues(queues, not more, more)


def _add_served(tx: Transaction, found: dict[str, QueueState], counted_max: int) -> None:
    """The queues that workers serve and of which no job was among those that were counted."""
    prefix = channel_of("")
    sources = {name for seen in workers.listed(tx) for name in seen.report.get("sources", {})}
    for name in sorted(each.removeprefix(prefix) for each in sources if each.startswith(prefix)):
        if name in found:
            continue
        ((jobs, due_ms),) = _of_queue.rows(tx, queue_=name, counted_max=counted_max)
        if jobs:
            found[name] = QueueState(name=name, queued=int(jobs), oldest_due_ms=int(due_ms))


def _add(
    queue: QueueState, status: Status, gate: Gate, jobs: int, overdue: tuple[int, int]
) -> None:
    due, due_ms = overdue
    if status is Status.RUNNING:
        queue.running += jobs
    elif status is Status.DEAD_LETTER:
        queue.dead_letters += jobs
    elif gate is Gate.BLOCKED:
        queue.blocked += jobs
    else:
        # A scheduled job whose time has come is found by the next worker that looks.
        waiting = due if gate is Gate.SCHEDULED else jobs
        queue.queued += waiting
        queue.scheduled += jobs - waiting
        if waiting:
            queue.oldest_due_ms = max(queue.oldest_due_ms or 0, due_ms)
