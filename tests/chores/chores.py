"""What a caller can ask of chores, inside a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import BigInteger, bindparam, func, inspect, literal_column, select

from ledgerstone.errors import BadInput, KeyConflict, NotFound, StoreBusy
from ledgerstone.ids import new_id
from ledgerstone.items.events import accepted
from ledgerstone.store.schema import ddl
from ledgerstone.store.sql.batch import InsertEach
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.json_body import decode, encode
from ledgerstone.store.sql.names import check_name
from ledgerstone.store.sql.statement import Statement
from tests.chores.states import Status
from tests.chores.tables import HISTORY, KEY_CHARS_MAX, chore, chore_event, tables

if TYPE_CHECKING:
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

CHANNEL = "chores"
MAX_ATTEMPTS = 5
DELAY_SECONDS_MAX = 10 * 366 * 86_400


class NewChore(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be done once."""

    body: Any
    key: str | None = None
    delay_seconds: float = 0.0
    max_attempts: int = MAX_ATTEMPTS


class Enqueued(msgspec.Struct, frozen=True):
    """The id of a chore, and whether this call made it or it was there with the same content."""

    id: str
    created: bool


class Chore(msgspec.Struct, frozen=True):
    """A chore as it stands."""

    id: str
    key: str | None
    body: Any
    status: Status
    attempt: int
    max_attempts: int
    crashes: int
    worker: str | None
    result: Any
    error: str | None


class ChoreEvent(msgspec.Struct, frozen=True):
    """One move of a chore, or one that was refused (then both states are the same)."""

    at_ms: int
    prev_status: str | None
    next_status: str
    attempt: int
    worker: str | None
    reason: str | None


_insert = InsertEach(
    "chores.enqueue",
    chore,
    incoming=(chore.c.id, chore.c.key, chore.c.body, chore.c.max_attempts, chore.c.available_at_ms),
    values=lambda row: {
        "status": Status.QUEUED.value,
        "attempt": 0,
        "crashes": 0,
        "token": 0,
        "available_at_ms": now_ms() + row.available_at_ms,
        "created_at_ms": now_ms(),
    },
)
_by_key = Statement(
    "chores.by_key",
    select(chore.c.id, chore.c.body).where(chore.c.key == bindparam("key", type_=chore.c.key.type)),
)
_by_id = Statement(
    "chores.by_id",
    select(
        chore.c.id,
        chore.c.key,
        chore.c.body,
        chore.c.status,
        chore.c.attempt,
        chore.c.max_attempts,
        chore.c.crashes,
        chore.c.worker,
        chore.c.result,
        chore.c.error,
    ).where(chore.c.id == bindparam("id", type_=chore.c.id.type)),
)
_events = Statement(
    "chores.events",
    select(
        chore_event.c.at_ms,
        chore_event.c.prev_status,
        chore_event.c.next_status,
        chore_event.c.attempt,
        chore_event.c.worker,
        chore_event.c.reason,
    )
    .where(chore_event.c.chore_id == bindparam("id", type_=chore.c.id.type))
    .order_by(chore_event.c.id)
    .limit(bindparam("limit", type_=BigInteger())),
)
_counts = Statement("chores.counts", select(chore.c.status, func.count()).group_by(chore.c.status))
_most = bindparam("most", type_=BigInteger())
_some = select(chore.c.status).limit(_most).subquery("some_chores")
_some_counts = Statement(
    "chores.some_counts", select(_some.c.status, func.count()).group_by(_some.c.status)
)
_open_counts = {
    status: Statement(
        f"chores.count_{status.value}",
        select(func.count()).select_from(
            select(chore.c.id)
            .where(chore.c.status == literal_column(f"'{status.value}'"))
            .limit(_most)
            .subquery()
        ),
    )
    for status in (Status.QUEUED, Status.RUNNING)
}


def install(database: Database[Any]) -> None:
    """Add the tables of chores to a database, if they are not there."""
    # Held off from others that install: two could find a table missing, and one would fail.
    names, dialect = database.namespace, database.dialect
    with database.transaction() as tx, dialect.migrating(tx.connection, names):
        for table in tables.sorted_tables:
            if not inspect(tx.connection).has_table(table.name, schema=names.own):
                ddl.run(tx.connection, ddl.new(table, tx.connection.dialect, names))


