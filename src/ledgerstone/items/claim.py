"""Claims: a worker takes due items, each for one attempt and one lease.

    due, in order, not locked ──▶ token up, attempt up, lease from now, worker ──▶ history

A claim never waits: it skips rows that another transaction has locked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, bindparam, literal_column
from sqlalchemy.sql.elements import ColumnElement

from ledgerstone.engine.source import Claim
from ledgerstone.items.declaration import Begun, Failures, Items
from ledgerstone.items.key import key_words
from ledgerstone.store.sql.batch import ClaimEach
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Row

if TYPE_CHECKING:
    from ledgerstone.engine.source import Ask
    from ledgerstone.store.transaction import Transaction


_FIXED = 5
"""Columns of every claim after the key: token, attempt, crashes, attempts_max, body."""


class ItemClaim(Claim, frozen=True):
    """A claim on one item, for one attempt.

    - `parts` are the columns of the item's key; `key` is the same key as text.
    - `seen` are the column values that `More` compares; `carries` those that `Items.carries` names.
    """

    parts: Row = ()
    seen: Row = ()
    carries: Row = ()
    attempts_max: int | None = None

    @property
    def is_last(self) -> bool:
        return self.attempts_max is not None and self.attempt >= self.attempts_max


def taken(items: Items) -> dict[str, Any]:
    """The assignments of a claim, by column; parameters: `lease_ms` and `worker`."""
    sets: dict[str, Any] = {
        items.token.name: items.next_token,
        items.lease.name: lease_until(),
        **items.touched,
    }
    if items.state is not None:
        sets[items.state.column.name] = items.state.held.value
    if isinstance(items.attempt, Begun):
        sets[items.attempt.column.name] = items.attempt.column + 1
    if items.worker is not None:
        sets[items.worker.name] = bindparam("worker", type_=items.worker.type)
    return sets


def lease_until() -> ColumnElement[int]:
    """The end of a lease that begins or is extended now; parameter: `lease_ms`."""
    return now_ms() + bindparam("lease_ms", type_=BigInteger())


class Claims:
    """Claims due items of a table; `where` selects the items of one source."""

    def __init__(self, items: Items, *, where: ColumnElement[bool] | None = None) -> None:
        self._items = items
        self._more = items.more.seen if items.more is not None else ()
        self._counts_failures = isinstance(items.attempt, Failures)
        self._width = len(items.key)
        self._seen = self._width + _FIXED
        self._carries = self._seen + len(self._more)
        self.each = ClaimEach(
            f"{items.name}.claim",
            items.table,
            key=items.key,
            due=_due(items, where),
            order_by=items.order,
            set_=taken(items),
            returning=(
                *items.key,
                items.token,
                _number(items.attempt.column if items.attempt is not None else None),
                _number(items.crashes),
                _number(items.attempts_max),
                items.body if items.body is not None else literal_column("''"),
                *self._more,
                *items.carries,
            ),
            journal=items.history.claimed if items.history is not None else None,
            index=items.index,
        )

    def run(self, tx: Transaction, ask: Ask, **common: Any) -> list[ItemClaim]:
        """Claim at most `ask.limit` items; `common` are the parameters of `where`."""
        state = self._items.state
        rows = self.each.run(
            tx,
            limit=ask.limit,
            lease_ms=round(ask.lease_seconds * 1000),
            worker=ask.worker,
            prev=state.due.value if state is not None else None,
            next=state.held.value if state is not None else None,
            **common,
        )
        return [self._made(row) for row in rows]

    def _made(self, row: Row) -> ItemClaim:
        width, seen = self._width, self._seen
        key = row[:width]
        token, attempt, crashes, attempts_max, body = row[width:seen]
        return ItemClaim(
            key_words(key),
            # A table that counts failures has no attempt of its own: it is failures + 1.
            (attempt or 0) + 1 if self._counts_failures else attempt or 1,
            token,
            body or "",
            None,
            None,
            crashes or 0,
            key,
            row[seen : self._carries],
            row[self._carries :],
            attempts_max,
        )


def _due(items: Items, where: ColumnElement[bool] | None) -> ColumnElement[bool]:
    state = items.state
    free = items.lease.is_(None) if state is None else state.stands(state.due)
    due = free & (items.due <= now_ms())
    for more in (items.ready, where):
        due = due if more is None else due & more
    return due


def _number(value: Any) -> Any:
    """A column or a number for the select list; NULL for a column that the table does not have."""
    if isinstance(value, ColumnElement):
        return value
    return literal_column("NULL" if value is None else str(value))
