"""Connections, lent by an engine's pool for one transaction of ours each.

    pool ──lend──▶ transaction ──committed──▶ at hand, at most one ──lend──▶ the next transaction
      ▲                │                         │
      └───otherwise────┴────somebody waits───────┘

Committed, and nothing but statements of ours: then there is nothing to undo.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, event
from sqlalchemy import exc as sa_exc

from ledgerstone import cancellation
from ledgerstone.store.connections import block_end as ended
from ledgerstone.store.connections.faults import is_of_the_call

if TYPE_CHECKING:
    from sqlalchemy import Engine, ExceptionContext, RootTransaction
    from sqlalchemy.pool import PoolProxiedConnection

    from ledgerstone.store.clock import Clock
    from ledgerstone.store.dialect import Dialect

IDLE_SECONDS_TRUSTED = 1.0
"""A connection that rested longer is asked whether it lives before it is used."""
_SEEN_ALIVE = "seen_alive"
_IN_BLOCK = "ledgerstone_in_block"
"""On a connection whose transaction ends with its block: whether the caller has used it."""
_CALLS = "ledgerstone_calls"
"""On a connection that is in the middle of a call."""
_BROKEN_OFF = "ledgerstone_broken_off"
"""On a connection on which a call was broken off: what it answers next may belong to that call."""


class ConnectionPool:
    """Lends the connections of an engine.

    - One that rested, or one from before an outage, is asked whether it lives. One that does not
      answer is replaced in silence.
    - The one that was used last is kept at hand: to take it out of the pool and to put it back
      costs as much as a short statement. Whoever waits at the pool goes first.
    - What would end a transaction before its block does is refused, where SQLAlchemy is told to.
    - One on which a call was broken off, by a signal for example, is discarded.
    - After the end none is kept.
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
        """A connection, for one transaction."""
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
        """Take back one that has nothing left to commit or to undo."""
        with self._lock:
            kept = self._at_hand is None and self._at_pool == 0 and not self._retired
            if kept:
                lent.info[_SEEN_ALIVE] = self._monotonic()
                self._at_hand = lent
        if not kept:
            lent.close()

    def put_back(self) -> None:
        """Put what is at hand into the pool: for whoever takes from there."""
        with self._lock:
            kept, self._at_hand = self._at_hand, None
        if kept is not None:
            kept.close()

    def rest(self) -> None:
        """Close the connections that are at rest; new ones are made when they are needed."""
        self.put_back()
        self.engine.dispose()

    def outage(self) -> None:
        """The server went away: every other connection to it is as doubtful as this one."""
        self._outage = self._monotonic()

    def retire(self) -> None:
        """Close the connections: those at rest now, and the others when they come back."""
        self._retired = True
        self.rest()

    def _from_hand(self) -> PoolProxiedConnection | None:
        """What is at hand; if that is nothing, who asks goes to the pool."""
        with self._lock:
            taken, self._at_hand = self._at_hand, None
            if taken is None:
                self._at_pool += 1
            return taken

    def _check_statement(self, connection: Connection, _: Any, statement: str, *__: Any) -> None:
        """Before each statement of the caller's: the handler may go on, and it ends nothing."""
        cancellation.check()
        info = connection.info
        if _IN_BLOCK in info:
            driver = connection.connection.dbapi_connection
            if self.dialect.would_end(driver, statement):
                raise ended.refused(ended.shown(statement))
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
        except Exception:  # noqa: BLE001 - whatever a driver says of one that is gone
            return False


def _refuse_commit(connection: Connection) -> None:
    if _IN_BLOCK in connection.info:
        raise ended.refused("a commit")


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
    """The driver's connection; SQLAlchemy's is laid over it when it is first asked for.

    Making one, beginning and ending it costs as much as a short statement, and most transactions of
    ours have no use for it: they begin and commit on the driver.
    """

    def __init__(self, pool: ConnectionPool, fairy: PoolProxiedConnection, *, reads: bool) -> None:
        self.dialect = pool.engine.dialect
        self.fairy = fairy
        self._pool = pool
        self._reads = reads
        self._began = False
        self._committed = False
        self._connection: Connection | None = None
        self._begun: RootTransaction | None = None

    @property
    def connection(self) -> Connection:
        """SQLAlchemy's connection, its transaction begun."""
        if self._connection is None:
            self.check_open()
            self._connection = self._laid_over()
        return self._connection

    def begin(self) -> None:
        """Begin the transaction: on the driver, where the dialect can."""
        self._began = self._pool.dialect.begin(self.fairy.dbapi_connection, reads=self._reads)
        if not self._began:
            self._connection = self._laid_over()

    def _laid_over(self) -> Connection:
        """SQLAlchemy's connection, over the transaction if it is open, otherwise it begins one."""
        made = Connection(self._pool.engine, self.fairy)
        self._begun = made.begin()
        if not self._reads:
            self.fairy.info[_IN_BLOCK] = False
            self._pool.dialect.watch_open(self.fairy.dbapi_connection)
        return made

    def check_open(self) -> None:
        """Refuse to go on if the transaction that was begun is not the one that is open now.

        Nobody is asked for that: who had the connection has left traces on this side.
        """
        if self.broken_off:
            raise ended.broken_off()
        connection = self._connection
        if connection is None:
            if self._began:
                self._pool.dialect.check_open(self.fairy.dbapi_connection, used=False)
            return
        if connection.invalidated:
            raise ended.lost()
        if self._reads:
            return
        begun = connection.get_transaction()
        if begun is None or begun is not self._begun or not begun.is_active:
            raise ended.undone()
        used = self.fairy.info.get(_IN_BLOCK, False)
        self._pool.dialect.check_open(self.fairy.dbapi_connection, used=used)

    @property
    def broken_off(self) -> bool:
        """Whether a call on this connection was broken off."""
        return _BROKEN_OFF in self.fairy.info

    def break_off(self) -> None:
        """A call on this connection was broken off: it is used no more."""
        self.fairy.info[_BROKEN_OFF] = True

    def commit(self) -> None:
        """Commit; what a pipeline began it has committed itself."""
        if self._connection is not None:
            self.fairy.info.pop(_IN_BLOCK, None)
            self._connection.commit()
        elif self._began:
            self._pool.dialect.commit(self.fairy.dbapi_connection)
        self._committed = True

    def close(self) -> None:
        """Give it back; what is not committed is undone."""
        if self._connection is not None:
            self._connection.close()
        elif self._committed:
            self._pool.keep(self.fairy)
        else:
            self.fairy.close()

    def give_up(self, *, lost: bool) -> None:
        """Undo and give back one whose transaction failed, or throw it away."""
        lent: Any = self._connection if self._connection is not None else self.fairy
        if self._connection is not None and self._connection.closed:
            # It was lost while it was closed, and is thrown away already.
            return
        try:
            if lost or self.broken_off or getattr(self.fairy.dbapi_connection, "closed", False):
                lent.invalidate()
            elif self._begun is not None and not self._begun.is_active:
                # A commit that failed, too, is an end to SQLAlchemy, after which it undoes nothing.
                self.fairy.rollback()
            lent.close()
        except Exception:  # noqa: BLE001 - also a driver's own error while it is torn down
            # SQLAlchemy's connection may be closed by now, and would raise that.
            if self.fairy.is_valid:
                self.fairy.invalidate()
