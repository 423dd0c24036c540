"""What both relays ask and write: whether their destination is paused, and what was delivered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, bindparam, column, delete, select, update

from ledgerstone.messaging.tables import pause
from ledgerstone.store.batch import UpdateEach, WithRows
from ledgerstone.store.expressions import now_ms, second
from ledgerstone.store.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.messaging.office import Office
    from ledgerstone.store.transaction import Transaction

_paused = Statement(
    "relay.paused",
    select(pause.c.who).where(
        pause.c.queue_name == bindparam("queue", type_=pause.c.queue_name.type)
    ),
)


def is_paused(tx: Transaction, queue: str) -> bool:
    """Whether an operator has paused the whole destination."""
    return _paused.one(tx, queue=queue) is not None


class Marks:
    """Marks rows of an outbox of some name as delivered, or removes them."""

    def __init__(self, office: Office) -> None:
        outbox = office.shared.outbox
        self._keep = office.settings.keep_delivered_days > 0
        self._mark = UpdateEach(
            "relay.mark",
            key=outbox.c.id,
            incoming=(outbox.c.id,),
            build=lambda row: (
                update(outbox).where(outbox.c.id == row.id).values(delivered_at=second(now_ms()))
            ),
        )
        self._remove = WithRows(
            "relay.remove",
            incoming=(column("id", BigInteger()),),
            build=lambda row: delete(outbox).where(outbox.c.id.in_(select(row.id))),
        )

    def delivered(self, tx: Transaction, places: Sequence[int]) -> None:
        """These were delivered."""
        rows = [(place,) for place in sorted(places)]
        if not rows:
            return
        if self._keep:
            self._mark.run(tx, rows)
        else:
            self._remove.run(tx, rows)

    def removed(self, tx: Transaction, places: Sequence[int]) -> None:
        """These are somewhere else now."""
        if places:
            self._remove.run(tx, [(place,) for place in sorted(places)])
