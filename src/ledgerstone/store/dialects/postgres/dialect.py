"""PostgreSQL, with a direct connection or through a transaction pooler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Engine,
    Text,
    bindparam,
    cast,
    column,
    create_engine,
    event,
    func,
    literal_column,
    select,
    table,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from ledgerstone.errors import StoreDenied, StoreError, Unsupported
from ledgerstone.store.connections import block_end
from ledgerstone.store.connections.deadlines import keepalives
from ledgerstone.store.connections.drivers import load
from ledgerstone.store.connections.faults import translated
from ledgerstone.store.dialects.postgres.arrays import arrays, in_short, word
from ledgerstone.store.dialects.postgres.connection import connect_psycopg
from ledgerstone.store.dialects.postgres.rows import (
    POSITION,
    alone_row,
    append_insert,
    change_statement,
    claim_statement,
    insert_rows,
    insert_values,
    new_ids,
    travelling,
    travelling_in_short,
    update_statement,
)
from ledgerstone.store.schema.namespace import Namespace, namespace
from ledgerstone.store.sql.batch import (
    AddEach,
    AppendEach,
    ClaimEach,
    FirstEach,
    InsertEach,
    LockFirst,
    UpdateEach,
    WithRows,
    missed,
)
from ledgerstone.store.sql.locked_rows import CHANGED, LockedRow
from ledgerstone.store.sql.statement import Row, Statement
from ledgerstone.store.wakeups.listen import ListenWatcher

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Connection
    from sqlalchemy.pool import PoolProxiedConnection

    from ledgerstone.settings import StoreSettings
    from ledgerstone.store.connections.deadlines import Deadline
    from ledgerstone.store.dialects.postgres.pipeline import Pipeline
    from ledgerstone.store.sql.locked_rows import ChangeEach
    from ledgerstone.store.sql.rows import InsertRows, UpsertRow
    from ledgerstone.store.transaction import Transaction
    from ledgerstone.store.wakeup import WakeSignals, Watcher

SCHEMA, PUBLIC = "ledgerstone", "public"
"""The default schemas of our tables and of the user's tables."""
VERSION_MIN = 130000
MIGRATION_LOCK = 0x1ED6E5
PREPARE_AFTER = 5
_TRANSACTION_STATUS_IDLE = 0
_IN_ERROR = 3
"""Transaction statuses of libpq: none, and one in which a statement failed."""
_SESSION = {"DateStyle": "ISO", "array_nulls": "on", "standard_conforming_strings": "on"}
"""Settings for the text form of values; a server, database or role may have other defaults."""
_ISOLATION = {"default_transaction_isolation": "'read committed'"}
"""For a round trip without a BEGIN; each BEGIN names the isolation level, also through a pooler."""
_POOLED = "yes: statements are not prepared, wake-ups by polling"
_ROUTINE = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "jit": "off",
}
"""For connections that repeat the same few statements, each written for an index: generic plans,
and index scans also if the table was empty when the statement was planned."""

_log = logging.getLogger("ledgerstone.store")
_locks = table(
    "pg_locks",
    *map(column, ("locktype", "mode", "granted", "pid", "transactionid")),
    schema="pg_catalog",
)
_under_way = Statement(
    "store.under_way",
    select(cast(cast(_locks.c.transactionid, Text), BigInteger)).where(
        _locks.c.locktype == literal_column("'transactionid'"),
        _locks.c.mode == literal_column("'ExclusiveLock'"),
        _locks.c.granted,
        _locks.c.pid.is_distinct_from(func.pg_backend_pid()),
    ),
)
_announce = Statement(
    "store.announce",
    select(
        func.pg_notify(
            bindparam("schema_channel", type_=Text()),
            func.unnest(cast(bindparam("channels", type_=Text()), ARRAY(Text()))),
        )
    ),
)


