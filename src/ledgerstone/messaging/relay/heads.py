"""The heads of lanes: what waits first in each, as much of it as may be in memory."""

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
    """Reads what waits first in lanes, of an outbox of some name.

    Each lane is looked up in the index of what waits; how much waits behind makes no difference.
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
        """At most so many rows of each lane, the first first, as far as the budget goes.

        Rows come with their text if all that may come are no larger than the budget; the text of
        larger ones is read when it is known which of them fit.
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
    """What was read of one lane: the rows that are to leave next."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.size = 0
        self.exhausted = True
        """Whether nothing waits behind these."""
        self.share: Share | None = None

    def choose(self, rows: Sequence[Row], *, each: int, taken: int, budget: Budget) -> int:
        """Keep what fits, but what may not leave yet; how many bytes that is."""
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
        """Add the text of rows that came without; what is gone meanwhile ends it."""
        for i, row in enumerate(self.rows):
            if _lacks_text(row):
                if row[0] not in texts:
                    del self.rows[i:]
                    self.exhausted = False
                    return
                body, headers = texts[row[0]]
                self.rows[i] = (row[0], body, headers, *row[3:])


def _lacks_text(row: Row) -> bool:
    """Whether the row may leave, and is too large to have come with its text."""
    return row[2] is None and not row[4]


def waiting_index(outbox: Table) -> str:
    """The name of the index of what waits, in the order in which it leaves."""
    return next(str(each.name) for each in outbox.indexes if str(each.name).endswith("_waiting"))
