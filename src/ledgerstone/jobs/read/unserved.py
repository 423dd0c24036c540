"""Types of jobs that wait and that no worker runs, as far as workers tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import BigInteger, bindparam, func, select

from ledgerstone.engine import worker_rows as workers
from ledgerstone.jobs.states import Status
from ledgerstone.jobs.tables import channel_of, job, stands
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

LOOKED_AT_MAX = 10_000
"""Queued jobs that are looked at: looking has a bounded cost, however many there are."""

_some = (
    select(job.c.queue, job.c.type)
    .where(stands(Status.QUEUED))
    .limit(bindparam("most", type_=BigInteger()))
    .subquery("some_queued")
)
_waiting = Statement(
    "jobs.waiting_types",
    select(_some.c.queue, _some.c.type, func.count())
    .group_by(_some.c.queue, _some.c.type)
    .order_by(_some.c.queue, _some.c.type),
)


class Unserved(msgspec.Struct, frozen=True):
    """Jobs of a type that are queued, and that no worker which is alive runs from their queue."""

    queue: str
    type: str
    jobs: int
    """How many, among those that were looked at."""


def look(tx: Transaction, *, looked_at_max: int = LOOKED_AT_MAX) -> list[Unserved]:
    """The types that wait for nobody, by queue and name."""
    waiting = [Unserved(*row) for row in _waiting.rows(tx, most=looked_at_max)]
    if not waiting:
        return []
    served: set[tuple[str, str]] = set()
    for worker in workers.alive(tx):
        for source, types in worker.report.get("types", {}).items():
            served.update((source, each) for each in types)
    return [each for each in waiting if (channel_of(each.queue), each.type) not in served]
