"""SQL expressions that differ between databases."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    MetaData,
    String,
    Table,
    Text,
    and_,
    bindparam,
    case,
    func,
    or_,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement

from ledgerstone.store.schema.namespace import OWN

if TYPE_CHECKING:
    from sqlalchemy import Select

NOW = "now"
"""The parameter for an injected clock; NULL: the database's clock is used."""


class _DatabaseNow(FunctionElement[int]):
    """Milliseconds since 1970 by the database's clock, constant within one statement."""

    type = BigInteger()
    inherit_cache = True


@compiles(_DatabaseNow, "sqlite")
def _sqlite_now(*_: Any, **__: Any) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


@compiles(_DatabaseNow, "postgresql")
def _postgresql_now(*_: Any, **__: Any) -> str:
    # Not clock_timestamp(): it is volatile, so no index could be used for a comparison with it.
    # Not EXTRACT: it computes with numeric, which takes three times as long for each row.
    return "CAST(date_part('epoch', statement_timestamp()) * 1000 AS BIGINT)"


@compiles(_DatabaseNow, "mysql")
@compiles(_DatabaseNow, "mariadb")
def _mysql_now(*_: Any, **__: Any) -> str:
    # Not UNIX_TIMESTAMP(NOW()): it depends on the session's time zone and daylight saving time.
    return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000"


class _RandomId(FunctionElement[str]):
    """A random id, made by the database, so that a migration script contains no id."""

    type = String(36)
    inherit_cache = True


@compiles(_RandomId, "sqlite")
def _sqlite_random_id(*_: Any, **__: Any) -> str:
    part = "lower(hex(randomblob({})))"
    return " || '-' || ".join(part.format(size) for size in (4, 2, 2, 2, 6))


@compiles(_RandomId, "postgresql")
def _postgresql_random_id(*_: Any, **__: Any) -> str:
    return "gen_random_uuid()"


@compiles(_RandomId, "mysql")
@compiles(_RandomId, "mariadb")
def _mysql_random_id(*_: Any, **__: Any) -> str:
    return "UUID()"


def random_id() -> ColumnElement[str]:
    """A random id by the database."""
    return _RandomId()


def database_now_ms() -> ColumnElement[int]:
    """The time of the database's clock, also if a clock is injected."""
    return _DatabaseNow()


def now_ms() -> ColumnElement[int]:
    """The time of the injected clock, by default of the database's clock, in ms since 1970."""
    return func.coalesce(bindparam(NOW, None, type_=BigInteger()), _DatabaseNow())


class _Moment(FunctionElement[Any]):
    """Milliseconds since 1970 as a timestamp of `moment_type`."""

    inherit_cache = True


@compiles(_Moment, "sqlite")
def _sqlite_moment(element: Any, compiler: Any, **kw: Any) -> str:
    seconds = f"{_argument(element, compiler, kw)} / 1000.0"
    return f"strftime('%Y-%m-%d %H:%M:%f', {seconds}, 'unixepoch')"


@compiles(_Moment, "postgresql")
def _postgresql_moment(element: Any, compiler: Any, **kw: Any) -> str:
    return f"to_timestamp({_argument(element, compiler, kw)} / 1000.0)"


@compiles(_Moment, "mysql")
@compiles(_Moment, "mariadb")
def _mysql_moment(element: Any, compiler: Any, **kw: Any) -> str:
    return f"TIMESTAMPADD(MICROSECOND, {_argument(element, compiler, kw)} * 1000, '1970-01-01')"


def _argument(element: Any, compiler: Any, kw: dict[str, Any]) -> str:
    (argument,) = element.clauses
    return f"({compiler.process(argument, **kw)})"


def moment(ms: ColumnElement[int]) -> ColumnElement[Any]:
    """Milliseconds since 1970 as a timestamp."""
    return _Moment(ms)


class _DatabaseMoment(FunctionElement[Any]):
    """The time of the database's clock, in its full resolution."""

    inherit_cache = True


