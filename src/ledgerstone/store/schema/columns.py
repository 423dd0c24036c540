"""How tables are declared: one naming convention, and the column types all databases share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, DateTime, Index, LargeBinary, MetaData, String, Text
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import TypeEngine, UserDefinedType

from ledgerstone.store.schema.namespace import OWN, SHARED

VERSION_TABLE = "ledgerstone_revision"
"""How far a ledger is migrated; not `alembic_version`, which is the user's own."""
NAMING = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(referred_table_name)s_%(column_0_name)s",
    "ix": "idx_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}

ID_CHARS = 36
MYSQL_TABLE: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}


CHURNING: dict[str, Any] = {"postgresql_with": {"deduplicate_items": "off"}}
"""For an index whose entries come and go with every move: they are not worth being merged."""


class _SecondText(UserDefinedType[str]):
    """DATETIME by name, as Symfony declares it; what it holds is text."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "DATETIME"


_collections: list[MetaData] = []


def metadata() -> MetaData:
    """A collection of tables of Ledgerstone alone; it follows the naming convention."""
    return _kept(MetaData(schema=OWN, naming_convention=NAMING))


def shared_metadata() -> MetaData:
    """A collection of tables that are shared with another program, which names their indexes."""
    return _kept(MetaData(schema=SHARED))


def _kept(collection: MetaData) -> MetaData:
    _collections.append(collection)
    return collection


def is_ours(table: str) -> bool:
    """Whether a table of this name was declared here, or says how far a ledger is migrated."""
    declared = any(table in names_in(collection) for collection in _collections)
    return declared or table.startswith(VERSION_TABLE)


def names_in(collection: MetaData) -> tuple[str, ...]:
    """The names of its tables, without the places in which they lie."""
    return tuple(table.name for table in collection.tables.values())


def id_type() -> TypeEngine[str]:
    """A UUIDv7 in its usual spelling: native on PostgreSQL, 36 ASCII characters elsewhere."""
    ascii_text = mysql.CHAR(ID_CHARS, charset="ascii", collation="ascii_bin")
    return (
        String(ID_CHARS)
        .with_variant(postgresql.UUID(as_uuid=False), "postgresql")
        .with_variant(ascii_text, "mysql", "mariadb")
    )


def serial_type() -> TypeEngine[int]:
    """A number that the database counts up (SQLite counts only plain INTEGER keys)."""
    return BigInteger().with_variant(sqlite.INTEGER(), "sqlite")


def text_type() -> TypeEngine[str]:
    """Text without a limit that a body could meet (MySQL's TEXT ends at 64 KiB)."""
    return Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def moment_type() -> TypeEngine[Any]:
    """A moment in UTC: TIMESTAMPTZ on PostgreSQL, DATETIME(6) on MySQL, ISO text on SQLite."""
    return (
        DateTime(timezone=True)
        .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
        .with_variant(Text(), "sqlite")
    )


def second_type() -> TypeEngine[Any]:
    """A moment in UTC to the second, without a zone: as Symfony's tables keep it."""
    return (
        DateTime()
        .with_variant(postgresql.TIMESTAMP(precision=0), "postgresql")
        .with_variant(mysql.DATETIME(), "mysql", "mariadb")
        .with_variant(_SecondText(), "sqlite")
    )


def binary_id_type() -> TypeEngine[bytes]:
    """A UUID as its 16 bytes."""
    return LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")


def json_type() -> TypeEngine[Any]:
    """A JSON document: JSONB on PostgreSQL, JSON on MySQL, text on SQLite."""
    return (
        postgresql.JSONB()
        .with_variant(mysql.JSON(), "mysql", "mariadb")
        .with_variant(Text(), "sqlite")
    )


def choice_type(name: str, choices: Sequence[str], *, schema: str | None = None) -> TypeEngine[str]:
    """One of some words: a named enum on PostgreSQL, ENUM on MySQL, text on SQLite.

    `schema` is where the enum lies: `OWN` for a table of this house, none in a migration.
    """
    chars = max(map(len, choices))
    enum = postgresql.ENUM(*choices, name=name, schema=schema, create_type=False)
    return (
        String(chars)
        .with_variant(enum, "postgresql")
        .with_variant(mysql.ENUM(*choices), "mysql", "mariadb")
    )


def partial_index(
    name: str, *columns: Any, where: ColumnElement[bool], leading: Sequence[Any]
) -> tuple[Index, Index]:
    """An index of only the rows that meet `where`.

    MySQL has no such index: there it covers all rows and the columns that `where` asks lead it.
    """
    partial = Index(name, *columns, sqlite_where=where, postgresql_where=where, **CHURNING)
    full = Index(name, *leading, *columns)
    return (
        partial.ddl_if(callable_=lambda *_, dialect, **__: not _is_mysql(dialect)),
        full.ddl_if(callable_=lambda *_, dialect, **__: _is_mysql(dialect)),
    )


def _is_mysql(dialect: Any) -> bool:
    return dialect.name in {"mysql", "mariadb"}
