"""The record: events of messages, lanes and destinations other than deliveries.

A delivery is recorded in the row of the message. This table records actions of operators and
failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import bindparam, select

from ledgerstone.messaging.states import RecordKind
from ledgerstone.messaging.tables import CODE_CHARS_MAX, REASON_CHARS_MAX, WHO_CHARS_MAX, event
from ledgerstone.store.sql.batch import AppendEach
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.pages import Keyset, Page
from ledgerstone.store.sql.statement import Row

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An event to record."""

    what: RecordKind
    queue: str
    partition: str = ""
    message_id: str | None = None
    who: str | None = None
    code: str | None = None
    reason: str | None = None


class MessageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded event."""

    at: datetime
    entry: Entry


_append = AppendEach(
    "messages.record",
    event,
    incoming=(
        event.c.message_id,
        event.c.what,
        event.c.queue_name,
        event.c.partition_key,
        event.c.who,
        event.c.code,
        event.c.reason,
    ),
    values=lambda _: {"at_ms": now_ms()},
)
_columns = (
    event.c.id,
    event.c.at_ms,
    event.c.what,
    event.c.queue_name,
    event.c.partition_key,
    event.c.message_id,
    event.c.who,
    event.c.code,
    event.c.reason,
)


def _made(row: Row) -> MessageEvent:
    return MessageEvent(
        at=datetime.fromtimestamp(row[1] / 1000, UTC),
        entry=Entry(
            what=RecordKind(row[2]),
            queue=row[3],
            partition=row[4],
            message_id=row[5],
            who=row[6],
            code=row[7],
            reason=row[8],
        ),
    )


_of_message = Keyset(
    "messages.record_of",
    select(*_columns).where(
        event.c.message_id == bindparam("message_id", type_=event.c.message_id.type)
    ),
    order=(event.c.id,),
    make=_made,
)


def record(tx: Transaction, entries: Sequence[Entry]) -> None:
    """Inserts these events."""
    if entries:
        _append.run(tx, [_row(entry) for entry in entries])


def of_message(
    tx: Transaction, message_id: str, *, limit: int = 100, cursor: str | None = None
) -> Page[MessageEvent]:
    """The events of a message, oldest first."""
    return _of_message.read(tx, limit=limit, cursor=cursor, message_id=message_id)


def _row(entry: Entry) -> Row:
    return (
        entry.message_id,
        entry.what.value,
        entry.queue,
        entry.partition,
        _cut(entry.who, WHO_CHARS_MAX),
        _cut(entry.code, CODE_CHARS_MAX),
        _cut(entry.reason, REASON_CHARS_MAX),
    )


def _cut(text: str | None, chars_max: int) -> str | None:
    return text if text is None else text[:chars_max]
