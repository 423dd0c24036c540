"""The rows of a batch on MySQL: one JSON document, read by JSON_TABLE."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Delete,
    Insert,
    Text,
    UniqueConstraint,
    Update,
    bindparam,
    column,
    insert,
    select,
)
from sqlalchemy import types as sqltypes
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from ledgerstone.store.sql.batch import Incoming, RowInsert
from ledgerstone.store.sql.statement import Statement

BIGINT_DIGITS = 19
_UPDATE = re.compile(r"^UPDATE (\S+), (JSON_TABLE\(.*\) AS travelling) SET ", re.DOTALL)
_DELETE = re.compile(
    r"^DELETE FROM (\S+) WHERE (\S+) IN \(SELECT (\S+) \nFROM (JSON_TABLE\(.*\) AS travelling)\)$",
    re.DOTALL,
)
_DELETE_USING = re.compile(
    r"^DELETE FROM (\S+) USING \S+, (JSON_TABLE\(.*\) AS travelling) WHERE ", re.DOTALL
)


class _JsonTable(FunctionElement[Any]):
    """The rows of a JSON document as a table."""

    inherit_cache = False
    name = "json_table"

    def __init__(self, columns: Sequence[Any], keys: Sequence[str]) -> None:
        super().__init__(bindparam("rows", type_=Text()))
        self.travelling = columns
        self.keys = keys


@compiles(_JsonTable, "mysql")
@compiles(_JsonTable, "mariadb")
def _render_json_table(element: _JsonTable, compiler: Any, **kw: Any) -> str:
    def kind(of: Any) -> str:
        concrete = _roomier(of.type.dialect_impl(compiler.dialect), compared=of.key in element.keys)
        rendered: str = compiler.dialect.type_compiler_instance.process(concrete)
        textual = isinstance(concrete, sqltypes.String) and "COLLATE" not in rendered
        return f"{rendered} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" if textual else rendered

    quote = compiler.preparer.quote
    listed = ", ".join(
        f"{quote(c.name)} {kind(c)} PATH '$[{i}]'" for i, c in enumerate(element.travelling)
    )
    document = compiler.process(element.clause_expr.element, **kw)
    return f"JSON_TABLE({document}, '$[*]' COLUMNS({listed}))"


def _roomier(kind: Any, *, compared: bool) -> Any:
    """A wider type, so that the column refuses a value that does not fit.

    JSON_TABLE truncates a value that does not fit its type. An integer that is only compared keeps
    its type, since an index is used only for equal types.
    """
    if isinstance(kind, sqltypes.String) and kind.length is not None:
        wider = kind.copy()
        wider.length = kind.length + 1
        return wider
    if isinstance(kind, sqltypes.Integer) and not compared:
        return mysql.DECIMAL(BIGINT_DIGITS + 1, 0)
    return kind


def travelling(columns: Sequence[Any], *, key: Sequence[Any] = ()) -> Incoming:
    """The columns of the sent rows; those of `key` are only compared."""
    table = _JsonTable(columns, [part.key for part in key])
    alias = table.table_valued(*[column(c.name, c.type) for c in columns], name="travelling")
    return Incoming({c.name: alias.c[c.name] for c in columns})


def insert_rows(operation: RowInsert) -> Insert:
    """The INSERT of the sent rows."""
    values = operation.assignments(travelling(operation.incoming))
    return insert(operation.table).from_select(list(values), select(*values.values()))


def removing(text: str) -> str:
    """Rewrite a DELETE so that it looks the rows up by key.

    Otherwise the optimizer may scan and lock the whole table.
    """
    return _DELETE.sub(r"DELETE \1 FROM \4 STRAIGHT_JOIN \1 WHERE \2 = \3", text)


def by_key(name: str, changing: Update | Delete, key: Any) -> Statement:
    """An UPDATE or DELETE that looks its rows up by key, in the order of the document.

    Otherwise the optimizer scans a small table: it waits for rows of other transactions and locks
    rows that they look for.
    """

    def amend(text: str) -> str:
        index = index_of(key)
        forced = f" FORCE INDEX ({index})" if index else ""
        text = _UPDATE.sub(rf"UPDATE \2 STRAIGHT_JOIN \1{forced} SET ", text)  # noqa: S608 - our own
        return _DELETE_USING.sub(
            rf"DELETE FROM \1 USING \2 STRAIGHT_JOIN \1{forced} WHERE ",  # noqa: S608 - our own
            text,
        )

    return Statement(name, changing, amend=amend)


def index_of(key: Any) -> str | None:
    """The name of an index that begins with this column."""
    if next(iter(key.table.primary_key), None) is key:
        return "PRIMARY"
    unique = [c for c in key.table.constraints if isinstance(c, UniqueConstraint)]
    for index in (*unique, *key.table.indexes):
        if index.columns[0] is key:
            return str(index.name)
    return None
