"""Statements over many rows at once, written once and carried out natively by each dialect.

The rows of a batch travel together: as arrays on PostgreSQL, as one JSON document on MySQL, by the
driver's own loop on SQLite. A statement names the columns that travel and refers to them through
`Incoming`:

    settle = UpdateEach(
        "chores.settle",
        key=chore.c.id,
        incoming=(chore.c.id, chore.c.token, chore.c.status),
        build=lambda row: (
            update(chore)
            .where(chore.c.id == row.id, chore.c.token == row.token)
            .values(status=row.status)
        ),
    )
    refused = settle.run(tx, [("0192…", 3, "done"), …])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import literal
from sqlalchemy.sql.elements import ColumnClause, ColumnElement

from ledgerstone.store.statement import Row, Statement

if TYPE_CHECKING:
    from sqlalchemy import Table, Update

    from ledgerstone.store.transaction import Transaction

ROWS_MAX = 1000
"""Rows in one statement; a longer batch is carried out in several."""


class Incoming:
    """The columns of the travelling rows, by name."""

    def __init__(self, columns: Mapping[str, ColumnElement[Any]]) -> None:
        self._columns = columns

    def __getattr__(self, name: str) -> Any:
        # `Any`: each column has its own type, known only to the statement that names it.
        try:
            return self._columns[name]
        except KeyError:
            raise AttributeError(name) from None


class UpdateEach:
    """Change many rows, each found by the values that travel for it.

    - All of a batch happen in the caller's transaction.
    - Answers the positions of the rows that no row of the table matched, in order.
    """

    def __init__(
        self,
        name: str,
        *,
        key: ColumnClause[Any],
        incoming: Sequence[ColumnClause[Any]],
        build: Callable[[Incoming], Update],
    ) -> None:
        self.name = name
        self.key = key
        self.incoming = incoming
        self.build = build
        self.key_position = [column.name for column in incoming].index(key.name)
        self.statements: dict[str, Statement] = {}

    def run(self, tx: Transaction, rows: Sequence[Row], **common: Any) -> list[int]:
        refused: list[int] = []
        for start in range(0, len(rows), ROWS_MAX):
            part = rows[start : start + ROWS_MAX]
            found = tx.database.dialect.update_each(self, tx, part, common)
            refused.extend(start + i for i in found)
        return refused


class InsertEach:
    """Add many rows; a row whose unique value is taken is left out.

    - Answers the positions of the rows that were left out, in order.
    - Rows left out are counted as refused duplicates.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        *,
        incoming: Sequence[ColumnClause[Any]],
        values: Callable[[Incoming], Mapping[str, Any]] | None = None,
        key: ColumnClause[Any] | None = None,
    ) -> None:
        self.name = name
        self.table = table
        self.incoming = incoming
        self.values = values
        self.key = key if key is not None else incoming[0]
        self.key_position = [column.name for column in incoming].index(self.key.name)
        self.statements: dict[str, Statement] = {}

    def run(self, tx: Transaction, rows: Sequence[Row], **common: Any) -> list[int]:
        left_out: list[int] = []
        for start in range(0, len(rows), ROWS_MAX):
            part = rows[start : start + ROWS_MAX]
            found = tx.database.dialect.insert_each(self, tx, part, common)
            left_out.extend(start + i for i in found)
        if left_out:
            tx.database.measure.note(self.name, 0.0, refused=len(left_out))
        return left_out

    def assignments(self, row: Incoming) -> dict[str, Any]:
        """Column by column, what is inserted for a travelling row."""
        carried = {column.name: getattr(row, column.name) for column in self.incoming}
        extra = self.values(row) if self.values else {}
        return carried | {name: self._written(name, value) for name, value in extra.items()}

    def _written(self, name: str, value: Any) -> ColumnElement[Any]:
        if isinstance(value, ColumnElement):
            return value
        return literal(value, self.table.c[name].type)


class ClaimEach:
    """Take rows that are due, at most so many, each by one taker.

    - Rows locked by another taker are passed over, not waited for.
    - `returning` answers the values after `set_`; in the order of `order_by`.
    - The parameter `limit` is given at each run.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        *,
        key: ColumnClause[Any],
        due: ColumnElement[bool],
        order_by: Sequence[Any],
        set_: Mapping[str, Any],
        returning: Sequence[Any],
        sort: Callable[[Row], Any] | None = None,
    ) -> None:
        self.name = name
        self.table = table
        self.key = key
        self.due = due
        self.order_by = order_by
        self.set_ = set_
        self.returning = returning
        self.sort = sort
        self.statements: dict[str, Statement] = {}

    def run(self, tx: Transaction, *, limit: int, **common: Any) -> list[Row]:
        rows = tx.database.dialect.claim_each(self, tx, min(limit, ROWS_MAX), common)
        if self.sort is not None and len(rows) > 1:
            rows.sort(key=self.sort)
        return rows
