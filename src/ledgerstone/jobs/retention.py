"""Retention: jobs that are over are removed after a while, with their history, then their keys.

The database refuses to remove history but with a permit: a row that the removing transaction adds
and takes away again, and that no other transaction ever sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, bindparam, delete, exists, or_, select

from ledgerstone.engine.duties import Duty
from ledgerstone.jobs.states import Status
from ledgerstone.jobs.tables import job, job_event, job_key, stands
from ledgerstone.settings import JobSettings
from ledgerstone.store.schema.retention_permit import permitted
from ledgerstone.store.sql.batch import WithRows
from ledgerstone.store.sql.expressions import moment, now_ms
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

EVERY_SECONDS = 60.0
ROWS_MAX = 500
"""How many rows of each table one transaction deletes: it holds its locks only briefly."""
DAY_MS = 86_400_000
LEGACY = "legacy"
"""The type of jobs that the migration has copied from a table `jobs`."""

_age = bindparam("age_ms", type_=BigInteger())
_limit = bindparam("limit_", type_=BigInteger())
_before = moment(now_ms() - _age)


def _old(status: Status) -> Statement:
    # A job that was taken over from another table ended before that: its retention begins then.
    came_later = exists().where(job_event.c.job_id == job.c.id, job_event.c.ts >= _before)
    # By the time of creation, which an index knows; what is over was created before it was over.
    return Statement(
        f"jobs.old_{status.value}",
        select(job.c.id)
        .where(
            stands(status),
            job.c.created_at < _before,
            job.c.finished_at < _before,
            or_(job.c.type != LEGACY, ~came_later),
        )
        .order_by(job.c.created_at)
        .limit(_limit),
    )


_kept: dict[Status, Callable[[JobSettings], float]] = {
    Status.SUCCEEDED: lambda settings: settings.keep_days,
    Status.CANCELED: lambda settings: settings.keep_days,
    Status.DEAD_LETTER: lambda settings: settings.keep_dead_letters_days,
}
_over = {status: _old(status) for status in _kept}


def _removal(status: Status) -> WithRows:
    # Found first and removed by their ids: so nothing is locked that is not removed. Whether they
    # are over is asked again: an operator may have retried one meanwhile.
    return WithRows(
        f"jobs.remove_{status.value}",
        incoming=(job.c.id,),
        build=lambda row: delete(job).where(
            job.c.id.in_(select(row.id)), stands(status), job.c.finished_at < _before
        ),
    )


_remove = {status: _removal(status) for status in _kept}
_old_keys = (
    select(job_key.c.job_id)
    .where(
        job_key.c.used_at_ms < now_ms() - _age,
        ~select(job.c.id).where(job.c.id == job_key.c.job_id).exists(),
    )
    .order_by(job_key.c.used_at_ms)
    .limit(_limit)
    .subquery("old")
)
_forget = Statement(
    "jobs.forget_keys",
    delete(job_key).where(job_key.c.job_id.in_(select(_old_keys.c.job_id))),
)


def duty(settings: JobSettings) -> Duty:
    """Deletes old rows, in bounded steps."""
    return Duty("retire:jobs", EVERY_SECONDS, lambda tx: retire(tx, settings))


def retire(tx: Transaction, settings: JobSettings) -> int:
    """Delete rows older than the settings say, one bounded step; how many jobs were deleted."""
    removed = 0
    with permitted(tx):
        for status, days in _kept.items():
            age_ms = round(days(settings) * DAY_MS)
            old = _over[status].rows(tx, age_ms=age_ms, limit_=ROWS_MAX)
            removed += _remove[status].run(tx, sorted(old), age_ms=age_ms) if old else 0
    _forget.run(tx, age_ms=round(settings.keep_keys_days * DAY_MS), limit_=ROWS_MAX)
    return removed
