"""The bytes of a blob, read piece by piece: from its slices, or from its file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import BigInteger, bindparam, func, select

from ledgerstone.blobs.paths import path_in, told
from ledgerstone.blobs.rows import BlobRow, file_id_
from ledgerstone.blobs.tables import slices
from ledgerstone.errors import ContentMissing
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

PIECE_BYTES = 262_144
"""What is read of a file at once."""

_position = bindparam("position", type_=BigInteger())
_before = (
    select(func.max(slices.c.offset))
    .where(slices.c.file_id == file_id_, slices.c.offset <= _position)
    .scalar_subquery()
)
# Not ordered by the offset from the end: MariaDB then reads every slice behind the position, too.
_at = Statement(
    "blobs.slice_at",
    select(slices.c.offset, slices.c.data)
    .where(slices.c.file_id == file_id_, slices.c.offset == _before)
    .limit(1),
)


class Place(NamedTuple):
    """Where the bytes of a blob are: in its slices, or in a file."""

    file_id: str
    file: Path | None


def place_of(row: BlobRow, folder: Path | None) -> Place:
    """Where the bytes of a blob are; only a completed one has them in a file."""
    if row.completed and row.disk_name is not None and folder is not None:
        return Place(row.file_id, path_in(folder, row.disk_name))
    return Place(row.file_id, None)


def piece_at(tx: Transaction, place: Place, position: int, *, end: int) -> bytes:
    """Some bytes from a position on, as many as are at hand; ContentMissing if none are."""
    if place.file is not None:
        found = _of_file(place.file, position, end)
    else:
        row = _at.one(tx, file_id_=place.file_id, position=position)
        found = b"" if row is None else bytes(row[1])[position - row[0] : end - row[0]]
    if not found:
        message = f"the file {place.file_id} has no bytes at {position}"
        raise ContentMissing(message, hint="it was removed meanwhile, or `blobs verify` names it")
    return found


def pieces(tx: Transaction, place: Place, start: int, end: int) -> Iterator[bytes]:
    """The bytes from `start` up to `end`, one slice in memory at a time."""
    while start < end:
        piece = piece_at(tx, place, start, end=end)
        yield piece
        start += len(piece)


def _of_file(path: Path, position: int, end: int) -> bytes:
    with told(path):
        try:
            with path.open("rb") as file:
                file.seek(position)
                return file.read(min(PIECE_BYTES, end - position))
        except FileNotFoundError:
            return b""
