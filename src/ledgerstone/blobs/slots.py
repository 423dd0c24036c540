"""The slots of a blob: which slices are there, and what a new one has to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import BigInteger, LargeBinary, bindparam, func, insert, select

from ledgerstone.blobs import rows
from ledgerstone.blobs.content import pieces, place_of
from ledgerstone.blobs.progress import slices_of
from ledgerstone.blobs.rows import BlobRow, file_id_
from ledgerstone.blobs.tables import slices
from ledgerstone.errors import BadInput, Duplicate, KeyConflict, StoreBusy
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

SLICE_BYTES_MAX = 4_194_304
"""What one slice may be: MySQL takes 16 MiB in one packet, in which a byte may be two."""
SLOTS_READ_MAX = 1000

_slot = bindparam("slot", type_=BigInteger())
_last = bindparam("last", type_=BigInteger())
_taken = Statement(
    "blobs.slots",
    select(slices.c.slice_no)
    .where(slices.c.file_id == file_id_, slices.c.slice_no >= _slot, slices.c.slice_no <= _last)
    .order_by(slices.c.slice_no)
    .limit(SLOTS_READ_MAX),
)
# What is there now, also where the transaction began to read before it came or went.
_data = Statement(
    "blobs.slice",
    select(slices.c.data)
    .where(slices.c.file_id == file_id_, slices.c.slice_no == _slot)
    .with_for_update(read=True),
)
_count = Statement(
    "blobs.count_slices",
    select(func.count()).select_from(slices).where(slices.c.file_id == file_id_),
)
_add = Statement(
    "blobs.add_slice",
    insert(slices).values(
        file_id=file_id_,
        slice_no=_slot,
        offset=bindparam("offset_", type_=BigInteger()),
        data=bindparam("data_", type_=LargeBinary()),
    ),
)


class Slice(msgspec.Struct, frozen=True):
    """One slice: its number, where its bytes begin, and the bytes."""

    number: int
    offset: int
    data: bytes


def placed(row: BlobRow, slice_size: int, number: int, data: bytes) -> Slice:
    """The slice of this number; BadInput if the blob cannot have it."""
    count = slices_of(row.total_size, slice_size)
    if type(number) is not int or not 0 <= number < count:
        raise BadInput(f"{row.file_id} has the slices 0 to {count - 1}, not {number!r}")
    offset = number * slice_size
    expected = min(slice_size, row.total_size - offset)
    if length_of(data) != expected:
        words = f"slice {number} of {row.file_id} has {expected} bytes"
        raise BadInput(f"{words}, and what was given has {length_of(data)}")
    return Slice(number, offset, data)


def placed_at(row: BlobRow, number: int, offset: int, data: bytes) -> Slice:
    """The slice at this place; BadInput if the blob cannot have it there."""
    if row.slice_size is not None and not row.completed:
        wanted = placed(row, row.slice_size, number, data)
        if wanted.offset != offset:
            raise BadInput(f"slice {number} of {row.file_id} is at {wanted.offset}, not {offset!r}")
        return wanted
    length = length_of(data)
    numbers = type(number) is int and number >= 0 and type(offset) is int and offset >= 0
    if not numbers or not length or length > SLICE_BYTES_MAX or offset + length > row.total_size:
        message = f"{row.file_id} has {row.total_size} bytes and no slice {number!r} at {offset!r}"
        raise BadInput(message, hint=f"a slice has 1 to {SLICE_BYTES_MAX} bytes, inside the file")
    return Slice(number, offset, data)


def length_of(data: object) -> int | None:
    """How many bytes were given; None for what is no bytes."""
    return len(data) if isinstance(data, bytes) else None


def new_of(
    tx: Transaction, row: BlobRow, given: Sequence[Slice], folder: Path | None
) -> list[Slice]:
    """The slices that are not there; KeyConflict for one that is there with other content."""
    numbers = [each.number for each in given]
    there = set(numbers) if row.completed else set(taken(tx, row, min(numbers), max(numbers)))
    for each in given:
        if each.number in there and _stored(tx, row, each, folder) != each.data:
            message = f"slice {each.number} of {row.file_id} is there with other content"
            raise KeyConflict(message, hint="check the slice: one of the two is not of the file")
    return [each for each in given if each.number not in there]


def taken(tx: Transaction, row: BlobRow, first: int, last: int) -> Iterator[int]:
    """The numbers of the slices that are there, in order."""
    while part := _taken.rows(tx, file_id_=row.file_id, slot=first, last=last):
        yield from (int(number) for (number,) in part)
        first = int(part[-1][0]) + 1


def missing(tx: Transaction, row: BlobRow) -> Iterator[int]:
    """The numbers of the slices that are not there, in order."""
    if row.completed or row.slice_size is None:
        return
    count, expected = slices_of(row.total_size, row.slice_size), 0
    for number in taken(tx, row, 0, count - 1):
        yield from range(expected, number)
        expected = number + 1
    yield from range(expected, count)


def check_seen(tx: Transaction, row: BlobRow) -> None:
    """StoreBusy if the transaction does not see all slices that the locked row counts.

    At REPEATABLE READ, which is the default of MySQL, a transaction sees the slices of its first
    statement, and locks the row of now.
    """
    found = _count.one(tx, file_id_=row.file_id)
    if found is None or found[0] < row.slices:
        raise _outdated(row)


def _outdated(row: BlobRow) -> StoreBusy:
    message = f"slices of {row.file_id} came or went since this transaction began to read"
    return StoreBusy(message, hint="begin the transaction anew and run it again")


def add(tx: Transaction, row: BlobRow, new: Sequence[Slice], *, keep_ms: int) -> BlobRow:
    """Add slices that are not there; the row as it is then."""
    for each in new:
        values = {"slot": each.number, "offset_": each.offset, "data_": each.data}
        try:
            _add.send(tx, file_id_=row.file_id, **values)
        except Duplicate as error:
            raise _outdated(row) from error
    if not new:
        return row
    added = sum(len(each.data) for each in new)
    rows.note_stored(tx, row.file_id, slices=len(new), bytes_=added, keep_ms=keep_ms)
    return row._replace(slices=row.slices + len(new), bytes=row.bytes + added)


def _stored(tx: Transaction, row: BlobRow, given: Slice, folder: Path | None) -> bytes:
    """What is stored where this slice belongs."""
    if not row.completed:
        found = _data.one(tx, file_id_=row.file_id, slot=given.number)
        if found is None:
            raise _outdated(row)
        return bytes(found[0])
    return b"".join(pieces(tx, place_of(row, folder), given.offset, given.offset + len(given.data)))
