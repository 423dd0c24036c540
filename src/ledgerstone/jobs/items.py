"""Jobs as leased items, and the moves that they make.

Jobs add to the leased item: an attempt that fails passes through `failed`, both moves on
record; a job that somebody asked to cancel is canceled instead of given back or tried again; and
a job that is put off leaves the line (`gate`) until its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Integer, case, column, func, null

from ledgerstone.items import Begun, Items, State, ToState
from ledgerstone.items.claim import taken
from ledgerstone.items.declaration import History, Refusal
from ledgerstone.items.moves import Move, MoveStatement
from ledgerstone.jobs import history
from ledgerstone.jobs.states import MOVES, Gate, Status
from ledgerstone.jobs.tables import job
from ledgerstone.store.schema.columns import text_type
from ledgerstone.store.sql.batch import Incoming
from ledgerstone.store.sql.expressions import as_json, now, now_ms

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

ENDED = frozenset({Status.SUCCEEDED, Status.CANCELED, Status.DEAD_LETTER})


def _refuse(tx: Transaction, refusal: Refusal) -> None:
    told = history.detail(refused=refusal.words, worker=refusal.worker)
    history.note(tx, str(refusal.key[0]), Status(refusal.state), told)


JOBS = Items(
    name="jobs",
    table=job,
    key=(job.c.id,),
    due=job.c.run_at_ms,
    order=(job.c.org_id, job.c.urgency, job.c.run_at_ms, job.c.id),
    state=State(
        column=job.c.status,
        due=Status.QUEUED,
        held=Status.RUNNING,
        dead=Status.DEAD_LETTER,
        canceled=Status.CANCELED,
        ended=ENDED,
        moves=MOVES,
    ),
    done=ToState(Status.SUCCEEDED),
    attempt=Begun(job.c.attempt),
    attempts_max=job.c.max_attempts,
    token=job.c.token,
    lease=job.c.lease_until_ms,
    worker=job.c.worker,
    crashes=job.c.crashes,
    changed=job.c.updated_at,
    history=History(
        moved=history.moved,
        claimed=history.claimed,
        told=lambda attempt, words: (history.detail(attempt=attempt, reason=words),),
        refuse=_refuse,
    ),
)


def begun() -> dict[str, Any]:
    """The values that a claim writes, by column."""
    return {**taken(JOBS), "started_at": func.coalesce(job.c.started_at, now())}


def next_token(c: Any) -> Any:
    """The column; of the token, the value that a claim of this row will write."""
    return JOBS.next_token if c is job.c.token else c


_delay = column("delay_ms", BigInteger())


def _unwanted(_: Incoming) -> Any:
    """Whether a cancel was requested."""
    return job.c.cancel_requested == 1


def _ended(_: Incoming) -> dict[str, Any]:
    return {"finished_at": now()}


def _due_again(row: Incoming) -> dict[str, Any]:
    """The values of a job that is queued again, due after `delay_ms`."""
    return {
        "finished_at": null(),
        "run_at_ms": now_ms() + row.delay_ms,
        "gate": case((row.delay_ms > 0, Gate.SCHEDULED.value), else_=Gate.OPEN.value),
    }


succeed = MoveStatement(JOBS, Move(name="succeed", to=Status.SUCCEEDED, sets=_ended))
succeed_with = MoveStatement(
    JOBS,
    Move(
        name="succeed_with",
        to=Status.SUCCEEDED,
        carries=(column("result", text_type()),),
        sets=lambda row: {"finished_at": now(), "result": as_json(row.result)},
    ),
)
cancel = MoveStatement(JOBS, Move(name="end_canceled", to=Status.CANCELED, sets=_ended))
give_back = MoveStatement(
    JOBS,
    Move(
        name="return",
        to=Status.QUEUED,
        diverted=_unwanted,
        carries=(_delay,),
        sets=lambda row: {
            **_due_again(row),
            "attempt": job.c.attempt - 1,
            # A returned job keeps its place in the claim order.
            "run_at_ms": case((row.delay_ms > 0, now_ms() + row.delay_ms), else_=job.c.run_at_ms),
        },
    ),
)
fail = MoveStatement(
    JOBS,
    Move(
        name="fail",
        to=Status.FAILED,
        diverted=_unwanted,
        carries=(
            job.c.last_error_code,
            job.c.last_error_message,
            column("crashed", Integer()),
        ),
        sets=lambda row: {
            "finished_at": now(),
            "crashes": job.c.crashes + row.crashed,
            "last_error_code": row.last_error_code,
            "last_error_message": row.last_error_message,
        },
    ),
)
retry = MoveStatement(
    JOBS,
    Move(
        name="retry_failed",
        leaves=Status.FAILED,
        to=Status.QUEUED,
        carries=(_delay,),
        sets=_due_again,
    ),
)
bury = MoveStatement(
    JOBS, Move(name="bury", leaves=Status.FAILED, to=Status.DEAD_LETTER, sets=_ended)
)
back = MoveStatement(
    JOBS,
    Move(
        name="rescue",
        to=Status.QUEUED,
        carries=(column("waited", Integer()),),
        sets=lambda row: {
            "attempt": job.c.attempt - row.waited,
            "crashes": job.c.crashes + 1 - row.waited,
            "run_at_ms": now_ms(),
        },
    ),
)
"""The rescue of a job whose worker died."""
