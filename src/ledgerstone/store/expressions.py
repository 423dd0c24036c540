"""SQL expressions that are spelled differently by each database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, String, bindparam, func
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement

NOW = "now"
"""The parameter that an injected clock fills; empty, the database's clock answers."""


class _DatabaseNow(FunctionElement[int]):
    """Milliseconds since 1970 by the database's clock, the same within one statement."""

    type = BigInteger()
    inherit_cache = True


@compiles(_DatabaseNow, "sqlite")
def _sqlite_now(*_: Any, **__: Any) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


@compiles(_DatabaseNow, "postgresql")
def _postgresql_now(*_: Any, **__: Any) -> str:
    # Not clock_timestamp(): it is volatile, and no index could be used to compare with it.
    return "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000 AS BIGINT)"


@compiles(_DatabaseNow, "mysql")
@compiles(_DatabaseNow, "mariadb")
def _mysql_now(*_: Any, **__: Any) -> str:
    # Without UNIX_TIMESTAMP(NOW()): that goes through the session's time zone and its summer time.
    return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000"


class _RandomId(FunctionElement[str]):
    """A random id, made by the database: the same script gives each database its own."""

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
    """The moment by the database's clock, whatever clock is injected."""
    return _DatabaseNow()


def now_ms() -> ColumnElement[int]:
    """The moment: the injected clock's if there is one, otherwise the database's."""
    return func.coalesce(bindparam(NOW, None, type_=BigInteger()), _DatabaseNow())
