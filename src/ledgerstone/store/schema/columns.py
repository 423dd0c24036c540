"""The naming convention of tables, and column types for all databases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, DateTime, Index, LargeBinary, MetaData, String, Table, Text
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import TypeEngine, UserDefinedType

from ledgerstone.store.schema.namespace import OWN, SHARED

VERSION_TABLE = "ledgerstone_revision"
"""The version table of the kernel; `alembic_version` belongs to the user."""
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
"""For an index whose entries change with every move: deduplication would not pay."""


class _SecondText(UserDefinedType[str]):
    """The type name DATETIME, as Symfony declares it on SQLite; the values are text."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "DATETIME"


_collections: list[MetaData] = []


def metadata() -> MetaData:
    """MetaData for tables of Ledgerstone alone, with the naming convention."""
    return _kept(MetaData(schema=OWN, naming_convention=NAMING))


def shared_metadata() -> MetaData:
    """MetaData for tables that another program uses too, and whose indexes it names."""
    return _kept(MetaData(schema=SHARED))


def _kept(collection: MetaData) -> MetaData:
    _collections.append(collection)
    return collection


def is_ours(table: str) -> bool:
    """Whether a table of this name was declared here, or is a version table."""
    declared = any(table in names_in(collection) for collection in _collections)
    return declared or table.startswith(VERSION_TABLE)


def declared(table: str) -> Table:
    """The table of this name that was declared here."""
    return next(
        each for kept in _collections for each in kept.tables.values() if each.name == table
    )


def names_in(collection: MetaData) -> tuple[str, ...]:
    """The names of its tables, without schemas."""
    return tuple(table.name for table in collection.tables.values())


def id_type() -> TypeEngine[str]:
    """A UUIDv7 as text: a native UUID on PostgreSQL, 36 ASCII characters elsewhere."""
    ascii_text = mysql.CHAR(ID_CHARS, charset="ascii", collation="ascii_bin")
    return (
        String(ID_CHARS)
        .with_variant(postgresql.UUID(as_uuid=False), "postgresql")
        .with_variant(ascii_text, "mysql", "mariadb")
    )


def serial_type() -> TypeEngine[int]:
    """An auto-increment number (on SQLite only a plain INTEGER key can be one)."""
    return BigInteger().with_variant(sqlite.INTEGER(), "sqlite")


def text_type() -> TypeEngine[str]:
    """Text without a practical limit (MySQL's TEXT ends at 64 KiB)."""
    return Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def moment_type() -> TypeEngine[Any]:
    """A timestamp in UTC: TIMESTAMPTZ on PostgreSQL, DATETIME(6) on MySQL, ISO text on SQLite."""
    return (
        DateTime(timezone=True)
        .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
        .with_variant(Text(), "sqlite")
    )


def second_type() -> TypeEngine[Any]:
    """A timestamp in UTC without fraction and time zone, as in Symfony's tables."""
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
    """One of `choices`: a named enum on PostgreSQL, ENUM on MySQL, text on SQLite.

    `schema` is the place of the enum: `OWN` for a declared table, None in a migration.
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
    """A partial index: of the rows that meet `where`.

    MySQL has no partial index: there the index has all rows and begins with the columns `leading`,
    which `where` compares.
    """
    partial = Index(name, *columns, sqlite_where=where, postgresql_where=where, **CHURNING)
    full = Index(name, *leading, *columns)
    return (
        partial.ddl_if(callable_=lambda *_, dialect, **__: not _is_mysql(dialect)),
        full.ddl_if(callable_=lambda *_, dialect, **__: _is_mysql(dialect)),
    )


def _is_mysql(dialect: Any) -> bool:
    return dialect.name in {"mysql", "mariadb"}
