"""Rows of any values, bytes too, on the driver's own way of sending many.

`batch` sends rows as one document, which holds text and numbers; these are sent one by one, by the
driver's `executemany` where there are several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam

if TYPE_CHECKING:
    from sqlalchemy import TableClause
    from sqlalchemy.sql.elements import ColumnElement

    from ledgerstone.store.sql.statement import Statement
    from ledgerstone.store.transaction import Transaction


class InsertRows:
    """Adds rows; one whose unique value is taken is left out.

    - `columns` are those that are given with each row; `values` are expressions for others.
    - `run` answers how many were added.
    """

    def __init__(
        self,
        name: str,
        table: TableClause,
        *,
        columns: Sequence[str],
        values: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.table = table
        self.values = given(table, columns) | dict(values or {})
        self.statements: dict[str, Statement] = {}

    def run(self, tx: Transaction, rows: Sequence[dict[str, Any]]) -> int:
        if not rows:
            return 0
        added = tx.database.dialect.insert_rows(self, tx, rows)
        if added < len(rows):
            tx.database.measure.note(self.name, 0.0, refused=len(rows) - added)
        return added


class PutRow:
    """Adds a row, or changes the one that has its key; the row is locked either way.

    - `columns` are those that are given; `values` are expressions for others.
    - `changes` are written to a row that is there; without them what is given replaces what it has.
    """

    def __init__(
        self,
        name: str,
        table: TableClause,
        *,
        key: Sequence[str],
        columns: Sequence[str],
        values: Mapping[str, Any] | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.table = table
        self.key = tuple(key)
        self.values = given(table, columns) | dict(values or {})
        replaced = {name: value for name, value in self.values.items() if name not in self.key}
        # To set the key to itself locks the row, and changes nothing.
        kept = {self.key[0]: table.c[self.key[0]]}
        self.changes: Mapping[str, Any] = (replaced if changes is None else changes) or kept
        self.statements: dict[str, Statement] = {}

    def run(self, tx: Transaction, **values: Any) -> None:
        tx.database.dialect.put_row(self, tx, values)


def given(table: TableClause, columns: Sequence[str]) -> dict[str, ColumnElement[Any]]:
    """A parameter for each of these columns, under its name with an underscore behind."""
    return {name: bindparam(f"{name}_", type_=table.c[name].type) for name in columns}
