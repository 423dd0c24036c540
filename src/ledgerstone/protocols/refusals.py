"""Refused settlements of items of protocols, on record.

A worker that lost its claim settles too late: nothing changes, and a row of `protocol_refusal` says
which item, attempt and worker it was. The table is kept for as long as keys of commands are.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import BigInteger, bindparam, delete, select

from ledgerstone.items.declaration import Refusal
from ledgerstone.items.key import key_words
from ledgerstone.protocols.tables import KEY_CHARS_MAX
from ledgerstone.protocols.tables import protocol_refusal as refusal
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.rows import InsertRows
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction

ROWS_MAX = 1000
DAY_MS = 86_400_000

_record = InsertRows(
    "protocols.refuse",
    refusal,
    columns=("queue", "item", "attempt", "status", "worker", "reason"),
    values={"at_ms": now_ms()},
)
_old = Statement(
    "protocols.old_refusals",
    select(refusal.c.id)
    .where(refusal.c.at_ms < now_ms() - bindparam("age_ms", type_=BigInteger()))
    .order_by(refusal.c.at_ms)
    .limit(ROWS_MAX),
)
_forget = Statement(
    "protocols.forget_refusal",
    delete(refusal).where(refusal.c.id == bindparam("id_", type_=BigInteger())),
)


def refused_in(queue: str) -> Callable[[Transaction, Refusal], None]:
    """Records the refused settlements of the items of a queue."""

    def record(tx: Transaction, found: Refusal) -> None:
        row = {
            "queue_": queue,
            "item_": key_words(found.key)[:KEY_CHARS_MAX],
            "attempt_": found.attempt,
            "status_": found.state,
            "worker_": found.worker,
            "reason_": found.words,
        }
        _record.run(tx, [row])

    return record


def forget(tx: Transaction, *, keep_days: float) -> int:
    """Remove rows that are older, a bounded number; how many."""
    rows = _old.rows(tx, age_ms=round(keep_days * DAY_MS))
    for (number,) in rows:
        _forget.run(tx, id_=number)
    return len(rows)
