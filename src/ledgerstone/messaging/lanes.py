"""Lanes: where each partition of a destination stands, and who is at work on it.

    nothing due ──publish──▶ due ──claim──▶ held ──settle──▶ due, or nothing due
                              ▲               │
                              └────rescue─────┘ the lease ran out

A lane is held by one relay at a time, by the database's clock. Each claim and each rescue raises
its token; a settlement compares it in its WHERE and locks the lane until it is through: a relay
that lost its lane cannot mark anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

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

from ledgerstone.engine.source import mark_of
from ledgerstone.engine.workers import last_words
from ledgerstone.errors import NotAllowedNow, NotFound
from ledgerstone.messaging.publishing import channel_of, lane_id
from ledgerstone.messaging.record import Entry, record
from ledgerstone.messaging.states import LaneState, What
from ledgerstone.messaging.tables import CODE_CHARS_MAX, REASON_CHARS_MAX, STANDING, lane
from ledgerstone.store.batch import ClaimEach, LockEach, UpdateEach, WithRows
from ledgerstone.store.expressions import now_ms
from ledgerstone.store.pages import Keyset, Page
from ledgerstone.store.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

WAIT_SECONDS_MAX = 3600.0
"""A message that may leave later is looked at again after so long at the latest: somebody may have
changed it."""
_lease_ms = bindparam("lease_ms", type_=BigInteger())
_queue = bindparam("queue", type_=lane.c.queue_name.type)
_limit = bindparam("limit_", type_=BigInteger())

claim = ClaimEach(
    "lanes.claim",
    lane,
    key=lane.c.id,
    due=(
        # Spelled out, so that the partial index is found for it.
        (lane.c.state == literal_column(f"'{LaneState.OPEN.value}'"))
        & lane.c.lease_until_ms.is_(None)
        & (lane.c.queue_name == _queue)
        & (lane.c.due_at_ms <= now_ms())
    ),
    order_by=(lane.c.due_at_ms, lane.c.id),
    set_={
        "token": lane.c.token + 1,
        "lease_until_ms": now_ms() + _lease_ms,
        "worker": bindparam("worker", type_=lane.c.worker.type),
    },
    returning=(
        lane.c.id,
        lane.c.partition_key,
        lane.c.token,
        lane.c.last_id,
        lane.c.attempts,
        lane.c.crashes,
    ),
    index="idx_outbox_lane__due",
)
hold = LockEach("lanes.hold", lane, key=lane.c.id)
extend = UpdateEach(
    "lanes.extend",
    key=lane.c.id,
    incoming=(lane.c.id, lane.c.token),
    build=lambda row: (
        update(lane)
        .where(lane.c.id == row.id, lane.c.token == row.token, lane.c.lease_until_ms.is_not(None))
        .values(lease_until_ms=now_ms() + _lease_ms)
    ),
)
_expired = Statement(
    "lanes.expired",
    select(
        lane.c.id, lane.c.token, lane.c.crashes, lane.c.partition_key, lane.c.worker, lane.c.state
    )
    .where(lane.c.queue_name == _queue, lane.c.lease_until_ms <= now_ms())
    .order_by(lane.c.lease_until_ms)
    .limit(_limit)
    .with_for_update(skip_locked=True),
)
_rescue = UpdateEach(
    "lanes.rescue",
    key=lane.c.id,
    incoming=(
        lane.c.id,
        lane.c.token,
        lane.c.state,
        lane.c.code,
        lane.c.reason,
        column("waited", Integer()),
    ),
    build=lambda row: (
        update(lane)
        .where(lane.c.id == row.id, lane.c.token == row.token)
        .values(
            # Whoever held it must not settle it any more, also before the next claim.
            token=lane.c.token + 1,
            lease_until_ms=null(),
            worker=null(),
            crashes=lane.c.crashes + 1 - row.waited,
            state=row.state,
            code=row.code,
            reason=row.reason,
            due_at_ms=now_ms(),
            changed_at_ms=now_ms(),
        )
    ),
)
_soon = now_ms() + round(WAIT_SECONDS_MAX * 1000)


def _due_again(row: Any) -> Any:
    """When the lane is due: not at all, when its first message may leave, or after a pause."""
    return case(
        # What was published since has raised `last_id`.
        (row.done_to >= lane.c.last_id, null()),
        (row.until_ms.is_(None), now_ms() + row.delay_ms),
        (row.until_ms < _soon, row.until_ms),
        else_=_soon,
    )


_settle = UpdateEach(
    "lanes.settle",
    key=lane.c.id,
    incoming=(
        lane.c.id,
        lane.c.token,
        lane.c.state,
        lane.c.attempts,
        column("forgive", Integer()),
        # Up to where nothing waits any more; none is nowhere.
        column("done_to", BigInteger()),
        column("delay_ms", BigInteger()),
        # When the first that is left may leave, if that is known.
        column("until_ms", BigInteger()),
        lane.c.code,
        lane.c.reason,
    ),
    build=lambda row: (
        update(lane)
        .where(lane.c.id == row.id, lane.c.token == row.token, lane.c.lease_until_ms.is_not(None))
        .values(
            lease_until_ms=null(),
            worker=null(),
            # An operator may have paused it meanwhile.
            state=case((lane.c.state == LaneState.OPEN.value, row.state), else_=lane.c.state),
            attempts=row.attempts,
            crashes=case((row.forgive == 1, 0), else_=lane.c.crashes),
            due_at_ms=_due_again(row),
            code=row.code,
            reason=row.reason,
            changed_at_ms=now_ms(),
        )
    ),
)


_tokens = WithRows(
    "lanes.tokens",
    incoming=(lane.c.id,),
    build=lambda row: select(lane.c.id, lane.c.token).where(lane.c.id.in_(select(row.id))),
)


class Held(msgspec.Struct, eq=False):
    """A lane that this process has claimed."""

    id: str
    partition: str
    token: int
    last_id: int
    attempts: int
    crashes: int
    lost: bool = False


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """How a held lane came out."""

    lane: Held
    done_to: int | None = None
    delay_seconds: float = 0.0
    until_ms: int | None = None
    attempts: int = 0
    answered: bool = True
    """Whether the destination said anything: then none of its messages is what kills relays."""
    state: LaneState = LaneState.OPEN
    aside: What | None = None
    """What is done with the message that was given up, if one was."""
    code: str | None = None
    reason: str | None = None

    @property
    def row(self) -> Row:
        return (
            self.lane.id,
            self.lane.token,
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
    """A lane as it stands."""

    queue: str
    partition: str
    state: LaneState
    due_at: datetime | None
    held_by: str | None
    attempts: int
    code: str | None
    reason: str | None
    changed_at: datetime


def settle(
    tx: Transaction, settlements: Sequence[Settlement]
) -> tuple[list[Settlement], list[Settlement]]:
    """Write how held lanes came out; those that are settled now, and those that were lost.

    What this claim itself settled before, and was not told, is neither.
    """
    refused = set(_settle.run(tx, [each.row for each in settlements]))
    now = [each for i, each in enumerate(settlements) if i not in refused]
    if not refused:
        return now, []
    late = [settlements[i] for i in sorted(refused)]
    # The token is raised by every claim and rescue: as long as it is ours, nobody else was there.
    ids = sorted({each.lane.id for each in late})
    tokens = {str(row[0]): row[1] for row in _tokens.rows(tx, [(each,) for each in ids])}
    return now, [each for each in late if tokens.get(each.lane.id) != each.lane.token]


def rescue(tx: Transaction, queue: str, *, limit: int, crashes_max: int | None) -> int:
    """Make lanes of dead relays due again; after so many deaths in a row one waits for people."""
    expired = _expired.rows(tx, queue=queue, limit_=limit)
    if not expired:
        return 0
    words = last_words(tx, [row[4] for row in expired])
    rows = []
    entries = []
    for each, token, crashes, partition, worker, state in expired:
        # One that an operator has paused meanwhile stays so.
        guilty = crashes_max is not None and crashes + 1 >= crashes_max
        word = words.get(worker)
        if word is not None and word.keeps(mark_of(each, token)):
            continue
        waited = word is not None and word.waited(mark_of(each, token), crashes=crashes)
        parked = guilty and not waited and state == LaneState.OPEN.value
        reason = f"the lease of {worker} ran out"
        then = LaneState.PARKED.value if parked else state
        rows.append((each, token, then, "crashed", reason, int(waited)))
        if parked:
            entries.append(
                Entry(
                    what=What.PARKED,
                    queue=queue,
                    partition=partition,
                    code="crashed",
                    reason=reason,
                )
            )
    missed = _rescue.run(tx, rows)
    record(tx, entries)
    tx.wake(channel_of(queue))
    return len(rows) - len(missed)


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
    """Lanes of a destination, by partition."""
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
        .limit(_limit)
        .subquery()
    ),
)


def parked(tx: Transaction, queue: str, *, counted_max: int) -> int:
    """How many lanes of a destination wait for an operator, counted up to a most."""
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
    """No message of this partition leaves any more; one that is under way still arrives."""
    found = _standing(tx, queue, partition)
    if found.state is not LaneState.OPEN:
        raise NotAllowedNow(f"the partition {partition!r} is {found.state.value} already")
    _turn.run(tx, id_=lane_id(queue, partition), state_=LaneState.PAUSED.value)
    record(tx, [Entry(what=What.PAUSED, queue=queue, partition=partition, who=by)])


def resume(tx: Transaction, queue: str, partition: str, *, by: str | None) -> None:
    """Messages of this partition leave again, beginning with the one that waits first."""
    found = _standing(tx, queue, partition)
    if found.state is LaneState.OPEN:
        raise NotAllowedNow(f"the partition {partition!r} is open already")
    _turn.run(tx, id_=lane_id(queue, partition), state_=LaneState.OPEN.value)
    record(tx, [Entry(what=What.RESUMED, queue=queue, partition=partition, who=by)])
    tx.wake(channel_of(queue))


def _standing(tx: Transaction, queue: str, partition: str) -> LaneRow:
    row = _one.one(tx, id_=lane_id(queue, partition))
    if row is None:
        message = f"{queue} has no partition {partition!r}"
        raise NotFound(message, hint="see `ledgerstone outbox lanes`")
    return _made(row)
