"""The state of one SQLite file that all threads of a process share.

The write lock: threads queue in memory instead of polling the lock of the file.

The copy of the SQLite library: file locks belong to the process, so two copies, ours and that of
the standard library under a user's session, would both hold the write lock, and closing a
connection of one drops the locks of the other. So a process uses one copy for a file:

- If other code has the file open before the ledger, the ledger uses the standard library.
- If other code opens it later with the standard library, the ledger changes to it first.
- If a worker of ours has it open, or the URL names the copy, the other code gets an error.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from ledgerstone.errors import NotAllowedNow, StoreBusy, Unsupported

if TYPE_CHECKING:
    from sqlalchemy import Engine

STANDARD = "sqlite3"
CHANGE_SECONDS_MAX = 30.0
LOOKS_MAX = 10
"""The most checks of whether a file is open, while other threads open and close it."""
_CONNECTS = "sqlite3.connect"
_OPEN_FILES = Path("/proc/self/fd")


class LibraryUser(Protocol):
    """A database of ours on the file."""

    @property
    def open(self) -> bool:
        """Whether it has connections."""

    @property
    def bound(self) -> bool:
        """Whether it must keep its copy: it belongs to a worker, or its URL names the copy."""

    def let_go(self) -> Engine | None:
        """Stop using the open connections and return their engine; later calls open new ones."""


class SharedFile:
    """One SQLite file in this process."""

    def __init__(self, path: Path) -> None:
        self.users: WeakSet[Any] = WeakSet()
        self._path = path
        self._library: str | None = None
        self._lock = threading.Lock()
        self._holder: int | None = None
        # Never closed: a close would drop the locks of the other copy.
        self._left_open: list[Engine] = []
        self._inherited = False

    @contextmanager
    def turn(self, seconds_max: float) -> Iterator[None]:
        """Hold the write lock of this process; StoreBusy after `seconds_max`."""
        me = threading.get_ident()
        if self._holder == me:
            message = "this thread already has a transaction open on this file"
            raise NotAllowedNow(message, hint="use that transaction; SQLite has one writer")
        if not self._lock.acquire(timeout=seconds_max):
            message = "another thread holds a transaction open on this file"
            raise StoreBusy(message, hint="keep transactions short")
        self._holder = me
        try:
            yield
        finally:
            self._holder = None
            self._lock.release()

    def after_fork(self) -> None:
        """Reset the write lock; note whether the file was open during the fork."""
        self._lock = threading.Lock()
        self._holder = None
        ours = self._library != STANDARD and any(user.open for user in self.users)
        if ours and _open_here(self._path):
            # The library assumes that it still holds the locks of these connections.
            self._inherited = True

    def library(self) -> str | None:
        """The copy that has to be used for the file; None for any."""
        if self._inherited:
            message = f"{self._path.name} was in use when this process was forked"
            hint = "fork while no transaction and no worker runs, or start processes by spawn"
            raise NotAllowedNow(message, hint=hint)
        for _ in range(LOOKS_MAX):
            if any(user.open for user in self.users):
                return self._library
            if not _open_here(self._path):
                return None
            # A ledger of another thread may have opened or closed it between these two checks.
        return STANDARD

    def opened_with(self, library: str) -> None:
        """Note the copy with which a database of ours opens the file."""
        self._library = library
        if library != STANDARD:
            _watch_standard_library()

    def change_library(self, library: str, *, seconds_max: float) -> None:
        """Change to this copy; Unsupported if a database of ours must keep its copy."""
        users = [user for user in self.users if user.open]
        if not users or self._library == library:
            return
        with self.turn(seconds_max):
            if any(user.bound for user in users):
                message = (
                    f"this process has the file open with {self._library}, and a connection of "
                    f"{library} would not see its locks"
                )
                hint = f"open the ledger with sqlite:///FILE?driver={library}"
                raise Unsupported(message, hint=hint)
            engines = [user.let_go() for user in users]
            self._left_open += [engine for engine in engines if engine is not None]
            self._library = library


_files: dict[str, SharedFile] = {}
_files_lock = threading.Lock()
_watching = False


def shared_file(path: str | Path) -> SharedFile:
    """The shared state of the file at this path."""
    resolved = Path(path).resolve()
    with _files_lock:
        file = _files.get(str(resolved))
        if file is None:
            file = _files[str(resolved)] = SharedFile(resolved)
        return file


def library_of(engine: Engine) -> str:
    """The package of the driver that an engine uses."""
    return str(engine.dialect.loaded_dbapi.__name__).partition(".")[0]


def _watch_standard_library() -> None:
    """Install an audit hook for files that are opened with the standard library."""
    global _watching  # noqa: PLW0603 - an audit hook belongs to the process and stays
    with _files_lock:
        if not _watching:
            _watching = True
            sys.addaudithook(_notice)


def _notice(event: str, arguments: tuple[Any, ...]) -> None:
    if event != _CONNECTS or not _files:
        return
    with suppress(TypeError, ValueError, OSError):
        name = os.fsdecode(arguments[0])
        name = name.removeprefix("file:").partition("?")[0]
        file = _files.get(str(Path(name).resolve()))
        if file is not None:
            file.change_library(STANDARD, seconds_max=CHANGE_SECONDS_MAX)


def _open_here(path: Path) -> bool:
    """Whether this process has the file open already."""
    try:
        links = list(_OPEN_FILES.iterdir())
    except OSError:
        return False
    for link in links:
        with suppress(OSError):
            if link.readlink() == path:
                return True
    return False
