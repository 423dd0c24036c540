"""What is on record of snapshots and pruned events."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from sqlalchemy import BigInteger, Integer, bindparam, delete, func, select, update

from ledgerstone.protocols.tables import event_pruned
from ledgerstone.protocols.tables import protocol_snapshot as snapshot
from ledgerstone.protocols.tables import protocol_snapshot_part as part
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.rows import InsertRows, UpsertRow
from ledgerstone.store.sql.statement import Row, Statement
from ledgerstone.store.transaction import Transaction

DAY_MS = 86_400_000

_position = bindparam("position_", type_=BigInteger())
_mine = snapshot.c.protocol == bindparam("protocol_")
_this = _mine & (snapshot.c.position == _position)
_part_of = (part.c.protocol == bindparam("protocol_")) & (part.c.position == _position)
_add = InsertRows(
    "protocols.begin_snapshot",
    snapshot,
    columns=("protocol", "position"),
    values={"made_at_ms": now_ms()},
)
_add_part = InsertRows(
    "protocols.add_part",
    part,
    columns=("protocol", "position", "number", "table_name", "body"),
)
_complete = Statement(
    "protocols.complete_snapshot",
    update(snapshot)
    .where(_this)
    .values(
        completed_at_ms=now_ms(),
        parts=bindparam("parts_", type_=Integer()),
        row_count=bindparam("rows_", type_=BigInteger()),
        parts_hash=bindparam("hash_", type_=snapshot.c.parts_hash.type),
    ),
)
_removed = Statement(
    "protocols.snapshot_removed", update(snapshot).where(_this).values(removed_at_ms=now_ms())
)
_drop = Statement("protocols.drop_snapshot", delete(snapshot).where(_this))
_READ = (
    snapshot.c.position,
    snapshot.c.made_at_ms,
    snapshot.c.completed_at_ms,
    snapshot.c.removed_at_ms,
    snapshot.c.parts,
    snapshot.c.row_count,
    snapshot.c.parts_hash,
    now_ms() - snapshot.c.made_at_ms,
)
_all = Statement(
    "protocols.snapshots",
    select(*_READ)
    .where(_mine)
    .order_by(snapshot.c.position.desc())
    .limit(bindparam("limit", type_=BigInteger())),
)
_aged = Statement(
    "protocols.aged_snapshot",
    select(func.max(snapshot.c.position)).where(
        _mine,
        snapshot.c.completed_at_ms.is_not(None),
        snapshot.c.made_at_ms <= now_ms() - bindparam("age_ms", type_=BigInteger()),
    ),
)
_numbers = Statement(
    "protocols.part_numbers",
    select(part.c.number)
    .where(_part_of)
    .order_by(part.c.number)
    .limit(bindparam("limit", type_=BigInteger())),
)
_drop_part = Statement(
    "protocols.drop_part",
    delete(part).where(_part_of, part.c.number == bindparam("number_", type_=Integer())),
)
_part = Statement(
    "protocols.part",
    select(part.c.table_name, part.c.body).where(
        _part_of, part.c.number == bindparam("number_", type_=Integer())
    ),
)
_pruned = Statement(
    "protocols.pruned_to",
    select(func.coalesce(func.max(event_pruned.c.to_position), 0)).where(
        event_pruned.c.protocol == bindparam("protocol_")
    ),
)
_ranges = Statement(
    "protocols.pruned",
    select(
        event_pruned.c.after_position,
        event_pruned.c.to_position,
        event_pruned.c.events,
        event_pruned.c.snapshot_position,
        event_pruned.c.pruned_at_ms,
    )
    .where(event_pruned.c.protocol == bindparam("protocol_"))
    .order_by(event_pruned.c.snapshot_position.desc())
    .limit(bindparam("limit", type_=BigInteger())),
)
_counted = Statement(
    "protocols.pruned_here",
    select(event_pruned.c.events, event_pruned.c.after_position).where(
        event_pruned.c.protocol == bindparam("protocol_"),
        event_pruned.c.snapshot_position == _position,
    ),
)
_put_range = UpsertRow(
    "protocols.put_pruned",
    event_pruned,
    key=("protocol", "snapshot_position"),
    columns=("protocol", "snapshot_position", "after_position", "to_position", "events"),
    values={"pruned_at_ms": now_ms()},
)


class Snapshot(msgspec.Struct, frozen=True):
    """A copy of a protocol's tables: what came of its events up to a position.

    One without `completed_at_ms` is being made, or was broken off; one that was `removed_at_ms` is
    followed by a newer one, and has no rows any more.
    """

    position: int
    made_at_ms: int
    completed_at_ms: int | None
    removed_at_ms: int | None
    parts: int
    row_count: int
    parts_hash: str
    age_ms: int

    @property
    def is_whole(self) -> bool:
        """Whether its rows are there, all of them."""
        return self.completed_at_ms is not None and self.removed_at_ms is None


class NewPart(NamedTuple):
    """Some rows of a table, to be kept."""

    number: int
    table: str
    body: bytes


class Whole(NamedTuple):
    """What all parts of a snapshot are together."""

    parts: int
    rows: int
    parts_hash: str


class PrunedRange(msgspec.Struct, frozen=True):
    """Events of a protocol without content: those behind one position, up to another."""

    after_position: int
    to_position: int
    events: int
    snapshot_position: int
    pruned_at_ms: int


def begin(tx: Transaction, protocol: str, position: int) -> None:
    """A snapshot is being made."""
    _add.run(tx, [{"protocol_": protocol, "position_": position}])


def add_part(tx: Transaction, protocol: str, position: int, part: NewPart) -> None:
    """Some rows of a table."""
    row = {"number_": part.number, "table_name_": part.table, "body_": part.body}
    _add_part.run(tx, [{"protocol_": protocol, "position_": position, **row}])


def complete(tx: Transaction, protocol: str, position: int, whole: Whole) -> None:
    """All of its rows are there."""
    facts = {"parts_": whole.parts, "rows_": whole.rows, "hash_": whole.parts_hash}
    _complete.run(tx, protocol_=protocol, position_=position, **facts)


def snapshots(tx: Transaction, protocol: str, *, limit: int) -> list[Snapshot]:
    """The snapshots of a protocol, the newest first."""
    return [Snapshot(*row) for row in _all.rows(tx, protocol_=protocol, limit=limit)]


def position_at_age(tx: Transaction, protocol: str, days: float) -> int | None:
    """How far the log had come so many days ago, as far as snapshots tell."""
    row: Row
    (row,) = _aged.rows(tx, protocol_=protocol, age_ms=round(days * DAY_MS))
    return None if row[0] is None else int(row[0])


def part_of(tx: Transaction, protocol: str, position: int, number: int) -> tuple[str, bytes] | None:
    """A part: the table, and the rows as bytes."""
    row = _part.one(tx, protocol_=protocol, position_=position, number_=number)
    return None if row is None else (row[0], bytes(row[1]))


def drop_parts(tx: Transaction, protocol: str, position: int, *, limit: int) -> int:
    """Remove some parts of a snapshot; how many."""
    named = {"protocol_": protocol, "position_": position}
    numbers = [row[0] for row in _numbers.rows(tx, limit=limit, **named)]
    for number in numbers:
        _drop_part.run(tx, number_=number, **named)
    return len(numbers)


def drop(tx: Transaction, protocol: str, snapshot: Snapshot) -> None:
    """It has no parts any more: one that was complete stays on record."""
    statement = _drop if snapshot.completed_at_ms is None else _removed
    statement.run(tx, protocol_=protocol, position_=snapshot.position)


def pruned_to(tx: Transaction, protocol: str) -> int:
    """The position up to which events have lost their content; 0: none has."""
    (row,) = _pruned.rows(tx, protocol_=protocol)
    return int(row[0])


def pruned_ranges(tx: Transaction, protocol: str, *, limit: int) -> list[PrunedRange]:
    """Which events have lost their content, the newest first."""
    return [PrunedRange(*row) for row in _ranges.rows(tx, protocol_=protocol, limit=limit)]


def note_pruned(
    tx: Transaction, protocol: str, snapshot_position: int, *, after: int, to: int, events: int
) -> None:
    """So many more events have lost their content, up to this position."""
    before = _counted.one(tx, protocol_=protocol, position_=snapshot_position)
    _put_range.run(
        tx,
        protocol_=protocol,
        snapshot_position_=snapshot_position,
        after_position_=after if before is None else before[1],
        to_position_=to,
        events_=events + (0 if before is None else before[0]),
    )
