"""Rows of workers: one for each worker, updated by its heartbeat."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import BigInteger, Integer, String, bindparam, cast, delete, or_, select, update

from ledgerstone.engine.quarantine import is_suspect
from ledgerstone.store.schema.columns import ID_CHARS
from ledgerstone.store.schema.tables import worker
from ledgerstone.store.sql.batch import InsertEach
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

FORGET_SECONDS = 86_400
FORGET_DEAD_SECONDS = 7 * 86_400
"""The row of a worker that died is kept longer: a rescue of its claims reads it."""
ALIVE_SECONDS = 60
BEATS_MISSED_MAX = 3
HOST_CHARS_MAX = 255
STOPPED = "stopped"
LIST_MAX = 500


class WorkerReport(msgspec.Struct, frozen=True):
    """The report of a worker, written at each heartbeat."""

    sources: dict[str, Any]
    running: int
    waiting: int
    prompt: bool
    duties: dict[str, int]
    types: dict[str, list[str]] = {}
    """By source, the types of items that this worker can run, if the source has types."""
    crashes_max: int | None = None
    begun: Sequence[str] = ()
    """The marks of the crash suspects that have begun, the last one also after its end."""
    locked: Sequence[str] = ()
    """The marks of claims that the worker holds and could not extend: their items were locked."""
    beat_seconds: float = ALIVE_SECONDS / BEATS_MISSED_MAX
    """The time between two heartbeats."""
    duty_troubles: dict[str, str] = {}
    """By duty, the error of its last turn."""


class _Readable(msgspec.Struct, frozen=True):
    """The parts of a report that other workers read, with the types that they need."""

    sources: dict[str, dict[str, Any]] = {}
    running: int = 0
    types: dict[str, list[str]] = {}
    crashes_max: int | None = None
    begun: Sequence[str] = ()
    locked: Sequence[str] = ()
    beat_seconds: float = ALIVE_SECONDS / BEATS_MISSED_MAX
    duties: dict[str, int] = {}
    duty_troubles: dict[str, str] = {}


class WorkerSeen(msgspec.Struct, frozen=True):
    """A worker by its row; `report` is empty if it cannot be read."""

    id: str
    host: str
    pid: int
    started_at_ms: int
    seen_at_ms: int
    state: str
    silent_ms: int
    report: dict[str, Any]


class LastHeartbeat(msgspec.Struct, frozen=True):
    """The last heartbeat of a worker, for a rescue of its claims."""

    host: str
    pid: int
    seen_at_ms: int
    crashes_max: int | None
    begun: Sequence[str]
    locked: Sequence[str] = ()
    silent_ms: int = 0
    fresh_ms: float = ALIVE_SECONDS * 1000
    """After how long without a heartbeat the worker counts as dead."""

    def keeps(self, mark: str) -> bool:
        """Whether the living worker holds a claim that it could not extend: the item was locked."""
        return mark in self.locked and self.silent_ms < self.fresh_ms

    def waited(self, mark: str, *, crashes: int, last: bool = False) -> bool:
        """Whether a claim of the worker had certainly not begun: another crash suspect had."""
        if self.crashes_max is None or not is_suspect(crashes, self.crashes_max, last=last):
            return False
        # If none had begun, claiming them may have killed the worker.
        return bool(self.begun) and mark not in self.begun


_id = bindparam("id_", type_=worker.c.id.type)
_enter = InsertEach(
    "workers.enter",
    worker,
    incoming=(worker.c.id, worker.c.host, worker.c.pid, worker.c.state, worker.c.report),
    values=lambda _: {"started_at_ms": now_ms(), "seen_at_ms": now_ms()},
)
_see = Statement(
    "workers.see",
    update(worker)
    .where(worker.c.id == _id)
    .values(
        seen_at_ms=now_ms(),
        state=bindparam("state_", type_=worker.c.state.type),
        report=bindparam("report_", type_=worker.c.report.type),
    ),
)
_list = Statement(
    "workers.list",
    select(
        worker.c.id,
        worker.c.host,
        worker.c.pid,
        worker.c.started_at_ms,
        worker.c.seen_at_ms,
        worker.c.state,
        now_ms() - worker.c.seen_at_ms,
        worker.c.report,
    )
    .order_by(worker.c.seen_at_ms.desc(), worker.c.id)
    .limit(bindparam("limit", type_=Integer())),
)
_last_word = Statement(
    "workers.last_word",
    select(
        worker.c.host,
        worker.c.pid,
        worker.c.seen_at_ms,
        worker.c.report,
        now_ms() - worker.c.seen_at_ms,
    ).where(
        # As text: an item may name its worker by any text.
        cast(worker.c.id, String(ID_CHARS)) == bindparam("id_", type_=String(ID_CHARS))
    ),
)
_prune = Statement(
    "workers.prune",
    delete(worker).where(
        or_(
            (worker.c.state == STOPPED)
            & (worker.c.seen_at_ms < now_ms() - bindparam("age_ms", type_=BigInteger())),
            worker.c.seen_at_ms < now_ms() - bindparam("dead_ms", type_=BigInteger()),
        )
    ),
)


def sign_in(tx: Transaction, worker_id: str, report: WorkerReport) -> None:
    """Write the row of a running worker."""
    _write(tx, worker_id, "running", report)


def sign_off(tx: Transaction, worker_id: str, report: WorkerReport) -> None:
    """Write the row of a worker that has shut down."""
    _write(tx, worker_id, STOPPED, report)


def listed(tx: Transaction, *, limit: int = LIST_MAX) -> list[WorkerSeen]:
    """The workers, by their last heartbeat, the latest first."""
    return [
        WorkerSeen(
            id=str(row[0]),
            host=row[1],
            pid=row[2],
            started_at_ms=row[3],
            seen_at_ms=row[4],
            state=row[5],
            silent_ms=row[6],
            report=msgspec.json.decode(row[7]) if _readable(row[7]) is not None else {},
        )
        for row in _list.rows(tx, limit=limit)
    ]


def alive(tx: Transaction) -> list[WorkerSeen]:
    """The running workers with a heartbeat within ALIVE_SECONDS."""
    return [
        seen
        for seen in listed(tx)
        if seen.state == "running" and seen.silent_ms < ALIVE_SECONDS * 1000
    ]


def last_words(tx: Transaction, workers: Iterable[str | None]) -> dict[str, LastHeartbeat]:
    """The last heartbeats of these workers; a worker without a row is left out."""
    found = {}
    for name in {name for name in workers if name is not None}:
        row = _last_word.one(tx, id_=name)
        if row is not None:
            said = _readable(row[3]) or _Readable()
            found[name] = LastHeartbeat(
                row[0],
                row[1],
                row[2],
                said.crashes_max,
                said.begun,
                locked=said.locked,
                silent_ms=row[4],
                fresh_ms=BEATS_MISSED_MAX * said.beat_seconds * 1000,
            )
    return found


def prune(tx: Transaction) -> int:
    """Delete the rows of workers that stopped a day ago or died a week ago."""
    return _prune.run(tx, age_ms=FORGET_SECONDS * 1000, dead_ms=FORGET_DEAD_SECONDS * 1000)


def _readable(report: str) -> _Readable | None:
    """The report, or None: a damaged row must not end the worker that reads it."""
    try:
        return msgspec.json.decode(report, type=_Readable)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return None


def _write(tx: Transaction, worker_id: str, state: str, report: WorkerReport) -> None:
    text = msgspec.json.encode(report).decode()
    if not _see.run(tx, id_=worker_id, state_=state, report_=text):
        host = socket.gethostname()[:HOST_CHARS_MAX]
        _enter.run(tx, [(worker_id, host, os.getpid(), state, text)])
