"""The line of one queue: who is next.

Organisations take turns: a claim takes what is due of the next organisation, and goes on to the
ones behind it only if that was not enough. However many jobs one of them has queued, another waits
for at most one batch of it. Within an organisation the more urgent come first, then the earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import BigInteger, and_, bindparam, exists, false, func, or_, select
from sqlalchemy.sql.elements import ColumnElement

from ledgerstone.jobs.limits import Candidate
from ledgerstone.jobs.states import Gate, Status
from ledgerstone.jobs.tables import job, job_queue, stands
from ledgerstone.store.batch import ClaimEach
from ledgerstone.store.expressions import json_text, now, now_ms
from ledgerstone.store.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

FIRST_ORG = "00000000-0000-0000-0000-000000000000"
ALONE_SECONDS = 0.1
"""How long an organisation that was alone in line is taken to be."""
COLUMNS: tuple[Any, ...] = (
    job.c.id,
    job.c.attempt,
    job.c.token,
    json_text(job.c.payload).label("payload"),
    job.c.type,
    job.c.org_id,
    job.c.max_attempts,
    job.c.backoff_policy,
    job.c.crashes,
    job.c.limit_key,
    job.c.requested_by,
    job.c.correlation_id,
    job.c.trace_context,
)
"""What a claim needs to know of a job."""
_ORG, _LIMIT_KEY = 5, 9
_ORDER = (job.c.org_id, job.c.priority.desc(), job.c.run_at_ms, job.c.id)


class Line:
    """Jobs of one queue and of known types, in the order in which they are to be run."""

    def __init__(self, queue: str, types: Sequence[str]) -> None:
        self._take = _taking(queue, types)
        self._look = _looking(queue, types)
        self._start = FIRST_ORG
        self._alone_until = 0.0

    def take(self, tx: Transaction, limit: int, **common: Any) -> list[Row]:
        """Claim so many; none if the queue is paused or limited. The rows as they are then."""
        return self._in_turn(
            tx, limit, lambda room, start: self._take.run(tx, limit=room, start=start, **common)
        )

    def look(self, tx: Transaction, limit: int) -> list[Candidate]:
        """So many, locked and not yet taken, also those with limit keys."""
        rows = self._in_turn(
            tx, limit, lambda room, start: self._look.rows(tx, limit=room, start=start)
        )
        return [Candidate(row[:-1], row[_LIMIT_KEY], row[-1]) for row in rows]

    def _in_turn(
        self, tx: Transaction, limit: int, run: Callable[[int, str], list[Row]]
    ) -> list[Row]:
        """From the organisation whose turn it is to the last one, then from the first."""
        clock = tx.database.clock
        start = FIRST_ORG if clock.monotonic() < self._alone_until else self._start
        rows = run(limit, start)
        behind = len(rows)
        if behind < limit and start != FIRST_ORG:
            seen = {row[0] for row in rows}
            rows += [row for row in run(limit - behind, FIRST_ORG) if row[0] not in seen]
        if not rows:
            self._start = FIRST_ORG
            return rows
        self._start = _following(str(rows[-1][_ORG]))
        if start != FIRST_ORG and not behind and rows[0][_ORG] == rows[-1][_ORG]:
            self._alone_until = clock.monotonic() + ALONE_SECONDS
        return rows


def _following(org: str) -> str:
    """The id after this one; after the last comes the first."""
    return str(UUID(int=(UUID(org).int + 1) % (1 << 128)))


def _due(queue: str, types: Sequence[str]) -> ColumnElement[bool]:
    return and_(
        stands(Status.QUEUED, gate=Gate.OPEN),
        job.c.queue == queue,
        job.c.org_id >= bindparam("start", type_=job.c.org_id.type),
        or_(false(), *[job.c.type == name for name in types]),
    )


def _taking(queue: str, types: Sequence[str]) -> ClaimEach:
    """One statement that takes what nothing limits."""
    governed = exists().where(
        job_queue.c.name == queue,
        or_(job_queue.c.paused_at_ms.is_not(None), job_queue.c.concurrency_max.is_not(None)),
    )
    return ClaimEach(
        "jobs.claim",
        job,
        key=job.c.id,
        due=and_(_due(queue, types), job.c.limit_key.is_(None), ~governed),
        order_by=_ORDER,
        set_={
            "status": Status.RUNNING.value,
            "attempt": job.c.attempt + 1,
            "token": job.c.token + 1,
            "started_at": func.coalesce(job.c.started_at, now()),
            "updated_at": now(),
            "lease_until_ms": now_ms() + bindparam("lease_ms", type_=BigInteger()),
            "worker": bindparam("worker", type_=job.c.worker.type),
        },
        returning=COLUMNS,
    )


def _looking(queue: str, types: Sequence[str]) -> Statement:
    return Statement(
        "jobs.look_in_line",
        select(*COLUMNS, job.c.limit_max)
        .where(_due(queue, types))
        .order_by(*_ORDER)
        .limit(bindparam("limit", type_=BigInteger()))
        .with_for_update(skip_locked=True),
    )
