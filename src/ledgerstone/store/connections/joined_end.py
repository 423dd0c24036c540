"""The end of a transaction that was joined: seen where SQLAlchemy makes it, nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event

_known: WeakKeyDictionary[Connection, Ending] = WeakKeyDictionary()


class Ending:
    """What is left to be done before the caller commits, through whichever join it came.

    - `notes` is where rooms keep what they need for that; it ends with the transaction.
    - What is rolled back to a savepoint is not known here.
    """

    def __init__(self) -> None:
        self.notes: dict[str, Any] = {}
        self._last: dict[str, Callable[[], None]] = {}

    def add(self, name: str, work: Callable[[], None]) -> None:
        """Do this last, once for each name."""
        self._last.setdefault(name, work)

    def finish(self) -> None:
        """Do what was left: the transaction is about to be committed."""
        while self._last:
            _, work = self._last.popitem()
            work()
        self.notes.clear()

    def forget(self) -> None:
        """The transaction was rolled back, and all of it with it."""
        self._last.clear()
        self.notes.clear()


def ending_of(connection: Connection) -> Ending:
    """The end of the transaction that is open on a connection of the caller's."""
    found = _known.get(connection)
    if found is None:
        found = _known[connection] = Ending()
        listen = {"commit": found.finish, "rollback": found.forget}
        for name, act in listen.items():
            event.listen(connection, name, lambda _, act=act: act())
        event.listen(connection, "prepare_twophase", lambda *_, act=found.finish: act())
    return found
