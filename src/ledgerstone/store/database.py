"""A database: its connections and transactions, and the state that they share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from random import random
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakSet, finalize

import msgspec
from sqlalchemy import select

from ledgerstone import cancellation
from ledgerstone.errors import (
    LockTimeout,
    SchemaMissing,
    StoreBusy,
    StoreUnavailable,
    Unsupported,
)
from ledgerstone.failpoints import hit
from ledgerstone.store.clock import Clock, DatabaseClock
from ledgerstone.store.connections import forking
from ledgerstone.store.connections.deadlines import Deadline
from ledgerstone.store.connections.faults import (
    MIGRATE_SOMEWHERE,
    commit_unknown,
    dropped_hint,
    migrate_hint,
    translated,
)
from ledgerstone.store.connections.joined import JoinedConnection, of_sqlalchemy
from ledgerstone.store.connections.outage import Outage
from ledgerstone.store.connections.pool import ConnectionPool, PooledConnection
from ledgerstone.store.dialects.by_url import dialect_of
from ledgerstone.store.dialects.sqlite.library import library_of, shared_file
from ledgerstone.store.rooms import StoredRoom
from ledgerstone.store.schema.tables import ledger_identity
from ledgerstone.store.sql.measure import Measure
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.transaction import Transaction
from ledgerstone.store.wakeup import WakeSignals, Watcher

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.engine import URL

    from ledgerstone.settings import StoreSettings
    from ledgerstone.store.schema.namespace import Namespace

T = TypeVar("T")
Tx = TypeVar("Tx", bound=Transaction)

RETRY_SECONDS = 0.01
RETRY_SECONDS_MAX = 1.0

_identity = Statement("store.identity", select(ledger_identity.c.id))


_inherited: list[Engine] = []
"""Engines of the parent process, kept open: a close would end its sessions and drop its locks."""


class Database(Generic[Tx]):
    """One database and its connections.

    - `transaction` commits at the end of the block, or rolls back if the block raises.
    - `run` calls a function in a transaction and retries it after a deadlock or serialization
      failure.
    - `sibling` is the same database with connections of its own.
    - `wrap` makes the transaction object; `rooms` are the rooms whose tables the database has.
    """

    def __init__(
        self,
        url: str,
        settings: StoreSettings,
        *,
        wrap: Callable[..., Tx],
        clock: Clock | None = None,
        rooms: Sequence[StoredRoom] = (),
    ) -> None:
        self.settings = settings
        self.rooms = tuple(rooms)
        self.url, self.dialect = dialect_of(url)
        self.clock = clock or DatabaseClock()
        self.measure = Measure(slow_ms=settings.slow_statement_ms)
        self.wake_signals = WakeSignals()
        self.deadline = Deadline(settings.call_seconds_max)
        shown = self.url.render_as_string(hide_password=True)
        self.outage = Outage(shown, self.clock.monotonic)
        self._wrap = wrap
        self._file = shared_file(self.url.database or "") if self.dialect.one_writer else None
        self._pool: ConnectionPool | None = None
        self._identity: str | None = None
        self._namespace: Namespace | None = None
        self._retire: finalize[..., Any] | None = None
        self._siblings: WeakSet[Database[Tx]] = WeakSet()
        self._is_sibling = False
        if self._file is not None:
            self._file.users.add(self)
        self._lock = threading.Lock()
        forking.watch(self)

    def __repr__(self) -> str:
        return f"Database({self.url.render_as_string(hide_password=True)!r})"

    @property
    def engine(self) -> Engine:
        """The SQLAlchemy engine, with all idle connections in its pool; opened at first use."""
        pool = self._opened_pool()
        pool.put_back()
        return pool.engine

    def _opened_pool(self) -> ConnectionPool:
        with self._lock:
            if self._pool is None:
                self._pool = ConnectionPool(self._opened(), self.clock, self.dialect)
                # Also for a database that is garbage collected without a close.
                self._retire = finalize(self, self._pool.retire)
                self._retire.atexit = False
            return self._pool

    def _opened(self) -> Engine:
        try:
            engine = self.dialect.open(
                self._url_to_open, self.settings, self.deadline, routine=self._is_sibling
            )
        except ModuleNotFoundError as error:
            message = f"the driver {error.name} is not installed"
            hint = "install ledgerstone[postgres] or ledgerstone[mysql]"
            raise Unsupported(message, hint=hint) from error
        if self._file is not None:
            self._file.opened_with(library_of(engine))
        return engine

    def share_library(self, library: str) -> None:
        """Open the file with this copy of SQLite from now on, like the rest of the process."""
        if self._file is not None:
            wait = self.settings.busy_timeout_seconds
            self._file.change_library(library, seconds_max=wait)

    @property
    def open(self) -> bool:
        """Whether the database has connections."""
        return self._pool is not None

    @property
    def bound(self) -> bool:
        """Whether the database must stay with its copy of SQLite."""
        return self._is_sibling or "driver" in self.url.query

    def let_go(self) -> Engine | None:
        """Stop using the open connections and return their engine; later calls open new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
            if self._retire is not None:
                self._retire.detach()
            return pool.engine if pool is not None else None

    def before_fork(self) -> None:
        """Close the idle connections to a file; see `forking`."""
        if self._file is not None and self._pool is not None:
            self._pool.rest()

    def after_fork(self) -> None:
        """Drop the connections and locks of the parent; see `forking`."""
        if self._file is not None:
            self._file.after_fork()
        self._lock = threading.Lock()
        self.wake_signals.after_fork()
        self.measure.after_fork()
        self.outage.after_fork()
        inherited = self.let_go()
        if inherited is not None:
            _inherited.append(inherited)

    @property
    def namespace(self) -> Namespace:
        """The schemas, or databases, of the tables of this ledger."""
        if self._namespace is None:
            self._namespace = self.dialect.namespace(
                self.url, self.settings.schema, self._default_schema()
            )
        return self._namespace

    def _default_schema(self) -> str | None:
        """The schema in which a new connection creates its tables."""
        engine = self.engine
        if engine.dialect.default_schema_name is None:
            # SQLAlchemy reads it at the first connection.
            with self._lent(reads=True):
                pass
        return engine.dialect.default_schema_name

    @property
    def identity(self) -> str:
        """The id of this database, created by its first migration."""
        if self._identity is None:
            with self.reading() as tx:
                return self.identity_in(tx)
        return self._identity

    def identity_in(self, tx: Transaction) -> str:
        """The same, read in an open transaction, which may have the only connection."""
        if self._identity is None:
            row = _identity.one(tx)
            if row is None:
                message = "Ledgerstone's tables are not in this database"
                raise SchemaMissing(message, hint=migrate_hint(self.url))
            self._identity = str(row[0])
        return self._identity

    def sibling(
        self,
        *,
        connections: int,
        idle_seconds_max: int | None = None,
        call_seconds_max: float | None = None,
        lock_seconds_max: int | None = None,
    ) -> Database[Tx]:
        """The same database with its own pool of `connections`, and shared signals and counters.

        The engine uses a sibling, so that it does not wait for a connection of a handler. With
        `call_seconds_max` the lock timeout is at most half of it; `lock_seconds_max` limits the
        lock timeout alone. `idle_seconds_max` replaces `transaction_idle_seconds_max`.
        """
        settings = self.settings
        if lock_seconds_max is not None:
            patience = min(settings.lock_timeout_seconds, lock_seconds_max)
            settings = msgspec.structs.replace(settings, lock_timeout_seconds=patience)
        if call_seconds_max is not None:
            patience = min(settings.lock_timeout_seconds, max(1, int(call_seconds_max / 2)))
            settings = msgspec.structs.replace(
                settings, call_seconds_max=call_seconds_max, lock_timeout_seconds=patience
            )
        twin = Database(
            self.url.render_as_string(hide_password=False),
            msgspec.structs.replace(
                settings,
                pool_size_max=connections,
                transaction_idle_seconds_max=(
                    idle_seconds_max or self.settings.transaction_idle_seconds_max
                ),
            ),
            wrap=self._wrap,
            clock=self.clock,
            rooms=self.rooms,
        )
        twin.measure = self.measure
        twin.wake_signals = self.wake_signals
        twin.outage = self.outage
        twin.dialect = self.dialect
        twin._namespace = self._namespace
        twin._is_sibling = True
        self._siblings.add(twin)
        return twin

    def watcher(self) -> Watcher | None:
        """The watcher for commits of other processes; None if only polling finds them."""
        return self.dialect.watcher(self._url_to_open, self.settings, self.wake_signals)

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        """A transaction that commits at the end of the block."""
        cancellation.check()
        with self._writing_turn(), self._lent() as lent:
            tx = self._begun(lent)
            try:
                yield tx
                tx.finish()
                if tx.woken:
                    self.dialect.announce(tx, sorted(tx.woken))
                hit("transaction.before_commit")
                cancellation.check()
                tx.check_open()
                self.dialect.check_unspoiled(lent.fairy)
                _commit(tx, lent)
            finally:
                tx.end()
        self.outage.succeeded()
        hit("transaction.after_commit")
        if tx.woken:
            self.wake_signals.notify(tx.woken)
        for work in tx.committed:
            work()

    @contextmanager
    def reading(self) -> Iterator[Tx]:
        """A transaction that only reads: it blocks no writer and commits nothing."""
        cancellation.check()
        with self._lent(reads=True) as lent:
            tx = self._begun(lent)
            try:
                yield tx
            finally:
                tx.end()
        self.outage.succeeded()

    @contextmanager
    def snapshot(self) -> Iterator[Tx]:
        """A transaction that only reads, and all whose statements see one state."""
        if self.dialect.one_writer:
            # A transaction of SQLite sees the state in which it first read.
            with self.reading() as tx:
                yield tx
            return
        cancellation.check()
        try:
            with self.engine.connect() as connection:
                connection.execution_options(isolation_level="REPEATABLE READ")
                with connection.begin():
                    tx = self._wrap(self, JoinedConnection(connection, of_sqlalchemy(connection)))
                    try:
                        yield tx
                    finally:
                        tx.end()
        except Exception as error:
            fault = translated(error)
            if fault is error:
                raise
            raise fault from error

    def run(
        self, work: Callable[[Tx], T], *, tries_max: int | None = None, patient: bool = True
    ) -> T:
        """Run `work(tx)` in a transaction; retry it after a deadlock or serialization failure.

        `tries_max` is by default `store.transaction_tries_max`. Without `patient`, LockTimeout is
        not retried.
        """
        tries = tries_max or self.settings.transaction_tries_max
        for attempt in range(1, tries + 1):
            try:
                with self.transaction() as tx:
                    return work(tx)
            except StoreBusy as error:
                if attempt == tries or (not patient and isinstance(error, LockTimeout)):
                    raise
                time.sleep(min(RETRY_SECONDS * 2**attempt, RETRY_SECONDS_MAX) * random())  # noqa: S311
        raise AssertionError(tries)

    def close(self) -> None:
        """Close every connection, also of siblings; a connection in use when it is returned."""
        for sibling in list(self._siblings):
            sibling.close()
        if not self._is_sibling:
            self.measure.log_slow()
        with self._lock:
            pool, retire = self._pool, self._retire
        if retire is not None:
            retire()
        with self._lock:
            # Only now: until the connections are closed, the file stays with its copy of SQLite.
            if self._pool is pool:
                self._pool = None

    @property
    def _url_to_open(self) -> URL:
        """The URL with the copy of SQLite that this process uses for the file."""
        library = self._file.library() if self._file is not None else None
        if library is None or "driver" in self.url.query:
            return self.url
        return self.url.update_query_dict({"driver": library})

    def _begun(self, lent: PooledConnection) -> Tx:
        tx = self._wrap(self, lent)
        tx.pipeline = self.dialect.pipeline(lent.fairy)
        if tx.pipeline is None:
            lent.begin()
        return tx

    @contextmanager
    def _lent(self, *, reads: bool = False) -> Iterator[PooledConnection]:
        pool = self._opened_pool()
        lent: PooledConnection | None = None
        try:
            lent = pool.lend(reads=reads)
            yield lent
            lent.close()
        except BaseException as error:
            fault = translated(error)
            if lent is not None:
                # KeyboardInterrupt may have interrupted a call.
                lost = isinstance(fault, StoreUnavailable) or not isinstance(error, Exception)
                lent.give_up(lost=lost)
            if isinstance(fault, StoreUnavailable):
                pool.outage()
                self.outage.failed(fault)
            if isinstance(fault, SchemaMissing) and fault.hint == MIGRATE_SOMEWHERE:
                fault.hint = dropped_hint(self.url)
            if fault is error:
                raise
            raise fault from error

    def _writing_turn(self) -> AbstractContextManager[None]:
        if self._file is None:
            return nullcontext()
        return self._file.turn(self.deadline.within(self.settings.busy_timeout_seconds))


def _commit(tx: Transaction, lent: PooledConnection) -> None:
    """Commit; CommitUnknown if the connection is lost meanwhile."""
    try:
        if tx.pipeline is not None:
            tx.pipeline.commit()
        lent.commit()
    except Exception as error:
        unknown = commit_unknown(error)
        if unknown is None:
            raise
        raise unknown from error
