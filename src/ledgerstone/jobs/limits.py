"""Limits that hold for all workers together: of a queue, and of jobs with the same limit key.

Whoever claims from a limited queue, or settles a job with a limit key, first locks the row of the
queue: what it counts then cannot change behind its back, so limits are exact. A job whose key is
used up is taken out of the line (its gate is `blocked`), so that ten thousand of them cost nobody
anything; when a job with that key is settled, the next one gets back in line.

    in line (open) ──claim──▶ running ──settle──▶ over
         │  ▲                                │
   key used up  └──────── the next one ──────┘
         ▼  │
      blocked
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import BigInteger, bindparam, exists, func, select, update

from ledgerstone.jobs import history
from ledgerstone.jobs.states import Gate, Status
from ledgerstone.jobs.tables import job, job_queue, stands, still
from ledgerstone.store.batch import ClaimEach, InsertEach, UpdateEach
from ledgerstone.store.expressions import now, now_after, now_ms
from ledgerstone.store.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

PASSES_MAX = 10
"""How often one claim looks further because what it found was used up."""
BLOCK_MAX = 1000
IDLE_KEYS_MAX = 100

_queue = bindparam("queue_", type_=job.c.queue.type)
_key = bindparam("key_", type_=job.c.limit_key.type)
_know = InsertEach("jobs.know_queue", job_queue, incoming=(job_queue.c.name,))
_lock = Statement(
    "jobs.lock_queue",
    select(job_queue.c.paused_at_ms, job_queue.c.concurrency_max)
    .where(job_queue.c.name == _queue)
    .with_for_update(),
)
_look = Statement(
    "jobs.look_at_queue",
    select(job_queue.c.paused_at_ms, job_queue.c.concurrency_max).where(job_queue.c.name == _queue),
)
_keyed = Statement(
    "jobs.keyed_in_line",
    select(job.c.id)
    .where(
        stands(Status.QUEUED, gate=Gate.OPEN), job.c.queue == _queue, job.c.limit_key.is_not(None)
    )
    .limit(1),
)
_running = Statement(
    "jobs.running",
    select(job.c.limit_key, func.count())
    .where(stands(Status.RUNNING), job.c.queue == _queue)
    .group_by(job.c.limit_key),
)
_take = UpdateEach(
    "jobs.take",
    key=job.c.id,
    journal=history.moved,
    incoming=(job.c.id,),
    build=lambda row: (
        update(job)
        .where(job.c.id == row.id, still(Status.QUEUED))
        .values(
            status=Status.RUNNING.value,
            attempt=job.c.attempt + 1,
            token=job.c.token + 1,
            started_at=func.coalesce(job.c.started_at, now()),
            updated_at=now_after(job.c.updated_at),
            lease_until_ms=now_ms() + bindparam("lease_ms", type_=BigInteger()),
            worker=bindparam("worker", type_=job.c.worker.type),
        )
    ),
)
_block = ClaimEach(
    "jobs.block",
    job,
    key=job.c.id,
    due=stands(Status.QUEUED, gate=Gate.OPEN) & (job.c.queue == _queue) & (job.c.limit_key == _key),
    order_by=(job.c.org_id, job.c.urgency, job.c.run_at_ms, job.c.id),
    set_={"gate": Gate.BLOCKED.value},
    returning=(job.c.id,),
)
_unblock = ClaimEach(
    "jobs.unblock",
    job,
    key=job.c.id,
    due=stands(Status.QUEUED, gate=Gate.BLOCKED)
    & (job.c.queue == _queue)
    & (job.c.limit_key == _key),
    order_by=(job.c.urgency, job.c.run_at_ms, job.c.id),
    set_={"gate": Gate.OPEN.value},
    returning=(job.c.id,),
)
_other = job.alias("other")
_idle_keys = Statement(
    "jobs.idle_keys",
    select(job.c.limit_key)
    .distinct()
    .where(
        stands(Status.QUEUED, gate=Gate.BLOCKED),
        job.c.queue == _queue,
        ~exists().where(
            _other.c.status == Status.RUNNING.value,
            _other.c.queue == job.c.queue,
            _other.c.limit_key == job.c.limit_key,
        ),
    )
    .limit(bindparam("limit_", type_=BigInteger())),
)


class Candidate(msgspec.Struct, frozen=True):
    """A job in line, as it is before it is taken."""

    row: Row
    limit_key: str | None
    limit_max: int | None


def limited(tx: Transaction, queue: str) -> bool:
    """Whether this queue has a limit, or jobs with limit keys in line."""
    row = _look.one(tx, queue_=queue)
    if row is not None and row[1] is not None:
        return True
    return _keyed.one(tx, queue_=queue) is not None


def claim(
    tx: Transaction,
    queue: str,
    limit: int,
    look: Callable[[int], Sequence[Candidate]],
    **common: Any,
) -> list[Row]:
    """Take what is in line as far as every limit allows; the rows as they were before.

    `look` answers so many jobs in line, locked, and others each time it is asked.
    """
    paused, most = _locked(tx, queue)
    if paused:
        return []
    used = {key: int(count) for key, count in _running.rows(tx, queue_=queue)}
    room = limit if most is None else min(limit, most - sum(used.values()))
    taken: list[Row] = []
    for _ in range(PASSES_MAX):
        if room <= len(taken):
            break
        found = look(room - len(taken))
        if not found:
            break
        full: set[str] = set()
        allowed = []
        for candidate in found:
            key = candidate.limit_key
            if key is not None:
                if used.get(key, 0) >= (candidate.limit_max or 1):
                    full.add(key)
                    continue
                used[key] = used.get(key, 0) + 1
            allowed.append(candidate.row)
        if allowed:
            words = [history.begun(row[1] + 1, common["worker"]) for row in allowed]
            rows = [(str(row[0]), told) for row, told in zip(allowed, words, strict=True)]
            _take.run(tx, rows, **common)
            taken += allowed
        for key in full:
            _block.run(tx, limit=BLOCK_MAX, queue_=queue, key_=key)
    return taken


def pass_on(tx: Transaction, queue: str, keys: Iterable[str]) -> None:
    """Jobs with these keys are about to end, each frees a place for the next of its key."""
    for key, count in Counter(keys).items():
        _unblock.run(tx, limit=count, queue_=queue, key_=key)


def lock(tx: Transaction, queue: str) -> None:
    """Hold off everybody else who claims from this queue or settles keyed jobs of it."""
    _locked(tx, queue)


def sweep(tx: Transaction, queue: str) -> int:
    """Keys that are blocked though nothing runs with them: their next job gets back in line."""
    keys = [row[0] for row in _idle_keys.rows(tx, queue_=queue, limit_=IDLE_KEYS_MAX)]
    pass_on(tx, queue, keys)
    return len(keys)


def _locked(tx: Transaction, queue: str) -> tuple[bool, int | None]:
    row = _lock.one(tx, queue_=queue)
    if row is None:
        _know.run(tx, [(queue,)])
        row = _lock.one(tx, queue_=queue)
    return (row[0] is not None, row[1]) if row is not None else (False, None)
