"""The line of one queue: who is next.

Organisations take turns: a claim takes what is due of the next organisation, and goes on to the
ones behind it only if that was not enough. However many jobs one of them has queued, another waits
for at most one batch of it. Within an organisation the more urgent come first, then the earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import BigInteger, Integer, and_, bindparam, exists, false, or_, select
from sqlalchemy.sql.elements import ColumnElement

from ledgerstone.jobs import history
from ledgerstone.jobs.items import begun, next_token
from ledgerstone.jobs.limits import Candidate
from ledgerstone.jobs.states import Gate, Status
from ledgerstone.jobs.tables import job, job_queue, stands
from ledgerstone.store.batch import ClaimEach
from ledgerstone.store.expressions import beyond, json_text
from ledgerstone.store.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

FIRST_ORG = "00000000-0000-0000-0000-000000000000"
ALONE_SECONDS = 0.1
"""How long an organisation that was alone in line is taken to be."""
SLOW_SECONDS, SLOW_ROW_SECONDS = 0.02, 0.0001
"""A claim that took longer, also for each job, had to pass what was taken before and cannot be
forgotten yet, because somebody keeps a transaction open."""
RESUME_SECONDS = 0.5
"""For so long after a slow claim the next ones begin where it ended, not at the front."""
COLUMNS: tuple[Any, ...] = (
    job.c.id,
    job.c.attempt,
    job.c.token,
    json_text(job.c.payload).label("payload"),
    job.c.type,
    job.c.org_id,
    job.c.crashes,
    job.c.max_attempts,
    job.c.backoff_policy,
    job.c.limit_key,
    job.c.requested_by,
    job.c.correlation_id,
    job.c.trace_context,
    job.c.urgency,
    job.c.run_at_ms,
)
"""What a claim needs to know of a job, and its place in line."""
ABOUT = slice(7, 13)
"""What of it the claim keeps beside key, attempt, token, payload, type, organisation, crashes."""
_ORG, _LIMIT_KEY, _URGENCY, _RUN_AT = 5, 9, 13, 14
_ORDER = (job.c.org_id, job.c.urgency, job.c.run_at_ms, job.c.id)
_org = bindparam("org", type_=job.c.org_id.type)
_OTHERS = tuple(
    Statement(
        f"jobs.others_{where}",
        select(job.c.id)
        .where(
            stands(Status.QUEUED, gate=Gate.OPEN),
            job.c.queue == bindparam("queue_", type_=job.c.queue.type),
            job.c.org_id > _org if where == "behind" else job.c.org_id < _org,
        )
        .limit(1),
    )
    for where in ("behind", "before")
)
"""Two, for each finds its part of the index."""


class Line:
    """Jobs of one queue and of known types, in the order in which they are to be run."""

    def __init__(self, queue: str, types: Sequence[str]) -> None:
        self._queue = queue
        self.know(types)
        self._start = FIRST_ORG
        self._alone_until = 0.0
        self._place: dict[str, Any] = {}
        self._resume_until = 0.0

    def know(self, types: Sequence[str]) -> None:
        """From now on jobs of these types; whose turn it is stays as it is."""
        self._take = _taking(self._queue, _due(types, _from_start))
        self._take_behind = _taking(self._queue, _due(types, _behind_place))
        self._look = _looking(self._queue, types)

    def take(self, tx: Transaction, limit: int, *, alone: bool, **common: Any) -> list[Row]:
        """Claim so many; none if the queue is paused or limited. The rows as they are then.

        `alone`: nothing else happens in the transaction.
        """
        rows = self._resumed(tx, limit, common)
        if len(rows) == limit:
            return rows
        may_end = alone and not rows

        def take(room: int, start: str) -> list[Row]:
            if may_end and start == FIRST_ORG:
                # Whatever it takes, nothing is taken after it.
                tx.end_with_next()
            return self._take.run(tx, limit=room, start=start, **common)

        began = perf_counter()
        rows += self._in_turn(tx, limit - len(rows), take)
        if len(rows) < limit:
            # Everybody had their turn, and nobody is left: the next is the first who comes.
            self._start = FIRST_ORG
        if rows and perf_counter() - began > max(SLOW_SECONDS, len(rows) * SLOW_ROW_SECONDS):
            self._remember(rows[-1])
            self._resume_until = tx.database.clock.monotonic() + RESUME_SECONDS
        return rows

    def _resumed(self, tx: Transaction, limit: int, common: dict[str, Any]) -> list[Row]:
        """What comes behind the last one that was taken, shortly after a slow claim."""
        if not self._place or tx.database.clock.monotonic() >= self._resume_until:
            return []
        if any(others.one(tx, queue_=self._queue, org=self._place["org"]) for others in _OTHERS):
            # Another organisation waits for its turn.
            self._resume_until = 0.0
            return []
        rows = self._take_behind.run(tx, limit=limit, **self._place, **common)
        if len(rows) == limit:
            self._remember(rows[-1])
        else:
            self._resume_until = 0.0
        return rows

    def start_at_front(self) -> None:
        """The next claim begins there, however long the last one took."""
        self._resume_until = 0.0

    def _remember(self, row: Row) -> None:
        org, urgency, run_at_ms = str(row[_ORG]), row[_URGENCY], row[_RUN_AT]
        self._place = {"org": org, "urgency": urgency, "run_at": run_at_ms, "id": str(row[0])}

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
        if not behind and rows[0][_ORG] == rows[-1][_ORG] and start == self._start:
            # Nobody is behind it, and nobody before it.
            self._alone_until = clock.monotonic() + ALONE_SECONDS
        return rows


def _following(org: str) -> str:
    """The id after this one; after the last comes the first."""
    return str(UUID(int=(UUID(org).int + 1) % (1 << 128)))


_from_start = job.c.org_id >= bindparam("start", type_=job.c.org_id.type)
_behind_place = and_(
    job.c.org_id == bindparam("org", type_=job.c.org_id.type),
    beyond(
        (job.c.urgency, job.c.run_at_ms, job.c.id),
        (
            bindparam("urgency", type_=Integer()),
            bindparam("run_at", type_=BigInteger()),
            bindparam("id", type_=job.c.id.type),
        ),
    ),
)


def _due(types: Sequence[str], where: ColumnElement[bool]) -> ColumnElement[bool]:
    known = or_(false(), *[job.c.type == name for name in types])
    return and_(stands(Status.QUEUED, gate=Gate.OPEN), where, known)


def _taking(queue: str, due: ColumnElement[bool]) -> ClaimEach:
    """One statement that takes what nothing limits."""
    governed = exists().where(
        job_queue.c.name == queue,
        or_(job_queue.c.paused_at_ms.is_not(None), job_queue.c.concurrency_max.is_not(None)),
    )
    return ClaimEach(
        "jobs.claim",
        job,
        key=job.c.id,
        due=and_(job.c.queue == queue, due, job.c.limit_key.is_(None), ~governed),
        order_by=_ORDER,
        set_=begun(),
        returning=COLUMNS,
        journal=history.claimed,
    )


def _looking(queue: str, types: Sequence[str]) -> Statement:
    return Statement(
        "jobs.look_in_line",
        select(*[next_token(c) for c in COLUMNS], job.c.limit_max)
        .where(job.c.queue == queue, _due(types, _from_start))
        .order_by(*_ORDER)
        .limit(bindparam("limit", type_=BigInteger()))
        .with_for_update(skip_locked=True),
    )
