"""Records: stored structures by their keys.

Functions that change something lock in one order: the keys of an event, then the request, then the
reserved volume, then the volume of a day.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from ledgerstone.errors import KeyConflict, Malformed, NotFound
from ledgerstone.signing.access import Reader, Transaction
from ledgerstone.signing.bincode import decode, encode
from ledgerstone.signing.keys import Family, Key
from ledgerstone.signing.values import Stored

S = TypeVar("S", bound=msgspec.Struct)

PAGE_ROWS = 200


def find(reader: Reader, kind: type[S], key: Key) -> S | None:
    """The record of a key, or None; Malformed if its bytes are damaged."""
    return _decoded(kind, key.encode(), reader.get(key.family, key.encode()))


def load(reader: Reader, kind: type[S], key: Key, what: str) -> S:
    """The record of a key; NotFound says what is missing."""
    found = find(reader, kind, key)
    if found is None:
        raise NotFound(f"there is no {what}")
    return found


def lock(tx: Transaction, kind: type[S], key: Key) -> S | None:
    """The record of a key, present or not, which no other transaction can change until the end."""
    return _decoded(kind, key.encode(), tx.get_for_update(key.family, key.encode()))


def save(tx: Transaction, key: Key, value: msgspec.Struct) -> None:
    """Write a record, over the one that is there."""
    tx.put(key.family, key.encode(), encode(value))


def insert(tx: Transaction, key: Key, value: msgspec.Struct, what: str) -> Stored:
    """Write a record if there is none; KeyConflict if there is another one."""
    try:
        return tx.insert(key.family, key.encode(), encode(value))
    except KeyConflict as error:
        raise KeyConflict(f"there is another {what}") from error


def scan(reader: Reader, kind: type[S], family: Family, prefix: bytes) -> Iterator[S]:
    """The records whose keys begin with a prefix, in the order of their keys."""
    return (decoded(kind, key, value) for key, value in rows(reader, family, prefix))


def rows(
    reader: Reader, family: Family, prefix: bytes, *, after: bytes | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """The rows whose keys begin with a prefix, read page by page."""
    while True:
        page = reader.page(family, prefix, after=after, rows_max=PAGE_ROWS)
        yield from page.rows
        after = page.after
        if after is None:
            return


def decoded(kind: type[S], key: bytes, value: bytes) -> S:
    """The record that a row holds; Malformed names its key."""
    try:
        return decode(kind, value)
    except Malformed as error:
        raise Malformed(f"the value of {key!r}: {error.message}") from error


def _decoded(kind: type[S], key: bytes, value: bytes | None) -> S | None:
    return None if value is None else decoded(kind, key, value)
