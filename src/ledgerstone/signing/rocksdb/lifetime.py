"""How long C objects live: closed in order, never while a call uses them, never after a fork.

    database          closed last; closing waits for the calls in progress
    ├── families
    ├── snapshots
    ├── transactions
    └── iterators     closed first

- A call enters the guard of its database. After `close` or in a forked child it raises instead.
- After a fork nothing can be opened in the child either: RocksDB's threads are missing there.
- A signal handler that raises leaves no object behind that nobody knows.
- A forgotten object is put on a list by the garbage collector, and destroyed by a later call:
  a finalizer can run in the middle of any other call, so it must not call RocksDB itself.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from contextlib import suppress
from enum import IntEnum
from inspect import currentframe
from itertools import count, dropwhile
from threading import get_ident
from types import FrameType

from ledgerstone.errors import StoreBusy, StoreClosed, WrongProcess
from ledgerstone.signing.rocksdb.library import Call, Library

LOOK_SECONDS = 0.001


class _Process:
    """The handles that this process inherited.

    - `forks`: how often it was forked, itself and its parents, since the module was imported.
    - `opened`: whether something of RocksDB was opened in it.
    - `threadless`: whether its parent had: RocksDB then believes that it has background threads,
      and would wait for ever for what they do.
    """

    forks = 0
    opened = False
    threadless = False


def _in_child() -> None:
    _Process.forks += 1
    if _Process.opened and not _Process.threadless:
        _Process.threadless = True
        _skip_exit_handlers()


def _skip_exit_handlers() -> None:
    """Let a child end without the exit handlers of RocksDB.

    They join RocksDB's background threads, which a fork does not copy: the child would wait for
    ever. Functions of `on_exit` run in reverse order, so what is registered here, in the child,
    ends the process before the handlers that were registered by the parent.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit") and hasattr(libc, "fcloseall"):
        libc.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        for function in (libc["_exit"], libc["fcloseall"]):
            libc.on_exit(ctypes.cast(function, ctypes.c_void_p), None)


os.register_at_fork(after_in_child=_in_child)


