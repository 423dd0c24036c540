"""PostgreSQL, directly or behind a pooler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    Engine,
    String,
    Table,
    Text,
    Update,
    and_,
    any_,
    bindparam,
    case,
    cast,
    column,
    create_engine,
    event,
    func,
    literal,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.sql.elements import BindParameter, ColumnElement
from sqlalchemy.sql.visitors import iterate

from ledgerstone.errors import StoreError, Unsupported
from ledgerstone.ids import new_id
from ledgerstone.store import ended
from ledgerstone.store.batch import (
    AddEach,
    Adding,
    AppendEach,
    ClaimEach,
    FirstEach,
    Incoming,
    InsertEach,
    Journal,
    LockEach,
    LockFirst,
    UpdateEach,
    WithRows,
    missed,
)
from ledgerstone.store.deadlines import keepalives
from ledgerstone.store.dialects.postgres_arrays import arrays, in_short, word
from ledgerstone.store.drivers import load
from ledgerstone.store.statement import Row, Statement
from ledgerstone.store.wakeups.listen import CHANNEL, ListenWatcher
from ledgerstone.store.watched import connect_psycopg

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Connection
    from sqlalchemy.pool import PoolProxiedConnection

    from ledgerstone.settings import StoreSettings
    from ledgerstone.store.deadlines import Deadline
    from ledgerstone.store.pipeline import Pipeline
    from ledgerstone.store.transaction import Transaction
    from ledgerstone.store.wakeup import Bells, Watcher

VERSION_MIN = 130000
MIGRATION_LOCK = 0x1ED6E5
PREPARE_AFTER = 5
_NEUTRAL: Any = postgresql.dialect()  # type: ignore[no-untyped-call]
_POSITION = "position"
_Columns = Mapping[str, ColumnElement[Any]]
_TOLD, _NUMBER_DIGITS = "told_id", 8
_TRANSACTION_STATUS_IDLE = 0
_IN_ERROR = 3
"""What libpq says of a transaction in which a statement failed."""
_SESSION = {"DateStyle": "ISO", "array_nulls": "on", "standard_conforming_strings": "on"}
"""How values are written as text; a server, database or role may have other defaults."""
_ISOLATION = {"default_transaction_isolation": "'read committed'"}
"""For a trip that is a transaction by itself; each BEGIN says it, also behind a pooler."""
_POOLED = "yes: statements are not prepared, wake-ups by polling"
_ROUTINE = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "jit": "off",
}
"""For connections on which the same few statements come again and again, each written for an index:
planned once, which takes longer than a short one does, and also well if that was on an empty table.
"""

_log = logging.getLogger("ledgerstone.store")
_announce = Statement(
    "store.announce",
    select(
        func.pg_notify(
            CHANNEL,
            func.unnest(cast(bindparam("channels", type_=Text()), ARRAY(Text()))),
        )
    ),
)


class PostgreSQL:
    """READ COMMITTED throughout; the session's own settings are the same on every server."""

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
            # The driver says it in each BEGIN.
            isolation_level="READ COMMITTED",
            # The one that was used last: its server process has the statements and pages at hand.
            pool_use_lifo=True,
            connect_args={
                "connect_timeout": max(1, round(settings.connect_timeout_seconds)),
                "application_name": "ledgerstone",
                **keepalives(url.query),
                # The default is the encoding of the database, or of the environment.
                "client_encoding": "utf8",
                # Statements are prepared only once it is known that no pooler is in between.
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
            statement = operation.statements[self.name] = _updating(operation)
        sent = in_short(columns, rows, whole=len(operation.incoming))
        done = statement.rows(tx, **common, **sent, **_ids(operation.journal))
        if len(done) == len(rows):
            return []
        # By position and not by key: two claims of one item may be in one batch.
        taken = {row[0] for row in done}
        return [i for i in range(len(rows)) if i + 1 not in taken]

    def lock_each(self, operation: LockEach, tx: Transaction, rows: Sequence[Row]) -> Sequence[Row]:
        statement = operation.statements.get(self.name)
        if statement is None:
            key = operation.key
            keys = cast(bindparam(f"in_{key.name}", type_=Text()), ARRAY(_uncut(key.type)))
            # No join, which could be turned round, and no order of its own: what waits for nothing
            # cannot wait in a circle.
            locking = select(key).where(key == any_(keys)).with_for_update(skip_locked=True)
            statement = operation.statements[self.name] = Statement(operation.name, locking)
        return statement.rows(tx, **arrays([operation.key], rows))

    def append_each(
        self, operation: AppendEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> None:
        columns = operation.carried
        told = _ids(operation.journal)
        if len(rows) == 1:
            # Arrays of one are most of the work for a single row.
            alone = operation.statements.get(f"{self.name}.alone")
            if alone is None:
                alone = Statement(
                    operation.name, _appending(operation, _alone(columns), alone=True)
                )
                operation.statements[f"{self.name}.alone"] = alone
            names = [f"one_{c.name}" for c in columns]
            alone.send(tx, **common, **dict(zip(names, rows[0], strict=True)), **told)
            return
        statement = operation.statements.get(self.name)
        if statement is None:
            statement = operation.statements[self.name] = Statement(
                operation.name, _appending(operation, _travelling_in_short(columns))
            )
        statement.send(tx, **common, **in_short(columns, rows), **told)

    def add_each(
        self, operation: AddEach, tx: Transaction, rows: Sequence[Row], common: dict[str, Any]
    ) -> list[int]:
        statement = operation.statements.get(self.name)
        if statement is None:
            inserting = _inserting(operation, _travelling(operation.incoming))
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
                _adding(operation.table, operation.looked_up(_travelling(operation.incoming)))
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
            # The array is made once, and its rows are found where they lie; a join with `due` would
            # be planned as a scan of the whole table for larger limits. They are locked: none moves
            # before it is changed.
            taken = func.any(func.array(due.scalar_subquery()))
            claiming = update(operation.table).where(place == taken).values(dict(operation.set_))
            statement = operation.statements[self.name] = _claiming(operation, claiming)
        rows = statement.later(tx, limit=limit, **common, **_ids(operation.journal))
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
            row = _travelling(operation.incoming)
            first = operation.build(row).limit(bindparam("each", type_=BigInteger()))
            found = first.lateral("found")
            statement = operation.statements[self.name] = Statement(
                operation.name, select(getattr(row, _POSITION), *found.c)
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
            row = _travelling(operation.incoming)
            first = operation.build(row).limit(row.most).with_for_update(skip_locked=True)
            found = first.lateral("found")
            # Group after group, each only when the one before it was not enough.
            locking = select(getattr(row, _POSITION), *found.c).limit(
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
                operation.name, operation.build(_travelling(operation.incoming))
            )
        return statement, arrays(operation.incoming, rows)

    def pipeline(self, lent: PoolProxiedConnection) -> Pipeline | None:
        if self.pooled:
            return None
        from ledgerstone.store.pipeline import Pipeline

        driver: Any = lent.dbapi_connection
        return Pipeline(driver, lent.info, prepares=self._prepares)

    def begin(self, driver: Any, *, reads: bool) -> bool:
        # Behind a pooler, where nothing is sent together, each transaction sets its session.
        return False

    def commit(self, driver: Any) -> None:
        driver.commit()

    def would_end(self, driver: Any, text: str) -> bool:
        return ended.ends(text)

    def watch_open(self, driver: Any) -> None:
        driver.watch_open()

    def check_open(self, driver: Any, *, used: bool) -> None:
        # Otherwise it may not have begun yet; what a pipeline has begun, that looks after.
        begun = used or self.pooled
        idle = driver.pgconn.transaction_status == _TRANSACTION_STATUS_IDLE
        # What is open now may be another one: the driver begins it by itself.
        if driver.was_ended or (begun and idle):
            raise ended.over()

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
            # The server would answer a COMMIT with ROLLBACK, and call that a success.
            message = "an error inside the transaction was caught: nothing of it can be kept"
            raise StoreError(message, hint="let the error through, or use a savepoint around it")

    def announce(self, tx: Transaction, channels: Sequence[str]) -> None:
        if self._notify:
            _announce.send(tx, channels="{" + ",".join(map(word, sorted(channels))) + "}")

    def watcher(self, url: URL, settings: StoreSettings, bells: Bells) -> Watcher | None:
        if settings.notify == "off" or self.pooled:
            return None
        return ListenWatcher(url, bells, connect_timeout_seconds=settings.connect_timeout_seconds)

    @contextmanager
    def migrating(self, connection: Connection) -> Iterator[None]:
        # Of the transaction, not of the session: it also holds behind a pooler.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        yield

    def _configure(self, connection: Any, lasting: Mapping[str, object]) -> None:
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
        if self.pooled and self._prepares_pooled:
            # Elsewhere the pipeline does it: the driver would have the server forget all that is
            # prepared at every rollback.
            connection.prepare_threshold = PREPARE_AFTER
        if not self.pooled:
            with _outside_transactions(connection):
                connection.execute("; ".join(f"SET {n} = {value}" for n, value in lasting.items()))

    def _begin(self, connection: Connection, settings: StoreSettings) -> None:
        if self.pooled:
            # A setting of the session would be left to whoever is given this session next.
            local = {**_SESSION, **_limits_ms(settings)}.items()
            connection.exec_driver_sql("; ".join(f"SET LOCAL {n} = {value}" for n, value in local))


def _reported(driver: Any, name: str) -> str | None:
    """A setting of the session, as the server has told the driver; nobody is asked for it."""
    info = getattr(driver, "info", None)
    if info is not None:
        told: str | None = info.parameter_status(name)
        return told
    # asyncpg, which SQLAlchemy wraps, reads moments in binary form.
    inner: Any = getattr(driver, "_connection", None)
    if name == "client_encoding" and hasattr(inner, "get_settings"):
        return str(inner.get_settings().client_encoding)
    return None


def _undo(connection: Any) -> None:
    """What was not committed; to ask the driver when there is nothing is half of a return."""
    if connection.pgconn.transaction_status != _TRANSACTION_STATUS_IDLE:
        connection.rollback()


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


def _alone(columns: Sequence[Any]) -> Incoming:
    """One row, each of its values a parameter."""
    values: dict[str, ColumnElement[Any]] = {
        c.name: bindparam(f"one_{c.name}", type_=_uncut(c.type)) for c in columns
    }
    return Incoming(values | {_POSITION: literal_column("1")})


def _travelling_in_short(columns: Sequence[Any], *, whole: int = 1) -> Incoming:
    """As `_travelling`, of what `in_short` sends."""
    row = _travelling(columns)
    # An array that is shorter than the first gives NULL for what it lacks.
    short = {c.name: func.coalesce(getattr(row, c.name), _for_all(c)) for c in columns[whole:]}
    names = [*(c.name for c in columns[:whole]), _POSITION]
    return Incoming({name: getattr(row, name) for name in names} | short)


def _ids(journal: Journal | None) -> dict[str, str]:
    """What the new ids of a journal begin with: the end is random and gives way to a number."""
    return {} if journal is None else {_TOLD: new_id()[:-_NUMBER_DIGITS]}


def _updating(operation: UpdateEach) -> Statement:
    row = _travelling_in_short(operation.carried, whole=len(operation.incoming))
    changing = operation.build(row)
    position = getattr(row, _POSITION)
    journal = operation.journal
    if journal is None:
        return Statement(operation.name, changing.returning(position))
    names = [operation.key.name, *(c.name for c in journal.carried)]
    told_of = [getattr(row, name).label(name) for name in names]
    changed = changing.returning(position, *told_of, *_copied(journal)).cte("changed")
    told = _telling(journal, dict(changed.c), changed.c[_POSITION], changed, _alike(journal))
    main = select(changed.c[_POSITION]).add_cte(told.cte("told"))
    return Statement(operation.name, main, writes=True)


def _appending(operation: AppendEach, row: Incoming, *, alone: bool = False) -> Insert:
    journal = operation.journal
    if journal is None:
        return _inserting(operation, row)
    names = [*(c.name for c in operation.carried), _POSITION]
    sent = select(*[getattr(row, name).label(name) for name in names]).cte("sent")
    row = Incoming(dict(sent.c))
    values = operation.assignments(row)
    copied = {_copy(name): values[c.name] for name, c in journal.copied.items()}
    usual = {} if alone else _alike(journal)
    told = _telling(journal, {**dict(sent.c), **copied}, sent.c[_POSITION], sent, usual)
    # In this order: what else is written is written at last, when the rows that it is of are there.
    return _inserting(operation, row).add_cte(told.cte("told"))


def _claiming(operation: ClaimEach, claiming: Update) -> Statement:
    answered = operation.answered
    journal = operation.journal
    if journal is None:
        return Statement(operation.name, claiming.returning(*answered))
    labels = [c.label(f"c{i}") for i, c in enumerate(answered)]
    changed = claiming.returning(*labels, *_copied(journal)).cte("changed")
    after = {c.name: changed.c[f"c{i}"] for i, c in enumerate(operation.returning)}
    usual = {name: literal(value) for name, value in journal.usual.items()}
    told = _telling(journal, {**dict(changed.c), **after}, func.row_number().over(), changed, usual)
    main = select(*[changed.c[label.name] for label in labels])
    return Statement(operation.name, main.add_cte(told.cte("told")), writes=True)


def _copied(journal: Journal) -> list[ColumnElement[Any]]:
    return [c.label(_copy(name)) for name, c in journal.copied.items()]


def _copy(name: str) -> str:
    return f"copied_{name}"


def _telling(journal: Journal, row: _Columns, number: Any, origin: CTE, usual: _Columns) -> Insert:
    """One row of the journal for each of these; `usual` is what most of them have."""
    values = _told(journal, row, number)
    if usual:
        same = _told(journal, {**row, **usual}, number)
        is_usual = and_(*[row[name] == value for name, value in usual.items()])
        for name, value in values.items():
            if not value.compare(same[name]) and not _is_of(origin, same[name]):
                # As a query of its own it runs once.
                once = select(same[name]).scalar_subquery()
                values[name] = case((is_usual, once), else_=value)
    selected = select(*values.values()).select_from(origin)
    return insert(journal.append.table).from_select(list(values), selected)


def _told(journal: Journal, row: _Columns, number: Any) -> dict[str, Any]:
    first = bindparam(_TOLD, type_=Text()) + func.lpad(func.to_hex(number), _NUMBER_DIGITS, "0")
    append = journal.append
    pairs = zip(append.incoming, (first, *journal.columns(Incoming(row))), strict=True)
    values = append.assignments(Incoming({c.name: cast(value, c.type) for c, value in pairs}))
    return values | {name: row[_copy(name)] for name in journal.copied}


def _is_of(origin: CTE, value: ColumnElement[Any]) -> bool:
    return any(getattr(part, "table", None) is origin for part in iterate(value))


def _alike(journal: Journal) -> _Columns:
    """What `in_short` sends for all rows; NULL, which nothing is like, where they differ."""
    return {c.name: _for_all(c) for c in journal.carried}


def _for_all(c: Any) -> BindParameter[Any]:
    return bindparam(f"all_{c.name}", type_=_uncut(c.type))


def _inserting(operation: Adding, row: Incoming) -> Insert:
    return _adding(operation.table, operation.assignments(row))


def _adding(table: Table, values: Mapping[str, Any]) -> Insert:
    return insert(table).from_select(list(values), select(*values.values()))


def _uncut(kind: Any) -> Any:
    """The type without its limit: a cast to VARCHAR(n) cuts in silence, the column refuses."""
    concrete = kind.dialect_impl(_NEUTRAL)
    return Text() if isinstance(concrete, String) and concrete.length else kind
