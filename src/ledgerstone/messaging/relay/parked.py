"""Parked partitions: found by the code of their failure, and resumed in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, bindparam, literal_column, select, update

from ledgerstone.errors import BadInput
from ledgerstone.messaging.outbox.publishing import channel_of, lane_id
from ledgerstone.messaging.record import Entry, record
from ledgerstone.messaging.states import LaneState, RecordKind
from ledgerstone.messaging.tables import STANDING, lane
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.locked_rows import CHANGED, ChangeEach
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

RESUME_MAX = 1000
"""Partitions that one transaction resumes."""

_queue = bindparam("queue", type_=lane.c.queue_name.type)
_limit = bindparam("limit_", type_=BigInteger())
_is_parked = (lane.c.queue_name == _queue) & STANDING & (lane.c.state == literal_column("'parked'"))
_of_code = lane.c.code == bindparam("code", type_=lane.c.code.type)


def _finding(name: str, *, coded: bool, behind: bool) -> Statement:
    """The statement that lists parked partitions, of one code or of any."""
    query = select(lane.c.partition_key).where(_is_parked)
    if coded:
        query = query.where(_of_code)
    if behind:
        after = bindparam("after", type_=lane.c.partition_key.type)
        query = query.where(lane.c.partition_key > after)
    return Statement(name, query.order_by(lane.c.partition_key).limit(_limit))


_find = {
    (coded, behind): _finding(
        f"lanes.parked{'_for' if coded else ''}{'.next' if behind else ''}",
        coded=coded,
        behind=behind,
    )
    for coded in (False, True)
    for behind in (False, True)
}
_standing = Statement(
    "lanes.standing",
    select(lane.c.state, lane.c.code, lane.c.lease_until_ms, lane.c.attempts).where(
        lane.c.id == bindparam("id_", type_=lane.c.id.type)
    ),
)
_resume = ChangeEach(
    "lanes.resume_parked",
    lane,
    key=(lane.c.id,),
    fence=(),
    guard=lambda _: lane.c.state == LaneState.PARKED.value,
    change=lambda _: update(lane).values(
        state=LaneState.OPEN.value,
        due_at_ms=now_ms(),
        attempts=0,
        crashes=0,
        changed_at_ms=now_ms(),
    ),
    looks=(),
)


def find(
    tx: Transaction,
    queue: str,
    *,
    code: str | None = None,
    limit: int,
    after: str | None = None,
) -> list[str]:
    """Parked partitions of a destination in their order.

    - `code`: only those that were parked with this code.
    - `after`: only those after this partition.
    """
    if not 1 <= limit <= RESUME_MAX:
        raise BadInput(f"limit must be 1 to {RESUME_MAX}, not {limit}")
    given = {"code": code, "after": after}
    given = {name: value for name, value in given.items() if value is not None}
    finding = _find[code is not None, after is not None]
    return [str(row[0]) for row in finding.rows(tx, queue=queue, limit_=limit, **given)]


def resume(tx: Transaction, queue: str, partitions: Sequence[str], *, by: str | None) -> list[str]:
    """Resumes those of these partitions that are parked and not locked; returns which."""
    ids = {lane_id(queue, each): each for each in partitions}
    keys = sorted(ids)
    found = _resume.run(tx, [(each,) for each in keys])
    going = {ids[each] for each, row in zip(keys, found, strict=True) if row is CHANGED}
    resumed = [each for each in partitions if each in going]
    record(
        tx,
        [Entry(what=RecordKind.RESUMED, queue=queue, partition=each, who=by) for each in resumed],
    )
    if resumed:
        tx.wake(channel_of(queue))
    return resumed


def got_through(tx: Transaction, queue: str, partition: str) -> bool:
    """Whether a resumed partition has delivered the message for which it was parked."""
    row = _standing.one(tx, id_=lane_id(queue, partition))
    if row is None:
        # Retention has removed the idle lane.
        return True
    state, code, lease, attempts = row
    return state == LaneState.OPEN.value and code is None and lease is None and not attempts
