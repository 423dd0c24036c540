"""Setup of the tables that are shared with Symfony Messenger.

The migrations do not contain these tables: an installation may have them already, under other
names. The setup creates what is missing and keeps existing rows. An outbox without partitions gets
the column and the indexes; receipts without a consumer get the column.

The setup() of Symfony compares its tables with its own definition and drops what it does not know:
the column partition_key and the indexes of Ledgerstone. `messenger:setup-transports` runs it, and
so does `auto_setup` when a table is missing. Ledgerstone logs the loss and creates them again.

The outbox and the failed table are created at their first use (`messaging.auto_setup`). The
receipts are created by `ledgerstone migrate` or `ledgerstone messaging setup --apply`, and with the
other tables of an embedded database.
"""

from __future__ import annotations

import binascii
import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Table, bindparam, func, inspect, select, update

from ledgerstone.errors import NotAllowedNow, SchemaMissing
from ledgerstone.messaging.tables import Shared, lane
from ledgerstone.settings import MessagingSettings
from ledgerstone.store.connections.faults import translated
from ledgerstone.store.schema import ddl
from ledgerstone.store.schema.ddl import DdlStep

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ledgerstone.store.database import Database
    from ledgerstone.store.schema.namespace import Namespace
    from ledgerstone.store.transaction import Transaction


WAITING_MAX = 100_000
"""The count of messages that lost their partition stops here."""
_SYMFONY_INDEXES = ("queue_name", "available_at", "delivered_at")
NOT_OURS = "set auto_setup to false there, and run messenger:setup-transports for other tables only"
_log = logging.getLogger("ledgerstone.messaging")


