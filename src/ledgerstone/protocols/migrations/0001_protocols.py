"""The tables of protocols; those that another program has made get what they lack."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

from ledgerstone.errors import NotAllowedNow
from ledgerstone.protocols.tables import ADOPTED, tables
from ledgerstone.store.migrations import steps
from ledgerstone.store.schema import ddl

revision, down_revision = "protocols_0001", None

HINT = "rename it, give Ledgerstone a database of its own, or set protocols.enabled = false"


def upgrade() -> None:
    """Make the tables; no event is changed or removed but with a permit."""
    dialect = op.get_context().dialect
    for table in tables.sorted_tables:
        there = None if context.is_offline_mode() else _there(table)
        if there is not None:
            _adopt(table, there)
        made = (
            {index["name"] or "" for index in _inspected().get_indexes(table.name)}
            if there
            else set()
        )
        first = [] if there is not None else ddl.new(table, dialect)[:1]
        for step in [*first, *ddl.indexes(table, dialect, but=made)]:
            op.execute(sa.text(step.sql.replace(":", "\\:")))
    words = "an event is never changed"
    permitted = steps.PERMITTED_BY_PARTITION if steps.is_mysql() else steps.PERMITTED
    steps.keep_history("events", words, permitted=permitted, replaced=True)
    if steps.dialect() == "postgresql":
        steps.look_up_permit_beside_history()


def _inspected() -> sa.Inspector:
    return sa.inspect(op.get_bind())


def _there(table: sa.Table) -> set[str] | None:
    """The columns that a table of this name has; None: there is none."""
    found = _inspected()
    if not found.has_table(table.name):
        return None
    return {column["name"] for column in found.get_columns(table.name)}


def _adopt(table: sa.Table, there: set[str]) -> None:
    """One that has the documented columns, or is left of an interrupted run, gets the others."""
    ours = [column.name for column in table.c]
    needed = ADOPTED.get(table.name, " ".join(ours)).split()
    missing = [name for name in needed if name not in there]
    if missing:
        message = (
            f"the table {table.name} is there already and is not Ledgerstone's:"
            f" it has no column {missing[0]}"
        )
        raise NotAllowedNow(message, hint=HINT)
    connection = op.get_bind()
    ddl.run(
        connection,
        [ddl.added(connection, column) for column in table.c if column.name not in there],
    )
    for constraint in table.constraints:
        names = (
            [column.name for column in constraint.columns]
            if isinstance(constraint, sa.UniqueConstraint)
            else []
        )
        if names and not set(names) <= there:
            steps.add_index(str(constraint.name), table.name, names, unique=True)
