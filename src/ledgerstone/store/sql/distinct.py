"""The different values of a column, or pairs of two columns, read from an index in their order.

    a a a a a b b b c c c c c c      stepping: a, what is greater than a, what is greater than b …
    ▲         ▲     ▲                however many rows have the same value

Stepping is a recursive statement. MySQL looks through the index from its beginning at each step:
there the index is read through once. Pairs are asked for one by one, and from some on all at once:
then the server steps by itself (a loose index scan), but only if it has figures of the table.
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
"""Values that can be asked for at once."""
ASKED_MAX = 20
"""Pairs that are asked for one by one."""


class _Different(FunctionElement[Any]):
    """A table of one column, in either way."""

    inherit_cache = False
    name = "different"

    def __init__(self, stepping: Any, plain: Any, table: Any, index: str) -> None:
        super().__init__()
        self.stepping = stepping
        self.plain = plain
        self.table = table
        self.index = index


@compiles(_Different)
def _in_steps(element: _Different, compiler: Any, **_: Any) -> str:
    return f"({compiler.process(element.stepping, asfrom=True)})"


@compiles(_Different, "sqlite")
def _in_steps_of_the_index(element: _Different, compiler: Any, **kw: Any) -> str:
    # Left to itself it takes an index that covers more columns, and passes all that is over.
    table = f"FROM {compiler.preparer.format_table(element.table)} "
    return _in_steps(element, compiler, **kw).replace(table, f"{table}INDEXED BY {element.index} ")


@compiles(_Different, "mysql")
@compiles(_Different, "mariadb")
def _at_once(element: _Different, compiler: Any, **_: Any) -> str:
    return f"({compiler.process(element.plain, asfrom=True)})"


def different(
    column: ColumnClause[Any], among: ColumnElement[bool], *, index: str
) -> TableValuedAlias:
    """A table of the values that this column has among these rows, none of them NULL.

    The statement takes the parameters `begin`, the least value, and `most`, how many at most.
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
    # The name of its only column is the same either way.
    made = _Different(stepping, plain, column.table, index)
    return made.table_valued("value", name="different")


class DifferentPairs:
    """The pairs of values that two columns have among some rows, in the order of an index.

    - The index begins with the two, behind what `among` says of other columns; where it is not
      partial these are `leading`. The second column holds text that is never empty.
    - What a pair costs does not depend on how many rows have it. Where the server can not step by
      itself, that holds for the first pairs, and for the others if it has figures of the table.
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
        """The pairs whose first value is this one or comes later, at most so many."""
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
        # Beginning with the first value of the last one: that has so many at most here already.
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
        made = _Different(stepping, stepping, self._table, self._index)
        pairs = made.table_valued("first", "second", name="pairs_of")
        return select(pairs.c.first, pairs.c.second)

    def _following(self) -> Any:
        """The pair behind a place, asked for in two ranges; the first row is it."""
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
        """What comes behind a place; two ranges, for not every database looks up a pair."""
        chosen = columns if isinstance(columns, tuple) else (columns,)
        same = select(*chosen).where(self._among, self._first == first, self._second > second)
        later = select(*chosen).where(self._among, self._first > first)
        return [
            same.order_by(self._second).limit(1),
            later.order_by(self._first, self._second).limit(1),
        ]
