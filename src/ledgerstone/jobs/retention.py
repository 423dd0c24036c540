"""Retention: jobs that are over are removed after a while, with their history, then their keys.

The database refuses to remove history but with a permit: a row that the removing transaction adds
and takes away again, and that no other transaction ever sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Delete, bindparam, delete, insert, select

from ledgerstone.engine.duties import Duty
from ledgerstone.ids import new_id
from ledgerstone.jobs.states import Status
from ledgerstone.jobs.tables import history_permit, job, job_key, stands
from ledgerstone.settings import JobSettings
from ledgerstone.store.expressions import moment, now_ms
from ledgerstone.store.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

EVERY_SECONDS = 60.0
ROWS_MAX = 500
"""Rows that one transaction removes of each kind: it holds others up for no longer than that."""
DAY_MS = 86_400_000

_age = bindparam("age_ms", type_=BigInteger())
_limit = bindparam("limit_", type_=BigInteger())
_permit_id = bindparam("id_", type_=history_permit.c.id.type)
_permit = Statement(
    "jobs.permit",
    insert(history_permit).values(id=_permit_id),
)
_withdraw = Statement(
    "jobs.withdraw_permit", delete(history_permit).where(history_permit.c.id == _permit_id)
)


def _removing(status: Status) -> Statement:
    before = moment(now_ms() - _age)
    # By the time of creation, which an index knows; what is over was created before it was over.
    old = (
        select(job.c.id)
        .where(stands(status), job.c.created_at < before, job.c.finished_at < before)
        .order_by(job.c.created_at)
        .limit(_limit)
    )
    return Statement(f"jobs.remove_{status.value}", _among(job, job.c.id, old))


def _among(table: Any, column: Any, query: Any) -> Delete:
    """Remove the rows that a query over the same table finds."""
    found = query.subquery("old")
    return delete(table).where(column.in_(select(found.c[column.name])))


_kept: dict[Status, Callable[[JobSettings], float]] = {
    Status.SUCCEEDED: lambda settings: settings.keep_days,
    Status.CANCELED: lambda settings: settings.keep_days,
    Status.DEAD_LETTER: lambda settings: settings.keep_dead_letters_days,
}
_remove = {status: _removing(status) for status in _kept}
_forget = Statement(
    "jobs.forget_keys",
    _among(
        job_key,
        job_key.c.job_id,
        select(job_key.c.job_id)
        .where(
            job_key.c.used_at_ms < now_ms() - _age,
            ~select(job.c.id).where(job.c.id == job_key.c.job_id).exists(),
        )
        .order_by(job_key.c.used_at_ms)
        .limit(_limit),
    ),
)


def duty(settings: JobSettings) -> Duty:
    """Removes what is old, a bounded piece at a time."""
    return Duty("retire:jobs", EVERY_SECONDS, lambda tx: retire(tx, settings))


def retire(tx: Transaction, settings: JobSettings) -> int:
    """Remove what is older than the settings say, a bounded piece; how many rows of jobs."""
    permit = new_id()
    _permit.run(tx, id_=permit)
    removed = 0
    for status, days in _kept.items():
        age_ms = round(days(settings) * DAY_MS)
        removed += _remove[status].run(tx, age_ms=age_ms, limit_=ROWS_MAX)
    _withdraw.run(tx, id_=permit)
    _forget.run(tx, age_ms=round(settings.keep_keys_days * DAY_MS), limit_=ROWS_MAX)
    return removed
