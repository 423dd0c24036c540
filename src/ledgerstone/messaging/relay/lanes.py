"""Lanes: the position of each partition of a destination, and the relay that holds it.

    idle ──publish──▶ due ──claim──▶ held ──settle──▶ due or idle
                       ▲               │
                       └────rescue─────┘ the lease expired

One relay holds a lane at a time, by the clock of the database. Each claim and each rescue raises
the fencing token. A settlement compares the token in its WHERE clause and locks the lane until it
commits, so a relay that lost its lease cannot mark messages as delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import (
    BigInteger,
    Integer,
    bindparam,
    case,
    column,
    func,
    literal_column,
    null,
    select,
    update,
)

from ledgerstone.engine.source import Claim
from ledgerstone.errors import NotAllowedNow, NotFound
from ledgerstone.items import Idle, ItemClaim, Items
from ledgerstone.items.claim import Claims
from ledgerstone.items.moves import Move, MoveStatement, Step
from ledgerstone.items.rescue import Rescue
from ledgerstone.items.settle import ClaimStatus, EndedClaim, Extend, Settle
from ledgerstone.messaging.outbox.publishing import channel_of, lane_id
from ledgerstone.messaging.record import Entry, record
from ledgerstone.messaging.states import LaneState, RecordKind
from ledgerstone.messaging.tables import CODE_CHARS_MAX, REASON_CHARS_MAX, STANDING, lane
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.pages import Keyset, Page
from ledgerstone.store.sql.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

WAIT_SECONDS_MAX = 3600.0
"""A lane whose first message is delayed becomes due again after this time at the latest, because
another program may have changed the row."""
_queue = bindparam("queue", type_=lane.c.queue_name.type)
_in_queue = lane.c.queue_name == _queue

LANES = Items(
    name="lanes",
    table=lane,
    key=(lane.c.id,),
    due=lane.c.due_at_ms,
    order=(lane.c.due_at_ms, lane.c.id),
    # Written as a literal, so that the planner uses the partial index.
    ready=lane.c.state == literal_column(f"'{LaneState.OPEN.value}'"),
    done=Idle(),
    token=lane.c.token,
    lease=lane.c.lease_until_ms,
    worker=lane.c.worker,
    crashes=lane.c.crashes,
    carries=(lane.c.partition_key, lane.c.last_id, lane.c.attempts),
    index="idx_outbox_lane__due",
)
claim = Claims(LANES, where=_in_queue)
extend = Extend(LANES)
_expired = Rescue(LANES, where=_in_queue, more=(lane.c.partition_key, lane.c.state))
_settles = Settle(LANES)
_back = MoveStatement(
    LANES,
    Move(
        name="rescue",
        carries=(lane.c.state, lane.c.code, lane.c.reason, column("crashed", Integer())),
        sets=lambda row: {
            "worker": null(),
            "crashes": lane.c.crashes + row.crashed,
            "state": row.state,
            "code": row.code,
            "reason": row.reason,
            "due_at_ms": now_ms(),
            "changed_at_ms": now_ms(),
        },
    ),
)
_soon = now_ms() + round(WAIT_SECONDS_MAX * 1000)


def _due_again(row: Any) -> Any:
    """The next due time: none, when the first message may be sent, or after a pause."""
    return case(
        # A publish since the claim has raised `last_id`.
        (row.done_to >= lane.c.last_id, null()),
        (row.until_ms.is_(None), now_ms() + row.delay_ms),
        (row.until_ms < _soon, row.until_ms),
        else_=_soon,
    )


_settle = MoveStatement(
    LANES,
    Move(
        name="settle",
        carries=(
            lane.c.state,
            lane.c.attempts,
            column("forgive", Integer()),
            # The place up to which all messages are delivered; -1 if that is not known.
            column("done_to", BigInteger()),
            column("delay_ms", BigInteger()),
            # The time when the first undelivered message may be sent, if it is delayed.
            column("until_ms", BigInteger()),
            lane.c.code,
            lane.c.reason,
        ),
        sets=lambda row: {
            "worker": null(),
            # An operator may have paused the lane since the claim.
            "state": case((lane.c.state == LaneState.OPEN.value, row.state), else_=lane.c.state),
            "attempts": row.attempts,
            "crashes": case((row.forgive == 1, 0), else_=lane.c.crashes),
            "due_at_ms": _due_again(row),
            "code": row.code,
            "reason": row.reason,
            "changed_at_ms": now_ms(),
        },
    ),
)


class HeldLane(msgspec.Struct, eq=False):
    """A lane that this process has claimed."""

    id: str
    partition: str
    token: int
    last_id: int
    attempts: int
    crashes: int
    lost: bool = False

    @classmethod
    def of(cls, taken: ItemClaim) -> HeldLane:
        """Makes the value from a claim."""
        partition, last_id, attempts = taken.carries
        return cls(taken.key, partition, taken.token, last_id, attempts, taken.crashes)


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """The result of working on a held lane."""

    lane: HeldLane
    done_to: int | None = None
    delay_seconds: float = 0.0
    until_ms: int | None = None
    attempts: int = 0
    answered: bool = True
    """Whether the destination answered: then no message of the lane counts as a crash suspect."""
    state: LaneState = LaneState.OPEN
    aside: RecordKind | None = None
    """The event to record for a message that was given up."""
    code: str | None = None
    reason: str | None = None

    @property
    def row(self) -> Row:
        return (
            self.state.value,
            self.attempts,
            int(self.answered),
            -1 if self.done_to is None else self.done_to,
            round(self.delay_seconds * 1000),
            self.until_ms,
            self.code[:CODE_CHARS_MAX] if self.code is not None else None,
            self.reason[:REASON_CHARS_MAX] if self.reason is not None else None,
        )


class LaneRow(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a lane."""

    queue: str
    partition: str
    state: LaneState
    due_at: datetime | None
    held_by: str | None
    attempts: int
    code: str | None
    reason: str | None
    changed_at: datetime


