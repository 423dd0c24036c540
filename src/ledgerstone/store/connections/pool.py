"""The connection pool: one connection for each transaction of ours.

    pool ──lend──▶ transaction ──committed──▶ kept, at most one ──lend──▶ the next transaction
      ▲                │                         │
      └───otherwise────┴────a thread waits───────┘

After a commit for which no SQLAlchemy connection was made, the connection needs no reset, so it can
be kept.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, event
from sqlalchemy import exc as sa_exc

from ledgerstone import cancellation
from ledgerstone.store.connections import block_end
from ledgerstone.store.connections.faults import is_of_the_call

if TYPE_CHECKING:
    from sqlalchemy import Engine, ExceptionContext, RootTransaction
    from sqlalchemy.pool import PoolProxiedConnection

    from ledgerstone.store.clock import Clock
    from ledgerstone.store.dialect import Dialect

IDLE_SECONDS_TRUSTED = 1.0
"""A connection that was idle for longer is pinged before it is used."""
_SEEN_ALIVE = "seen_alive"
_IN_BLOCK = "ledgerstone_in_block"
"""On a connection with a transaction of ours: whether the caller has sent statements on it."""
_CALLS = "ledgerstone_calls"
"""On a connection during a call."""
_BROKEN_OFF = "ledgerstone_broken_off"
"""On a connection whose call was interrupted: its next answer may belong to that call."""


class ConnectionPool:
    """Lends the connections of an engine.

    - A connection that was idle, or is older than an outage, is pinged; one that does not answer is
      replaced.
    - The connection that was used last is kept outside of the pool: a checkout and a return cost as
      much as a short statement. A thread that waits for the pool goes first.
    - COMMIT and ROLLBACK inside the block of a transaction are refused, if SQLAlchemy sends them.
    - A connection whose call was interrupted, for example by a signal, is discarded.
    - After `retire` no connection is kept.
    """

    def __init__(self, engine: Engine, clock: Clock, dialect: Dialect) -> None:
        self.engine = engine
        self.dialect = dialect
        self._monotonic = clock.monotonic
        self._outage = float("-inf")
        self._retired = False
        self._at_hand: PoolProxiedConnection | None = None
        self._at_pool = 0
        self._lock = threading.Lock()
        event.listen(engine, "checkin", self._returned)
        event.listen(engine, "checkout", self._taken)
        event.listen(engine, "commit", _refuse_commit)
        event.listen(engine, "before_cursor_execute", self._check_statement)
        event.listen(engine, "after_cursor_execute", _note_use)
        event.listen(engine, "handle_error", _note_broken_off)

    def lend(self, *, reads: bool = False) -> PooledConnection:
        """A connection for one transaction; `reads`: the transaction only reads."""
        while (taken := self._from_hand()) is not None:
            if self._lives(taken.dbapi_connection, taken.info):
                return PooledConnection(self, taken, reads=reads)
            taken.invalidate()
        try:
            return PooledConnection(self, self.engine.raw_connection(), reads=reads)
        finally:
            with self._lock:
                self._at_pool -= 1

    def keep(self, lent: PoolProxiedConnection) -> None:
        """Take back a connection without an open transaction."""
        with self._lock:
            kept = self._at_hand is None and self._at_pool == 0 and not self._retired
            if kept:
                lent.info[_SEEN_ALIVE] = self._monotonic()
                self._at_hand = lent
        if not kept:
            lent.close()

    def put_back(self) -> None:
        """Return the kept connection to the pool, for callers that use the engine."""
        with self._lock:
            kept, self._at_hand = self._at_hand, None
        if kept is not None:
            kept.close()

    def rest(self) -> None:
        """Close the idle connections; later calls open new ones."""
        self.put_back()
        self.engine.dispose()

    def outage(self) -> None:
        """Note an outage of the server: every connection is pinged before its next use."""
        self._outage = self._monotonic()

    def retire(self) -> None:
        """Close the connections: idle ones now, the others when they are returned."""
        self._retired = True
        self.rest()

    def _from_hand(self) -> PoolProxiedConnection | None:
        """The kept connection; if there is none, the caller counts as waiting for the pool."""
        with self._lock:
            taken, self._at_hand = self._at_hand, None
            if taken is None:
                self._at_pool += 1
            return taken

    def _check_statement(self, connection: Connection, _: Any, statement: str, *__: Any) -> None:
        """Before a statement of the caller: check the cancellation, refuse COMMIT and ROLLBACK."""
        cancellation.check()
        info = connection.info
        if _IN_BLOCK in info:
            driver = connection.connection.dbapi_connection
            if self.dialect.would_end(driver, statement):
                raise block_end.refused(block_end.shown(statement))
        info[_CALLS] = True

    def _returned(self, _: Any, record: Any) -> None:
        if self._retired:
            record.invalidate()
            return
        record.info.pop(_IN_BLOCK, None)
        record.info[_SEEN_ALIVE] = self._monotonic()

    def _taken(self, connection: Any, record: Any, _: Any) -> None:
        if not self._lives(connection, record.info):
            raise sa_exc.DisconnectionError

    def _lives(self, connection: Any, info: Any) -> bool:
        seen = info.get(_SEEN_ALIVE)
        now = self._monotonic()
        if seen is None or (now - seen < IDLE_SECONDS_TRUSTED and seen > self._outage):
            return True
        try:
            return self.engine.dialect.do_ping(connection)
        except Exception:  # noqa: BLE001 - any error of a driver for a lost connection
            return False


def _refuse_commit(connection: Connection) -> None:
    if _IN_BLOCK in connection.info:
        raise block_end.refused("a commit")


def _note_broken_off(context: ExceptionContext) -> None:
    connection = context.connection
    if connection is not None and connection.info.pop(_CALLS, False):
        error = context.original_exception
        if not is_of_the_call(error, context.dialect):
            connection.info[_BROKEN_OFF] = True


def _note_use(connection: Connection, *_: Any) -> None:
    connection.info.pop(_CALLS, None)
    if _IN_BLOCK in connection.info:
        connection.info[_IN_BLOCK] = True


class PooledConnection:
    """A driver's connection; its SQLAlchemy connection is made at the first use of `connection`.

    Making and beginning one costs as much as a short statement, and most transactions of ours do
    not use it: they begin and commit on the driver. Nor does a `cursor` of the driver need it.
    """

    def __init__(self, pool: ConnectionPool, fairy: PoolProxiedConnection, *, reads: bool) -> None:
        self.dialect = pool.engine.dialect
        self.fairy = fairy
        self._pool = pool
        self._reads = reads
        self._began = False
        self._watched = False
        """Whether the caller has a cursor or SQLAlchemy's connection."""
        self._committed = False
        self._connection: Connection | None = None
        self._begun: RootTransaction | None = None

    @property
    def connection(self) -> Connection:
        """SQLAlchemy's connection, in its transaction."""
        if self._connection is None:
            self.check_open()
            self._connection = self._sqlalchemy_connection()
        return self._connection

    def cursor(self) -> Any:
        """A cursor of the driver; SQLAlchemy's connection is not made for it."""
        if self._connection is not None:
            return self._connection.connection.cursor()
        self.check_open()
        if not self._reads and not self._watched:
            self._watch_open()
        return self.fairy.cursor()

    def own_cursor(self) -> Any:
        """A cursor of the driver for a statement of ours, which never ends the transaction."""
        return self.fairy.cursor()

    def begin(self) -> None:
        """Begin the transaction: on the driver if the dialect can, otherwise by SQLAlchemy."""
        self._began = self._pool.dialect.begin(self.fairy.dbapi_connection, reads=self._reads)
        if not self._began:
            self._connection = self._sqlalchemy_connection()

    def _sqlalchemy_connection(self) -> Connection:
        """SQLAlchemy's connection, in the open transaction, or in a new one if none is open."""
        made = Connection(self._pool.engine, self.fairy)
        self._begun = made.begin()
        if not self._reads:
            self.fairy.info[_IN_BLOCK] = False
            self._watch_open()
        return made

    def _watch_open(self) -> None:
        """From now on the caller may end the transaction on the driver."""
        self._watched = True
        self._pool.dialect.watch_open(self.fairy.dbapi_connection)

    def check_open(self) -> None:
        """Raise an error if the transaction that was begun is not open any more.

        The check reads the state of the client and makes no round trip.
        """
        if self.broken_off:
            raise block_end.broken_off()
        connection = self._connection
        if connection is None:
            if self._began or self._watched:
                self._pool.dialect.check_open(self.fairy.dbapi_connection, used=False)
            return
        if connection.invalidated:
            raise block_end.lost()
        if self._reads:
            return
        begun = connection.get_transaction()
        if begun is None or begun is not self._begun or not begun.is_active:
            raise block_end.undone()
        used = self.fairy.info.get(_IN_BLOCK, False)
        self._pool.dialect.check_open(self.fairy.dbapi_connection, used=used)

    @property
    def broken_off(self) -> bool:
        """Whether a call on this connection was interrupted."""
        return _BROKEN_OFF in self.fairy.info

    def break_off(self) -> None:
        """Note that a call was interrupted: the connection is not used again."""
        self.fairy.info[_BROKEN_OFF] = True

    def commit(self) -> None:
        """Commit, unless the pipeline has committed."""
        if self._connection is not None:
            self.fairy.info.pop(_IN_BLOCK, None)
            self._connection.commit()
        elif self._began:
            self._pool.dialect.commit(self.fairy.dbapi_connection)
        self._committed = True

    def close(self) -> None:
        """Return the connection; a transaction that is still open is rolled back."""
        if self._connection is not None:
            self._connection.close()
        elif self._committed:
            self._pool.keep(self.fairy)
        else:
            self.fairy.close()

    def give_up(self, *, lost: bool) -> None:
        """Roll back and return the connection of a failed transaction, or discard it."""
        lent: Any = self._connection if self._connection is not None else self.fairy
        if self._connection is not None and self._connection.closed:
            # It was lost during its close, and is discarded already.
            return
        try:
            if lost or self.broken_off or getattr(self.fairy.dbapi_connection, "closed", False):
                lent.invalidate()
            elif self._begun is not None and not self._begun.is_active:
                # SQLAlchemy does not roll back after a commit that failed.
                self.fairy.rollback()
            lent.close()
        except Exception:  # noqa: BLE001 - also an error of the driver during the close
            # SQLAlchemy's connection may be closed by now, and would raise for that.
            if self.fairy.is_valid:
                self.fairy.invalidate()