class Here:
    """Entered before a lock: in a forked child the thread that holds the lock may be missing."""

    __slots__ = ("_forks", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._forks = _Process.forks

    def __enter__(self) -> None:
        if self.elsewhere:
            raise WrongProcess(f"{self._what} was opened before a fork")

    def __exit__(self, *_: object) -> None:
        """Nothing: there is nothing to undo."""

    @property
    def elsewhere(self) -> bool:
        """Whether this process is a forked child: the objects belong to the parent."""
        return self._forks != _Process.forks


class Guard:
    """Entered by every call. Closing waits until no other thread is inside."""

    __slots__ = ("_calling", "_closing", "here", "what")

    def __init__(self, what: str) -> None:
        if _Process.threadless:
            raise WrongProcess(
                f"{what} cannot be opened here: RocksDB was used before this process was forked",
                hint="start the process anew (spawn), or open nothing before the fork",
            )
        self.what = what
        self._calling: set[int] = set()
        self._closing = False
        self.here = Here(what)
        _Process.opened = True

    # Only single operations on a set and a flag, which threads see in order: a call first enters
    # and then looks at the flag, closing first sets the flag and then looks who is inside.
    def __enter__(self) -> None:
        self.here.__enter__()
        thread = get_ident()
        self._calling.add(thread)
        if self._closing:
            self._calling.discard(thread)
            raise StoreClosed(f"{self.what} is closed")

    def __exit__(self, *_: object) -> None:
        self._calling.discard(get_ident())

    def close(self, seconds_max: float) -> None:
        """Refuse calls from now on, and wait until those of other threads have returned.

        StoreBusy, and nothing is closed, for a signal handler that interrupted a call: the call
        goes on after the handler.
        """
        self._closing = True
        if get_ident() in self._calling and _interrupts_a_call():
            raise StoreBusy(
                f"{self.what}: this thread is in the middle of a call; close it again later",
                hint="let the signal handler set a flag, or raise",
            )
        give_up = time.monotonic() + seconds_max
        while self._calling - {get_ident()}:
            if time.monotonic() > give_up:
                raise StoreBusy(f"{self.what}: calls are still in progress; close it again later")
            time.sleep(LOOK_SECONDS)


def _interrupts_a_call() -> bool:
    """Whether a function of this package is at work below the one that closes.

    A signal that comes between the entering and its block can leave a thread among those that
    call, so that alone does not tell: the functions that are at work do.
    """
    frame: FrameType | None = currentframe()
    package = __name__.rpartition(".")[0]
    at_work: list[bool] = []
    while frame is not None:
        at_work.append(frame.f_globals.get("__package__") == package)
        frame = frame.f_back
    # The first ones are those that close.
    return any(dropwhile(bool, at_work))


class Rank(IntEnum):
    """The order in which the objects of a database are destroyed."""

    ITERATOR = 0
    TRANSACTION = 1
    SNAPSHOT = 2


Slot = list[int]
"""Holds a C object: one address, or none before it is made and after it is destroyed."""


def fill(slot: Slot, create: Call, *arguments: object) -> None:
    """`create(*arguments)` into the slot, with no moment between the two.

    A signal handler may raise between any two bytecodes. An object that exists and is known to
    nobody then makes RocksDB abort the process when the database closes. `extend`, `filter` and
    `map` run no bytecode: the handler comes before or after all of them. A call that fails and
    answers NULL leaves the slot empty.
    """
    slot.extend(filter(None, map(create, *((argument,) for argument in arguments))))


def empty(slot: Slot, destroy: Call, *before: object) -> None:
    """`destroy(*before, object)` if the slot has one; it is taken out by one thread only."""
    with suppress(IndexError):
        while slot:
            next(map(destroy, *((argument,) for argument in before), map(list.pop, (slot,))))


class Child:
    """A C object of a database.

    - `destroy` is the C function, `before` its arguments before the object.
    - `options` are the read options that it was made with, `kept` is memory that they refer to.
    """

    __slots__ = ("before", "destroy", "kept", "number", "options", "rank", "slot")

    def __init__(
        self, number: int, rank: Rank, destroy: Call, before: tuple[object, ...], kept: object
    ) -> None:
        self.number = number
        self.rank = rank
        self.destroy = destroy
        self.before = before
        self.kept = kept
        self.slot: Slot = []
        self.options: Slot = []

    @property
    def pointer(self) -> int:
        """The C object, which must be alive."""
        return self.slot[0]


class Children:
    """The C objects of one database that are not destroyed yet."""

    def __init__(self, library: Library) -> None:
        self._destroy_options = library.readoptions_destroy
        self._alive: dict[int, Child] = {}
        self._forgotten: deque[Child] = deque()
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._alive)

    def add(self, rank: Rank, destroy: Call, *before: object, kept: object = None) -> Child:
        """A place for an object that is about to be made."""
        child = Child(next(self._numbers), rank, destroy, before, kept)
        self._alive[child.number] = child
        return child

    def forget(self, child: Child) -> None:
        """Called by finalizers, at any moment: only notes it."""
        self._forgotten.append(child)

    def destroy(self, child: Child) -> None:
        """Destroy it, unless that was done."""
        empty(child.slot, child.destroy, *child.before)
        if child.options:
            empty(child.options, self._destroy_options)
        self._alive.pop(child.number, None)

    def destroy_forgotten(self) -> None:
        while self._forgotten:
            try:
                child = self._forgotten.popleft()
            except IndexError:
                return
            self.destroy(child)

    def destroy_all(self) -> None:
        """Iterators first, then transactions, then snapshots."""
        for child in sorted(self._alive.values(), key=lambda one: one.rank):
            self.destroy(child)
