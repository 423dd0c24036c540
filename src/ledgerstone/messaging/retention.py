"""Retention: what was delivered, idle lanes and used keys are removed after a while."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, bindparam, column, delete, select

from ledgerstone.engine.duties import Duty
from ledgerstone.errors import BadInput
from ledgerstone.messaging.states import LaneState
from ledgerstone.messaging.tables import Shared, key, lane
from ledgerstone.store.batch import WithRows
from ledgerstone.store.expressions import now_ms, second
from ledgerstone.store.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.messaging.office import Office
    from ledgerstone.store.transaction import Transaction

EVERY_SECONDS = 60.0
ROWS_MAX = 1000
"""Rows that one transaction removes: it holds others up for no longer than that."""
DAYS_MAX = 36_500
LANE_IDLE_DAYS = 7
DAY_MS = 86_400_000

_age = bindparam("age_ms", type_=BigInteger())
_limit = bindparam("limit_", type_=BigInteger())
_old_keys = Statement(
    "outbox.old_keys",
    select(key.c.key)
    .where(key.c.used_at_ms < now_ms() - _age)
    .order_by(key.c.used_at_ms)
    .limit(_limit),
)
_forget = WithRows(
    "outbox.forget_keys",
    incoming=(key.c.key,),
    build=lambda row: delete(key).where(key.c.key.in_(select(row.key))),
)

_idle = Statement(
    "outbox.idle_lanes",
    select(lane.c.id)
    .where(
        lane.c.due_at_ms.is_(None),
        lane.c.changed_at_ms < now_ms() - _age,
        lane.c.lease_until_ms.is_(None),
        lane.c.state == LaneState.OPEN.value,
    )
    .order_by(lane.c.changed_at_ms)
    .limit(_limit)
    # One that a publisher is about to use is left alone.
    .with_for_update(skip_locked=True),
)
_close = WithRows(
    "outbox.close_lanes",
    incoming=(lane.c.id,),
    build=lambda row: delete(lane).where(lane.c.id.in_(select(row.id))),
)


class _Removing:
    """What is found to be old in an outbox of some name, and removed.

    Found first and removed by its place: so nothing is locked that is not removed.
    """

    def __init__(self, shared: Shared) -> None:
        outbox = shared.outbox
        before = second(now_ms() - _age)
        self.old = Statement(
            "outbox.old",
            select(outbox.c.id)
            .where(
                outbox.c.queue_name == bindparam("queue", type_=outbox.c.queue_name.type),
                # An index knows when it could leave; it left later.
                outbox.c.available_at < before,
                outbox.c.delivered_at < before,
            )
            .order_by(outbox.c.available_at)
            .limit(_limit),
        )
        self.remove = WithRows(
            "outbox.cleanup",
            incoming=(column("place", BigInteger()),),
            build=lambda row: delete(outbox).where(outbox.c.id.in_(select(row.place))),
        )


_removing = cache(_Removing)


def remove_delivered(
    tx: Transaction, office: Office, *, days: Any, destination: str | None = None
) -> int:
    """Remove what was delivered so long ago, a bounded piece; how many it were."""
    if not isinstance(days, int | float) or not 0 <= days <= DAYS_MAX:
        raise BadInput(f"days are a number from 0 to {DAYS_MAX}, not {days!r}")
    names = [destination] if destination is not None else list(office.routes.destinations)
    removing = _removing(office.shared)
    age_ms = round(days * DAY_MS)
    removed = 0
    for queue in names:
        old = removing.old.rows(tx, queue=queue, age_ms=age_ms, limit_=ROWS_MAX - removed)
        removed += removing.remove.run(tx, sorted(old)) if old else 0
        if removed >= ROWS_MAX:
            break
    return removed


def duty(office: Office) -> Duty:
    """Removes what is old, a bounded piece at a time."""

    def retire(tx: Transaction) -> int:
        office.setup.ensure(tx, office.shared.outbox)
        age_ms = round(office.settings.keep_keys_days * DAY_MS)
        old = _old_keys.rows(tx, age_ms=age_ms, limit_=ROWS_MAX)
        if old:
            _forget.run(tx, sorted(old))
        _close_lanes(tx)
        return remove_delivered(tx, office, days=office.settings.keep_delivered_days)

    return Duty("retire:messages", EVERY_SECONDS, retire)


def _close_lanes(tx: Transaction) -> None:
    """Remove lanes in which nothing happened for long: each name of a partition has one."""
    idle = _idle.rows(tx, age_ms=LANE_IDLE_DAYS * DAY_MS, limit_=ROWS_MAX)
    if idle:
        _close.run(tx, sorted(idle))
