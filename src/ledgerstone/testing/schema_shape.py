"""What a database says of its tables, to compare two ways in which they were made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlalchemy import Connection, Inspector, MetaData, Table, inspect, text

from ledgerstone.ledger import Ledger
from ledgerstone.store.schema import ddl
from ledgerstone.store.schema.namespace import table_name


def shape(ledger: Ledger, tables: Iterable[Table]) -> set[str]:
    """Columns, keys, indexes and checks of these tables as the database has them, a line for each.

    The name of a primary key and the spelling of a condition say nothing.
    """
    with ledger.database.engine.connect() as connection:
        found = inspect(connection)
        return {
            f"{table.name}: {words}"
            for table in tables
            for words in _parts(found, table, ledger.database.namespace.of(table.schema))
        }


def _parts(found: Inspector, table: Table, schema: str | None) -> Iterator[str]:
    for column in found.get_columns(table.name, schema=schema):
        known = column["type"], column["nullable"], column["default"]
        yield f"column {column['name']} {' '.join(map(str, known))}"
    key = found.get_pk_constraint(table.name, schema=schema)
    yield f"primary key {key['constrained_columns']}"
    for unique in found.get_unique_constraints(table.name, schema=schema):
        yield f"unique {unique['column_names']}"
    for foreign in found.get_foreign_keys(table.name, schema=schema):
        yield f"foreign key {foreign}"
    for check in found.get_check_constraints(table.name, schema=schema):
        yield f"check {check}"
    for index in found.get_indexes(table.name, schema=schema):
        options = {
            name: str(value).replace(f"{table.name}.", "").replace("<>", "!=")
            for name, value in index.get("dialect_options", {}).items()
        }
        yield f"index { ({**index, 'dialect_options': options}) }"


def make(ledger: Ledger, tables: Iterable[Table]) -> None:
    """Make these tables as the code declares them."""
    with ledger.database.engine.begin() as connection:
        for table in tables:
            ddl.run(connection, ddl.new(table, connection.dialect, ledger.database.namespace))


def drop(ledger: Ledger, names: Iterable[str]) -> None:
    """Drop the tables of these names that lie among Ledgerstone's own, and what refers to them."""
    there, gone = MetaData(), set(names)
    with ledger.database.engine.begin() as connection:
        there.reflect(connection, schema=ledger.database.namespace.own)
        for table in reversed(there.sorted_tables):
            if table.name in gone or gone & {key.column.table.name for key in table.foreign_keys}:
                table.drop(connection)


def occupy(connection: Connection, ledger: Ledger, table: Table) -> None:
    """Make a table of another program that has the name of this one, in its place."""
    names = ledger.database.namespace
    ledger.database.dialect.make_place(connection, names)
    name = table_name(table, connection.dialect, names)
    connection.execute(text(f"CREATE TABLE {name} (theirs INTEGER)"))
