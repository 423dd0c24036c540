"""Changes of rows that skip rows locked by other transactions.

One statement on PostgreSQL; a lock and then a change elsewhere:

    sent rows ──▶ lock by key, skip locked rows ──▶ guard holds ──▶ change, and journal
                            │                            │
                            └▶ None                      └▶ not changed; its values are returned

A row that is not changed stays locked until the end of the transaction, so its returned values
stay true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Delete, Update, select, tuple_
from sqlalchemy.sql.elements import ColumnClause, ColumnElement

from ledgerstone.store.sql.batch import Incoming, Journal, WithRows, carried_columns, parts_of

if TYPE_CHECKING:
    from sqlalchemy import Table

    from ledgerstone.store.sql.statement import Row, Statement
    from ledgerstone.store.transaction import Transaction


class LockedRow(NamedTuple):
    """A row that was locked: whether it was changed; if not, its values of `looks`."""

    changed: bool
    stands: Row = ()


CHANGED = LockedRow(changed=True)


class ChangeEach:
    """Changes many rows, each locked by its key first; skips locked rows.

    - A sent row has the columns of `key`, of `fence`, which `guard` compares, and of `carries`,
      which `change` uses.
    - `change` makes an UPDATE or DELETE without a WHERE; keys and guard are added here.
    - `run` returns for each sent row, in order, a LockedRow, or None for a row that is locked by
      another transaction or does not exist; `there` tells which.
    - `waits`: wait for locked rows, in the transaction of a handler.
    - `journal` records each row that was changed.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        *,
        key: Sequence[ColumnClause[Any]],
        fence: Sequence[ColumnClause[Any]],
        guard: Callable[[Incoming], ColumnElement[bool]],
        change: Callable[[Incoming], Update | Delete],
        carries: Sequence[ColumnClause[Any]] = (),
        looks: Sequence[ColumnElement[Any]],
        journal: Journal | None = None,
    ) -> None:
        self.name = name
        self.table = table
        self.key = tuple(key)
        self.compared = (*key, *fence)
        self.incoming = (*key, *fence, *carries)
        self.carried = carried_columns(self.incoming, journal)
        self.guard = guard
        self.change = change
        self.looks = tuple(looks)
        self.journal = journal
        self.deletes = isinstance(change(Incoming({c.name: c for c in self.incoming})), Delete)
        self.statements: dict[str, Statement] = {}
        self._there = WithRows(
            f"{name}.there",
            incoming=self.key,
            build=lambda row: select(*self.key).where(
                tuple_(*self.key).in_(select(*[getattr(row, c.name) for c in self.key]))
                if len(self.key) > 1
                else self.key[0].in_(select(getattr(row, self.key[0].name)))
            ),
        )

    def matches(self, row: Incoming) -> list[ColumnElement[bool]]:
        """The row of the table has the key of the sent row."""
        return [c == getattr(row, c.name) for c in self.key]

    def run(
        self, tx: Transaction, rows: Sequence[Row], *, waits: bool = False, **common: Any
    ) -> list[LockedRow | None]:
        found: list[LockedRow | None] = []
        for _, part in parts_of(rows, self.carried):
            found += self._run(tx, part, common, waits=waits)
        return found

    def there(self, tx: Transaction, keys: Sequence[Row]) -> set[Row]:
        """The keys that have a row, locked or not, as texts."""
        return {as_words(row) for row in self._there.rows(tx, sorted(set(keys)))}

    def _run(
        self, tx: Transaction, rows: Sequence[Row], common: dict[str, Any], *, waits: bool
    ) -> list[LockedRow | None]:
        dialect = tx.database.dialect
        width = len(self.incoming)
        if self.journal is None or dialect.tells:
            return dialect.change_each(self, tx, rows, common, waits=waits)
        sent = [row[:width] for row in rows]
        found = dialect.change_each(self, tx, sent, common, waits=waits)
        told = [row for row, each in zip(rows, found, strict=True) if each is CHANGED]
        if told:
            self.journal.run(tx, told, common)
        return found


def as_words(key: Row) -> Row:
    """A key with its values as text, independent of the types that a driver returns."""
    return tuple(str(part) for part in key)
