"""Pruning: the content of events that a snapshot has, and that are old enough, is removed.

The row of an event stays, without its content: its number, type, moment and identity. So an event
that arrives again is still known, and no number or position moves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import BigInteger, bindparam, select, update

from ledgerstone.failpoints import hit
from ledgerstone.protocols.retention import records
from ledgerstone.protocols.retention.snapshots import Fence, newest
from ledgerstone.protocols.tables import event_position, events
from ledgerstone.store.database import Database
from ledgerstone.store.schema.retention_permit import permitted
from ledgerstone.store.sql.batch import UpdateEach
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction

STEP_EVENTS = 1000
"""Events whose content one transaction removes."""

_after = bindparam("after_", type_=BigInteger())
_to = bindparam("to_", type_=BigInteger())
_limit = bindparam("limit", type_=BigInteger())
_of = events.c.protocol == bindparam("protocol_")
_by_number = Statement(
    "protocols.prunable_numbers",
    select(events.c.id, events.c.id)
    .where(_of, events.c.id > _after, events.c.id <= _to)
    .order_by(events.c.id)
    .limit(_limit),
)
_by_position = Statement(
    "protocols.prunable_positions",
    select(event_position.c.position, events.c.id)
    .select_from(event_position.join(events, events.c.id == event_position.c.number))
    .where(_of, event_position.c.position > _after, event_position.c.position <= _to)
    .order_by(event_position.c.position)
    .limit(_limit),
)
_empty = UpdateEach(
    "protocols.prune",
    key=events.c.id,
    incoming=(events.c.id,),
    build=lambda row: update(events).where(events.c.id == row.id).values(payload=b""),
)


class Bounds(NamedTuple):
    """What may be pruned: events behind `after`, up to `to`; a snapshot at `covered` has them."""

    after: int
    to: int
    covered: int


def bounds(tx: Transaction, protocol: str, *, keep_days: float) -> Bounds | None:
    """What may be pruned; None: nothing."""
    kept = newest(tx, protocol)
    aged = records.position_at_age(tx, protocol, keep_days)
    if kept is None or aged is None:
        return None
    after, to = records.pruned_to(tx, protocol), min(aged, kept.position)
    return Bounds(after, to, kept.position) if to > after else None


def prune(
    database: Database[Any],
    protocol: str,
    within: Bounds,
    fence: Fence,
    *,
    steps_max: int,
) -> int:
    """Remove the content of events, so many steps at the most; of how many."""
    pruned = 0
    for _ in range(steps_max):
        count, at_end = database.run(lambda tx: _step(tx, protocol, within, fence))
        hit("protocols.pruned")
        pruned += count
        if at_end:
            break
    return pruned


def _step(tx: Transaction, protocol: str, within: Bounds, fence: Fence) -> tuple[int, bool]:
    fence(tx)
    after = records.pruned_to(tx, protocol)
    rows = _rows(tx, protocol, after, within.to)
    at_end = len(rows) < STEP_EVENTS
    to = within.to if at_end else rows[-1][0]
    with permitted(tx):
        _empty.run(tx, [(row[1],) for row in rows])
    records.note_pruned(tx, protocol, within.covered, after=after, to=to, events=len(rows))
    return len(rows), at_end


def _rows(tx: Transaction, protocol: str, after: int, to: int) -> list[tuple[int, int]]:
    statement = _by_number if tx.database.dialect.one_writer else _by_position
    found = statement.rows(tx, protocol_=protocol, after_=after, to_=to, limit=STEP_EVENTS)
    return [(row[0], row[1]) for row in found]


def prunable(tx: Transaction, protocol: str, within: Bounds, *, most: int) -> int:
    """How many events would lose their content; counted up to a most."""
    statement = _by_number if tx.database.dialect.one_writer else _by_position
    found = statement.rows(tx, protocol_=protocol, after_=within.after, to_=within.to, limit=most)
    return len(found)
