"""The C objects of an open database: opened together, closed in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from ctypes import byref, c_char_p, c_void_p
from pathlib import Path

from ledgerstone.errors import StoreBusy
from ledgerstone.signing.rocksdb.files import path_bytes
from ledgerstone.signing.rocksdb.folder_lock import FolderLock
from ledgerstone.signing.rocksdb.library import Call, Library
from ledgerstone.signing.rocksdb.lifetime import Children, Guard, Slot, empty, fill
from ledgerstone.signing.rocksdb.options import FamilyOptions, c_options
from ledgerstone.signing.rocksdb.statuses import error_of_status

CLOSE_SECONDS_MAX = 60.0
"""How long closing waits for calls in progress: longer than any lock timeout."""
FORGOTTEN_SECONDS_MAX = 5.0
FORGOTTEN_TRIES_MAX = 10


class Handles:
    """The C objects of an open database. It refers to no `Database`: a finalizer closes it."""

    def __init__(
        self,
        library: Library,
        guard: Guard,
        children: Children,
        *,
        read_only: bool,
        lock_timeout_seconds: float,
    ) -> None:
        self.slot: Slot = []
        self.families: dict[str, int] = {}
        self.folder_lock = FolderLock()
        self._undestroyed: Iterator[int] = iter(())
        self._library = library
        self._guard = guard
        self._children = children
        self._read_only = read_only
        # Entered twice by a signal handler that closes what is just being closed.
        self._closing = threading.RLock()
        self.read_options: int = library.readoptions_create()
        self.write_options: int = library.writeoptions_create()
        library.writeoptions_set_sync(self.write_options, 1)
        self.transaction_options = transaction_options(library, lock_timeout_seconds)
        self._options: list[tuple[Slot, Call]] = [
            ([self.read_options], library.readoptions_destroy),
            ([self.write_options], library.writeoptions_destroy),
            ([self.transaction_options], library.transaction_options_destroy),
        ]

    @property
    def pointer(self) -> int:
        return self.slot[0]

    def open(self, folder: Path, text: str, families: Mapping[str, FamilyOptions]) -> None:
        library = self._library
        error = c_void_p()
        with ExitStack() as stack:
            texts = [text, *(f"{text};{one.text}" for one in families.values())]
            options, *each = (stack.enter_context(c_options(library, one)) for one in texts)
            names = (c_char_p * len(families))(*(name.encode() for name in families))
            handles = (c_void_p * len(families))()
            # Reads the array when it is asked: what the call below puts there is known from then.
            self._undestroyed = filter(None, iter(handles))
            rest = (path_bytes(folder), len(families), names, (c_void_p * len(each))(*each))
            if self._read_only:
                call = library.open_for_read_only_column_families
                fill(self.slot, call, options, *rest, handles, 0, byref(error))
            else:
                locks = library.transactiondb_options_create()
                stack.callback(library.transactiondb_options_destroy, locks)
                call = library.transactiondb_open_column_families
                fill(self.slot, call, options, locks, *rest, handles, byref(error))
        if error.value is not None:
            raise error_of_status(library.text(error.value), str(folder))
        self.families = dict(zip(families, handles, strict=True))

    def close_forgotten(self) -> None:
        """Close what nobody refers to, or what is still open when Python ends.

        A daemon thread may be in the middle of a call then. The database is left open in that
        case: what was acknowledged is on disk. A signal handler that raises here is heard by
        nobody, so it must not end the closing.
        """
        raised: BaseException | None = None
        for _ in range(FORGOTTEN_TRIES_MAX):
            try:
                self.close(FORGOTTEN_SECONDS_MAX)
            except StoreBusy:
                break
            except BaseException as error:  # noqa: BLE001 - Python reports it, at the end
                raised = error
            else:
                break
        if raised is not None:
            raise raised

    def close(self, seconds_max: float) -> None:
        """Everything of the database, in order; a child of a fork owns nothing of it."""
        if self._guard.here.elsewhere:
            return
        library = self._library
        with self._closing:
            self._guard.close(seconds_max)
            self._children.destroy_all()
            # One step takes a handle and destroys it, with no moment in between.
            end = object()
            while next(map(library.column_family_handle_destroy, self._undestroyed), end) is None:
                pass
            empty(self.slot, library.close if self._read_only else library.transactiondb_close)
            self.folder_lock.release()
            for slot, destroy in self._options:
                empty(slot, destroy)


def transaction_options(library: Library, lock_timeout_seconds: float) -> int:
    """New C options of transactions that notice deadlocks; the caller destroys them."""
    options: int = library.transaction_options_create()
    library.transaction_options_set_lock_timeout(options, round(lock_timeout_seconds * 1000))
    library.transaction_options_set_deadlock_detect(options, 1)
    return options
