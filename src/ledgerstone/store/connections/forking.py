"""A process that forks: what is open belongs to the one that opened it.

A web server may load the application, and with it a ledger, before it forks its workers. A
connection that two processes talk through mixes up what each of them says, and SQLite loses its
locks: they are not inherited, but the library believes that it holds them.

- Before: connections to a file that nobody uses are closed; new ones are opened when needed.
- In the child: connections are neither used nor closed. Those of a server are left alone and new
  ones are made; a file that was in use at that moment is refused (see `sharing`).
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forking(Protocol):
    """What has connections."""

    def before_fork(self) -> None:
        """This process is about to be copied."""

    def after_fork(self) -> None:
        """This process is a copy, with this thread alone, whatever the others held."""


_watched: WeakSet[Forking] = WeakSet()


def watch(one: Forking) -> None:
    """Tell it when the process forks, for as long as it lives."""
    _watched.add(one)


def _before() -> None:
    for one in list(_watched):
        one.before_fork()


def _after() -> None:
    for one in list(_watched):
        one.after_fork()


os.register_at_fork(before=_before, after_in_child=_after)
