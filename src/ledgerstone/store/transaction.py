"""A transaction: what everything durable happens inside of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ledgerstone.errors import StoreError
from ledgerstone.store.faults import translated

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ledgerstone.store.database import Database


class SomeRefused(Exception):
    """Not every row of a batch took effect: it is undone, to be carried out row by row."""


class Transaction:
    """One transaction on one database, ours or the caller's.

    - `connection` is the SQLAlchemy connection: the caller's own statements go through it.
    - A joined transaction is the caller's: it is never committed, rolled back or closed here.
    - Channels woken inside it ring once each, and only if it commits.
    """

    def __init__(
        self, database: Database[Any], connection: Connection, *, joined: bool = False
    ) -> None:
        self.database = database
        self.connection = connection
        self.joined = joined
        self.hopeful = False
        self.woken: set[str] = set()
        self._savepoints = 0

    def cursor(self) -> Any:
        """A cursor of the driver itself, inside this transaction."""
        return self.connection.connection.cursor()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """What happens inside is undone if it raises; the transaction stays usable."""
        self._savepoints += 1
        name = f"ledgerstone_{self._savepoints}"
        self.command(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException as error:
            try:
                self.command(f"ROLLBACK TO SAVEPOINT {name}")
                self.command(f"RELEASE SAVEPOINT {name}")
            except StoreError:
                # A deadlock has undone all of the transaction, this savepoint too, or the
                # connection is gone: then the first error is the one that says what happened.
                if not isinstance(translated(error), StoreError):
                    raise
            raise
        self.command(f"RELEASE SAVEPOINT {name}")

    def trial(self) -> AbstractContextManager[None]:
        """What a batch is tried in, to be undone if some of its rows are refused.

        A savepoint; nothing where the transaction is `hopeful`: then all of it is done again.
        """
        return nullcontext() if self.hopeful else self.savepoint()

    def command(self, text: str) -> None:
        """Run a statement without parameters or rows, on the driver."""
        cursor = self.cursor()
        try:
            cursor.execute(text)
        except Exception as error:
            raise translated(error) from error
        finally:
            cursor.close()

    def wake(self, channel: str) -> None:
        """Ring whoever waits for work on this channel, once this transaction has committed."""
        if channel in self.woken:
            return
        self.woken.add(channel)
        if self.joined:
            # The commit is the caller's and out of sight: what travels with it must be written now.
            self.database.dialect.announce(self, (channel,))