class Setup:
    """Creates what is missing of the shared tables.

    - `plan` lists what a database lacks, `apply` creates it, `sql` prints all of it for a dialect.
    - `ensure` runs at the first use inside a transaction: it creates what the settings allow, and
      raises SchemaMissing for the rest.
    """

    def __init__(self, shared: Shared, settings: MessagingSettings) -> None:
        self._shared = shared
        self._settings = settings
        self._seen: set[str] = set()
        self._doubtful: set[str] = set()
        self._looking = threading.Lock()

    def ensure(self, tx: Transaction, table: Table) -> None:
        """Checks that the table is complete; creates what is missing if the settings allow it."""
        if table.name in self._seen:
            return
        made_here = f"setup.{table.name}"
        # SQLAlchemy cannot compile its inspection statements in several threads at once.
        with self._looking:
            steps = self._plan(tx.connection, tx.database.namespace, [table])
        if not steps:
            # A table that this transaction created may be rolled back with it.
            own = tx.joined or made_here in tx.notes
            if not (own and table.name in self._doubtful):
                self._seen.add(table.name)
            return
        unasked = table is not self._shared.receipt or tx.database.dialect.embedded
        if not unasked or not self._settings.auto_setup:
            hint = "run `ledgerstone messaging setup --apply`"
            raise SchemaMissing(f"{steps[0].words}: not done yet", hint=hint)
        if tx.database.dialect.one_writer:
            # A transaction of its own would wait for this one, so this one creates the table.
            self._say_lost(tx.connection, tx.database.namespace, [table])
            ddl.run(tx.connection, steps)
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
    ) -> list[DdlStep]:
        """Creates what is missing; returns the steps that were done.

        - `tables`: only these tables.
        - `consumer`: the consumer of receipts that name none.
        """
        wanted = self.tables if tables is None else tables
        names = database.namespace
        try:
            with (
                database.engine.connect() as connection,
                database.dialect.migrating(connection, names),
            ):
                steps = self._plan(connection, names, wanted)
                self._check_receipts(connection, names, wanted, consumer)
                self._say_lost(connection, names, wanted)
                ddl.run(connection, steps)
                if consumer is not None and self._shared.receipt in wanted:
                    self._name_consumer(connection, names, consumer)
                connection.commit()
        except Exception as error:
            fault = translated(error)
            if fault is error:
                raise
            raise fault from error
        return steps

    def plan(self, database: Database[Any]) -> list[DdlStep]:
        """The steps that are missing."""
        with database.reading() as tx:
            return self.lacking(tx.connection, database.namespace)

    def lacking(self, connection: Connection, names: Namespace) -> list[DdlStep]:
        """The steps that are missing, as seen by this connection."""
        return self._plan(connection, names, self.tables)

    def lost(self, database: Database[Any]) -> str | None:
        """The columns and indexes that Symfony's setup() has dropped from the outbox, or None."""
        with database.reading() as tx:
            return self._lost(tx.connection, database.namespace)

    def shared_setup(self, database: Database[Any]) -> bool:
        """Whether Symfony's setup() has created or changed the outbox, by its indexes."""
        with database.reading() as tx:
            found = inspect(tx.connection)
            name, place = self._shared.outbox.name, database.namespace.shared
            if not found.has_table(name, schema=place):
                return False
            # Doctrine names an index by a checksum of its table and column.
            indexes = [
                str(index["name"]).upper() for index in found.get_indexes(name, schema=place)
            ]
            return all(_doctrine_name(name, column) in indexes for column in _SYMFONY_INDEXES)

    def sql(self, dialect_name: str) -> str:
        """The SQL of all shared tables, for an empty database."""
        dialect = ddl.dialect(dialect_name)
        steps = [step for table in self.tables for step in ddl.new(table, dialect)]
        return "".join(f"{step.sql};\n\n" for step in steps)

    @property
    def tables(self) -> list[Table]:
        return [self._shared.outbox, self._shared.failed, self._shared.receipt]

    def _plan(
        self, connection: Connection, names: Namespace, tables: Sequence[Table]
    ) -> list[DdlStep]:
        found = inspect(connection)
        steps: list[DdlStep] = []
        longest = connection.dialect.max_identifier_length
        for table in tables:
            if len(table.name) > longest:
                message = f"the table name {table.name} is longer than {longest} characters"
                raise NotAllowedNow(message, hint="set a shorter name under [messaging]")
            if not found.has_table(table.name, schema=names.shared):
                steps += ddl.new(table, connection.dialect, names)
                continue
            steps += self._changed(connection, names, found, table)
        return steps

    def _changed(
        self, connection: Connection, names: Namespace, found: Any, table: Table
    ) -> list[DdlStep]:
        columns = found.get_columns(table.name, schema=names.shared)
        there = {column["name"]: column for column in columns}
        lacking = [column for column in table.c if column.name not in there]
        steps = []
        for column in lacking:
            if column.name not in {"partition_key", "consumer"}:
                message = f"the table {table.name} has no column {column.name}"
                raise NotAllowedNow(message, hint="set another name; this table has another owner")
            steps.append(ddl.added(connection, column, names))
        # By the key and not by the column: a change may have been interrupted between the two.
        if table is self._shared.receipt and not self._keyed(found, names):
            steps += ddl.rekeyed(connection, table, names)
        if "partition_key" in table.c:
            steps += ddl.exact(connection, table.c.partition_key, names)
        there_already = found.get_indexes(table.name, schema=names.shared)
        indexes = {index["name"] for index in there_already}
        if table is self._shared.failed:
            # An index of Symfony on the same columns is good enough.
            columns = [index["column_names"] for index in there_already]
            indexes |= {i.name for i in table.indexes if [c.name for c in i.columns] in columns}
        steps += ddl.indexes(table, connection.dialect, names, but=indexes)
        # A table that is created again for another key includes its indexes.
        return list(dict.fromkeys(steps))

    def _lost(self, connection: Connection, names: Namespace) -> str | None:
        outbox = self._shared.outbox
        found = inspect(connection)
        place = names.shared
        if not (
            found.has_table(outbox.name, schema=place)
            and found.has_table(lane.name, schema=names.own)
        ):
            return None
        columns = found.get_columns(outbox.name, schema=place)
        if "partition_key" in {column["name"] for column in columns}:
            return None
        used = select(lane.c.id).where(lane.c.partition_key != "").limit(1)
        if connection.execute(used, execution_options=names.options).first() is None:
            # A table of Symfony that Ledgerstone has never used.
            return None
        waiting = select(outbox.c.id).where(outbox.c.delivered_at.is_(None)).limit(WAITING_MAX)
        counted = select(func.count()).select_from(waiting.subquery())
        count = connection.execute(counted, execution_options=names.options).scalar()
        more = "at least " if count == WAITING_MAX else ""
        return (
            f"{outbox.name} has lost its column partition_key and its indexes: Symfony's setup()"
            f" drops what it does not know; {more}{count} messages that wait have lost their"
            " partition, and are sent in one order"
        )

    def _say_lost(self, connection: Connection, names: Namespace, tables: Sequence[Table]) -> None:
        """Logs what is created again: afterwards nothing shows that it was lost."""
        words = self._lost(connection, names) if self._shared.outbox in tables else None
        if words is not None:
            _log.warning("%s; what is missing is created again (%s)", words, NOT_OURS)

    def _keyed(self, found: Any, names: Namespace) -> bool:
        """Whether the primary key of the receipts is message and consumer."""
        receipt = self._shared.receipt
        key = found.get_pk_constraint(receipt.name, schema=names.shared)
        return list(key["constrained_columns"]) == [column.name for column in receipt.primary_key]

    def _check_receipts(
        self,
        connection: Connection,
        names: Namespace,
        tables: Sequence[Table],
        consumer: str | None,
    ) -> None:
        """Raises NotAllowedNow if receipts name no consumer and none is given."""
        receipt = self._shared.receipt
        found = inspect(connection)
        if receipt not in tables or consumer is not None:
            return
        if not found.has_table(receipt.name, schema=names.shared) or self._keyed(found, names):
            return
        counted = select(func.count()).select_from(receipt)
        count = connection.execute(counted, execution_options=names.options).scalar()
        if count:
            message = f"{receipt.name} has {count} receipts without a consumer"
            hint = "name their consumer: ledgerstone messaging setup --apply --consumer NAME"
            raise NotAllowedNow(message, hint=hint)

    def _name_consumer(self, connection: Connection, names: Namespace, consumer: str) -> None:
        receipt = self._shared.receipt
        connection.execute(
            update(receipt).where(receipt.c.consumer == "").values(consumer=bindparam("named")),
            {"named": consumer},
            execution_options=names.options,
        )


def _doctrine_name(table: str, column: str) -> str:
    """The name that Doctrine gives an index of one column."""
    checksums = [f"{binascii.crc32(name.encode()):x}" for name in (table, column)]
    return f"idx_{''.join(checksums)}"[:30].upper()
