"""Why a job is not running: everything that keeps it, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    bindparam,
    func,
    select,
)

from ledgerstone.engine import worker_rows as workers
from ledgerstone.jobs import claim_order as line
from ledgerstone.jobs.read import jobs as reading
from ledgerstone.jobs.read.jobs import JobRow
from ledgerstone.jobs.states import Gate, Status
from ledgerstone.jobs.tables import channel_of, job, job_queue, stands
from ledgerstone.store.sql.batch import FirstEach
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

AHEAD_MAX = 1000
"""So many jobs ahead are counted; more are told as more."""
NAMED_MAX = 5
CLOCK_BACK_SECONDS_MIN = 2.0
"""Less than that is the difference between two clocks, or a transaction that took its time."""
RUNNING_MAX = 10_000
"""Running jobs of a queue that are counted."""

_queue_ = bindparam("queue_", type_=job.c.queue.type)
_state = Statement(
    "jobs.explain.queue",
    select(
        job_queue.c.paused_at_ms, job_queue.c.paused_by, job_queue.c.concurrency_max, now_ms()
    ).where(job_queue.c.name == _queue_),
)
_now = Statement("jobs.explain.now", select(now_ms()))
_lease = Statement(
    "jobs.explain.lease",
    select(now_ms() - job.c.lease_until_ms).where(
        job.c.id == bindparam("id_", type_=job.c.id.type), stands(Status.RUNNING)
    ),
)
_running = Statement(
    "jobs.explain.running",
    select(func.count()).select_from(
        select(job.c.id)
        .where(stands(Status.RUNNING), job.c.queue == _queue_)
        .limit(RUNNING_MAX)
        .subquery()
    ),
)
_holders = Statement(
    "jobs.explain.holders",
    select(job.c.id)
    .where(
        stands(Status.RUNNING),
        job.c.limit_key == bindparam("key_", type_=job.c.limit_key.type),
    )
    .limit(bindparam("limit_", type_=Integer())),
)
_urgency = bindparam("urgency_", type_=Integer())
_run_at = bindparam("run_at_", type_=BigInteger())


def _in_front(name: str, *where: ColumnElement[bool]) -> FirstEach:
    """Jobs of a group that are in line before the one in question: one range of the index."""
    return FirstEach(
        f"jobs.explain.{name}",
        job,
        index=line.INDEX,
        incoming=(job.c.org_id, job.c.type),
        build=lambda row: line.first_of(row, job.c.id).where(*where),
    )


# Three ranges and not one condition with OR: that would pass by all that are behind.
_AHEAD = (
    _in_front("more_urgent", job.c.urgency < _urgency),
    _in_front("earlier", job.c.urgency == _urgency, job.c.run_at_ms < _run_at),
    _in_front(
        "before",
        job.c.urgency == _urgency,
        job.c.run_at_ms == _run_at,
        job.c.id < bindparam("id_", type_=job.c.id.type),
    ),
)


class Explanation(msgspec.Struct, frozen=True):
    """Where a job stands, in one sentence, and what keeps it from running, one sentence each."""

    summary: str
    reasons: list[str]


def explain(tx: Transaction, job_id: str) -> Explanation:
    """Why a job is not running."""
    found = reading.get(tx, job_id)
    if found.status is Status.RUNNING:
        return Explanation(_standing(found), _overdue(tx, found))
    if found.status is not Status.QUEUED:
        return Explanation(_standing(found), [])
    reasons = [*_gate(tx, found), *_queue(tx, found), *_serving(tx, found)]
    if not reasons:
        reasons = _in_line(tx, found)
    summary = f"the job is queued and waits for {'this' if len(reasons) == 1 else 'these'}"
    return Explanation(summary, reasons)


def _standing(found: JobRow) -> str:
    match found.status:
        case Status.RUNNING:
            asked = ", and was asked to stop" if found.cancel_requested else ""
            return f"the job is running, attempt {found.attempt}, on {found.worker}{asked}"
        case Status.DEAD_LETTER:
            error = f"{found.last_error_code}: {found.last_error_message}"
            attempts = f"{found.attempt} of {found.max_attempts} attempts"
            return (
                f"the job is a dead letter after {attempts}: {error}; retry it when that is mended"
            )
        case _:
            return f"the job is over: {found.status.value} at {found.finished_at}"


def _overdue(tx: Transaction, found: JobRow) -> list[str]:
    """Of one whose worker does not renew its lease."""
    row = _lease.one(tx, id_=found.id)
    if row is None or row[0] is None or row[0] <= 0:
        return _clock_set_back(tx, found, "if its worker is gone, its lease runs out")
    gone = (
        f"its lease ran out {row[0] / 1000:.0f} s ago: its worker is gone, or cut off; the next"
        " worker that looks makes it due again"
    )
    return [gone, *_serving(tx, found)]


def _gate(tx: Transaction, found: JobRow) -> list[str]:
    if found.gate is Gate.SCHEDULED:
        row = _now.one(tx)
        seconds = found.run_at.timestamp() - (row[0] / 1000 if row is not None else 0)
        again = f", after attempt {found.attempt} failed" if found.attempt else ""
        due = f"{found.run_at:%Y-%m-%d %H:%M:%S} UTC"
        if seconds <= 0:
            return [f"it has been due since {due}{again}: the next worker that looks lets it in"]
        late = _clock_set_back(tx, found, "if its due time was counted from then, it comes")
        return [f"it is due at {due}, in {seconds:.0f} s{again}", *late]
    if found.gate is Gate.BLOCKED:
        rows = _holders.rows(tx, key_=found.limit_key, limit_=NAMED_MAX)
        holders = ", ".join(str(row[0]) for row in rows)
        if not holders:
            free = "was used up and is free again: the next worker that looks lets it in"
            return [f"its limit key {found.limit_key!r} {free}"]
        return [f"its limit key {found.limit_key!r} is used up by running jobs: {holders}"]
    return []


def _clock_set_back(tx: Transaction, found: JobRow, so: str) -> list[str]:
    """Of one that was written at a moment which has not come yet."""
    row = _now.one(tx)
    now = row[0] / 1000 if row is not None else 0
    ahead = found.updated_at.timestamp() - now
    if ahead < CLOCK_BACK_SECONDS_MIN:
        return []
    changed = f"it was last changed {ahead:.0f} s from now, by the clock of then"
    return [f"the database's clock was set back: {changed}; {so} that much later"]


def _queue(tx: Transaction, found: JobRow) -> list[str]:
    row = _state.one(tx, queue_=found.queue)
    if row is None:
        return []
    paused_at, paused_by, most, now = row
    reasons = []
    if paused_at is not None:
        who = f" by {paused_by}" if paused_by else ""
        since = f"{(now - paused_at) / 1000:.0f} s ago"
        reasons.append(f"its queue {found.queue!r} was paused{who} {since}")
    if most is not None:
        ((running,),) = _running.rows(tx, queue_=found.queue)
        if running >= most:
            reasons.append(f"its queue {found.queue!r} runs {running} of at most {most} jobs")
    return reasons


def _serving(tx: Transaction, found: JobRow) -> list[str]:
    """Whether a worker is there that serves its queue and knows its type."""
    source = channel_of(found.queue)
    serving: list[dict[str, Any]] = [
        seen.report for seen in workers.alive(tx) if source in seen.report.get("sources", {})
    ]
    if not serving:
        return [f"no worker serves its queue {found.queue!r}: start one with `ledgerstone work`"]
    if not any(found.type in report.get("types", {}).get(source, ()) for report in serving):
        return [f"no worker of its queue knows the type {found.type!r}: deploy one that does"]
    return []


def _in_line(tx: Transaction, found: JobRow) -> list[str]:
    ahead = _ahead(tx, found)
    if not ahead:
        return ["it is next in line of its organisation"]
    count = f"more than {AHEAD_MAX}" if ahead > AHEAD_MAX else str(ahead)
    return [f"{count} jobs of its organisation are ahead of it in line"]


def _ahead(tx: Transaction, found: JobRow) -> int:
    """How many of its organisation are before it, of whatever type; not many more than are told."""
    place = {
        "queue_": found.queue,
        "urgency_": -found.priority,
        "run_at_": round(found.run_at.timestamp() * 1000),
        "id_": found.id,
    }
    ahead = 0
    for kind in line.types_of(tx, found.queue, found.org_id):
        for some in _AHEAD:
            if ahead > AHEAD_MAX:
                return ahead
            given = place if some is _AHEAD[-1] else {k: v for k, v in place.items() if k != "id_"}
            (rows,) = some.rows(tx, [(found.org_id, kind)], each=AHEAD_MAX + 1 - ahead, **given)
            ahead += len(rows)
    return ahead
