"""What is kept of chores: the item, and every move it made."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Integer, String, Table, UniqueConstraint

from ledgerstone.items import Begun, Items, State, ToState
from ledgerstone.items.events import events
from ledgerstone.store.schema.columns import (
    MYSQL_TABLE,
    id_type,
    metadata,
    partial_index,
    serial_type,
    text_type,
)
from tests.chores.states import ENDED, MOVES, Status

KEY_CHARS_MAX = 255
WORKER_CHARS_MAX = 100
REASON_CHARS_MAX = 2048

tables = metadata()

chore = Table(
    "chore",
    tables,
    Column("id", id_type(), primary_key=True),
    Column("key", String(KEY_CHARS_MAX)),
    Column("body", text_type(), nullable=False),
    Column("status", String(16), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("crashes", Integer, nullable=False),
    Column("available_at_ms", BigInteger, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("lease_until_ms", BigInteger),
    Column("worker", String(WORKER_CHARS_MAX)),
    Column("result", text_type()),
    Column("error", String(REASON_CHARS_MAX)),
    Column("created_at_ms", BigInteger, nullable=False),
    UniqueConstraint("key"),
    CheckConstraint(
        "status IN ({})".format(", ".join(f"'{status.value}'" for status in Status)), "status"
    ),
    **MYSQL_TABLE,
)
due_indexes = partial_index(
    "idx_chore_due",
    chore.c.available_at_ms,
    chore.c.id,
    where=chore.c.status == Status.QUEUED.value,
    leading=(chore.c.status,),
)
held_indexes = partial_index(
    "idx_chore_held",
    chore.c.lease_until_ms,
    where=chore.c.status == Status.RUNNING.value,
    leading=(chore.c.status,),
)

chore_event = Table(
    "chore_event",
    tables,
    Column("id", serial_type(), primary_key=True, autoincrement=True),
    Column("chore_id", id_type(), nullable=False, index=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("prev_status", String(16)),
    Column("next_status", String(16), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("worker", String(WORKER_CHARS_MAX)),
    Column("reason", String(REASON_CHARS_MAX)),
    **MYSQL_TABLE,
)

_begun = Begun(chore.c.attempt)
HISTORY = events(
    "chores", chore_event, of=[chore_event.c.chore_id], key=[chore.c.id], attempt=_begun
)
CHORES = Items(
    name="chores",
    table=chore,
    key=(chore.c.id,),
    due=chore.c.available_at_ms,
    order=(chore.c.available_at_ms, chore.c.id),
    state=State(
        column=chore.c.status,
        due=Status.QUEUED,
        held=Status.RUNNING,
        dead=Status.DEAD,
        canceled=Status.CANCELED,
        ended=ENDED,
        moves=MOVES,
    ),
    done=ToState(Status.DONE),
    attempt=_begun,
    attempts_max=chore.c.max_attempts,
    token=chore.c.token,
    lease=chore.c.lease_until_ms,
    worker=chore.c.worker,
    crashes=chore.c.crashes,
    error=chore.c.error,
    body=chore.c.body,
    result=chore.c.result,
    history=HISTORY,
)
