"""The different values of a column, read from an index that has them in order.

    a a a a a b b b c c c c c c      stepping: a, what is greater than a, what is greater than b …
    ▲         ▲     ▲                however many rows have the same value

Stepping is a recursive statement. MySQL looks through the index from its beginning at each step:
there the index is read through once.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, bindparam, literal, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnClause, ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import TableValuedAlias

STEPS_MAX = 900
"""Values that can be asked for at once."""


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
