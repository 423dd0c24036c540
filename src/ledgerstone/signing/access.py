"""The store as the rules of this room see it: families of keys and values, as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ledgerstone.signing.keys import Family
from ledgerstone.signing.values import Stored

PAGE_ROWS = 1000


class Page(Protocol):
    """Some rows in the order of their keys; `after` is the cursor of the next page, if any."""

    @property
    def rows(self) -> Sequence[tuple[bytes, bytes]]: ...
    @property
    def after(self) -> bytes | None: ...


class Reader(Protocol):
    """A source of rows: the store, a view of one moment, a transaction.

    - `get` answers the value of a key, or None.
    - `page` answers the next rows with a prefix, behind the key `after`, at most `rows_max`, and no
      more once they have `PAGE_BYTES_MAX` bytes.
    - `volume` answers the number under a key of the volume family, 0 where there is none.
    """

    def get(self, family: Family, key: bytes, /) -> bytes | None: ...
    def page(
        self,
        family: Family,
        prefix: bytes = b"",
        /,
        *,
        after: bytes | None = None,
        rows_max: int = PAGE_ROWS,
    ) -> Page: ...
    def volume(self, key: bytes, /) -> int: ...


class Transaction(Reader, Protocol):
    """Reads and writes that are committed together, or not at all.

    - Reads see the transaction's own writes.
    - A key that is written or read by `get_for_update`, present or not, is locked until the end.
    - `insert` stores a value if the key is free; KeyConflict if it holds another value.
    - `add_volume` adds to the number under a key of the volume family, saturating at 64 bits.
    """

    def get_for_update(self, family: Family, key: bytes, /) -> bytes | None: ...
    def put(self, family: Family, key: bytes, value: bytes, /) -> None: ...
    def insert(self, family: Family, key: bytes, value: bytes, /) -> Stored: ...
    def delete(self, family: Family, key: bytes, /) -> None: ...
    def add_volume(self, key: bytes, amount: int, /) -> int: ...
