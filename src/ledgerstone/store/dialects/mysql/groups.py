"""The first rows of many groups on MySQL: one part of a UNION ALL for each group.

MariaDB has no LATERAL join, which a limit for each group would need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, bindparam, literal_column, union_all

from ledgerstone.store.sql.batch import FirstEach, Incoming, LockFirst
from ledgerstone.store.sql.statement import Row, Statement

if TYPE_CHECKING:
    from sqlalchemy import Select

GROUPS = (100, 10, 1)
"""The numbers of groups in one statement: few texts, so that each is compiled once."""


def size_of(groups: Sequence[Row], *, rows_max: int) -> int:
    """How many of these groups one statement reads, for at most `rows_max` rows; at least one."""
    for size in GROUPS:
        if size <= len(groups) and sum(group[-1] for group in groups[:size]) <= rows_max:
            return size
    return 1


def first(operation: FirstEach, key: str, size: int) -> Statement:
    """The statement that reads `size` groups."""
    statement = operation.statements.get(key)
    if statement is None:
        each = bindparam("each", type_=BigInteger())
        parts = [operation.build(_nth(operation, i)).limit(each) for i in range(size)]
        statement = operation.statements[key] = _united(operation, parts)
    return statement


def locking_first(operation: LockFirst, key: str, size: int) -> Statement:
    """The statement that locks the first rows of `size` groups."""
    statement = operation.statements.get(key)
    if statement is None:
        parts = []
        for i in range(size):
            row = _nth(operation, i)
            found = operation.build(row).limit(row.most)
            parts.append(found.with_for_update(skip_locked=True))
        statement = operation.statements[key] = _united(operation, parts)
    return statement


def side_by_side(operation: FirstEach | LockFirst, rows: Sequence[Row]) -> dict[str, Any]:
    """The parameters for these groups."""
    return {
        f"in_{i}_{c.name}": value
        for i, row in enumerate(rows)
        for c, value in zip(operation.incoming, row, strict=True)
    }


def _nth(operation: FirstEach | LockFirst, i: int) -> Incoming:
    names = {c.name: bindparam(f"in_{i}_{c.name}", type_=c.type) for c in operation.incoming}
    return Incoming(names)


def _united(operation: FirstEach | LockFirst, parts: Sequence[Select[Any]]) -> Statement:
    """The UNION ALL of the parts, each with its number as the first column."""
    numbered = []
    for i, found in enumerate(parts):
        forced = found.with_hint(operation.table, f"FORCE INDEX ({operation.index})")
        columns = found.selected_columns
        numbered.append(forced.with_only_columns(literal_column(str(i)), *columns))
    made = numbered[0] if len(numbered) == 1 else union_all(*numbered)
    return Statement(operation.name, made)
