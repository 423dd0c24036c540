"""Forks: a child process does not use the connections of its parent.

A web server may load the application, and with it a ledger, before it forks its workers. Two
processes that write to one connection corrupt its protocol. On SQLite the child has no file locks,
since a fork does not inherit them, but the library still assumes that it holds them.

- Before the fork, idle connections to a file are closed; later calls open new ones.
- In the child, inherited connections are neither used nor closed. A server gets new connections; a
  SQLite file that was in use during the fork is refused (see `sqlite/library.py`).
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forking(Protocol):
    """An object with connections."""

    def before_fork(self) -> None:
        """Called before the fork."""

    def after_fork(self) -> None:
        """Called in the child, which has only this thread; locks of other threads stay locked."""


_watched: WeakSet[Forking] = WeakSet()


def watch(one: Forking) -> None:
    """Call the methods of `one` at each fork, as long as it exists."""
    _watched.add(one)


def _before() -> None:
    for one in list(_watched):
        one.before_fork()


def _after() -> None:
    for one in list(_watched):
        one.after_fork()


os.register_at_fork(before=_before, after_in_child=_after)
