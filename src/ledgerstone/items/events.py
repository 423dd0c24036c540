"""The history of items in an append-only table of events: one row for each move.

The table has the columns of the item's key, under names of its own, and `at_ms`, `prev_status`,
`next_status`, `attempt`, `worker` and `reason`. The database generates its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Integer, Table, bindparam, column, literal_column, null

from ledgerstone.items.declaration import Begun, Failures, History, Refusal
from ledgerstone.store.schema.columns import text_type
from ledgerstone.store.sql.batch import AppendEach, Incoming, Journal
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Row

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

REFUSED = "refused: "
"""The prefix of the reason of an event that records a refused settlement."""


def events(
    name: str,
    table: Table,
    *,
    of: Sequence[Column[Any]],
    key: Sequence[Column[Any]],
    attempt: Begun | Failures | None,
) -> History:
    """The history of items in a table of events.

    - `key` are the key columns of the items, `of` the columns of the event table that hold them.
    - `attempt` is how the items count attempts.
    """
    width = len(key)
    # A table that counts failures has no attempt of its own: it is failures + 1.
    before = int(not isinstance(attempt, Begun))
    append = AppendEach(
        f"{name}.record",
        table,
        incoming=(*of, table.c.attempt, table.c.reason),
        values=lambda _: {
            "at_ms": now_ms(),
            "prev_status": bindparam("prev", type_=table.c.prev_status.type),
            "next_status": bindparam("next", type_=table.c.next_status.type),
            "worker": bindparam("worker", type_=table.c.worker.type),
        },
    )

    def named(row: Incoming) -> list[Any]:
        return [getattr(row, c.name) for c in key]

    def begun(row: Incoming) -> Any:
        match attempt:
            case Begun(counter):
                return getattr(row, counter.name)
            case Failures(counter):
                return getattr(row, counter.name) + 1
            case None:
                return literal_column("1")

    def refuse(tx: Transaction, refusal: Refusal) -> None:
        rows = [(*refusal.key, refusal.attempt, f"{REFUSED}{refusal.words}")]
        state = refusal.state
        append.run(tx, rows, prev=state, next=state or "", worker=refusal.worker)

    return History(
        moved=Journal(
            append=append,
            carried=(column("told_attempt", Integer()), column("told_reason", text_type())),
            told=lambda row, _: (*row[:width], *row[-2:]),
            columns=lambda row: (*named(row), row.told_attempt, row.told_reason),
        ),
        claimed=Journal(
            append=append,
            # A claim returns the key, the token and the counter of attempts or failures.
            told=lambda row, _: (*row[:width], (row[width + 1] or 0) + before, None),
            columns=lambda row: (*named(row), begun(row), null()),
        ),
        told=lambda number, words: (number, cut(words, table.c.reason)),
        refuse=refuse,
    )


def accepted(tx: Transaction, history: History, keys: Sequence[Row], state: str) -> None:
    """Record that items with these keys were accepted, in this state."""
    rows = [(*key, 0, None) for key in keys]
    history.moved.append.run(tx, rows, prev=None, next=state, worker=None)


def cut(words: str | None, to: Column[Any]) -> str | None:
    """The text, cut to the length of the column."""
    chars_max: int | None = getattr(to.type, "length", None)
    return words if words is None else words[:chars_max]
