"""Pessimistic transactions: keys are locked when they are read for update or written."""

from __future__ import annotations

import threading
from contextlib import suppress
from ctypes import byref, c_size_t
from typing import TYPE_CHECKING, Self

from ledgerstone.errors import NotAllowedNow, StoreClosed, WrongProcess
from ledgerstone.signing.rocksdb.files import check_free
from ledgerstone.signing.rocksdb.library import checked
from ledgerstone.signing.rocksdb.lifetime import Child
from ledgerstone.signing.rocksdb.scan import Scan

if TYPE_CHECKING:
    from ledgerstone.signing.rocksdb.database import Database


class Transaction:
    """Reads and writes that commit together; at the end of its block without `commit` undone.

    - A locked key makes others wait. A wait longer than the lock timeout ends with `LockTimeout`, a
      deadlock ends at once with `StoreBusy`; both leave this transaction to be rolled back.
    - Reads see the writes of this transaction. They are not of one moment: another transaction
      may commit between two reads. `get_for_update` keeps a key as it is until the end.
    - It may be used by one thread after the other; calls from two threads take turns.
    """

    def __init__(self, database: Database, *, lock_timeout_seconds: float | None) -> None:
        self._database = database
        self._library = database.library
        self._guard = database.guard
        self._lock = threading.Lock()
        self._size = c_size_t()
        self._scans: list[Child] = []
        self._bytes = 0
        self._child = database.begin(lock_timeout_seconds)

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of the key, without a lock; None if it is not there."""
        database, library = self._database, self._library
        with database.guard.here, self._lock, database.guard:
            pointer = self._open_pointer()
            at = checked(
                library,
                database.guard.what,
                library.transaction_get_cf,
                pointer,
                database.read_options,
                database.family(family),
                key,
                len(key),
                byref(self._size),
            )
            return library.bytes_of(at, self._size.value)

    def get_for_update(self, family: str, key: bytes) -> bytes | None:
        """The value of the key, present or not, which nobody else can change until the end."""
        database, library = self._database, self._library
        with database.guard.here, self._lock, database.guard:
            pointer = self._open_pointer()
            at = checked(
                library,
                database.guard.what,
                library.transaction_get_for_update_cf,
                pointer,
                database.read_options,
                database.family(family),
                key,
                len(key),
                byref(self._size),
                1,
            )
            return library.bytes_of(at, self._size.value)

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Set the value of the key."""
        self._write(self._library.transaction_put_cf, family, key, value, len(value))

    def merge(self, family: str, key: bytes, operand: bytes) -> None:
        """Append the operand to the value, in a family whose options say so."""
        self._write(self._library.transaction_merge_cf, family, key, operand, len(operand))

    def delete(self, family: str, key: bytes) -> None:
        """Remove the key; nothing happens if it is not there."""
        self._write(self._library.transaction_delete_cf, family, key)

    def scan(self, family: str, *, start: bytes = b"", end: bytes | None = None) -> Scan:
        """Rows from `start` to before `end`, with the writes of this transaction."""
        with self._guard.here, self._lock:
            return self._database.open_scan(
                family,
                start=start,
                end=end,
                transaction=self._open_pointer(),
                known=self._scans.append,
            )

    def commit(self) -> None:
        """Make the writes durable and visible, all of them, and end the transaction.

        If it raises, nothing was written, with one exception: after `DiskFailed` or `StoreFull`
        the writes may be found when the database is opened again. Where little room is left it
        raises `StoreFull` before anything is written.
        """
        with self._guard.here, self._lock, self._guard:
            pointer = self._open_pointer()
            self._close_scans()
            what = self._database.guard.what
            try:
                if self._bytes:
                    check_free(self._database.folder, self._bytes)
                checked(self._library, what, self._library.transaction_commit, pointer)
            finally:
                self._database.children.destroy(self._child)

    def rollback(self) -> None:
        """Undo the writes, free the locks, and end the transaction; done twice is fine."""
        if not self._child.slot:
            return
        # A database that closes meanwhile rolls back itself; a child of a fork owns nothing.
        with suppress(StoreClosed, WrongProcess), self._guard.here, self._lock, self._guard:
            self._close_scans()
            # To destroy a transaction rolls it back.
            self._database.children.destroy(self._child)

    def _write(self, call: object, family: str, key: bytes, *value: object) -> None:
        database = self._database
        with database.guard.here, self._lock, database.guard:
            pointer = self._open_pointer()
            handle = database.family(family)
            what = database.guard.what
            checked(self._library, what, call, pointer, handle, key, len(key), *value)  # type: ignore[arg-type]
            self._bytes += len(key) + sum(len(each) for each in value if isinstance(each, bytes))

    def _open_pointer(self) -> int:
        if not self._child.slot:
            raise NotAllowedNow("the transaction has ended")
        return self._child.pointer

    def _close_scans(self) -> None:
        """Its iterators read its writes, so they end before it does."""
        for child in self._scans:
            self._database.children.destroy(child)
        self._scans.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rollback()

    def __del__(self) -> None:
        child = getattr(self, "_child", None)
        if child is not None and child.slot:
            for scan in self._scans:
                self._database.children.forget(scan)
            self._database.children.forget(child)
