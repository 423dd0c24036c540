"""Making a snapshot, and restoring the rows of one.

    one state of the database, read ──▶ position; each page ──▶ part: BEGIN; fence; add; COMMIT
                                                                 ──▶ BEGIN; fence; complete; COMMIT

What is read is one state throughout, and each part is written in a transaction of its own: writers
wait for no more than one part. The position is that of an event that this state has, and so has it
every event before it. An event behind it may be in the snapshot, too: it is applied again to it,
which changes nothing. A snapshot that was broken off is not complete; the next turn removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import func, select

from ledgerstone.errors import StoreCorrupt
from ledgerstone.failpoints import hit
from ledgerstone.items.sequencer import Sequencer
from ledgerstone.protocols.log import SEQUENCE
from ledgerstone.protocols.protocol import Protocol
from ledgerstone.protocols.retention import parts, records
from ledgerstone.protocols.retention.records import NewPart, Snapshot, Whole
from ledgerstone.protocols.tables import event_position, events
from ledgerstone.store.database import Database
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction

Fence = Callable[[Transaction], None]
LISTED_MAX = 100
DROP_PARTS = 50
"""Parts that one transaction removes."""

_last_number = Statement("protocols.last_number", select(func.coalesce(func.max(events.c.id), 0)))
_last_position = Statement(
    "protocols.last_position", select(func.coalesce(func.max(event_position.c.position), 0))
)


def last_position(tx: Transaction) -> int:
    """The last position of the log: each event up to it is committed."""
    statement = _last_number if tx.database.dialect.one_writer else _last_position
    return int(statement.rows(tx)[0][0])


def make(
    database: Database[Any],
    protocol: Protocol,
    fence: Fence,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Snapshot | None:
    """Copy the tables of a protocol; None if no event came since the last copy."""
    if not database.dialect.one_writer:
        database.run(Sequencer(SEQUENCE).append)
    with database.snapshot() as seen:
        position = last_position(seen)
        if position == 0 or any(
            each.position == position for each in records.snapshots(seen, protocol.name, limit=1)
        ):
            return None

        copy = _Copy(database, protocol, position, fence)
        copy.begin()
        for table, columns, rows in parts.pages(seen, protocol):
            copy.add(table, parts.packed(columns, rows), len(rows))
            progress(copy.rows)
    copy.complete()
    with database.reading() as tx:
        return newest(tx, protocol.name)


class _Copy:
    """A snapshot that is being written, each step in a transaction of its own."""

    def __init__(
        self, database: Database[Any], protocol: Protocol, position: int, fence: Fence
    ) -> None:
        self.rows = 0
        self._database = database
        self._protocol = protocol.name
        self._position = position
        self._fence = fence
        self._count = 0
        self._hash = parts.Hash()

    def begin(self) -> None:
        self._run(lambda tx: records.begin(tx, self._protocol, self._position))

    def add(self, table: str, body: bytes, rows: int) -> None:
        part = NewPart(self._count, table, body)
        self._run(lambda tx: records.add_part(tx, self._protocol, self._position, part))
        hit("protocols.snapshot_part")
        self._hash.add(table, body)
        self._count += 1
        self.rows += rows

    def complete(self) -> None:
        hit("protocols.snapshot_copied")
        whole = Whole(self._count, self.rows, self._hash.words())
        self._run(lambda tx: records.complete(tx, self._protocol, self._position, whole))

    def _run(self, step: Callable[[Transaction], object]) -> None:
        def fenced(tx: Transaction) -> None:
            self._fence(tx)
            step(tx)

        self._database.run(fenced)


def newest(tx: Transaction, protocol: str) -> Snapshot | None:
    """The newest snapshot whose rows are there."""
    return _newest(records.snapshots(tx, protocol, limit=LISTED_MAX))


def _newest(found: Sequence[Snapshot]) -> Snapshot | None:
    return next((each for each in found if each.is_whole), None)


def clean(database: Database[Any], protocol: str, fence: Fence) -> int:
    """Remove the rows of snapshots that were broken off, or that a newer one follows."""
    with database.reading() as tx:
        found = records.snapshots(tx, protocol, limit=LISTED_MAX)
    kept = _newest(found)
    old = [each for each in found if each.removed_at_ms is None and each is not kept]
    removed = 0
    for each in old:
        while True:

            def step(tx: Transaction, each: Snapshot = each) -> int:
                fence(tx)
                dropped = records.drop_parts(tx, protocol, each.position, limit=DROP_PARTS)
                if not dropped:
                    records.drop(tx, protocol, each)
                return dropped

            dropped = database.run(step)
            hit("protocols.snapshot_cleaned")
            removed += dropped
            if not dropped:
                break
    return removed


def restored(
    tx: Transaction, protocol: str, snapshot: Snapshot
) -> Iterator[tuple[str, list[str], list[dict[str, Any]]]]:
    """The rows of a snapshot, a part at a time: table, columns, rows for `InsertRows`.

    StoreCorrupt if they are not what was written.
    """
    hashed = parts.Hash()
    for number in range(snapshot.parts):
        found = records.part_of(tx, protocol, snapshot.position, number)
        if found is None:
            raise StoreCorrupt(f"part {number} of the snapshot at {snapshot.position} is gone")
        table, body = found
        hashed.add(table, body)
        part = parts.unpacked(body)
        names = [f"{name}_" for name in part.columns]
        yield table, part.columns, [dict(zip(names, row, strict=True)) for row in part.rows]
    if hashed.words() != snapshot.parts_hash:
        raise StoreCorrupt(f"the snapshot at {snapshot.position} is not what was written")
