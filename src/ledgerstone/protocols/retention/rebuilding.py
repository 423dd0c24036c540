"""The proof that the tables follow from what is kept: they are made anew, and compared.

    newest snapshot ──▶ a database of its own ──▶ each event behind it, projected ──▶ compared

Both the snapshot, the events and the live tables are read from one state of the database. The other
database is a file of SQLite, which is removed: nothing of the live one is changed or locked.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import BigInteger, bindparam, or_, select

from ledgerstone.errors import LedgerstoneError, StoreCorrupt
from ledgerstone.protocols import log
from ledgerstone.protocols.connection import Projecting
from ledgerstone.protocols.events import Envelope
from ledgerstone.protocols.install import install
from ledgerstone.protocols.protocol import Protocol
from ledgerstone.protocols.results import Blocked
from ledgerstone.protocols.retention import parts, snapshots
from ledgerstone.protocols.retention.records import Snapshot
from ledgerstone.protocols.schema import Definition
from ledgerstone.protocols.tables import event_position, events, protocol_value
from ledgerstone.settings import Settings
from ledgerstone.store.database import Database
from ledgerstone.store.schema import revisions
from ledgerstone.store.sql.rows import InsertRows
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction

ROOM = "protocols"
PAGE_EVENTS = 500
WAITING_MAX = 10_000
"""Events that wait for one that follows them in the log."""
PROBLEMS_MAX = 20
_MODULUS = 1 << 128


_after = bindparam("after_", type_=BigInteger())
_rest = Statement(
    "protocols.rest_of_log",
    select(
        events.c.id,
        events.c.event_type,
        events.c.created_at_ms,
        events.c.payload,
        events.c.received_by,
        events.c.event_id,
    )
    .select_from(events.outerjoin(event_position, event_position.c.number == events.c.id))
    .where(
        events.c.protocol == bindparam("protocol_"),
        events.c.id > _after,
        or_(
            event_position.c.position.is_(None),
            event_position.c.position > bindparam("position_", type_=BigInteger()),
        ),
    )
    .order_by(events.c.id)
    .limit(bindparam("limit", type_=BigInteger())),
)
_restore_value = InsertRows(
    "protocols.restore_value", protocol_value, columns=("protocol", "name", "value")
)


class Verified(msgspec.Struct, kw_only=True):
    """What was compared, and how the tables that were made anew differ from the live ones."""

    snapshot_position: int = 0
    restored_rows: int = 0
    applied_events: int = 0
    tables: int = 0
    rows: int = 0
    problems: list[str] = []


def verify(
    database: Database[Any],
    protocol: Protocol,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Verified:
    """Make the tables anew from snapshot and rest, and compare them with the live ones."""
    found = Verified()
    with database.snapshot() as live, _scratch(database) as beside:
        install(beside, protocol)
        try:
            base = snapshots.newest(live, protocol.name)
            if base is not None:
                _restore(live, beside, protocol, base, found)
            _replay(live, beside, protocol, found, progress)
        except (LedgerstoneError, _NotAppliedError) as error:
            found.problems.append(str(error))
            return found
        with beside.reading() as rebuilt:
            _compare(live, rebuilt, protocol, found)
    return found


@contextmanager
def _scratch(database: Database[Any]) -> Iterator[Database[Transaction]]:
    """A database of its own, with the tables of protocols, for as long as the block lasts."""
    rooms = [each for each in database.rooms if each.name == ROOM]
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/rebuilt.db"
        beside = Database(url, Settings().store, wrap=Transaction, rooms=rooms)
        try:
            revisions.migrate(beside)
            yield beside
        finally:
            beside.close()


class _NotAppliedError(Exception):
    """An event of the log cannot be projected again."""


def _restore(
    live: Transaction,
    beside: Database[Any],
    protocol: Protocol,
    base: Snapshot,
    found: Verified,
) -> None:
    found.snapshot_position = base.position
    definitions = {each.name: each for each in protocol.schema.tables}
    for table, columns, rows in snapshots.restored(live, protocol.name, base):
        if table == parts.VALUES:
            _restore_values(beside, protocol, rows)
        elif table in definitions:
            # A table that the protocol has given up is left out.
            if not set(columns) <= {field.name for field in definitions[table].columns}:
                raise StoreCorrupt(f"the snapshot at {base.position} has other columns of {table}")
            insert = _inserting(definitions[table], tuple(columns))
            _add(beside, insert, rows)
            found.restored_rows += len(rows)


def _restore_values(
    beside: Database[Any], protocol: Protocol, rows: Sequence[dict[str, Any]]
) -> None:
    _add(beside, _restore_value, [{**row, "protocol_": protocol.name} for row in rows])


def _add(beside: Database[Any], insert: InsertRows, rows: Sequence[dict[str, Any]]) -> None:
    beside.run(lambda tx: insert.run(tx, rows))


@lru_cache(maxsize=200)
def _inserting(definition: Definition, columns: tuple[str, ...]) -> InsertRows:
    name = f"protocols.restore {definition.name}"
    return InsertRows(name, parts.clause_of(definition), columns=columns)


def _replay(
    live: Transaction,
    beside: Database[Any],
    protocol: Protocol,
    found: Verified,
    progress: Callable[[int], None],
) -> None:
    """Project each event behind the snapshot, in the order of the log."""
    waiting: list[Envelope] = []
    for page in _pages(live, protocol.name, found.snapshot_position):
        waiting = _project(beside, protocol, [*waiting, *page])
        if len(waiting) > WAITING_MAX:
            break
        found.applied_events += len(page)
        progress(found.applied_events)
    if waiting:
        first = waiting[0]
        raise _NotAppliedError(
            f"{len(waiting)} events of the log wait for what is not in it,"
            f" {first.type} {first.event_id} first"
        )


def _pages(live: Transaction, protocol: str, position: int) -> Iterator[list[Envelope]]:
    one_writer = live.database.dialect.one_writer
    after = position if one_writer else 0
    while True:
        if one_writer:
            rows = log.rows_after(live, protocol, after, limit=PAGE_EVENTS)
        else:
            rows = _rest.rows(
                live, protocol_=protocol, after_=after, position_=position, limit=PAGE_EVENTS
            )
        if rows:
            yield [log.envelope_of(row) for row in rows]
        if len(rows) < PAGE_EVENTS:
            return
        after = rows[-1][0]


def _project(
    beside: Database[Any], protocol: Protocol, envelopes: Sequence[Envelope]
) -> list[Envelope]:
    return beside.run(lambda tx: _projected(tx, protocol, envelopes))


def _projected(
    tx: Transaction, protocol: Protocol, envelopes: Sequence[Envelope]
) -> list[Envelope]:
    """Project them; those that wait for one that follows are tried again until none can go on."""
    left, before = list(envelopes), -1
    while left and len(left) != before:
        before = len(left)
        left = [each for each in left if not _one(tx, protocol, each)]
    return left


def _one(tx: Transaction, protocol: Protocol, event: Envelope) -> bool:
    """Whether an event was projected; False: it waits."""
    projector = protocol.projectors.get(event.type)
    if projector is None:
        if event.type not in protocol.projectors:
            raise _NotAppliedError(f"the protocol knows no event {event.type!r} any more")
        return True
    try:
        with tx.savepoint():
            projector(Projecting(tx, protocol, log.now_of(tx)), event)
    except Blocked:
        return False
    except Exception as error:
        words = f"{event.type} {event.event_id} cannot be applied again: {error}"
        raise _NotAppliedError(words) from error
    return True


def _compare(live: Transaction, rebuilt: Transaction, protocol: Protocol, found: Verified) -> None:
    for definition in protocol.schema.tables:
        ours, count = _sum(live, definition)
        theirs, made = _sum(rebuilt, definition)
        found.tables += 1
        found.rows += count
        if (ours, count) != (theirs, made) and len(found.problems) < PROBLEMS_MAX:
            words = f"{definition.name} has {count:,} rows, and {made:,} when it is made anew"
            other = ": some have other values" if count == made else ""
            found.problems.append(words + other)


def _sum(tx: Transaction, definition: Definition) -> tuple[int, int]:
    """A sum over hashes of all rows, which no order changes; and how many there are.

    Numbers that the database counts are left out: they follow the order of arrival.
    """
    places = [i for i, field in enumerate(definition.columns) if not field.counts]
    total, count = 0, 0
    for rows in parts.rows_of(tx, definition):
        for row in rows:
            total = (total + _hash([row[i] for i in places])) % _MODULUS
        count += len(rows)
    return total, count


def _hash(values: Sequence[Any]) -> int:
    plain = msgspec.msgpack.encode([parts.plain(value) for value in values])
    return int.from_bytes(hashlib.blake2b(plain, digest_size=16).digest())
