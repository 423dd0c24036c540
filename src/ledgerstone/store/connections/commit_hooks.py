"""Hooks that run before the commit, also before the caller's commit of a joined transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event

_known: WeakKeyDictionary[Connection, CommitHooks] = WeakKeyDictionary()


class CommitHooks:
    """Functions to be called before the commit of one transaction.

    - `notes` holds the data of rooms for their hooks, until the transaction ends.
    - A rollback to a savepoint is not visible here.
    """

    def __init__(self) -> None:
        self.notes: dict[str, Any] = {}
        self._last: dict[str, Callable[[], None]] = {}

    def add(self, name: str, work: Callable[[], None]) -> None:
        """Call `work` before the commit, once for each name."""
        self._last.setdefault(name, work)

    def finish(self) -> None:
        """Run the hooks: the transaction is about to commit."""
        while self._last:
            _, work = self._last.popitem()
            work()
        self.notes.clear()

    def forget(self) -> None:
        """Drop the hooks: the transaction was rolled back."""
        self._last.clear()
        self.notes.clear()


def hooks_of(connection: Connection) -> CommitHooks:
    """The hooks of the open transaction on a connection of the caller, one object for all joins."""
    found = _known.get(connection)
    if found is None:
        found = _known[connection] = CommitHooks()
        listen = {"commit": found.finish, "rollback": found.forget}
        for name, act in listen.items():
            event.listen(connection, name, lambda _, act=act: act())
        event.listen(connection, "prepare_twophase", lambda *_, act=found.finish: act())
    return found
