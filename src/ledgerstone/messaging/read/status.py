"""The facts of messaging for `status` and `doctor`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import inspect, select

from ledgerstone.messaging.failed.failed import Failed
from ledgerstone.messaging.outbox.outbox import Backlog, Outbox
from ledgerstone.messaging.registry import MessagingRegistry
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

COUNTED_MAX = 10_000
"""Every count stops here."""
_now = Statement("messaging.now", select(now_ms()))


class BacklogFacts(msgspec.Struct, frozen=True):
    """The undelivered messages of a destination, and the age of the oldest."""

    destination: str
    waiting: int
    oldest_ms: int | None
    parked: int
    """The number of parked partitions."""
    paused: bool


def backlog_of(tx: Transaction, registry: MessagingRegistry) -> list[BacklogFacts] | None:
    """The backlog of each destination; None if the outbox does not exist or is incomplete."""
    lacking = registry.setup.lacking(tx.connection, tx.database.namespace)
    if any(registry.shared.outbox.name in step.words.split() for step in lacking):
        return None
    ((ms,),) = _now.rows(tx)
    now = datetime.fromtimestamp(ms / 1000, UTC)

    def facts(found: Backlog) -> BacklogFacts:
        age = None if found.oldest_at is None else now - found.oldest_at
        return BacklogFacts(
            destination=found.destination,
            waiting=found.waiting,
            oldest_ms=None if age is None else max(0, round(age.total_seconds() * 1000)),
            parked=found.parked,
            paused=found.paused,
        )

    return [facts(found) for found in Outbox(tx, registry).backlog(counted_max=COUNTED_MAX)]


def failed_messages_of(tx: Transaction, registry: MessagingRegistry) -> int | None:
    """The number of failed messages, at most COUNTED_MAX; None if the table does not exist."""
    place = tx.database.namespace.shared
    if not inspect(tx.connection).has_table(registry.shared.failed.name, schema=place):
        return None
    return Failed(tx, registry).count(most=COUNTED_MAX)
