"""Operations: cancel, retry, pause, resume and limit; the history says who did it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import BigInteger, bindparam, null, select, update

from ledgerstone.errors import BadInput, NotAllowedNow, NotFound, StoreBusy
from ledgerstone.jobs import history, limits
from ledgerstone.jobs.states import Gate, Status
from ledgerstone.jobs.tables import (
    ERROR_MESSAGE_CHARS_MAX,
    QUEUE_CHARS_MAX,
    WHO_CHARS_MAX,
    channel_of,
    job,
    job_queue,
    stands,
    still,
)
from ledgerstone.store.sql.batch import InsertEach, UpdateEach
from ledgerstone.store.sql.expressions import now, now_after, now_ms
from ledgerstone.store.sql.names import check_name, check_text
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

RETRY_MAX = 1000
"""Dead letters that one call retries."""
CONCURRENCY_LIMIT = 1_000_000
"""The widest limit that a queue can be given."""
_NEW_LIFE = {
    "reason": "retried",
    "attempt": 0,
    "crashes": 0,
    "stage": None,
    "progress": None,
    "cancel_requested": False,
}

_id = bindparam("id_", type_=job.c.id.type)
_standing = Statement(
    "jobs.look", select(job.c.status, job.c.cancel_requested, job.c.queue).where(job.c.id == _id)
)
_cancel_queued = Statement(
    "jobs.cancel_queued",
    update(job)
    .where(job.c.id == _id, still(Status.QUEUED))
    .values(
        status=Status.CANCELED.value, finished_at=now(), updated_at=now_after(job.c.updated_at)
    ),
)
_place = Statement(
    "jobs.place",
    select(job.c.queue, job.c.limit_key, job.c.org_id).where(
        job.c.id == _id, job.c.limit_key.is_not(None), job.c.gate == Gate.OPEN.value
    ),
)
_cancel_running = Statement(
    "jobs.cancel_running",
    update(job)
    .where(job.c.id == _id, still(Status.RUNNING), job.c.cancel_requested == 0)
    .values(cancel_requested=1, updated_at=now_after(job.c.updated_at)),
)
_revive = UpdateEach(
    "jobs.revive",
    key=job.c.id,
    incoming=(job.c.id,),
    build=lambda row: (
        update(job)
        .where(job.c.id == row.id, still(Status.DEAD_LETTER))
        .values(
            status=Status.QUEUED.value,
            attempt=0,
            crashes=0,
            cancel_requested=0,
            stage=null(),
            progress=null(),
            finished_at=null(),
            updated_at=now_after(job.c.updated_at),
            run_at_ms=now_ms(),
            gate=Gate.OPEN.value,
        )
    ),
)
_dead = Statement(
    "jobs.dead",
    select(job.c.id, job.c.queue)
    .where(
        stands(Status.DEAD_LETTER),
        (job.c.type == bindparam("type_", type_=job.c.type.type))
        | bindparam("type_", type_=job.c.type.type).is_(None),
        (job.c.queue == bindparam("queue_", type_=job.c.queue.type))
        | bindparam("queue_", type_=job.c.queue.type).is_(None),
        (job.c.org_id == bindparam("org_", type_=job.c.org_id.type))
        | bindparam("org_", type_=job.c.org_id.type).is_(None),
        (job.c.last_error_code == bindparam("code_", type_=job.c.last_error_code.type))
        | bindparam("code_", type_=job.c.last_error_code.type).is_(None),
    )
    .order_by(job.c.created_at, job.c.id)
    .limit(bindparam("limit_", type_=BigInteger())),
)
_know = InsertEach("jobs.know_queue", job_queue, incoming=(job_queue.c.name,))
_pause = Statement(
    "jobs.pause",
    update(job_queue)
    .where(job_queue.c.name == bindparam("name_", type_=job_queue.c.name.type))
    .values(paused_at_ms=now_ms(), paused_by=bindparam("by_", type_=job_queue.c.paused_by.type)),
)
_resume = Statement(
    "jobs.resume",
    update(job_queue)
    .where(job_queue.c.name == bindparam("name_", type_=job_queue.c.name.type))
    .values(paused_at_ms=null(), paused_by=null()),
)
_limit = Statement(
    "jobs.limit_queue",
    update(job_queue)
    .where(job_queue.c.name == bindparam("name_", type_=job_queue.c.name.type))
    .values(concurrency_max=bindparam("max_", type_=job_queue.c.concurrency_max.type)),
)


class Retried(msgspec.Struct, frozen=True):
    """The dead letters that were retried or, in a dry run, would be."""

    ids: list[str]
    dry_run: bool


def cancel(
    tx: Transaction, job_id: str, *, by: str | None = None, reason: str | None = None
) -> Status:
    """Cancel a queued job; ask a running one to stop. Answers where it stands then."""
    if reason:
        check_name(reason, "a reason", chars_max=ERROR_MESSAGE_CHARS_MAX)
    words = history.detail(by=_who(by), reason=reason)
    if _cancel_queued.run(tx, id_=job_id):
        history.record(tx, [(job_id, words)], Status.QUEUED, Status.CANCELED)
        # It may have been let in line for a place of its key, which is the next one's now.
        for queue, key, org in _place.rows(tx, id_=job_id):
            limits.let_in(tx, queue, [(key, str(org))])
        return Status.CANCELED
    if _cancel_running.run(tx, id_=job_id):
        words = history.detail(by=by, reason=reason, cancel_requested=True)
        history.record(tx, [(job_id, words)], Status.RUNNING, Status.RUNNING)
        return Status.RUNNING
    row = _standing.one(tx, id_=job_id)
    if row is None:
        message = f"no job has the id {job_id}"
        raise NotFound(message)
    status = Status(row[0])
    if status is Status.QUEUED:
        message = f"the job {job_id} has just moved"
        raise StoreBusy(message, hint="run the transaction again")
    if status in {Status.CANCELED, Status.RUNNING}:
        # Asked for before: it is as it should be.
        return status
    message = f"the job {job_id} is {status.value}: it is over"
    raise NotAllowedNow(message)


def retry(tx: Transaction, job_id: str, *, by: str | None = None) -> None:
    """Queue a dead letter again, with all its attempts."""
    row = _standing.one(tx, id_=job_id)
    if row is None:
        message = f"no job has the id {job_id}"
        raise NotFound(message)
    if _revived(tx, [(job_id, row[2])], by):
        return
    message = f"the job {job_id} is {row[0]}, not a dead letter"
    raise NotAllowedNow(message, hint="only dead letters are retried by hand")


def retry_all(
    tx: Transaction,
    *,
    org: str | None = None,
    type: str | None = None,  # noqa: A002 - the column's own name
    queue: str | None = None,
    error_code: str | None = None,
    limit: int = RETRY_MAX,
    dry_run: bool = False,
    by: str | None = None,
) -> Retried:
    """Queue dead letters again, the oldest first, at most so many."""
    for text, what in ((type, "type"), (queue, "queue"), (error_code, "error_code")):
        if text is not None:
            check_text(text, what)
    if not _is_count(limit, RETRY_MAX):
        message = f"at most {RETRY_MAX} dead letters are retried at once, not {limit!r}"
        raise BadInput(message, hint="call again for the rest")
    rows = _dead.rows(tx, org_=org, type_=type, queue_=queue, code_=error_code, limit_=limit)
    found = [(str(row[0]), row[1]) for row in rows]
    return Retried([job_id for job_id, _ in found] if dry_run else _revived(tx, found, by), dry_run)


def pause(tx: Transaction, queue: str, *, by: str | None = None) -> None:
    """No job of this queue begins any more; those that run go on."""
    _known(tx, queue)
    _pause.run(tx, name_=queue, by_=_who(by))


def resume(tx: Transaction, queue: str) -> None:
    """Jobs of this queue begin again."""
    _known(tx, queue)
    _resume.run(tx, name_=queue)
    tx.wake(channel_of(queue))


def limit(tx: Transaction, queue: str, concurrency_max: int | None) -> None:
    """At most so many jobs of this queue run at once, on all workers together; None: any."""
    if concurrency_max is not None and not _is_count(concurrency_max, CONCURRENCY_LIMIT):
        message = f"a queue runs 1 to {CONCURRENCY_LIMIT} jobs at once, not {concurrency_max!r}"
        raise BadInput(message, hint="pause it to run none; None is no limit")
    _known(tx, queue)
    _limit.run(tx, name_=queue, max_=concurrency_max)
    tx.wake(channel_of(queue))


def _is_count(value: object, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


def _known(tx: Transaction, queue: str) -> None:
    check_name(queue, "a queue", chars_max=QUEUE_CHARS_MAX)
    _know.run(tx, [(queue,)])


def _revived(tx: Transaction, found: list[tuple[str, str]], by: str | None) -> list[str]:
    who = _who(by)
    if not found:
        return []
    gone = set(_revive.run(tx, [(job_id,) for job_id, _ in found]))
    revived = [pair for i, pair in enumerate(found) if i not in gone]
    # A new life: how far the old one came is told by the events before this one.
    words = msgspec.json.encode({**_NEW_LIFE, **({"by": who} if who is not None else {})}).decode()
    moves = [(job_id, words) for job_id, _ in revived]
    history.record(tx, moves, Status.DEAD_LETTER, Status.QUEUED)
    for queue in {queue for _, queue in revived}:
        tx.wake(channel_of(queue))
    return [job_id for job_id, _ in revived]


def _who(by: str | None) -> str | None:
    if by is not None:
        check_name(by, "who did it", chars_max=WHO_CHARS_MAX)
    return by