class PostgreSQL:
    """READ COMMITTED on every connection, and the same session settings on every server."""

    name = "postgresql"
    one_writer = False
    embedded = False
    tells = True
    recurs = True

    def __init__(self) -> None:
        self.pooled: bool | None = None
        self._notify = True
        self._prepares = True
        self._prepares_pooled = False

    def open(
        self, url: URL, settings: StoreSettings, deadline: Deadline, *, routine: bool
    ) -> Engine:
        load("psycopg")
        self._notify = settings.notify != "off"
        self._prepares = settings.prepared_statements != "off"
        self._prepares_pooled = settings.prepared_statements == "on"
        engine = create_engine(
            url,
            pool_size=settings.pool_size_max,
            max_overflow=0,
            pool_timeout=settings.lock_timeout_seconds,
            pool_reset_on_return=None,
            # The driver names it in each BEGIN.
            isolation_level="READ COMMITTED",
            # The connection that was used last: its backend has the statements and pages cached.
            pool_use_lifo=True,
            connect_args={
                "connect_timeout": max(1, round(settings.connect_timeout_seconds)),
                "application_name": "ledgerstone",
                **keepalives(url.query),
                # The default is the encoding of the database, or of the environment.
                "client_encoding": "utf8",
                # Statements are prepared only after the check for a pooler.
                "prepare_threshold": None,
            },
        )
        routinely = _ROUTINE if routine else {}
        lasting = {**_SESSION, **_ISOLATION, **_limits_ms(settings), **routinely}
        event.listen(
            engine,
            "do_connect",
            lambda _, __, args, named: connect_psycopg(deadline, *args, **named),
        )
        event.listen(engine, "connect", lambda connection, _: self._configure(connection, lasting))
        event.listen(engine, "begin", lambda connection: self._begin(connection, settings))
        event.listen(engine, "reset", lambda connection, *_: _undo(connection))
        return engine

    def describe(self, connection: Connection) -> Mapping[str, str]:
        def ask(name: str) -> str:
            return str(connection.exec_driver_sql(f"SHOW {name}").scalar())

        return {
            "database": f"PostgreSQL {ask('server_version')}",
            "driver": f"psycopg {connection.dialect.loaded_dbapi.__version__}",
            "pooler": _POOLED if self.pooled else "no",
            "synchronous_commit": ask("synchronous_commit"),
            "fsync": ask("fsync"),
            "encoding": ask("server_encoding"),
            "isolation": ask("transaction_isolation"),
        }

    def update_each(
        self, operation: UpdateEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]:
        columns = operation.carried
        statement = operation.statements.get(self.name)
        if statement is None:
            statement = operation.statements[self.name] = update_statement(operation)
        sent = in_short(columns, rows, whole=len(operation.incoming))
        done = statement.rows(tx, **common, **sent, **new_ids(operation.journal))
        if len(done) == len(rows):
            return []
        taken = {row[0] for row in done}
        return [i for i in range(len(rows)) if i + 1 not in taken]

    def apply_each(
        self, operation: UpdateEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> None:
        self.update_each(operation, tx, rows, common)

    def change_each(
        self,
        operation: ChangeEach,
        tx: Transaction,
        rows: Sequence[Row],
        common: dict[str, Any],
        *,
        waits: bool,
    ) -> list[LockedRow | None]:
        name = f"{self.name}.waits" if waits else self.name
        statement = operation.statements.get(name)
        if statement is None:
            statement = operation.statements[name] = change_statement(operation, waits=waits)
        # Locks are taken in the order of the keys.
        width = len(operation.key)
        order = sorted(range(len(rows)), key=lambda i: rows[i][:width])
        travelling = [rows[i] for i in order]
        sent = in_short(operation.carried, travelling, whole=len(operation.incoming))
        found: list[LockedRow | None] = [None] * len(rows)
        for position, passes, *stands in statement.rows(
            tx, **common, **sent, **new_ids(operation.journal)
        ):
            found[order[position - 1]] = CHANGED if passes else LockedRow(False, tuple(stands))
        return found

    def append_each(
        self, operation: AppendEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> None:
        columns = operation.carried
        told = new_ids(operation.journal)
        if len(rows) == 1:
            # For a single row, arrays would be most of the cost.
            alone = operation.statements.get(f"{self.name}.alone")
            if alone is None:
                alone = Statement(
                    operation.name, append_insert(operation, alone_row(columns), alone=True)
                )
                operation.statements[f"{self.name}.alone"] = alone
            names = [f"one_{c.name}" for c in columns]
            alone.send(tx, **common, **dict(zip(names, rows[0], strict=True)), **told)
            return
        statement = operation.statements.get(self.name)
        if statement is None:
            statement = operation.statements[self.name] = Statement(
                operation.name, append_insert(operation, travelling_in_short(columns))
            )
        statement.send(tx, **common, **in_short(columns, rows), **told)

    def add_each(
        self, operation: AddEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]:
        statement = operation.statements.get(self.name)
        if statement is None:
            inserting = insert_rows(operation, travelling(operation.incoming))
            statement = operation.statements[self.name] = Statement(
                operation.name, inserting.returning(operation.number)
            )
        return [row[0] for row in statement.rows(tx, **common, **arrays(operation.incoming, rows))]

    def insert_each(
        self, operation: InsertEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]:
        statement = operation.statements.get(self.name)
        if statement is None:
            inserting = (
                insert_values(operation.table, operation.looked_up(travelling(operation.incoming)))
                .on_conflict_do_nothing()
                .returning(operation.key)
            )
            statement = operation.statements[self.name] = Statement(operation.name, inserting)

        def carry_out(part: Sequence[Row]) -> Sequence[Row]:
            return statement.rows(tx, **common, **arrays(operation.incoming, part))

        return missed(
            rows, operation.key_position, carry_out, renames=operation.looks_up is not None
        )

    def claim_each(
        self, operation: ClaimEach, tx: Transaction, limit: int, common: dict[str, Any]
    ) -> Callable[[], list[Row]]:
        statement = operation.statements.get(self.name)
        if statement is None:
            place: Any = literal_column(f"{operation.table.name}.ctid")
            due = (
                select(place)
                .where(operation.due)
                .order_by(*operation.order_by)
                .limit(bindparam("limit", type_=BigInteger()))
                .with_for_update(skip_locked=True)
            )
            # A TID scan over an array; a join with `due` would be planned as a sequential scan for
            # larger limits. The rows are locked, so their ctid does not change.
            taken = func.any(func.array(due.scalar_subquery()))
            claiming = update(operation.table).where(place == taken).values(dict(operation.set_))
            statement = operation.statements[self.name] = claim_statement(operation, claiming)
        rows = statement.later(tx, limit=limit, **common, **new_ids(operation.journal))
        return lambda: operation.in_order(rows())

    def first_each(
        self,
        operation: FirstEach,
        tx: Transaction,
        rows: Sequence[Row],
        each: int,
        common: dict[str, Any],
    ) -> list[list[Row]]:
        statement = operation.statements.get(self.name)
        if statement is None:
            row = travelling(operation.incoming)
            first = operation.build(row).limit(bindparam("each", type_=BigInteger()))
            found = first.lateral("found")
            statement = operation.statements[self.name] = Statement(
                operation.name, select(getattr(row, POSITION), *found.c)
            )
        groups: list[list[Row]] = [[] for _ in rows]
        sent = arrays(operation.incoming, rows)
        for position, *values in statement.rows(tx, each=each, **common, **sent):
            groups[position - 1].append(tuple(values))
        return groups

    def lock_first(
        self,
        operation: LockFirst,
        tx: Transaction,
        rows: Sequence[Row],
        limit: int,
        common: dict[str, Any],
    ) -> list[Row]:
        statement = operation.statements.get(self.name)
        if statement is None:
            row = travelling(operation.incoming)
            first = operation.build(row).limit(row.most).with_for_update(skip_locked=True)
            found = first.lateral("found")
            # A nested loop over the groups, which stops at the limit.
            locking = select(getattr(row, POSITION), *found.c).limit(
                bindparam("limit", type_=BigInteger())
            )
            statement = operation.statements[self.name] = Statement(operation.name, locking)
        sent = arrays(operation.incoming, rows)
        locked = statement.rows(tx, limit=limit, **common, **sent)
        return [tuple(values) for _, *values in sorted(locked, key=itemgetter(0))]

    def with_rows(
        self, operation: WithRows, rows: Sequence[Row]
    ) -> tuple[Statement, dict[str, Any]]:
        statement = operation.statements.get(self.name)
        if statement is None:
            statement = operation.statements[self.name] = Statement(
                operation.name, operation.build(travelling(operation.incoming))
            )
        return statement, arrays(operation.incoming, rows)

    def insert_rows(
        self, operation: InsertRows, tx: Transaction, rows: Sequence[dict[str, Any]]
    ) -> int:
        statement = operation.statements.get(self.name)
        if statement is None:
            inserting = insert(operation.table).values(operation.values).on_conflict_do_nothing()
            statement = operation.statements[self.name] = Statement(operation.name, inserting)
        return statement.run_many(tx, rows)

    def put_row(self, operation: UpsertRow, tx: Transaction, values: dict[str, Any]) -> None:
        statement = operation.statements.get(self.name)
        if statement is None:
            putting = (
                insert(operation.table)
                .values(operation.values)
                .on_conflict_do_update(index_elements=operation.key, set_=dict(operation.changes))
            )
            statement = operation.statements[self.name] = Statement(operation.name, putting)
        statement.run(tx, **values)

    def pipeline(self, lent: PoolProxiedConnection) -> Pipeline | None:
        if self.pooled:
            return None
        from ledgerstone.store.dialects.postgres.pipeline import Pipeline

        driver: Any = lent.dbapi_connection
        return Pipeline(driver, lent.info, prepares=self._prepares)

    def begin(self, driver: Any, *, reads: bool) -> bool:
        # Through a pooler there is no pipeline, and each transaction sets its session.
        return False

    def commit(self, driver: Any) -> None:
        driver.commit()

    def would_end(self, driver: Any, text: str) -> bool:
        return block_end.ends(text)

    def watch_open(self, driver: Any) -> None:
        driver.watch_open()

    def check_open(self, driver: Any, *, used: bool) -> None:
        # Otherwise it may not have begun yet; the pipeline checks a transaction that it began.
        begun = used or self.pooled
        idle = driver.pgconn.transaction_status == _TRANSACTION_STATUS_IDLE
        # An open transaction may be another one: the driver begins transactions by itself.
        if driver.was_ended or (begun and idle):
            raise block_end.over()

    def check_joined(self, driver: Any) -> None:
        if _reported(driver, "client_encoding") == "SQL_ASCII":
            message = "the connection has the client encoding SQL_ASCII: its driver answers no text"
            raise Unsupported(message, hint="connect with client_encoding=utf8")
        style = _reported(driver, "DateStyle")
        if style is not None and not style.startswith("ISO"):
            message = f"the connection has the DateStyle {style}: its driver reads no moments"
            raise Unsupported(message, hint="SET DateStyle = ISO on the connection that is joined")

    def check_unspoiled(self, connection: Any) -> None:
        if connection.dbapi_connection.pgconn.transaction_status == _IN_ERROR:
            # The server would answer a COMMIT with ROLLBACK, without an error.
            message = "an error inside the transaction was caught: nothing of it can be kept"
            raise StoreError(message, hint="let the error through, or use a savepoint around it")

    def under_way(self, tx: Transaction) -> frozenset[int]:
        # Not pg_current_snapshot: it omits transactions that began after the last one that ended. A
        # writing transaction, also a prepared one, locks its own id until its end.
        return frozenset(int(row[0]) for row in _under_way.rows(tx))

    def announce(self, tx: Transaction, channels: Sequence[str]) -> None:
        if self._notify:
            listed = "{" + ",".join(map(word, sorted(channels))) + "}"
            channel = channel_of(tx.database.namespace)
            _announce.send(tx, schema_channel=channel, channels=listed)

    def watcher(
        self, url: URL, settings: StoreSettings, wake_signals: WakeSignals
    ) -> Watcher | None:
        if settings.notify == "off" or self.pooled:
            return None
        return ListenWatcher(
            url,
            wake_signals,
            channel=channel_of(self.namespace(url, settings.schema, None)),
            connect_timeout_seconds=settings.connect_timeout_seconds,
        )

    def namespace(self, url: URL, schema: str | None, users: str | None) -> Namespace:
        return namespace(schema or SCHEMA, users or PUBLIC)

    @contextmanager
    def migrating(self, connection: Connection, names: Namespace) -> Iterator[None]:
        # A lock of the transaction, not of the session, also works through a pooler.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        yield

    def make_place(self, connection: Connection, names: Namespace) -> None:
        # Checked first: IF NOT EXISTS needs the privilege CREATE also for an existing schema.
        there = text("SELECT 1 FROM pg_namespace WHERE nspname = :name")
        if connection.execute(there, {"name": names.own}).first() is not None:
            return
        quoted = connection.dialect.identifier_preparer.quote_schema(str(names.own))
        try:
            connection.exec_driver_sql(f"CREATE SCHEMA {quoted}")
        except Exception as error:
            fault = translated(error)
            if not isinstance(fault, StoreDenied):
                raise
            message = f"the schema {names.own} is not there, and this role may not make it"
            hint = f"as an administrator: CREATE SCHEMA {quoted} AUTHORIZATION of this role"
            raise StoreDenied(message, hint=f"{hint}; or set store.schema") from error

    @contextmanager
    def inside(self, connection: Connection, names: Namespace) -> Iterator[Connection]:
        connection.exec_driver_sql(inside(str(names.own)))
        yield connection

    def _configure(self, connection: Any, lasting: Mapping[str, object]) -> None:
        if connection.info.server_version < VERSION_MIN:
            message = f"PostgreSQL {connection.info.server_version} is too old"
            raise Unsupported(message, hint="use PostgreSQL 13 or newer")
        # Ids are strings on all databases.
        from psycopg.types.string import TextLoader

        connection.adapters.register_loader("uuid", TextLoader)
        if self.pooled is None:
            self.pooled = _behind_pooler(connection)
            if self.pooled:
                _log.info("behind a pooler: %s", _POOLED)
        if self.pooled and self._prepares_pooled:
            # Without a pooler the pipeline prepares: the driver would deallocate all prepared
            # statements at a rollback.
            connection.prepare_threshold = PREPARE_AFTER
        if not self.pooled:
            with _outside_transactions(connection):
                connection.execute("; ".join(f"SET {n} = {value}" for n, value in lasting.items()))

    def _begin(self, connection: Connection, settings: StoreSettings) -> None:
        if self.pooled:
            # A session setting would stay for the next client of the pooler.
            local = {**_SESSION, **_limits_ms(settings)}.items()
            connection.exec_driver_sql("; ".join(f"SET LOCAL {n} = {value}" for n, value in local))


def channel_of(names: Namespace) -> str:
    """The NOTIFY channel of a ledger: each schema has its own."""
    return SCHEMA if names.own == SCHEMA else f"{SCHEMA}.{names.own}"


def inside(schema: str) -> str:
    """The statement that sets the search path to `schema` in this transaction.

    Without `pg_temp` in the path, temporary tables would come first.
    """
    return f'SET LOCAL search_path = "{schema}", pg_temp'


def _reported(driver: Any, name: str) -> str | None:
    """A setting that the server has reported to the driver, without a round trip."""
    info = getattr(driver, "info", None)
    if info is not None:
        told: str | None = info.parameter_status(name)
        return told
    # asyncpg, which SQLAlchemy wraps, reads timestamps in binary form.
    inner: Any = getattr(driver, "_connection", None)
    if name == "client_encoding" and hasattr(inner, "get_settings"):
        return str(inner.get_settings().client_encoding)
    return None


def _undo(connection: Any) -> None:
    """Roll back an open transaction; a rollback without one would double the cost of a return."""
    if connection.pgconn.transaction_status != _TRANSACTION_STATUS_IDLE:
        connection.rollback()


def _limits_ms(settings: StoreSettings) -> dict[str, int]:
    return {
        "lock_timeout": settings.lock_timeout_seconds * 1000,
        "idle_in_transaction_session_timeout": settings.transaction_idle_seconds_max * 1000,
    }


def _behind_pooler(connection: Any) -> bool:
    """Whether the backend PID that the connection was given differs from the server's own."""
    with _outside_transactions(connection):
        (pid,) = connection.execute("SELECT pg_backend_pid()").fetchone()
    return bool(pid != connection.info.backend_pid)


@contextmanager
def _outside_transactions(connection: Any) -> Iterator[None]:
    """Autocommit for a new connection; a connection on which the block fails is discarded.

    It is not reset after an error: the driver would refuse that after an interrupted call, and its
    error would replace the first one.
    """
    was = connection.autocommit
    connection.autocommit = True
    yield
    connection.autocommit = was