class Settled(NamedTuple):
    """The settlements by their result. One that was settled before is in none of the lists."""

    now: list[Settlement]
    lost: list[Settlement]
    locked: list[Settlement]


def settle(tx: Transaction, settlements: Sequence[Settlement]) -> Settled:
    """Settles held lanes; skips those that another transaction has locked."""
    ended = [
        EndedClaim(Claim(each.lane.id, 1, each.lane.token), Step(move=_settle, row=each.row))
        for each in settlements
    ]
    settled = Settled([], [], [])
    groups = {
        ClaimStatus.SETTLED: settled.now,
        ClaimStatus.LOST: settled.lost,
        ClaimStatus.DELETED: settled.lost,
        ClaimStatus.LOCKED: settled.locked,
        ClaimStatus.BEFORE: [],
    }
    for each, found in zip(settlements, _settles.run(tx, ended, worker=None), strict=True):
        groups[found.status].append(each)
    return settled


def rescue(tx: Transaction, queue: str, *, limit: int, crashes_max: int | None) -> int:
    """Makes lanes with expired leases due again; parks a lane after `crashes_max` dead relays."""
    ended = []
    entries = []
    for each in _expired.run(tx, limit=limit, queue=queue):
        partition, state = each.more
        # A lane that an operator paused meanwhile stays paused.
        over = crashes_max is not None and each.is_over(crashes_max)
        parked = over and state == LaneState.OPEN.value
        then = LaneState.PARKED.value if parked else state
        row = (then, "crashed", each.reason, int(not each.waited))
        taken = Claim(str(each.key[0]), 1, each.token)
        ended.append(EndedClaim(taken, Step(move=_back, row=row)))
        if parked:
            entries.append(
                Entry(
                    what=RecordKind.PARKED,
                    queue=queue,
                    partition=partition,
                    code="crashed",
                    reason=each.reason,
                )
            )
    if ended:
        _settles.run(tx, ended, worker=None)
        record(tx, entries)
        tx.wake(channel_of(queue))
    return len(ended)


_columns = (
    lane.c.partition_key,
    lane.c.queue_name,
    lane.c.state,
    lane.c.due_at_ms,
    lane.c.lease_until_ms,
    lane.c.worker,
    lane.c.attempts,
    lane.c.code,
    lane.c.reason,
    lane.c.changed_at_ms,
)


