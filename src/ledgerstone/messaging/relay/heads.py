"""The heads of lanes: the first undelivered messages of each, within the memory budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Table, bindparam, case, column, select

from ledgerstone.messaging.relay.lanes import HeldLane
from ledgerstone.messaging.relay.memory_budget import LANE_SHARES, Budget, Share
from ledgerstone.messaging.symfony.time_zone import kept
from ledgerstone.messaging.tables import Shared
from ledgerstone.store.sql.batch import FirstEach, WithRows
from ledgerstone.store.sql.expressions import byte_length, now_ms
from ledgerstone.store.sql.statement import Row

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

_small = bindparam("small", type_=BigInteger())


class Heads:
    """Reads the first undelivered rows of lanes from an outbox.

    Each lane is one lookup in the index of undelivered rows, so the cost does not depend on the
    length of the backlog.
    """

    def __init__(self, shared: Shared) -> None:
        outbox = shared.outbox

        def build(row: Any) -> Any:
            waits = case((outbox.c.available_at <= kept(outbox, now_ms()), 0), else_=1)
            size = byte_length(outbox.c.body) + byte_length(outbox.c.headers)
            return (
                select(
                    outbox.c.id,
                    case((size <= _small, outbox.c.body)).label("body"),
                    case((size <= _small, outbox.c.headers)).label("headers"),
                    outbox.c.created_at,
                    waits.label("waits"),
                    outbox.c.available_at,
                    size.label("size"),
                )
                .where(
                    outbox.c.queue_name == bindparam("queue", type_=outbox.c.queue_name.type),
                    outbox.c.partition_key == row.partition_key,
                    outbox.c.delivered_at.is_(None),
                )
                .order_by(outbox.c.id)
            )

        self.first = FirstEach(
            "lanes.heads",
            outbox,
            index=waiting_index(outbox),
            incoming=(outbox.c.partition_key,),
            build=build,
        )
        self._whole = WithRows(
            "lanes.whole",
            incoming=(column("place", BigInteger()),),
            build=lambda row: select(outbox.c.id, outbox.c.body, outbox.c.headers).where(
                outbox.c.id.in_(select(row.place))
            ),
        )

    def read(
        self, tx: Transaction, queue: str, lanes: Sequence[HeldLane], *, each: int, budget: Budget
    ) -> dict[str, Head]:
        """Reads at most `each` rows of each lane, in order, within the budget.

        If all rows that may come fit into the budget they are selected with their text. Otherwise
        the text of large rows is read after it is known which rows fit.
        """
        small = budget.left // (each * len(lanes))
        groups = [(held.partition,) for held in lanes]
        found = self.first.rows(tx, groups, each=each, queue=queue, small=small)
        chosen = {held.id: Head() for held in lanes}
        taken = 0
        for held, rows in zip(lanes, found, strict=True):
            taken += chosen[held.id].choose(rows, each=each, taken=taken, budget=budget)
        wanted = [(row[0],) for lane in chosen.values() for row in lane.rows if _lacks_text(row)]
        if wanted:
            texts = {row[0]: row[1:] for row in self._whole.rows(tx, sorted(wanted))}
            for lane in chosen.values():
                lane.complete(texts)
        for lane in chosen.values():
            lane.share = budget.share(lane.size)
        return chosen


class Head:
    """The rows of one lane that are sent next."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.size = 0
        self.exhausted = True
        """Whether the lane has no more undelivered rows."""
        self.share: Share | None = None

    def choose(self, rows: Sequence[Row], *, each: int, taken: int, budget: Budget) -> int:
        """Keeps the rows that fit and may be sent now; returns their size in bytes."""
        self.exhausted = len(rows) < each
        for row in rows:
            size = 0 if row[4] else row[6]
            much = self.size + size > budget.bytes_max // LANE_SHARES and self.size > 0
            if size and (much or not budget.fits(taken + self.size, size)):
                self.exhausted = False
                break
            self.size += size
            self.rows.append(row)
            if row[4]:
                break
        return self.size

    def complete(self, texts: Mapping[int, Row]) -> None:
        """Adds the text of rows that were selected without; stops at a row that was deleted."""
        for i, row in enumerate(self.rows):
            if _lacks_text(row):
                if row[0] not in texts:
                    del self.rows[i:]
                    self.exhausted = False
                    return
                body, headers = texts[row[0]]
                self.rows[i] = (row[0], body, headers, *row[3:])


def _lacks_text(row: Row) -> bool:
    """Whether the row may be sent now and was selected without its text."""
    return row[2] is None and not row[4]


def waiting_index(outbox: Table) -> str:
    """The name of the index of undelivered rows, in the order in which they are sent."""
    return next(str(each.name) for each in outbox.indexes if str(each.name).endswith("_waiting"))
