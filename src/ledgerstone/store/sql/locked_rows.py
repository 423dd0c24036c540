"""Changes of rows that others may have locked: a batch waits for none of them.

One statement on PostgreSQL, a lock and then a change elsewhere:

    travelling rows ──▶ lock by key, skip what is locked ──▶ guard holds ──▶ change, and journal
                              │                                 │
                              └▶ None                           └▶ answered as it stands

A row that is answered as it stands is locked until the end of the transaction: what is said of it
stays true.
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
    """A row that was locked: whether it was changed; if not, what it holds (`looks`)."""

    changed: bool
    stands: Row = ()


CHANGED = LockedRow(changed=True)


class ChangeEach:
    """Change many rows, each found by its key and locked first; no row is waited for.

    - What travels is the `key`, then the `fence`, which `guard` compares, then what `change` needs.
    - `change` makes an UPDATE or DELETE without a WHERE; the rows and the guard are added here.
    - `run` answers for each travelling row, in order, what was found; None for a row that another
      transaction has locked, or that is not there: `there` tells which.
    - `waits`: the rows are waited for, one after the other: for a caller's own transaction.
    - With a `journal` it is told of each row that was changed.
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
        """The row of the table is the one that travels."""
        return [c == getattr(row, c.name) for c in self.key]

    def run(
        self, tx: Transaction, rows: Sequence[Row], *, waits: bool = False, **common: Any
    ) -> list[LockedRow | None]:
        found: list[LockedRow | None] = []
        for _, part in parts_of(rows, self.carried):
            found += self._run(tx, part, common, waits=waits)
        return found

    def there(self, tx: Transaction, keys: Sequence[Row]) -> set[Row]:
        """Which of these keys have a row, as words; whoever has locked it."""
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
    """A key as its parts are spelled, whatever the driver makes of them."""
    return tuple(str(part) for part in key)