def _made(row: Row) -> LaneRow:
    return LaneRow(
        partition=row[0],
        queue=row[1],
        state=LaneState(row[2]),
        due_at=_moment(row[3]),
        held_by=row[5] if row[4] is not None else None,
        attempts=row[6],
        code=row[7],
        reason=row[8],
        changed_at=_moment(row[9]) or datetime.now(UTC),
    )


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


_of_queue = Keyset(
    "lanes.list",
    select(*_columns).where(lane.c.queue_name == _queue),
    order=(lane.c.partition_key,),
    make=_made,
)
_in_state = Keyset(
    "lanes.list_in_state",
    select(*_columns).where(
        lane.c.queue_name == _queue,
        STANDING,
        lane.c.state == bindparam("state", type_=lane.c.state.type),
    ),
    order=(lane.c.partition_key,),
    make=_made,
)


_open = Keyset(
    "lanes.list_open",
    select(*_columns).where(
        lane.c.queue_name == _queue,
        lane.c.state == literal_column(f"'{LaneState.OPEN.value}'"),
    ),
    order=(lane.c.partition_key,),
    make=_made,
)


def find(
    tx: Transaction,
    queue: str,
    *,
    state: LaneState | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[LaneRow]:
    """Lists the lanes of a destination, ordered by partition."""
    if state is LaneState.OPEN:
        return _open.read(tx, limit=limit, cursor=cursor, queue=queue)
    if state is None:
        return _of_queue.read(tx, limit=limit, cursor=cursor, queue=queue)
    return _in_state.read(tx, limit=limit, cursor=cursor, queue=queue, state=state.value)


_parked = Statement(
    "lanes.parked",
    select(func.count()).select_from(
        select(lane.c.state)
        .where(
            lane.c.queue_name == _queue,
            STANDING,
            lane.c.state == literal_column(f"'{LaneState.PARKED.value}'"),
        )
        .limit(bindparam("limit_", type_=BigInteger()))
        .subquery()
    ),
)


def parked(tx: Transaction, queue: str, *, counted_max: int) -> int:
    """The number of parked lanes of a destination, at most `counted_max`."""
    row = _parked.one(tx, queue=queue, limit_=counted_max)
    return int(row[0]) if row is not None else 0


_one = Statement(
    "lanes.one",
    select(*_columns).where(lane.c.id == bindparam("id_", type_=lane.c.id.type)).with_for_update(),
)
_turn = Statement(
    "lanes.turn",
    update(lane)
    .where(lane.c.id == bindparam("id_", type_=lane.c.id.type))
    .values(
        state=bindparam("state_", type_=lane.c.state.type),
        due_at_ms=now_ms(),
        attempts=0,
        crashes=0,
        changed_at_ms=now_ms(),
    ),
)


def pause(tx: Transaction, queue: str, partition: str, *, by: str | None) -> None:
    """Pauses a partition. A message that a relay is sending may still be delivered."""
    found = _standing(tx, queue, partition)
    if found.state is not LaneState.OPEN:
        raise NotAllowedNow(f"the partition {partition!r} is already {found.state.value}")
    _turn.run(tx, id_=lane_id(queue, partition), state_=LaneState.PAUSED.value)
    record(tx, [Entry(what=RecordKind.PAUSED, queue=queue, partition=partition, who=by)])


def resume(tx: Transaction, queue: str, partition: str, *, by: str | None) -> None:
    """Resumes a partition, with its first undelivered message."""
    found = _standing(tx, queue, partition)
    if found.state is LaneState.OPEN:
        raise NotAllowedNow(f"the partition {partition!r} is already open")
    _turn.run(tx, id_=lane_id(queue, partition), state_=LaneState.OPEN.value)
    record(tx, [Entry(what=RecordKind.RESUMED, queue=queue, partition=partition, who=by)])
    tx.wake(channel_of(queue))


def _standing(tx: Transaction, queue: str, partition: str) -> LaneRow:
    row = _one.one(tx, id_=lane_id(queue, partition))
    if row is None:
        message = f"{queue} has no partition {partition!r}"
        raise NotFound(message, hint="see `ledgerstone outbox lanes`")
    return _made(row)
