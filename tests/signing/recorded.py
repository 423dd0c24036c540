"""A transaction that tells in which order keys are locked."""

from __future__ import annotations

from ledgerstone.signing.access import PAGE_ROWS
from ledgerstone.signing.keys import Family
from ledgerstone.signing.store import Page, StoreTransaction
from ledgerstone.signing.values import Stored


class Recorded:
    """The same calls on a real transaction; `locked` lists the keys in the order of their locks."""

    def __init__(self, real: StoreTransaction) -> None:
        self._real = real
        self.locked: list[tuple[Family, bytes]] = []

    def get(self, family: Family, key: bytes, /) -> bytes | None:
        return self._real.get(family, key)

    def page(
        self,
        family: Family,
        prefix: bytes = b"",
        /,
        *,
        after: bytes | None = None,
        rows_max: int = PAGE_ROWS,
    ) -> Page:
        return self._real.page(family, prefix, after=after, rows_max=rows_max)

    def volume(self, key: bytes, /) -> int:
        return self._real.volume(key)

    def get_for_update(self, family: Family, key: bytes, /) -> bytes | None:
        self._lock(family, key)
        return self._real.get_for_update(family, key)

    def put(self, family: Family, key: bytes, value: bytes, /) -> None:
        self._lock(family, key)
        self._real.put(family, key, value)

    def insert(self, family: Family, key: bytes, value: bytes, /) -> Stored:
        self._lock(family, key)
        return self._real.insert(family, key, value)

    def delete(self, family: Family, key: bytes, /) -> None:
        self._lock(family, key)
        self._real.delete(family, key)

    def add_volume(self, key: bytes, amount: int, /) -> int:
        self._lock(Family.VOLUME, key)
        return self._real.add_volume(key, amount)

    def _lock(self, family: Family, key: bytes) -> None:
        if (family, key) not in self.locked:
            self.locked.append((family, key))
