"""Protocols at a glance, for `status` and `doctor`, and what waits and what is parked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Table, bindparam, func, select
from sqlalchemy.sql.elements import ColumnElement

from ledgerstone.protocols.protocol import Protocol
from ledgerstone.protocols.states import ItemState
from ledgerstone.protocols.tables import (
    blocked,
    deferred,
    events,
    incoming,
    outgoing,
    protocol_job,
    protocol_retention,
)
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.pages import Keyset
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction

COUNTED_MAX = 10_000


class QueueFacts(msgspec.Struct, frozen=True):
    """One protocol; a number that is `counted_max` says that there are at least so many."""

    protocol: str
    incoming: int
    blocked: int
    deferred: int
    outgoing: int
    parked: int
    failing_jobs: list[str]
    retention_error: str | None = None
    counted_max: int = COUNTED_MAX


class Waiting(msgspec.Struct, frozen=True):
    """An event that waits."""

    id: int
    event_type: str
    event_id: str
    received_by: str
    reason_type: str
    reason_key: str
    since_ms: int
    rechecks: int


class Logged(msgspec.Struct, frozen=True, gc=False):
    """An event of the log, without its content."""

    id: int
    event_type: str
    event_id: str | None
    received_by: str
    created_at_ms: int


def _counted(name: str, table: Table, *where: ColumnElement[bool]) -> Statement:
    some = (
        select(table.c.id)
        .where(table.c.protocol == bindparam("protocol_"), *where)
        .limit(bindparam("most_", type_=BigInteger()))
        .subquery()
    )
    return Statement(f"protocols.count_{name}", select(func.count()).select_from(some))


_parked = incoming.c.status == ItemState.PARKED.value
_sent = outgoing.c.status == ItemState.PARKED.value
_COUNTS = {
    "incoming": _counted("incoming", incoming, ~_parked),
    "blocked": _counted("blocked", blocked),
    "deferred": _counted("deferred", deferred),
    "outgoing": _counted("outgoing", outgoing, ~_sent),
    "parked": _counted("parked", incoming, _parked),
    "unsent": _counted("unsent", outgoing, _sent),
}
_failing = Statement(
    "protocols.failing_jobs",
    select(protocol_job.c.name)
    .where(
        protocol_job.c.protocol == bindparam("protocol_"), protocol_job.c.last_error.is_not(None)
    )
    .order_by(protocol_job.c.name),
)
_retention = Statement(
    "protocols.retention_error",
    select(protocol_retention.c.last_error).where(
        protocol_retention.c.protocol == bindparam("protocol_")
    ),
)
_overdue = Statement(
    "protocols.overdue",
    select(incoming.c.id)
    .where(
        incoming.c.status == ItemState.QUEUED.value,
        incoming.c.available_at_ms <= now_ms(),
    )
    .limit(1),
)
BLOCKED: Keyset[Waiting] = Keyset(
    "protocols.blocked",
    select(
        blocked.c.id,
        blocked.c.event_type,
        blocked.c.event_id,
        blocked.c.received_by,
        blocked.c.reason_type,
        blocked.c.reason_key,
        blocked.c.created_at_ms,
        blocked.c.rechecks,
    ).where(blocked.c.protocol == bindparam("protocol_")),
    order=[blocked.c.id],
    make=lambda row: Waiting(*row),
)
EVENTS: Keyset[Logged] = Keyset.of(
    "protocols.events",
    select(
        events.c.id,
        events.c.event_type,
        events.c.event_id,
        events.c.received_by,
        events.c.created_at_ms,
    ).where(events.c.protocol == bindparam("protocol_")),
    order=[events.c.id],
    descending=True,
    fields=Logged,
)


def facts_of(tx: Transaction, protocols: Iterable[Protocol]) -> list[QueueFacts]:
    """Each of these protocols."""
    return [_facts(tx, protocol) for protocol in protocols]


def _facts(tx: Transaction, protocol: Protocol) -> QueueFacts:
    name = protocol.name
    counts: dict[str, Any] = {
        what: statement.rows(tx, protocol_=name, most_=COUNTED_MAX)[0][0]
        for what, statement in _COUNTS.items()
    }
    unsent = counts.pop("unsent")
    # A job that is no more in the code cannot succeed again.
    known = {each.name for each in protocol.jobs}
    failing = [row[0] for row in _failing.rows(tx, protocol_=name) if row[0] in known]
    retention = _retention.one(tx, protocol_=name)
    parked = min(counts.pop("parked") + unsent, COUNTED_MAX)
    return QueueFacts(
        protocol=name,
        parked=parked,
        failing_jobs=failing,
        retention_error=None if retention is None else retention[0],
        **counts,
    )


def waits(tx: Transaction) -> bool:
    """Whether something that came in is due."""
    return bool(_overdue.rows(tx))
