"""A transaction: every durable write happens inside one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from ledgerstone import cancellation
from ledgerstone.errors import LedgerstoneError, StoreError
from ledgerstone.store.connections import block_end
from ledgerstone.store.connections.commit_hooks import CommitHooks
from ledgerstone.store.connections.faults import translated

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, Executable
    from sqlalchemy.engine.interfaces import Dialect as DriverDialect

    from ledgerstone.store.connections.joined import JoinedConnection
    from ledgerstone.store.connections.pool import PooledConnection
    from ledgerstone.store.database import Database
    from ledgerstone.store.dialects.postgres.pipeline import Pipeline


Parameters = Mapping[str, object] | Sequence[Mapping[str, object]]
"""Of one run of a statement, or of several."""


class Transaction:
    """One transaction on one database, ours or the caller's.

    - `connection` is the SQLAlchemy connection, for statements of the caller.
    - A joined transaction belongs to the caller, who commits, rolls back and closes it. A use after
      that raises NotInTransaction, as far as the caller's connection tells of its end.
    - A transaction of ours ends with its block. COMMIT and ROLLBACK inside the block raise
      NotAllowedNow, and so does every use after the block, in any thread.
    - In a handler that has to stop, each call raises the reason.
    - Its commit wakes each channel of `wake`, once; a rollback wakes none.
    - Hooks of `at_commit` run inside the transaction, before the commit; `notes` holds their data.
    """

    def __init__(
        self,
        database: Database[Any],
        connection: PooledConnection | JoinedConnection,
        *,
        joined: bool = False,
        ending: CommitHooks | None = None,
    ) -> None:
        self.database = database
        self.driver: DriverDialect = connection.dialect
        self._connection = connection
        self.joined = joined
        self.pipeline: Pipeline | None = None
        self.may_end_early = False
        """Whether its owner sends nothing after the function that runs in it."""
        self.woken: set[str] = set()
        self.committed: list[Callable[[], None]] = []
        self._savepoints = 0
        self._ended = False
        # The commit of a transaction joined through a driver's connection is not visible.
        self._ending = ending if joined else CommitHooks()
        self.notes: dict[str, Any] = self._ending.notes if self._ending is not None else {}

    @property
    def connection(self) -> Connection:
        """The SQLAlchemy connection; from its first use on, every statement is sent at once."""
        self._send_at_once()
        return self._connection.connection

    def execute(
        self, statement: Executable, parameters: Parameters | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """Run a SQLAlchemy statement on tables of Ledgerstone or of a room.

        Unlike `connection.execute` it writes the schema of each table as this ledger names it.
        """
        names = self.database.namespace
        return self.connection.execute(statement, parameters, execution_options=names.options)

    def cursor(self) -> Any:
        """A cursor of the driver, inside this transaction, for statements of the caller.

        From its first use on, every statement is sent at once. It costs less than `connection`.
        """
        self._send_at_once()
        return self._connection.cursor()

    def own_cursor(self) -> Any:
        """The same, for a single statement of ours that runs now."""
        self.check_open()
        if self.pipeline is not None:
            self.pipeline.flush()
        return self._connection.own_cursor()

    def check_open(self) -> None:
        """NotAllowedNow if the transaction has ended, with its block, inside it or by its owner."""
        self._check_not_ended()
        self._connection.check_open()

    def check_usable(self) -> None:
        """Before a call that sends nothing yet: the handler may go on, and the block has not ended.

        Code in the block of a transaction of ours may have ended it: its commit tells.
        """
        cancellation.check()
        self._check_not_ended()
        if self.joined:
            self._connection.check_open()

    def break_off(self) -> None:
        """Note that a call of the driver was interrupted: a connection of ours is discarded."""
        self._connection.break_off()

    def _send_at_once(self) -> None:
        """Hold no statement back: the caller's own must follow those of ours."""
        self.check_usable()
        if self.pipeline is not None:
            self.pipeline.holding = False
            self.pipeline.flush()

    def end(self) -> None:
        """Mark the transaction as ended: every later use raises NotAllowedNow."""
        self._ended = True

    def _check_not_ended(self) -> None:
        if self._ended:
            raise block_end.after_the_block()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A savepoint: the block is rolled back if it raises, and the transaction stays usable."""
        cancellation.check()
        self._savepoints += 1
        name = f"ledgerstone_{self._savepoints}"
        self._send(f"SAVEPOINT {name}")
        try:
            yield
            if self.pipeline is not None:
                # Errors of held statements must arrive before the savepoint is released.
                self.pipeline.flush()
        except BaseException as error:
            if self.pipeline is not None:
                self.pipeline.drop()
            try:
                self._send(f"ROLLBACK TO SAVEPOINT {name}")
                self._send(f"RELEASE SAVEPOINT {name}")
            except StoreError:
                # A deadlock has rolled back the whole transaction with this savepoint, or the
                # connection is lost: then the first error is raised, as is KeyboardInterrupt.
                if isinstance(error, Exception) and not isinstance(translated(error), StoreError):
                    raise
            raise
        self._send(f"RELEASE SAVEPOINT {name}")

    def command(self, text: str) -> None:
        """Run a statement without parameters and result on the driver."""
        cancellation.check()
        self._send(text)

    def _send(self, text: str) -> None:
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
        """Send the commit together with the next statement, if the pipeline is used.

        Only for the last write: a statement after it would be a transaction of its own. The call
        does nothing unless the owner of the transaction allows it (`may_end_early`).
        """
        if self.pipeline is not None and self.may_end_early:
            self.pipeline.ends = True

    def at_commit(self, name: str, work: Callable[[], None]) -> None:
        """Call `work` before the commit, once for each name; now, if the commit is not visible."""
        self.check_usable()
        if self._ending is None:
            work()
        else:
            self._ending.add(name, work)

    def after_commit(self, work: Callable[[], None]) -> None:
        """Call `work` after the commit; never for a joined transaction."""
        self.check_usable()
        if not self.joined:
            self.committed.append(work)

    def finish(self) -> None:
        """Run the hooks of `at_commit`; called before the commit."""
        if self._ending is not None:
            self._ending.finish()

    def wake(self, channel: str) -> None:
        """Wake the threads that wait for this channel, after the commit."""
        self.check_usable()
        if channel in self.woken:
            return
        self.woken.add(channel)
        if self.joined:
            # The commit is the caller's: a NOTIFY must be part of the transaction now.
            self.database.dialect.announce(self, (channel,))
