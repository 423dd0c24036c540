"""The lock of a folder: one process at a time opens a database in it, and keeps it open.

RocksDB has a lock of its own, and uses files of the folder before it asks for it: of two processes
that open at once, one may fail because the other one removes an old log, and one that fails has
begun a new log of its own. So this lock comes first: a process without it touches nothing.

It is a lock of the folder itself (`flock`), which makes no file. It ends with the process, however
that ends. A forked child gives its copy up: the lock is the parent's.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ledgerstone.errors import StoreLocked
from ledgerstone.signing.rocksdb.files import file_errors
from ledgerstone.signing.rocksdb.lifetime import Slot, empty, fill

_held: dict[int, Slot] = {}
"""The locks that a forked child gives up."""


def _in_child() -> None:
    for slot in _held.values():
        empty(slot, os.close)
    _held.clear()


os.register_at_fork(after_in_child=_in_child)


class FolderLock:
    """The lock of one folder, once `take` has returned."""

    def __init__(self) -> None:
        self._slot: Slot = []

    def take(self, folder: Path) -> None:
        """StoreLocked if another process, or another database of this one, has it."""
        _held[id(self._slot)] = self._slot
        with file_errors(folder):
            fill(self._slot, os.open, folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._slot[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise StoreLocked(f"{folder} is open already, here or in another process") from error
        except OSError:
            # A file system without such locks: RocksDB's own decides.
            self.release()

    def release(self) -> None:
        """Free it; doing so twice is fine."""
        empty(self._slot, os.close)
        _held.pop(id(self._slot), None)
