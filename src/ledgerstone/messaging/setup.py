"""Setting up the tables that are shared with Symfony Messenger.

They are not part of the migrations: an installation may have them already, under names of its own.
What is missing is made, what is there is kept with its rows: an outbox without partitions gets the
column and the indexes, receipts without a consumer get one.

The outbox and the failed table are made at their first use (`messaging.auto_setup`); the receipts
by `ledgerstone migrate` or `ledgerstone messaging setup --apply`, and with the rest of an embedded
database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Table, bindparam, func, inspect, select, update

from ledgerstone.errors import NotAllowedNow, SchemaMissing
from ledgerstone.messaging.tables import Shared
from ledgerstone.settings import MessagingSettings
from ledgerstone.store import shaping
from ledgerstone.store.faults import translated
from ledgerstone.store.shaping import Step

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction


class Setup:
    """Makes what is missing of the shared tables.

    - `plan` says what a database lacks, `apply` does it, `sql` writes all of it for a dialect.
    - `ensure` is for the first use inside a transaction: what may be made unasked is made, and for
      the rest an error says what to do.
    """

    def __init__(self, shared: Shared, settings: MessagingSettings) -> None:
        self._shared = shared
        self._settings = settings
        self._seen: set[str] = set()
        self._doubtful: set[str] = set()

    def ensure(self, tx: Transaction, table: Table) -> None:
        """The table is there and as it should be, or is now."""
        if table.name in self._seen:
            return
        made_here = f"setup.{table.name}"
        steps = self._plan(tx.connection, [table])
        if not steps:
            # What this transaction has made itself may be undone with it.
            own = tx.joined or made_here in tx.notes
            if not (own and table.name in self._doubtful):
                self._seen.add(table.name)
            return
        unasked = table is not self._shared.receipt or tx.database.dialect.embedded
        if not unasked or not self._settings.auto_setup:
            hint = "run `ledgerstone messaging setup --apply`"
            raise SchemaMissing(f"{steps[0].words}: not done yet", hint=hint)
        if tx.database.dialect.one_writer:
            # Its own transaction would wait for this one. Whether it stays, this one decides.
            shaping.run(tx.connection, steps)
            tx.notes[made_here] = True
            self._doubtful.add(table.name)
        else:
            self.apply(tx.database, tables=[table])
            self._seen.add(table.name)

    def apply(
        self,
        database: Database[Any],
        *,
        tables: Sequence[Table] | None = None,
        consumer: str | None = None,
    ) -> list[Step]:
        """Make what is missing; answers what was done.

        Receipts that were kept without a consumer are given this one.
        """
        wanted = self.tables if tables is None else tables
        try:
            with database.engine.connect() as connection, database.dialect.migrating(connection):
                steps = self._plan(connection, wanted)
                self._check_receipts(connection, wanted, consumer)
                shaping.run(connection, steps)
                if consumer is not None and self._shared.receipt in wanted:
                    self._name_consumer(connection, consumer)
                connection.commit()
        except Exception as error:
            fault = translated(error)
            if fault is error:
                raise
            raise fault from error
        return steps

    def plan(self, database: Database[Any]) -> list[Step]:
        """What is missing."""
        with database.reading() as tx:
            return self._plan(tx.connection, self.tables)

    def sql(self, dialect_name: str) -> str:
        """All of it as text, for a database that has nothing of it."""
        dialect = shaping.dialect(dialect_name)
        steps = [step for table in self.tables for step in shaping.new(table, dialect)]
        return "".join(f"{step.sql};\n\n" for step in steps)

    @property
    def tables(self) -> list[Table]:
        return [self._shared.outbox, self._shared.failed, self._shared.receipt]

    def _plan(self, connection: Connection, tables: Sequence[Table]) -> list[Step]:
        found = inspect(connection)
        steps: list[Step] = []
        longest = connection.dialect.max_identifier_length
        for table in tables:
            if len(table.name) > longest:
                message = f"the name {table.name} is longer than the {longest} characters of a name"
                raise NotAllowedNow(message, hint="set a shorter one under [messaging]")
            if not found.has_table(table.name):
                steps += shaping.new(table, connection.dialect)
                continue
            steps += self._changed(connection, found, table)
        return steps

    def _changed(self, connection: Connection, found: Any, table: Table) -> list[Step]:
        there = {column["name"]: column for column in found.get_columns(table.name)}
        lacking = [column for column in table.c if column.name not in there]
        steps = []
        for column in lacking:
            if column.name not in {"partition_key", "consumer"}:
                message = f"the table {table.name} has no column {column.name}"
                raise NotAllowedNow(message, hint="another table has this name: set another one")
            steps.append(shaping.added(connection, column))
        # By the key and not by the column: one may have been interrupted between the two.
        if table is self._shared.receipt and not self._keyed(found):
            steps += shaping.rekeyed(connection, table)
        if "partition_key" in table.c:
            steps += shaping.exact(connection, table.c.partition_key)
        indexes = {index["name"] for index in found.get_indexes(table.name)}
        steps += shaping.indexes(table, connection.dialect, but=indexes)
        # A table that is made anew for another key brings its indexes along.
        return list(dict.fromkeys(steps))

    def _keyed(self, found: Any) -> bool:
        """Whether the receipts are kept by message and consumer."""
        receipt = self._shared.receipt
        columns = found.get_pk_constraint(receipt.name)["constrained_columns"]
        return list(columns) == [column.name for column in receipt.primary_key]

    def _check_receipts(
        self, connection: Connection, tables: Sequence[Table], consumer: str | None
    ) -> None:
        """Receipts of before need a consumer: kept without one they would protect nobody."""
        receipt = self._shared.receipt
        found = inspect(connection)
        if receipt not in tables or consumer is not None or not found.has_table(receipt.name):
            return
        if self._keyed(found):
            return
        count = connection.execute(select(func.count()).select_from(receipt)).scalar()
        if count:
            message = f"{receipt.name} has {count} receipts that name no consumer"
            hint = "say whose they are: ledgerstone messaging setup --apply --consumer NAME"
            raise NotAllowedNow(message, hint=hint)

    def _name_consumer(self, connection: Connection, consumer: str) -> None:
        receipt = self._shared.receipt
        connection.execute(
            update(receipt).where(receipt.c.consumer == "").values(consumer=bindparam("named")),
            {"named": consumer},
        )