class Chores:
    """Chores, inside one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    def enqueue(
        self,
        body: Any,
        *,
        key: str | None = None,
        delay_seconds: float = 0.0,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> Enqueued:
        """Accept one. Same key, same body: the one there is; same key, other body: KeyConflict."""
        new = NewChore(body=body, key=key, delay_seconds=delay_seconds, max_attempts=max_attempts)
        (enqueued,) = self.enqueue_many((new,))
        return enqueued

    def enqueue_many(self, chores: Sequence[NewChore]) -> list[Enqueued]:
        """Accept all or, if one of them is refused, none."""
        limit = self._tx.database.settings.body_bytes_max
        rows = [(new_id(), *_checked(new, limit)) for new in chores]
        if not rows:
            return []
        there = set(_insert.run(self._tx, rows))
        created = [row for i, row in enumerate(rows) if i not in there]
        if created:
            accepted(self._tx, HISTORY, [(row[0],) for row in created], Status.QUEUED.value)
            self._tx.wake(CHANNEL)
        return [
            self._existing(row) if i in there else Enqueued(row[0], created=True)
            for i, row in enumerate(rows)
        ]

    def get(self, chore_id: str) -> Chore:
        """The chore as it stands."""
        row = _by_id.one(self._tx, id=chore_id)
        if row is None:
            message = f"no chore has the id {chore_id}"
            raise NotFound(message)
        return Chore(
            id=str(row[0]),
            key=row[1],
            body=decode(row[2]),
            status=Status(row[3]),
            attempt=row[4],
            max_attempts=row[5],
            crashes=row[6],
            worker=row[7],
            result=decode(row[8]) if row[8] is not None else None,
            error=row[9],
        )

    def history(self, chore_id: str, *, limit: int = 1000) -> list[ChoreEvent]:
        """Every move it made, oldest first."""
        return [ChoreEvent(*row) for row in _events.rows(self._tx, id=chore_id, limit=limit)]

    def counts(self) -> dict[Status, int]:
        """How many stand where."""
        found = {Status(status): int(count) for status, count in _counts.rows(self._tx)}
        return {status: found.get(status, 0) for status in Status}

    def some_counts(self, most: int) -> dict[Status, int]:
        """How many stand where, at a bounded cost.

        Those that are queued or running are counted up to `most`; of all others so many as are
        among the first `most` chores.
        """
        found = {Status(status): int(n) for status, n in _some_counts.rows(self._tx, most=most)}
        for status, statement in _open_counts.items():
            ((count,),) = statement.rows(self._tx, most=most)
            found[status] = int(count)
        return {status: found.get(status, 0) for status in Status}

    def _existing(self, row: tuple[Any, ...]) -> Enqueued:
        key, body = row[1], row[2]
        found = _by_key.one(self._tx, key=key)
        if found is None:
            # Taken by a transaction that this one, begun earlier, is not allowed to see.
            message = f"the key {key!r} was taken by another transaction at the same time"
            raise StoreBusy(message, hint="run the transaction again")
        if found[1] != body:
            message = f"the key {key!r} was used before with another body"
            raise KeyConflict(message)
        return Enqueued(str(found[0]), created=False)


def _checked(new: NewChore, bytes_max: int) -> tuple[str | None, str, int, int]:
    if new.key is not None:
        check_name(new.key, "a key", chars_max=KEY_CHARS_MAX)
    if new.max_attempts < 1:
        message = f"max_attempts is at least 1, not {new.max_attempts}"
        raise BadInput(message)
    if not 0 <= new.delay_seconds <= DELAY_SECONDS_MAX:
        message = f"delay_seconds is 0 to {DELAY_SECONDS_MAX}, not {new.delay_seconds}"
        raise BadInput(message)
    body = encode(new.body, bytes_max=bytes_max)
    return new.key, body, new.max_attempts, round(new.delay_seconds * 1000)
