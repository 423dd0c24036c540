"""Facts about workers and leases, for `status` and `doctor`."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Integer, bindparam, select

from ledgerstone.engine import worker_rows as workers
from ledgerstone.store.schema.tables import leases
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

LEASES_MAX = 500
DUTY = "duty "
"""The prefix of the error of a duty."""


class WorkerState(Enum):
    """Whether a worker runs, by its last heartbeat."""

    ALIVE = "alive"
    SILENT = "silent"
    """No heartbeat for longer than a lease: the worker is dead, paused or cut off."""
    STOPPED = "stopped"
    """The worker has shut down."""


class WorkerFacts(msgspec.Struct, frozen=True):
    """One worker, as its last heartbeat reported it."""

    id: str
    host: str
    pid: int
    state: WorkerState
    seen_ms_ago: int
    running: int
    done: int
    failed: int
    refused: int
    trouble: str | None
    duties: dict[str, int] = {}
    """By duty, how much the worker has done."""
    abandoned: int = 0
    """Handlers that take no notice of a timeout, a lost lease or a shutdown, and still run."""


class LeaseFacts(msgspec.Struct, frozen=True):
    """One lease; it has expired if `expires_in_ms` is 0 or less."""

    name: str
    holder: str
    expires_in_ms: int


_leases = Statement(
    "status.leases",
    select(leases.c.lease, leases.c.owner, leases.c.expires_at_ms - now_ms())
    .order_by(leases.c.lease)
    .limit(bindparam("limit", type_=Integer())),
)


def workers_of(tx: Transaction, *, lease_seconds: float) -> list[WorkerFacts]:
    """The workers: living ones first, then by their last heartbeat, the latest first."""
    # A heartbeat comes at least twice within a lease.
    silent_after_ms = 1000 * lease_seconds
    found = [_worker(seen, silent_after_ms) for seen in workers.listed(tx)]
    order = list(WorkerState)
    return sorted(found, key=lambda worker: order.index(worker.state))


def _worker(seen: workers.WorkerSeen, silent_after_ms: float) -> WorkerFacts:
    state = WorkerState.ALIVE
    if seen.state == WorkerState.STOPPED.value:
        state = WorkerState.STOPPED
    elif seen.silent_ms > silent_after_ms:
        state = WorkerState.SILENT
    by_source: list[dict[str, Any]] = list(seen.report.get("sources", {}).values())

    def total(name: str) -> int:
        return sum(counters.get(name, 0) for counters in by_source)

    return WorkerFacts(
        id=seen.id,
        host=seen.host,
        pid=seen.pid,
        state=state,
        seen_ms_ago=seen.silent_ms,
        running=seen.report.get("running", 0),
        done=total("done"),
        failed=total("failed"),
        refused=total("refused"),
        trouble=_one_line(next(filter(None, map(_trouble, by_source)), _duty_trouble(seen))),
        duties=seen.report.get("duties", {}),
        abandoned=total("abandoned"),
    )


def _duty_trouble(seen: workers.WorkerSeen) -> str | None:
    troubles: dict[str, str] = seen.report.get("duty_troubles", {})
    return next((f"{DUTY}{name}: {words}" for name, words in troubles.items()), None)


def _trouble(counters: dict[str, Any]) -> str | None:
    return counters.get("trouble") or counters.get("stalled")


def leases_of(tx: Transaction) -> list[LeaseFacts]:
    """The leases, by name."""
    return [LeaseFacts(*row) for row in _leases.rows(tx, limit=LEASES_MAX)]


def _one_line(words: str | None) -> str | None:
    """The message of a driver in one line."""
    return None if words is None else " ".join(words.split())
