"""DDL statements for tables outside of the migrations, for each database."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Column, Table, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

from ledgerstone.errors import BadInput
from ledgerstone.store.schema.namespace import NAMELESS, Namespace, table_name, text_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

DIALECTS = ("sqlite", "postgresql", "mysql", "mariadb")


class DdlStep(msgspec.Struct, frozen=True):
    """One DDL statement and its purpose."""

    words: str
    sql: str


def dialect(name: str) -> Any:
    """SQLAlchemy's dialect for a kind of database; BadInput for an unknown kind."""
    if name not in DIALECTS:
        message = f"there is no SQL for {name!r}"
        raise BadInput(message, hint=f"use one of {', '.join(DIALECTS)}")
    return make_url(f"{name}://").get_dialect()()


def run(connection: Connection, steps: Sequence[DdlStep]) -> None:
    """Execute the steps in order."""
    for step in steps:
        connection.execute(text(step.sql.replace(":", "\\:")))


def new(table: Table, dialect: Any, names: Namespace = NAMELESS) -> list[DdlStep]:
    """The steps that create the table and its indexes."""
    made = text_of(CreateTable(table, if_not_exists=True), dialect, names)
    return [DdlStep(f"make {table.name}", made), *indexes(table, dialect, names)]


def indexes(
    table: Table, dialect: Any, names: Namespace = NAMELESS, *, but: Collection[str] = ()
) -> list[DdlStep]:
    """The steps that create the indexes of the table, without those named in `but`."""
    steps = []
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        create = CreateIndex(index)
        # SQLAlchemy evaluates the condition of an index only while it executes the DDL.
        depends = index._ddl_if  # noqa: SLF001 - no public way
        compiler = dialect.ddl_compiler(dialect, None)
        wanted = depends is None or depends._should_execute(  # noqa: SLF001 - as above
            create, index, None, compiler
        )
        if wanted and index.name not in but:
            made = text_of(create, dialect, names)
            steps.append(DdlStep(f"make {index.name} on {table.name}", made))
    return steps


def rekeyed(connection: Connection, table: Table, names: Namespace) -> list[DdlStep]:
    """The steps that give an existing table its declared primary key."""
    name = table_name(table, connection.dialect, names)
    listed = ", ".join(column.name for column in table.primary_key)
    words = f"make ({listed}) the key of {table.name}"
    if connection.dialect.name == "postgresql":
        found = inspect(connection).get_pk_constraint(table.name, schema=names.of(table.schema))
        constraint = found["name"]
        return [
            DdlStep(
                words,
                f'ALTER TABLE {name} DROP CONSTRAINT "{constraint}", ADD PRIMARY KEY ({listed})',
            )
        ]
    if connection.dialect.name == "sqlite":
        old = _quoted(connection, f"{table.name}_old")
        copied = ", ".join(column.name for column in table.c)
        return [
            DdlStep(words, f"ALTER TABLE {name} RENAME TO {old}"),
            DdlStep(words, text_of(CreateTable(table), connection.dialect, names)),
            DdlStep(words, f"INSERT INTO {name} ({copied}) SELECT {copied} FROM {old}"),  # noqa: S608 - names of ours
            DdlStep(words, f"DROP TABLE {old}"),
            *indexes(table, connection.dialect, names),
        ]
    return [DdlStep(words, f"ALTER TABLE {name} DROP PRIMARY KEY, ADD PRIMARY KEY ({listed})")]


def exact(connection: Connection, column: Column[Any], names: Namespace) -> list[DdlStep]:
    """The step that makes a column case-sensitive on MySQL, if it is not."""
    if connection.dialect.name not in {"mysql", "mariadb"}:
        return []
    table = column.table
    columns = inspect(connection).get_columns(table.name, schema=names.of(table.schema))
    found = {each["name"]: each for each in columns}
    kept: Any = found.get(column.name)
    if kept is None or kept["type"].collation == "utf8mb4_bin":
        return []
    return [
        DdlStep(
            f"compare {column.name} of {table.name} letter by letter",
            f"ALTER TABLE {table_name(table, connection.dialect, names)} "
            f"MODIFY {_spelled(connection, column)}",
        )
    ]


def added(connection: Connection, column: Column[Any], names: Namespace = NAMELESS) -> DdlStep:
    """The step that adds the column to an existing table."""
    name = table_name(column.table, connection.dialect, names)
    return DdlStep(
        f"add {column.name} to {column.table.name}",
        f"ALTER TABLE {name} ADD COLUMN {_spelled(connection, column)}",
    )


def without_index(connection: Connection, table: Table, index: str) -> DdlStep:
    """The table, which is there, loses this index."""
    name = _quoted(connection, index)
    on = f" ON {table_name(table, connection.dialect, NAMELESS)}"
    is_mysql = connection.dialect.name in {"mysql", "mariadb"}
    return DdlStep(f"drop {index} of {table.name}", f"DROP INDEX {name}{on if is_mysql else ''}")


def _quoted(connection: Connection, name: str) -> str:
    """The name, quoted if needed."""
    return str(connection.dialect.identifier_preparer.quote(name))


def _spelled(connection: Connection, column: Column[Any]) -> str:
    return str(CreateColumn(column).compile(dialect=connection.dialect)).strip()
