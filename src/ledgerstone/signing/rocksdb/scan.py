"""Rows of one family in the order of their keys."""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from ctypes import byref, c_size_t
from typing import NamedTuple, Self

from ledgerstone.errors import StoreClosed, WrongProcess
from ledgerstone.signing.rocksdb.library import Library, checked
from ledgerstone.signing.rocksdb.lifetime import Child, Children, Guard


class Row(NamedTuple):
    """A key and its value."""

    key: bytes
    value: bytes


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key behind all keys that begin with the prefix; None if there can be none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


class Scan:
    """An iterator over rows; closed at the end of its block, or when its rows are used up.

    The rows end at the bound or at a damaged block. RocksDB tells the two apart only by the
    iterator's status, so the status is checked when the rows end, and damage raises.
    """

    def __init__(
        self,
        library: Library,
        guard: Guard,
        children: Children,
        child: Child,
        *,
        end: bytes | None,
        owner: object,
    ) -> None:
        # A database that nobody else refers to would close itself in the middle of the scan.
        self._owner = owner
        self._library = library
        self._guard = guard
        self._children = children
        self._child = child
        self._lock = threading.Lock()
        self._size = c_size_t()
        self._end = end
        self._ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Row:
        library, size = self._library, self._size
        with self._guard.here, self._lock, self._guard:
            if self._ended:
                raise StopIteration
            if not self._child.slot:
                raise StoreClosed("the scan is closed")
            pointer = self._child.pointer
            key = self._key(pointer)
            if key is None:
                checked(library, self._guard.what, library.iter_get_error, pointer)
                self._ended = True
                self._children.destroy(self._child)
                raise StopIteration
            at = library.iter_value(pointer, byref(size))
            row = Row(key, ctypes.string_at(at, size.value))
            library.iter_next(pointer)
            return row

    def _key(self, pointer: int) -> bytes | None:
        """The key where the iterator stands; None at the end."""
        library, size = self._library, self._size
        if not library.iter_valid(pointer):
            return None
        at = library.iter_key(pointer, byref(size))
        key = ctypes.string_at(at, size.value)
        # RocksDB keeps the writes of a transaction behind no bound.
        return None if self._end is not None and key >= self._end else key

    def close(self) -> None:
        """End the scan; closing it twice is fine."""
        # A database that closes meanwhile destroys the scan itself; a child of a fork owns nothing.
        with suppress(StoreClosed, WrongProcess), self._guard.here, self._lock, self._guard:
            self._children.destroy(self._child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._child.slot:
            self._children.forget(self._child)
