"""The dialect of a database URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.engine import make_url

from ledgerstone.errors import BadInput
from ledgerstone.store.dialects.mysql.dialect import MySQL
from ledgerstone.store.dialects.postgres.dialect import PostgreSQL
from ledgerstone.store.dialects.sqlite.dialect import SQLite

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from ledgerstone.store.dialect import Dialect
    from ledgerstone.store.schema.namespace import Namespace


def dialect_of(url: str | URL) -> tuple[URL, Dialect]:
    """The dialect for a URL, and the URL with its driver named."""
    try:
        parsed = make_url(url)
    except Exception as error:
        message = "the database URL cannot be read"
        hint = "write it as sqlite:///FILE, postgresql://… or mysql://…"
        raise BadInput(message, hint=hint) from error
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        return parsed, SQLite()
    if backend == "postgresql":
        return _driver(parsed, "postgresql+psycopg"), PostgreSQL()
    if backend in {"mysql", "mariadb"}:
        driver = "mysqldb" if parsed.drivername.endswith("+mysqldb") else "pymysql"
        return _driver(parsed, f"mysql+{driver}"), MySQL()
    message = f"no ledger can be kept on {backend!r}"
    raise BadInput(message, hint="use sqlite:///FILE, postgresql://… or mysql://…")


def names_of_kind(kind: str, url: URL, schema: str | None) -> Namespace:
    """The namespace on a kind of database; `url` is used if it is of this kind."""
    found, dialect = dialect_of(url)
    if dialect.name != kind:
        found, dialect = dialect_of(f"{kind}://")
    return dialect.namespace(found, schema, None)


def _driver(url: URL, drivername: str) -> URL:
    return url.set(drivername=drivername)