@compiles(_DatabaseMoment, "sqlite")
def _sqlite_database_moment(*_: Any, **__: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f', 'now')"


@compiles(_DatabaseMoment, "postgresql")
def _postgresql_database_moment(*_: Any, **__: Any) -> str:
    return "statement_timestamp()"


@compiles(_DatabaseMoment, "mysql")
@compiles(_DatabaseMoment, "mariadb")
def _mysql_database_moment(*_: Any, **__: Any) -> str:
    return "UTC_TIMESTAMP(6)"


def now() -> ColumnElement[Any]:
    """As `now_ms`, as a timestamp of `moment_type`."""
    return func.coalesce(moment(bindparam(NOW, None, type_=BigInteger())), _DatabaseMoment())


class _FirstAfter(FunctionElement[Any]):
    """The next timestamp in the resolution of the column."""

    inherit_cache = True


@compiles(_FirstAfter, "sqlite")
def _sqlite_first_after(element: Any, compiler: Any, **kw: Any) -> str:
    before = _argument(element, compiler, kw)
    return f"strftime('%Y-%m-%d %H:%M:%f', {before}, '+0.001 seconds')"


@compiles(_FirstAfter, "postgresql")
def _postgresql_first_after(element: Any, compiler: Any, **kw: Any) -> str:
    return f"{_argument(element, compiler, kw)} + INTERVAL '1 microsecond'"


@compiles(_FirstAfter, "mysql")
@compiles(_FirstAfter, "mariadb")
def _mysql_first_after(element: Any, compiler: Any, **kw: Any) -> str:
    return f"{_argument(element, compiler, kw)} + INTERVAL 1 MICROSECOND"


def now_after(before: ColumnElement[Any]) -> ColumnElement[Any]:
    """The current time, or the next timestamp after `before` if the clock is not past it."""
    moment_now = now()
    return case((moment_now > before, moment_now), else_=_FirstAfter(before))


class _Json(FunctionElement[Any]):
    """Text as a JSON document."""

    inherit_cache = True


class _JsonText(FunctionElement[str]):
    """A JSON document as text."""

    type = Text()
    inherit_cache = True


@compiles(_Json, "postgresql")
def _postgresql_json(element: Any, compiler: Any, **kw: Any) -> str:
    return f"CAST({_argument(element, compiler, kw)} AS JSONB)"


@compiles(_JsonText, "postgresql")
def _postgresql_json_text(element: Any, compiler: Any, **kw: Any) -> str:
    return f"CAST({_argument(element, compiler, kw)} AS TEXT)"


@compiles(_Json)
@compiles(_JsonText)
def _other_json(element: Any, compiler: Any, **kw: Any) -> str:
    return _argument(element, compiler, kw)


def as_json(text: Any) -> ColumnElement[Any]:
    """Text as a JSON document."""
    return _Json(text)


_IN_OWN = Table("any", MetaData(schema=OWN))


class _Choice(FunctionElement[Any]):
    """Text as a value of a named enum, on PostgreSQL."""

    inherit_cache = False

    def __init__(self, name: str, given: Any) -> None:
        super().__init__(given)
        self.enum_name = name


@compiles(_Choice, "postgresql")
def _postgresql_choice(element: Any, compiler: Any, **kw: Any) -> str:
    # The enum lies in the schema of the tables.
    place = compiler.preparer.schema_for_object(_IN_OWN)
    return f"CAST({_argument(element, compiler, kw)} AS {place}.{element.enum_name})"


@compiles(_Choice)
def _other_choice(element: Any, compiler: Any, **kw: Any) -> str:
    return _argument(element, compiler, kw)


def as_choice(name: str, text: Any) -> ColumnElement[Any]:
    """Text as a value of the enum of this name (see `schema.choice_type`)."""
    return _Choice(name, text)


def json_text(document: ColumnElement[Any]) -> ColumnElement[str]:
    """A JSON document as text."""
    return _JsonText(document)


class _Unindexed(FunctionElement[Any]):
    """A column in a form for which the planner uses no index."""

    inherit_cache = True


@compiles(_Unindexed, "sqlite")
def _sqlite_unindexed(element: Any, compiler: Any, **kw: Any) -> str:
    (column,) = element.clauses
    return f"+{compiler.process(column, **kw)}"


@compiles(_Unindexed, "postgresql")
def _postgresql_unindexed(element: Any, compiler: Any, **kw: Any) -> str:
    (column,) = element.clauses
    return f"CAST({compiler.process(column, **kw)} AS TEXT)"


@compiles(_Unindexed, "mysql")
def _mysql_unindexed(element: Any, compiler: Any, **kw: Any) -> str:
    (column,) = element.clauses
    return f"CONCAT({compiler.process(column, **kw)})"


@compiles(_Unindexed)
def _other_unindexed(element: Any, compiler: Any, **kw: Any) -> str:
    (column,) = element.clauses
    return str(compiler.process(column, **kw))


def unindexed(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """A text column for a condition on rows that another index finds.

    SQLite has no statistics and would scan all rows of a state in place of a few hundred look-ups
    by id. PostgreSQL would as well while there are few rows, and then step over the dead tuples
    that an old snapshot keeps alive. MySQL would lock the gaps of the scanned range in a user's
    REPEATABLE READ transaction, so that nobody could insert a row there.
    """
    return _Unindexed(column)


class _Beyond(FunctionElement[bool]):
    """Rows after a place in an order, in a form for which each database uses an index."""

    type = Boolean()
    inherit_cache = True

    def __init__(self, columns: Sequence[Any], place: Sequence[Any], *, descending: bool) -> None:
        super().__init__(*columns, *place)
        self.width = len(columns)
        self.descending = descending


@compiles(_Beyond)
def _row_beyond(element: Any, compiler: Any, **kw: Any) -> str:
    parts = [compiler.process(part, **kw) for part in element.clauses]
    columns, place = parts[: element.width], parts[element.width :]
    sign = "<" if element.descending else ">"
    return f"({', '.join(columns)}) {sign} ({', '.join(place)})"


@compiles(_Beyond, "mysql")
@compiles(_Beyond, "mariadb")
def _mysql_beyond(element: Any, compiler: Any, **kw: Any) -> str:
    clauses = list(element.clauses)
    columns, place = clauses[: element.width], clauses[element.width :]
    farther = operator.lt if element.descending else operator.gt
    lead = operator.le if element.descending else operator.ge
    steps = [
        and_(*[columns[j] == place[j] for j in range(i)], farther(columns[i], place[i]))
        for i in range(element.width)
    ]
    return str(compiler.process(and_(lead(columns[0], place[0]), or_(*steps)), **kw))


def beyond(
    columns: Sequence[Any], place: Sequence[Any], *, descending: bool = False
) -> ColumnElement[bool]:
    """Rows after `place` in the order of `columns`, all ascending or all descending."""
    return _Beyond(columns, place, descending=descending)


class _DefaultNow(FunctionElement[Any]):
    """The default of a column with the time of the insert."""

    inherit_cache = True


@compiles(_DefaultNow, "sqlite")
def _sqlite_default_now(*_: Any, **__: Any) -> str:
    return "(strftime('%Y-%m-%d %H:%M:%f', 'now'))"


@compiles(_DefaultNow, "postgresql")
def _postgresql_default_now(*_: Any, **__: Any) -> str:
    return "now()"


@compiles(_DefaultNow, "mysql")
@compiles(_DefaultNow, "mariadb")
def _mysql_default_now(*_: Any, **__: Any) -> str:
    return "(UTC_TIMESTAMP(6))"


class _DefaultId(FunctionElement[str]):
    """The default of a column that holds an id."""

    inherit_cache = True


@compiles(_DefaultId)
def _default_id(_: Any, compiler: Any, **kw: Any) -> str:
    made = compiler.process(_RandomId(), **kw)
    return made if compiler.dialect.name == "postgresql" else f"({made})"


def default_now() -> ColumnElement[Any]:
    """For `server_default`: the time of the insert."""
    return _DefaultNow()


def default_id() -> ColumnElement[str]:
    """For `server_default`: a random id."""
    return _DefaultId()


class _Second(FunctionElement[Any]):
    """Milliseconds since 1970 as a timestamp of `second_type`."""

    inherit_cache = True


@compiles(_Second, "sqlite")
def _sqlite_second(element: Any, compiler: Any, **kw: Any) -> str:
    return f"datetime({_argument(element, compiler, kw)} / 1000, 'unixepoch')"


@compiles(_Second, "postgresql")
def _postgresql_second(element: Any, compiler: Any, **kw: Any) -> str:
    return f"to_timestamp({_argument(element, compiler, kw)} / 1000) AT TIME ZONE 'UTC'"


@compiles(_Second, "mysql")
@compiles(_Second, "mariadb")
def _mysql_second(element: Any, compiler: Any, **kw: Any) -> str:
    return f"TIMESTAMPADD(SECOND, {_argument(element, compiler, kw)} DIV 1000, '1970-01-01')"


def second(ms: ColumnElement[int]) -> ColumnElement[Any]:
    """Milliseconds since 1970 as a timestamp in UTC without fraction and time zone."""
    return _Second(ms)


class _Bytes(FunctionElement[int]):
    """The length of a text in bytes."""

    type = BigInteger()
    inherit_cache = True


@compiles(_Bytes)
def _other_bytes(element: Any, compiler: Any, **kw: Any) -> str:
    return f"OCTET_LENGTH({_argument(element, compiler, kw)})"


@compiles(_Bytes, "sqlite")
def _sqlite_bytes(element: Any, compiler: Any, **kw: Any) -> str:
    return f"LENGTH(CAST({_argument(element, compiler, kw)} AS BLOB))"


def by_index(query: Select[Any], table: Table, index: str) -> Select[Any]:
    """The query with this index forced, on MySQL."""
    hint = f"FORCE INDEX ({index})"
    return query.with_hint(table, hint, "mysql").with_hint(table, hint, "mariadb")


def byte_length(text_: ColumnElement[str]) -> ColumnElement[int]:
    """The length of a text in bytes."""
    return _Bytes(text_)


class _Hexadecimal(FunctionElement[str]):
    """Bytes as text of lower-case hexadecimal digits."""

    type = String()
    inherit_cache = True


@compiles(_Hexadecimal)
def _other_hexadecimal(element: Any, compiler: Any, **kw: Any) -> str:
    return f"LOWER(HEX({_argument(element, compiler, kw)}))"


@compiles(_Hexadecimal, "postgresql")
def _postgresql_hexadecimal(element: Any, compiler: Any, **kw: Any) -> str:
    return f"encode({_argument(element, compiler, kw)}, 'hex')"


def hexadecimal(raw: ColumnElement[bytes]) -> ColumnElement[str]:
    """Bytes as text of lower-case hexadecimal digits."""
    return _Hexadecimal(raw)
