"""Rows with values of any type, also bytes, sent by the driver's `executemany`.

`batch` sends rows as arrays or one document, which hold only text and numbers.
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
    """Inserts rows; leaves out a row whose unique value exists.

    - `columns` are sent with each row; `values` are expressions for other columns.
    - `run` returns how many rows were inserted.
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


class UpsertRow:
    """An upsert: inserts a row, or updates the row with its key; the row is locked in both cases.

    - `columns` are sent; `values` are expressions for other columns.
    - `changes` are the updates of an existing row, by default the sent values.
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
        # An assignment of the key to itself locks the row and changes nothing.
        kept = {self.key[0]: table.c[self.key[0]]}
        self.changes: Mapping[str, Any] = (replaced if changes is None else changes) or kept
        self.statements: dict[str, Statement] = {}

    def run(self, tx: Transaction, **values: Any) -> None:
        tx.database.dialect.put_row(self, tx, values)


def given(table: TableClause, columns: Sequence[str]) -> dict[str, ColumnElement[Any]]:
    """A bind parameter for each of these columns, named after it with an underscore."""
    return {name: bindparam(f"{name}_", type_=table.c[name].type) for name in columns}
