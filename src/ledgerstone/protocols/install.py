"""A protocol's tables in a database: made once, and changed as its `schema.sql` changes.

Each definition that was applied is on record. A table that is there and is not on record belongs to
another program, or to another protocol, and is refused by its name. New columns and indexes are
added, and indexes that are listed no more are dropped; what cannot be done to rows that are there
is refused. A table that is listed no more stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import inspect, select

from ledgerstone.errors import NotAllowedNow
from ledgerstone.protocols.protocol import Protocol
from ledgerstone.protocols.schema import Definition
from ledgerstone.protocols.tables import protocol_schema as applied
from ledgerstone.store.connections.faults import translated
from ledgerstone.store.database import Database
from ledgerstone.store.schema import ddl
from ledgerstone.store.schema.ddl import DdlStep
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.rows import UpsertRow
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction

_record = UpsertRow(
    "protocols.record_schema",
    applied,
    key=("protocol", "table_name"),
    columns=("protocol", "table_name", "definition"),
    values={"applied_at_ms": now_ms()},
)
_all = Statement(
    "protocols.schemas", select(applied.c.table_name, applied.c.protocol, applied.c.definition)
)


def install(database: Database[Any], protocol: Protocol) -> list[str]:
    """Bring the tables of a protocol up to date; what was done, in words."""
    with database.reading() as tx:
        known = _known(tx)
    if all(known.get(each.name) == (protocol.name, each) for each in protocol.schema.tables):
        return []
    engine, names = database.engine, database.namespace
    with engine.connect() as connection, database.dialect.migrating(connection, names):
        there = set(inspect(connection).get_table_names())
        steps = []
        for definition in protocol.schema.tables:
            found = known.get(definition.name)
            if found is None and definition.name in there:
                # MySQL keeps a table that was made before the record was written.
                _check_left(connection, protocol, definition)
            steps += _steps(connection, protocol, definition, found, there)
        try:
            ddl.run(connection, steps)
            connection.commit()
        except Exception as error:
            # A unique index that the rows do not allow, for example.
            raise translated(error) from error
    database.run(lambda tx: _write(tx, protocol))
    return [step.words for step in steps]


def tables_of(protocol: Protocol) -> list[Definition]:
    """The tables of a protocol."""
    return list(protocol.schema.tables)


def _known(tx: Transaction) -> dict[str, tuple[str, Definition]]:
    return {
        name: (protocol, msgspec.json.decode(definition, type=Definition))
        for name, protocol, definition in _all.rows(tx)
    }


def _write(tx: Transaction, protocol: Protocol) -> None:
    for definition in protocol.schema.tables:
        _record.run(
            tx,
            protocol_=protocol.name,
            table_name_=definition.name,
            definition_=msgspec.json.encode(definition).decode(),
        )


def _check_left(connection: Any, protocol: Protocol, definition: Definition) -> None:
    """One that an interrupted run has left has all our columns, and no other."""
    columns = {column["name"] for column in inspect(connection).get_columns(definition.name)}
    if columns != {field.name for field in definition.columns}:
        message = f"the table {definition.name} of {protocol.name} is there and is not its own"
        raise NotAllowedNow(message, hint="rename one of the two")


def _steps(
    connection: Any,
    protocol: Protocol,
    definition: Definition,
    found: tuple[str, Definition] | None,
    there: set[str],
) -> list[DdlStep]:
    table = definition.table()
    if found is None and definition.name not in there:
        return ddl.new(table, connection.dialect)
    made = {index["name"] or "" for index in inspect(connection).get_indexes(definition.name)}
    if found is None:
        return ddl.indexes(table, connection.dialect, but=made)
    owner, before = found
    if owner != protocol.name:
        message = f"the table {definition.name} belongs to the protocol {owner}"
        raise NotAllowedNow(message, hint="rename one of the two")
    _check_added(protocol, before, definition)
    old = {field.name for field in before.columns}
    columns = {column["name"] for column in inspect(connection).get_columns(definition.name)}
    added = [
        ddl.added(connection, table.c[field.name])
        for field in definition.columns
        if field.name not in old and field.name not in columns
    ]
    kept = {index.name for index in definition.indexes}
    gone = [
        ddl.without_index(connection, table, index.name)
        for index in before.indexes
        if index.name not in kept and index.name in made
    ]
    return [*added, *gone, *ddl.indexes(table, connection.dialect, but=made)]


def _check_added(protocol: Protocol, before: Definition, after: Definition) -> None:
    """NotAllowedNow unless the rows that are there can stay as they are."""
    old: Mapping[str, object] = {field.name: field for field in before.columns}
    new = {field.name: field for field in after.columns}
    indexes = {index.name: index for index in after.indexes}
    why = None
    for index in before.indexes:
        if indexes.get(index.name, index) != index:
            why = f"the index {index.name} is changed: give it another name"
    if before.key != after.key:
        why = "its key is another"
    for name, field in old.items():
        if new.get(name) != field:
            why = f"the column {name} is changed or gone"
    for name, field in new.items():
        if name not in old and not field.nullable and field.default is None:
            why = f"the new column {name} needs a default"
    if why is not None:
        message = f"the table {after.name} cannot be changed in place: {why}"
        hint = f"make a table of another name in schema.sql of {protocol.name}, and fill it"
        raise NotAllowedNow(message, hint=hint)
