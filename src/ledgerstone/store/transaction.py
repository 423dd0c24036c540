"""A transaction: what everything durable happens inside of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from ledgerstone.errors import LedgerstoneError, StoreError
from ledgerstone.store.connections import block_end as ended
from ledgerstone.store.connections.faults import translated
from ledgerstone.store.connections.joined_end import Ending
from ledgerstone.store.connections.pool import PooledConnection

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, Executable
    from sqlalchemy.engine.interfaces import Dialect as DriverDialect

    from ledgerstone.store.database import Database
    from ledgerstone.store.dialects.postgres.pipeline import Pipeline


class Transaction:
    """One transaction on one database, ours or the caller's.

    - `connection` is the SQLAlchemy connection: the caller's own statements go through it.
    - A joined transaction is the caller's: it is never committed, rolled back or closed here.
    - One of ours ends with its block: what ends it inside is refused, or noticed and raised. Used
      after that, in any thread, it raises NotAllowedNow.
    - Its commit wakes each channel that `wake` was called for, once; a rollback wakes none.
    - What is left for its end (`at_commit`) is done last, inside it; `notes` is where a room keeps
      what it needs for that.
    """

    def __init__(
        self,
        database: Database[Any],
        connection: Connection | PooledConnection,
        *,
        joined: bool = False,
        ending: Ending | None = None,
    ) -> None:
        self.database = database
        self.driver: DriverDialect = connection.dialect
        self._connection = connection
        self.joined = joined
        self.pipeline: Pipeline | None = None
        self.may_end_early = False
        """Whether what began it has nothing to do in it after the work that it calls."""
        self.woken: set[str] = set()
        self.committed: list[Callable[[], None]] = []
        self._savepoints = 0
        self._ended = False
        # The end of one that was joined through a driver's connection is out of sight.
        self._ending = ending if joined else Ending()
        self.notes: dict[str, Any] = self._ending.notes if self._ending is not None else {}

    @property
    def connection(self) -> Connection:
        """The SQLAlchemy connection. From now on every statement is sent at once, in order."""
        self._check_not_ended()
        if self.pipeline is not None:
            self.pipeline.holding = False
            self.pipeline.flush()
        connection = self._connection
        return connection.connection if isinstance(connection, PooledConnection) else connection

    def execute(
        self, statement: Executable, parameters: Any = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """Run a statement on tables of Ledgerstone, or of a room, that is no `Statement`.

        Each table is named where it lies in this ledger: `connection.execute` does not know that.
        """
        names = self.database.namespace
        return self.connection.execute(statement, parameters, execution_options=names.options)

    def cursor(self) -> Any:
        """A cursor of the driver itself, inside this transaction."""
        return self.connection.connection.cursor()

    def own_cursor(self) -> Any:
        """The same, for one statement of ours that is run right now."""
        self.check_open()
        if self.pipeline is not None:
            self.pipeline.flush()
        connection = self._connection
        fairy = (
            connection.fairy if isinstance(connection, PooledConnection) else connection.connection
        )
        return fairy.cursor()

    def check_open(self) -> None:
        """Refuse to go on in one of ours that has ended, with its block or inside it."""
        self._check_not_ended()
        if isinstance(self._connection, PooledConnection):
            self._connection.check_open()

    def break_off(self) -> None:
        """A call of the driver was broken off: the connection is used no more, if it is ours."""
        if isinstance(self._connection, PooledConnection):
            self._connection.break_off()

    def end(self) -> None:
        """Its block is over: from now on every use is refused, from any thread."""
        self._ended = True

    def _check_not_ended(self) -> None:
        if self._ended:
            raise ended.after_the_block()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """What happens inside is undone if it raises; the transaction stays usable."""
        self._savepoints += 1
        name = f"ledgerstone_{self._savepoints}"
        self.command(f"SAVEPOINT {name}")
        try:
            yield
            if self.pipeline is not None:
                # What the database has against it must be known before the savepoint is gone.
                self.pipeline.flush()
        except BaseException as error:
            if self.pipeline is not None:
                self.pipeline.drop()
            try:
                self.command(f"ROLLBACK TO SAVEPOINT {name}")
                self.command(f"RELEASE SAVEPOINT {name}")
            except StoreError:
                # A deadlock has undone all of the transaction, this savepoint too, or the
                # connection is gone: then the first error is the one that says what happened.
                # KeyboardInterrupt and its like may have broken off a call: nothing replaces them.
                if isinstance(error, Exception) and not isinstance(translated(error), StoreError):
                    raise
            raise
        self.command(f"RELEASE SAVEPOINT {name}")

    def command(self, text: str) -> None:
        """Run a statement without parameters or rows, on the driver."""
        if self.pipeline is not None:
            self.check_open()
            self.pipeline.hold(text.encode()).count()
            return
        try:
            with closing(self.own_cursor()) as cursor:
                cursor.execute(text)
        except LedgerstoneError:
            raise
        except Exception as error:
            raise translated(error) from error

    def end_with_next(self) -> None:
        """Let the commit travel with the statement whose answer is read next, where that can be.

        For one after which nothing is written: if something is, it is a transaction of its own.
        Nothing happens unless the transaction was begun for that alone (`may_end_early`).
        """
        if self.pipeline is not None and self.may_end_early:
            self.pipeline.ends = True

    def at_commit(self, name: str, work: Callable[[], None]) -> None:
        """Do this as the last thing before the commit, once for each name.

        Where the commit is the caller's and out of sight, it is done now.
        """
        if self._ending is None:
            work()
        else:
            self._ending.add(name, work)

    def after_commit(self, work: Callable[[], None]) -> None:
        """Do this when the transaction has committed; never if that is the caller's to do."""
        if not self.joined:
            self.committed.append(work)

    def finish(self) -> None:
        """Do what was left for the end: who commits calls it first."""
        if self._ending is not None:
            self._ending.finish()

    def wake(self, channel: str) -> None:
        """Wake the threads that wait for this channel, when this transaction has committed."""
        if channel in self.woken:
            return
        self.woken.add(channel)
        if self.joined:
            # The commit is the caller's and out of sight: what travels with it must be written now.
            self.database.dialect.announce(self, (channel,))
