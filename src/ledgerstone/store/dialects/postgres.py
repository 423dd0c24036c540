"""PostgreSQL, directly or behind a pooler."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Engine,
    String,
    Text,
    bindparam,
    cast,
    column,
    create_engine,
    event,
    func,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import Insert, insert

from ledgerstone.errors import Unsupported
from ledgerstone.store.batch import (
    Adding,
    AppendEach,
    ClaimEach,
    Incoming,
    InsertEach,
    UpdateEach,
    missed,
)
from ledgerstone.store.statement import Row, Statement
from ledgerstone.store.wakeups.listen import CHANNEL, ListenWatcher

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Connection

    from ledgerstone.settings import StoreSettings
    from ledgerstone.store.transaction import Transaction
    from ledgerstone.store.wakeup import Bells, Watcher

VERSION_MIN = 130000
MIGRATION_LOCK = 0x1ED6E5
PREPARE_AFTER = 5
_NEUTRAL: Any = postgresql.dialect()  # type: ignore[no-untyped-call]
_POSITION = "position"
_POOLED = "yes: statements are not prepared, wake-ups by polling"

_log = logging.getLogger("ledgerstone.store")
_announce = Statement(
    "store.announce",
    select(
        func.pg_notify(
            CHANNEL,
            func.unnest(bindparam("channels", type_=ARRAY(Text()))),
        )
    ),
)


class PostgreSQL:
    """The server most users have."""

    name = "postgresql"
    one_writer = False
    embedded = False

    def __init__(self) -> None:
        self.pooled: bool | None = None
        self._notify = True

    def open(self, url: URL, settings: StoreSettings) -> Engine:
        self._notify = settings.notify != "off"
        engine = create_engine(
            url,
            pool_size=settings.pool_size_max,
            max_overflow=0,
            pool_timeout=settings.lock_timeout_seconds,
            connect_args={
                "connect_timeout": max(1, round(settings.connect_timeout_seconds)),
                "application_name": "ledgerstone",
                # Statements are prepared only once it is known that no pooler is in between.
                "prepare_threshold": None,
            },
        )
        event.listen(engine, "connect", lambda connection, _: self._configure(connection, settings))
        event.listen(engine, "begin", lambda connection: self._begin(connection, settings))
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
            "isolation": ask("transaction_isolation"),
        }

    def update_each(
        self, operation: UpdateEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]:
        statement = operation.statements.get(self.name)
        if statement is None:
            row = _travelling(operation.incoming)
            updating = operation.build(row).returning(getattr(row, _POSITION))
            statement = operation.statements[self.name] = Statement(operation.name, updating)
        done = statement.rows(tx, **common, **_arrays(operation.incoming, rows))
        if len(done) == len(rows):
            return []
        # By position and not by key: two claims of one item may be in one batch.
        taken = {row[0] for row in done}
        return [i for i in range(len(rows)) if i + 1 not in taken]

    def append_each(
        self, operation: AppendEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> None:
        statement = operation.statements.get(self.name)
        if statement is None:
            statement = operation.statements[self.name] = Statement(
                operation.name, _inserting(operation)
            )
        statement.run(tx, **common, **_arrays(operation.incoming, rows))

    def insert_each(
        self, operation: InsertEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]:
        statement = operation.statements.get(self.name)
        if statement is None:
            inserting = _inserting(operation).on_conflict_do_nothing().returning(operation.key)
            statement = operation.statements[self.name] = Statement(operation.name, inserting)

        def carry_out(part: Sequence[Row]) -> Sequence[Row]:
            return statement.rows(tx, **common, **_arrays(operation.incoming, part))

        return missed(rows, operation.key_position, carry_out)

    def claim_each(
        self, operation: ClaimEach, tx: Transaction, limit: int, common: dict[str, Any]
    ) -> list[Row]:
        statement = operation.statements.get(self.name)
        if statement is None:
            due = (
                select(operation.key)
                .where(operation.due)
                .order_by(*operation.order_by)
                .limit(bindparam("limit", type_=BigInteger()))
                .with_for_update(skip_locked=True)
            )
            # The array is made once and its keys are looked up; a join with `due` would be planned
            # as a scan of the whole table for larger limits.
            taken = func.any(func.array(due.scalar_subquery()))
            statement = Statement(
                operation.name,
                update(operation.table)
                .where(operation.key == taken)
                .values(dict(operation.set_))
                .returning(*operation.returning, *operation.ordering),
            )
            operation.statements[self.name] = statement
        return operation.in_order(statement.rows(tx, limit=limit, **common))

    def announce(self, tx: Transaction, channels: Sequence[str]) -> None:
        if self._notify:
            _announce.rows(tx, channels=sorted(channels))

    def watcher(self, url: URL, settings: StoreSettings, bells: Bells) -> Watcher | None:
        if settings.notify == "off" or self.pooled:
            return None
        return ListenWatcher(url, bells, connect_timeout_seconds=settings.connect_timeout_seconds)

    @contextmanager
    def migrating(self, connection: Connection) -> Iterator[None]:
        # Of the transaction, not of the session: it also holds behind a pooler.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        yield

    def _configure(self, connection: Any, settings: StoreSettings) -> None:
        if connection.info.server_version < VERSION_MIN:
            message = f"PostgreSQL {connection.info.server_version} is too old"
            raise Unsupported(message, hint="use PostgreSQL 13 or newer")
        # Ids are plain strings on all databases.
        from psycopg.types.string import TextLoader

        connection.adapters.register_loader("uuid", TextLoader)
        if self.pooled is None:
            self.pooled = _behind_pooler(connection)
            if self.pooled:
                _log.info("behind a pooler: %s", _POOLED)
        prepare = settings.prepared_statements
        if prepare == "on" or (prepare == "auto" and not self.pooled):
            connection.prepare_threshold = PREPARE_AFTER
        if not self.pooled:
            with _outside_transactions(connection):
                for name, value in _limits_ms(settings).items():
                    connection.execute(f"SET {name} = {value}")

    def _begin(self, connection: Connection, settings: StoreSettings) -> None:
        if self.pooled:
            # A setting of the session would be left to whoever is given this session next.
            limits = [f"SET LOCAL {name} = {ms}" for name, ms in _limits_ms(settings).items()]
            connection.exec_driver_sql("; ".join(limits))


def _limits_ms(settings: StoreSettings) -> dict[str, int]:
    return {
        "lock_timeout": settings.lock_timeout_seconds * 1000,
        "idle_in_transaction_session_timeout": settings.transaction_idle_seconds_max * 1000,
    }


def _behind_pooler(connection: Any) -> bool:
    """A pooler hands out a process number of its own; the server knows the real one."""
    with _outside_transactions(connection):
        (pid,) = connection.execute("SELECT pg_backend_pid()").fetchone()
    return bool(pid != connection.info.backend_pid)


@contextmanager
def _outside_transactions(connection: Any) -> Iterator[None]:
    was = connection.autocommit
    connection.autocommit = True
    try:
        yield
    finally:
        connection.autocommit = was


def _travelling(columns: Sequence[Any]) -> Incoming:
    arrays = [cast(bindparam(f"in_{c.name}", type_=Text()), ARRAY(_uncut(c.type))) for c in columns]
    alias = (
        func.unnest(*arrays)
        .table_valued(
            *[column(c.name, c.type) for c in columns], name="incoming", with_ordinality=_POSITION
        )
        .render_derived()
    )
    return Incoming({name: alias.c[name] for name in (*[c.name for c in columns], _POSITION)})


def _inserting(operation: Adding) -> Insert:
    values = operation.assignments(_travelling(operation.incoming))
    return insert(operation.table).from_select(list(values), select(*values.values()))


def _uncut(kind: Any) -> Any:
    """The type without its limit: a cast to VARCHAR(n) cuts in silence, the column refuses."""
    concrete = kind.dialect_impl(_NEUTRAL)
    return Text() if isinstance(concrete, String) and concrete.length else kind


def _arrays(columns: Sequence[Any], rows: Sequence[Row]) -> dict[str, str]:
    """Each column as the text of an array: the driver takes twenty times as long for a list."""
    return {
        f"in_{c.name}": "{" + ",".join(_words(values)) + "}"
        for c, values in zip(columns, zip(*rows, strict=True), strict=True)
    }


def _words(values: Sequence[Any]) -> Iterable[str]:
    first = values[0]
    if values.count(first) == len(values):
        return [_word(first)] * len(values)
    return map(_word, values)


def _word(value: Any) -> str:
    """One element of the text of an array."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
