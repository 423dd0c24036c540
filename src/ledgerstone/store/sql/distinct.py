"""The distinct values of a column, or of a pair of columns, read from an index (a skip scan).

    a a a a a b b b c c c c c c      a, the next value after a, the next value after b, …
    ▲         ▲     ▲                independent of the number of rows with the same value

The skip scan is a recursive CTE. MySQL would read the index from its beginning in each recursion:
there distinct values are one index scan. Pairs are read one by one at first, and the rest by
SELECT DISTINCT, for which the server uses a loose index scan if the table has statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Select,
    String,
    bindparam,
    cast,
    func,
    literal,
    literal_column,
    select,
    union_all,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnClause, ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import TableValuedAlias

from ledgerstone.store.sql.statement import Row, Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

STEPS_MAX = 900
"""The most values of one statement."""
ASKED_MAX = 20
"""Pairs that are read one by one."""


class _DistinctValues(FunctionElement[Any]):
    """A table of one column: a recursive CTE, or SELECT DISTINCT on MySQL."""

    inherit_cache = False
    name = "different"

    def __init__(self, stepping: Any, plain: Any, table: Any, index: str) -> None:
        super().__init__()
        self.stepping = stepping
        self.plain = plain
        self.table = table
        self.index = index


@compiles(_DistinctValues)
def _in_steps(element: _DistinctValues, compiler: Any, **_: Any) -> str:
    return f"({compiler.process(element.stepping, asfrom=True)})"


@compiles(_DistinctValues, "sqlite")
def _in_steps_of_the_index(element: _DistinctValues, compiler: Any, **kw: Any) -> str:
    # Forced: the planner prefers an index with more columns, and would scan ended rows.
    table = f"FROM {compiler.preparer.format_table(element.table)} "
    return _in_steps(element, compiler, **kw).replace(table, f"{table}INDEXED BY {element.index} ")


@compiles(_DistinctValues, "mysql")
@compiles(_DistinctValues, "mariadb")
def _at_once(element: _DistinctValues, compiler: Any, **_: Any) -> str:
    return f"({compiler.process(element.plain, asfrom=True)})"


def distinct_values(
    column: ColumnClause[Any], among: ColumnElement[bool], *, index: str
) -> TableValuedAlias:
    """A table of the distinct values of `column` among these rows, without NULL.

    Parameters of the statement: `begin`, the lowest value, and `most`, the most values.
    """
    begin = bindparam("begin", type_=column.type)
    most = bindparam("most", type_=BigInteger())
    here = among & (column >= begin)
    first = select(column).where(here).order_by(column).limit(1).scalar_subquery()
    steps = select(first.label("value"), literal(1).label("n")).cte(
        "steps", recursive=True, nesting=True
    )
    following = (
        select(column).where(among, column > steps.c.value).order_by(column).limit(1)
    ).scalar_subquery()
    steps = steps.union_all(
        select(following, steps.c.n + 1).where(steps.c.value.is_not(None), steps.c.n < most)
    )
    stepping = select(steps.c.value).where(steps.c.value.is_not(None))
    plain = select(column.label("value")).distinct().where(here).order_by(column).limit(most)
    # Both forms name their only column alike.
    made = _DistinctValues(stepping, plain, column.table, index)
    return made.table_valued("value", name="different")


class DistinctPairs:
    """The distinct pairs of two columns among some rows, in the order of an index.

    - The index begins with the two columns, after those that `among` compares; on MySQL, whose
      index is not partial, these are `leading`. The second column holds text that is never empty.
    - The cost of a pair does not depend on the number of its rows; on MySQL this holds for the
      first pairs, and for the others if the table has statistics.
    """

    def __init__(
        self,
        name: str,
        first: ColumnClause[Any],
        second: ColumnClause[Any],
        among: ColumnElement[bool],
        *,
        key: ColumnClause[Any],
        index: str,
        leading: Sequence[ColumnClause[Any]],
    ) -> None:
        self._first, self._second, self._among = first, second, among
        self._key, self._index, self._leading = key, index, leading
        self._table: Any = first.table
        self._stepping = Statement(name, self._in_steps())
        self._next = Statement(f"{name}.next", self._following())
        self._distinct = Statement(f"{name}.rest", self._at_once())

    def rows(self, tx: Transaction, *, begin: str, most: int, **common: Any) -> list[Row]:
        """At most `most` pairs whose first value is at least `begin`."""
        if tx.database.dialect.recurs:
            return self._stepping.rows(tx, begin=begin, most=most, **common)
        found: list[Row] = []
        place: Row = (begin, "")
        while len(found) < min(most, ASKED_MAX):
            following = self._next.rows(tx, first_=place[0], second_=place[1], **common)
            if not following:
                return found
            place = following[0][1:]
            found.append(place)
        if len(found) == most:
            return found
        # From the first value of the last pair on, so that no pair of it is missed.
        rest = self._distinct.rows(tx, begin=place[0], most=most, **common)
        known = set(found)
        return (found + [row[:2] for row in rest if row[:2] not in known])[:most]

    def _in_steps(self) -> Any:
        begin = bindparam("begin", type_=self._first.type)
        row = self._table.alias("stepped_on")
        here = select(
            cast(begin, self._first.type).label("first"),
            cast(literal(""), String()).label("second"),
            literal(0).label("n"),
        ).cte("pairs", recursive=True, nesting=True)
        same, later = self._ranges(self._key, here.c.first, here.c.second)
        following = func.coalesce(same.scalar_subquery(), later.scalar_subquery())
        steps = here.union_all(
            select(row.c[self._first.name], row.c[self._second.name], here.c.n + 1)
            .select_from(here.join(row, row.c[self._key.name] == following))
            .where(here.c.n < bindparam("most", type_=BigInteger()))
        )
        stepping = select(steps.c.first, steps.c.second).where(steps.c.n > 0)
        made = _DistinctValues(stepping, stepping, self._table, self._index)
        pairs = made.table_valued("first", "second", name="pairs_of")
        return select(pairs.c.first, pairs.c.second)

    def _following(self) -> Any:
        """The next pair after a place, as two ranges; the first row of the result is the pair."""
        first = bindparam("first_", type_=self._first.type)
        second = bindparam("second_", type_=String())
        ranges = self._ranges((self._first, self._second), first, second)
        numbered = [
            found.with_only_columns(literal_column(str(i)), *found.selected_columns).with_hint(
                self._table, self._forced
            )
            for i, found in enumerate(ranges)
        ]
        return union_all(*numbered)

    def _at_once(self) -> Any:
        begin = bindparam("begin", type_=self._first.type)
        return (
            select(self._first, self._second, *self._leading)
            .distinct()
            .where(self._among, self._first >= begin)
            .limit(bindparam("most", type_=BigInteger()))
            .with_hint(self._table, self._forced)
        )

    @property
    def _forced(self) -> str:
        return f"FORCE INDEX ({self._index})"

    def _ranges(self, columns: Any, first: Any, second: Any) -> list[Select[Any]]:
        """The rows after a place as two ranges: not every database can look up a row value."""
        chosen = columns if isinstance(columns, tuple) else (columns,)
        same = select(*chosen).where(self._among, self._first == first, self._second > second)
        later = select(*chosen).where(self._among, self._first > first)
        return [
            same.order_by(self._second).limit(1),
            later.order_by(self._first, self._second).limit(1),
        ]
