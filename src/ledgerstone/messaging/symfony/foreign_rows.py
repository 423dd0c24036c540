"""Rows of other programs in the outbox that delay other messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, bindparam, func, select

from ledgerstone.messaging.relay.heads import Heads
from ledgerstone.messaging.symfony.time_zone import kept
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.messaging.registry import MessagingRegistry
    from ledgerstone.store.transaction import Transaction

LOOKED_AT_MAX = 1000
"""How many of the newest rows are examined."""
AHEAD_MS_MAX = 300_000
"""The allowed difference between clocks; a difference between time zones is larger."""
_WAITS = 4
"""The column of `Heads` that says whether the row is delayed."""


def from_the_future(tx: Transaction, registry: MessagingRegistry) -> int:
    """How many of the newest rows have a created_at in the future, by the clock of the database.

    Symfony writes local time of PHP, which may differ from the time zone of the settings.
    """
    outbox = registry.shared.outbox
    newest = (
        select(outbox.c.created_at, outbox.c.delivered_at)
        .order_by(outbox.c.id.desc())
        .limit(bindparam("most", type_=BigInteger()))
        .subquery("newest")
    )
    ahead = kept(outbox, now_ms() + bindparam("ahead_ms", type_=BigInteger()))
    counting = select(func.count()).select_from(newest).where(newest.c.created_at > ahead)
    statement = Statement("foreign.from_the_future", counting)
    row = statement.one(tx, most=LOOKED_AT_MAX, ahead_ms=AHEAD_MS_MAX)
    return int(row[0]) if row is not None else 0


def held_up(tx: Transaction, registry: MessagingRegistry) -> list[str]:
    """Ordered destinations whose empty partition waits for a delayed row while others are due."""
    heads = Heads(registry.shared)
    found = []
    for queue, destination in registry.routes.destinations.items():
        if destination.mode != "ordered":
            continue
        (rows,) = heads.first.rows(tx, [("",)], each=2, queue=queue, small=0)
        if len(rows) > 1 and rows[0][_WAITS] and not rows[1][_WAITS]:
            found.append(queue)
    return found
