"""The history of jobs: one event for each move and each thing worth knowing, never changed.

`detail_json` holds what the move meant: attempt, worker, reason, error, stage, progress, who. The
events of a job, read in order, lead to its current row: `replayed` says where. Their order is that
in which its row was changed: each is of a moment after the one before, if need be by the smallest
step that the database knows, also when clocks are set back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

import msgspec
from sqlalchemy import BigInteger, Text, bindparam, cast, column, func, literal, select, update

from ledgerstone.ids import new_id
from ledgerstone.jobs.states import Status
from ledgerstone.jobs.tables import job, job_event
from ledgerstone.store.schema.columns import text_type
from ledgerstone.store.sql.batch import AppendEach, Journal
from ledgerstone.store.sql.expressions import as_json, json_text, now_after
from ledgerstone.store.sql.pages import Keyset, Page
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.sql.timestamps import moment_of

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

NEWEST_MAX = 500
"""How many of the newest events of a job are read at once."""
EARLIER_MAX = 10_000
"""Up to how many earlier events are counted."""
BEGUN_MAX = 100
"""How many details of begun attempts are cached."""
ENDS_MAX = 20
"""Among how many ends of attempts the last error is searched."""

Move = tuple[str, str | None]
"""The id of a job, and the detail of its move as JSON text."""


class JobEvent(msgspec.Struct, frozen=True):
    """One event; if both states are the same, it is no move."""

    id: str
    job_id: str
    ts: datetime
    prev_status: str | None
    next_status: str
    detail: dict[str, Any]


class Happened(msgspec.Struct, frozen=True):
    """The newest events of a job, in their order.

    `earlier` is how many came before them; `failed` the last one that carries an error, also if it
    is among those.
    """

    events: list[JobEvent]
    earlier: int
    failed: JobEvent | None


class Replayed(msgspec.Struct):
    """The columns of a job as its events say them."""

    status: str | None = None
    attempt: int = 0
    crashes: int = 0
    last_error_code: str | None = None
    last_error_message: str | None = None
    stage: str | None = None
    progress: float | None = None
    cancel_requested: bool = False


@lru_cache(maxsize=BEGUN_MAX)
def begun(attempt: int, worker: str) -> str:
    """The detail of a begun attempt; the same for almost all jobs of a worker."""
    return f'{{"attempt":{attempt},"worker":"{worker}"}}'


_STAMPED = {"ts": job.c.updated_at}
"""An event is of the moment of its job: each is after the one before, also if the clock is not."""
_worker = bindparam("worker", type_=job.c.worker.type)

_append = AppendEach(
    "jobs.record",
    job_event,
    incoming=(job_event.c.id, job_event.c.job_id, column("detail_json", text_type())),
    values=lambda row: {
        "ts": select(job.c.updated_at).where(job.c.id == row.job_id).scalar_subquery(),
        "prev_status": bindparam("prev", type_=job_event.c.prev_status.type),
        "next_status": bindparam("next", type_=job_event.c.next_status.type),
        "detail_json": as_json(row.detail_json),
    },
)
_touch = Statement(
    "jobs.touch",
    update(job)
    .where(job.c.id == bindparam("id_", type_=job.c.id.type))
    .values(updated_at=now_after(job.c.updated_at)),
)


moved = Journal(
    append=_append,
    carried=(column("words", text_type()),),
    told=lambda row, _: (new_id(), row[0], row[-1]),
    columns=lambda row: (row.id, row.words),
    copied=_STAMPED,
)
"""The fields of an event for a job that is added or found by its id: the id first, texts last."""
claimed = Journal(
    append=_append,
    told=lambda row, common: (new_id(), str(row[0]), begun(row[1], common["worker"])),
    columns=lambda row: (
        row.id,
        literal('{"attempt":') + cast(row.attempt, Text) + ',"worker":"' + _worker + '"}',
    ),
    copied=_STAMPED,
    usual={"attempt": 1},
)
"""The event of a job that begins."""


def _event(row: Any) -> JobEvent:
    told = msgspec.json.decode(row[5]) if row[5] is not None else {}
    return JobEvent(str(row[0]), str(row[1]), moment_of(row[2]), row[3], row[4], told)


_of_job = job_event.c.job_id == bindparam("job_id", type_=job_event.c.job_id.type)
_told = select(
    job_event.c.id,
    job_event.c.job_id,
    job_event.c.ts,
    job_event.c.prev_status,
    job_event.c.next_status,
    json_text(job_event.c.detail_json).label("detail"),
).where(_of_job)
_events = Keyset(
    "jobs.events",
    _told,
    # The ids are for what others wrote: ours are of different moments.
    order=(job_event.c.ts, job_event.c.id),
    make=_event,
)

_limit = bindparam("limit", type_=BigInteger())
_newest_first = _told.order_by(job_event.c.ts.desc(), job_event.c.id.desc()).limit(_limit)
_newest = Statement("jobs.newest_events", _newest_first)
_ends = Statement(
    "jobs.ends_of_attempts",
    _newest_first.where(
        job_event.c.prev_status == Status.RUNNING.value,
        job_event.c.next_status != Status.RUNNING.value,
    ),
)
_counted = Statement(
    "jobs.count_events",
    select(func.count()).select_from(
        select(job_event.c.id).where(_of_job).limit(_limit).subquery()
    ),
)


def record(tx: Transaction, moves: Sequence[Move], prev: Status, following: Status) -> None:
    """Add one event for each of these jobs, whose rows were changed before in this transaction."""
    if moves:
        rows = [(new_id(), job_id, words) for job_id, words in moves]
        _append.run(tx, rows, **between(prev, following))


def note(tx: Transaction, job_id: str, status: Status, words: str) -> None:
    """Add an event that is no move."""
    _touch.run(tx, id_=job_id)
    record(tx, [(job_id, words)], status, status)


def between(prev: Status | None, following: Status) -> dict[str, str | None]:
    """The states of a move, as parameters of the journal."""
    return {"prev": prev.value if prev is not None else None, "next": following.value}


class Detail(TypedDict, total=False):
    """The keys of `detail_json`; each is present if its value is known."""

    attempt: Annotated[int | None, "the attempt that begins, ended or was returned"]
    worker: Annotated[str | None, "the worker that claimed the job, or that was refused"]
    verdict: Annotated[
        str, "how the attempt ended: done, failed, dead, snoozed, canceled, returned"
    ]
    crashes: Annotated[int | None, "how often workers have died with the job, this time included"]
    delay_ms: Annotated[int | None, "how much later the job is due again"]
    error: Annotated[dict[str, Any] | None, "`code`, `message` and `traceback` of the failure"]
    reason: Annotated[str | None, "why: given by an operator, or in words of the house"]
    by: Annotated[str | None, "who asked for it"]
    cancel_requested: Annotated[bool, "a running job was asked to stop"]
    progress: Annotated[float | None, "how much is done, from 0 to 1, by the handler"]
    stage: Annotated[str | None, "what the handler is at"]
    correlation_id: Annotated[str | None, "the correlation id with which the job was enqueued"]
    refused: Annotated[str, "what a worker tried that had lost its lease"]


def detail(**facts: Unpack[Detail]) -> str:
    """The detail of a move as JSON, without unknown values."""
    known = {name: value for name, value in facts.items() if value is not None}
    return msgspec.json.encode(known).decode()


def events(
    tx: Transaction, job_id: str, *, limit: int = 100, cursor: str | None = None
) -> Page[JobEvent]:
    """One page of the events of a job, oldest first."""
    return _events.read(tx, limit=limit, cursor=cursor, job_id=job_id)


def newest(tx: Transaction, job_id: str, *, limit: int = NEWEST_MAX) -> Happened:
    """The newest events of a job."""
    found = [_event(row) for row in _newest.rows(tx, job_id=job_id, limit=limit)]
    earlier, failed = 0, _last_failed(found)
    if len(found) == limit:
        ((count,),) = _counted.rows(tx, job_id=job_id, limit=limit + EARLIER_MAX + 1)
        earlier = max(0, count - limit)
        if failed is None:
            ends = _ends.rows(tx, job_id=job_id, limit=ENDS_MAX)
            failed = _last_failed([_event(row) for row in ends])
    return Happened(found[::-1], earlier, failed)


def _last_failed(newest_first: Sequence[JobEvent]) -> JobEvent | None:
    return next((event for event in newest_first if event.detail.get("error")), None)


def replayed(happened: Iterable[JobEvent]) -> Replayed:
    """The state of a job, computed from its events alone."""
    state = Replayed()
    for event in happened:
        known = event.detail
        state.status = event.next_status
        state.attempt = known.get("attempt", state.attempt)
        state.crashes = known.get("crashes", state.crashes)
        state.stage = known.get("stage", state.stage)
        state.progress = known.get("progress", state.progress)
        state.cancel_requested = known.get("cancel_requested", state.cancel_requested)
        # Of a job that was canceled or returned it is told in the event alone.
        begun_or_failed = event.prev_status is None or event.next_status == Status.FAILED.value
        if "error" in known and begun_or_failed:
            state.last_error_code = known["error"]["code"]
            state.last_error_message = known["error"]["message"]
    return state
