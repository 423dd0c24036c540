"""Retention: removes delivered messages, idle lanes, and old keys and events."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, bindparam, column, delete, select

from ledgerstone.engine.duties import Duty
from ledgerstone.errors import BadInput, NotAllowedNow
from ledgerstone.messaging.record import Entry, record
from ledgerstone.messaging.states import LaneState, RecordKind
from ledgerstone.messaging.symfony.time_zone import kept
from ledgerstone.messaging.tables import Shared, available_index, event, key, lane
from ledgerstone.store.schema.retention_permit import permitted
from ledgerstone.store.sql.batch import WithRows
from ledgerstone.store.sql.distinct import distinct_values
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.messaging.registry import MessagingRegistry
    from ledgerstone.store.transaction import Transaction

EVERY_SECONDS = 60.0
ROWS_MAX = 1000
"""Rows that one transaction removes. The limit bounds the time that the transaction holds locks."""
DAYS_MAX = 36_500
DESTINATIONS_MAX = 900
"""How many names of destinations that are not in the settings are looked up in the outbox."""
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

_old_events = Statement(
    "messages.old_record",
    select(event.c.id).where(event.c.at_ms < now_ms() - _age).order_by(event.c.at_ms).limit(_limit),
)
_remove_events = WithRows(
    "messages.forget_record",
    incoming=(column("id", BigInteger()),),
    build=lambda row: delete(event).where(event.c.id.in_(select(row.id))),
)
_lanes_of = Statement(
    "outbox.lanes_of",
    select(lane.c.id)
    .where(
        lane.c.queue_name == bindparam("queue", type_=lane.c.queue_name.type),
        lane.c.lease_until_ms.is_(None),
    )
    .limit(_limit)
    .with_for_update(skip_locked=True),
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
    # A key that a publisher has locked is skipped.
    .with_for_update(skip_locked=True),
)
_close = WithRows(
    "outbox.close_lanes",
    incoming=(lane.c.id,),
    build=lambda row: delete(lane).where(lane.c.id.in_(select(row.id))),
)


class _Removing:
    """The statements that find and remove old rows of an outbox.

    Rows are selected first and deleted by primary key, so that nothing else is locked.
    """

    def __init__(self, shared: Shared) -> None:
        outbox = shared.outbox
        before = kept(outbox, now_ms() - _age)
        self.old = Statement(
            "outbox.old",
            select(outbox.c.id)
            .where(
                outbox.c.queue_name == bindparam("queue", type_=outbox.c.queue_name.type),
                # The index knows available_at only; a row is delivered after that time.
                outbox.c.available_at < before,
                outbox.c.delivered_at < before,
            )
            .order_by(outbox.c.available_at)
            .limit(_limit),
        )
        named = outbox.c.queue_name != ""
        names = distinct_values(outbox.c.queue_name, named, index=available_index(outbox))
        self.names = Statement("outbox.destinations", select(names.c.value))
        self.any_place = Statement(
            "outbox.any_place",
            select(outbox.c.id)
            .where(outbox.c.queue_name == bindparam("queue", type_=outbox.c.queue_name.type))
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
    tx: Transaction, registry: MessagingRegistry, *, days: Any, destination: str | None = None
) -> int:
    """Removes up to ROWS_MAX messages that were delivered `days` ago; returns how many."""
    if not isinstance(days, int | float) or not 0 <= days <= DAYS_MAX:
        raise BadInput(f"days must be a number from 0 to {DAYS_MAX}, not {days!r}")
    removing = _removing(registry.shared)
    names = [destination] if destination is not None else _names(tx, registry)
    age_ms = round(days * DAY_MS)
    removed = 0
    for queue in names:
        old = removing.old.rows(tx, queue=queue, age_ms=age_ms, limit_=ROWS_MAX - removed)
        removed += removing.remove.run(tx, sorted(old)) if old else 0
        if removed >= ROWS_MAX:
            break
    return removed


def gone(tx: Transaction, registry: MessagingRegistry) -> list[str]:
    """The destinations that have rows in the outbox and are not in the settings."""
    return [name for name in _names(tx, registry) if name not in registry.routes.destinations]


def discard(
    tx: Transaction, registry: MessagingRegistry, destination: str, *, by: str | None
) -> int:
    """Removes up to ROWS_MAX rows of a destination without settings; returns how many."""
    if destination in registry.routes.destinations:
        message = f"the destination {destination} is in the settings"
        hint = "`ledgerstone outbox cleanup` removes its delivered messages"
        raise NotAllowedNow(message, hint=hint)
    removing = _removing(registry.shared)
    places = removing.any_place.rows(tx, queue=destination, limit_=ROWS_MAX)
    removed = removing.remove.run(tx, sorted(places)) if places else 0
    if removed:
        reason = f"{removed} rows of a destination that is not in the settings"
        record(tx, [Entry(what=RecordKind.REMOVED, queue=destination, who=by, reason=reason)])
    if removed < ROWS_MAX:
        lanes = _lanes_of.rows(tx, queue=destination, limit_=ROWS_MAX)
        removed += _close.run(tx, sorted(lanes)) if lanes else 0
    return removed


def _names(tx: Transaction, registry: MessagingRegistry) -> list[str]:
    """The destinations of the settings, and others that have rows in the outbox."""
    there = _removing(registry.shared).names.rows(tx, begin="", most=DESTINATIONS_MAX)
    return list(dict.fromkeys([*registry.routes.destinations, *(str(row[0]) for row in there)]))


def duty(registry: MessagingRegistry) -> Duty:
    """The duty that removes old rows of the outbox, a bounded number at a time."""

    def retire(tx: Transaction) -> int:
        registry.setup.ensure(tx, registry.shared.outbox)
        age_ms = round(registry.settings.keep_keys_days * DAY_MS)
        old = _old_keys.rows(tx, age_ms=age_ms, limit_=ROWS_MAX)
        if old:
            _forget.run(tx, sorted(old))
        _close_lanes(tx)
        return remove_delivered(tx, registry, days=registry.settings.keep_delivered_days)

    return Duty("retire:messages", EVERY_SECONDS, retire)


def record_duty(registry: MessagingRegistry) -> Duty:
    """The duty that removes old events of the record. Every worker has it, also without a relay."""
    age_ms = round(registry.settings.keep_record_days * DAY_MS)

    def retire(tx: Transaction) -> int:
        old = _old_events.rows(tx, age_ms=age_ms, limit_=ROWS_MAX)
        if not old:
            return 0
        with permitted(tx):
            return _remove_events.run(tx, sorted(old))

    return Duty("retire:message_event", EVERY_SECONDS, retire)


def _close_lanes(tx: Transaction) -> None:
    """Removes idle lanes. Each name of a partition creates a lane, so they would accumulate."""
    idle = _idle.rows(tx, age_ms=LANE_IDLE_DAYS * DAY_MS, limit_=ROWS_MAX)
    if idle:
        _close.run(tx, sorted(idle))
