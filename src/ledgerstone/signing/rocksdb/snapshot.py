"""Reads of one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from ledgerstone.errors import NotAllowedNow
from ledgerstone.signing.rocksdb.lifetime import Child
from ledgerstone.signing.rocksdb.scan import Scan

if TYPE_CHECKING:
    from ledgerstone.signing.rocksdb.database import Database


class Snapshot:
    """The database as it was at one moment, for reads; released at the end of its block."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._child = database.begin_snapshot()

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value that the key had at that moment."""
        return self._database.get(family, key, snapshot=self)

    def scan(self, family: str, *, start: bytes = b"", end: bytes | None = None) -> Scan:
        """The rows of that moment, from `start` to before `end`."""
        return self._database.scan(family, start=start, end=end, snapshot=self)

    @property
    def handle(self) -> Child:
        """The C object, unless it was released."""
        if not self._child.slot:
            raise NotAllowedNow("the snapshot was released")
        return self._child

    def close(self) -> None:
        """Release it; doing so twice is fine."""
        self._database.end(self._child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        child = getattr(self, "_child", None)
        if child is not None and child.slot:
            self._database.children.forget(child)
