"""The sweep: finds rows that other programs inserted into the outbox.

A publish through the ledger makes its lane due; a row of a Symfony application does not. The sweep
looks for partitions that have undelivered rows while their lane is not due. It skips through the
index from partition to partition and does not read every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, select, type_coerce, update

from ledgerstone.engine.duties import Duty
from ledgerstone.messaging.outbox.publishing import channel_of, open_lanes
from ledgerstone.messaging.relay.heads import waiting_index
from ledgerstone.messaging.tables import lane
from ledgerstone.store.sql.distinct import STEPS_MAX, distinct_values
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.locked_rows import CHANGED, ChangeEach
from ledgerstone.store.sql.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.messaging.registry import MessagingRegistry
    from ledgerstone.store.transaction import Transaction

PARTITIONS_MAX = 10 * STEPS_MAX
"""Partitions that one sweep passes, STEPS_MAX in each statement."""

_wake = ChangeEach(
    "sweep.wake",
    lane,
    key=(lane.c.id,),
    fence=(),
    guard=lambda _: lane.c.due_at_ms.is_(None) & lane.c.lease_until_ms.is_(None),
    change=lambda _: update(lane).values(due_at_ms=now_ms()),
    looks=(),
)


class Sweep:
    """Finds partitions of one destination that have undelivered rows while their lane is idle."""

    def __init__(self, registry: MessagingRegistry, queue: str) -> None:
        self._registry = registry
        self._queue = queue
        self._from = ""
        outbox = registry.shared.outbox
        queued = bindparam("queue", type_=outbox.c.queue_name.type)
        waiting = (outbox.c.queue_name == queued) & outbox.c.delivered_at.is_(None)
        found = distinct_values(outbox.c.partition_key, waiting, index=waiting_index(outbox))
        partition = type_coerce(found.c.value, lane.c.partition_key.type)
        of_it = (lane.c.queue_name == queued) & (lane.c.partition_key == partition)
        self._find = Statement(
            "sweep.find",
            select(partition, lane.c.id, lane.c.due_at_ms, lane.c.lease_until_ms)
            .select_from(found.outerjoin(lane, of_it))
            .order_by(partition),
        )

    def __call__(self, tx: Transaction) -> int:
        """One sweep; returns how many lanes it made due."""
        self._registry.setup.ensure(tx, self._registry.shared.outbox)
        told, left = 0, PARTITIONS_MAX
        while left > 0:
            most = min(STEPS_MAX, left)
            left -= most
            rows = self._find.rows(tx, queue=self._queue, begin=self._from, most=most)
            told += self._tell(tx, rows)
            # The next sweep continues where this one stopped.
            self._from = rows[-1][0] if len(rows) >= most else ""
            if not self._from:
                break
        return told

    def _tell(self, tx: Transaction, rows: Sequence[Row]) -> int:
        """Makes the lanes of these rows due unless they are; returns how many."""
        new = [row[0] for row in rows if row[1] is None]
        asleep = [row for row in rows if row[1] is not None and row[2] is None and row[3] is None]
        open_lanes(tx, self._queue, new)
        woken = self._woken(tx, [str(row[1]) for row in asleep])
        if new or woken:
            tx.wake(channel_of(self._queue))
        return len(new) + woken

    @staticmethod
    def _woken(tx: Transaction, ids: Sequence[str]) -> int:
        """Makes these lanes due; returns how many."""
        # A locked lane is skipped: the transaction that holds it, or a later sweep, makes it due.
        return _wake.run(tx, [(each,) for each in ids]).count(CHANGED)


def duty(registry: MessagingRegistry, queue: str) -> Duty:
    """The duty of the sweep; one relay of the destination does it."""
    return Duty(f"sweep:{queue}", registry.settings.sweep_seconds, Sweep(registry, queue))
