"""Files in one transaction: begin, slices in any order, complete, owners, removal.

    with ledger.transaction() as tx:
        tx.blobs.begin(file_id, total_size=1_000_000)
        tx.blobs.put_slice(file_id, 3, data)

A file from a path or a stream is written by `ledger.blobs`, in transactions of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import BigInteger, Text, bindparam, column, delete, null, select, true, update

from ledgerstone.blobs import rows, slots
from ledgerstone.blobs.content import pieces, place_of
from ledgerstone.blobs.progress import Progress
from ledgerstone.blobs.rows import UNKNOWN, BlobRow, file_id_
from ledgerstone.blobs.slots import SLICE_BYTES_MAX, Slice
from ledgerstone.blobs.tables import MIME_CHARS_MAX, OWNER_CHARS_MAX, blobs, owners, slices
from ledgerstone.errors import (
    BadInput,
    ContentMissing,
    KeyConflict,
    NotAllowedNow,
    StoreBusy,
    TooLarge,
)
from ledgerstone.settings import BlobSettings
from ledgerstone.store.sql.batch import InsertEach
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.names import check_name, check_text
from ledgerstone.store.sql.pages import Keyset, Page
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

HOUR_MS = 3_600_000
MISSING_MAX = 1000
"""Missing slices that are told at once."""
OWNED_ROWS_MAX = 1000
BEGIN_TRIES_MAX = 10

_owner = bindparam("owner_", type_=Text())
_new_id = bindparam("new_id", type_=Text())
_begin = InsertEach(
    "blobs.begin",
    blobs,
    incoming=(
        blobs.c.file_id,
        blobs.c.total_size,
        blobs.c.mime,
        blobs.c.slice_size,
        column("keep_ms", BigInteger()),
    ),
    values=lambda row: {
        "created_at_ms": now_ms(),
        "expires_at_ms": now_ms() + row.keep_ms,
    },
    locks=True,
)
_complete = Statement(
    "blobs.complete",
    update(blobs)
    .where(blobs.c.file_id == file_id_)
    .values(
        file_id=_new_id,
        completed=true(),
        total_size=bindparam("size_", type_=BigInteger()),
        expires_at_ms=null(),
        disk_name=bindparam("disk_name_", type_=Text()),
    ),
)
_rename = Statement(
    "blobs.rename_slices",
    update(slices).where(slices.c.file_id == file_id_).values(file_id=_new_id),
)
_own = InsertEach("blobs.own", owners, incoming=(owners.c.owner, owners.c.file_id))
_owned = Statement(
    "blobs.owned",
    select(owners.c.file_id)
    .where(owners.c.owner == _owner, owners.c.file_id > file_id_)
    .order_by(owners.c.file_id)
    .limit(OWNED_ROWS_MAX),
)
_owners = Statement(
    "blobs.owners", select(owners.c.owner).where(owners.c.file_id == file_id_).limit(OWNED_ROWS_MAX)
)
# What is there now, also where the transaction began to read before: the file is removed by it.
_owner_left = Statement(
    "blobs.owner_left",
    select(owners.c.owner).where(owners.c.file_id == file_id_).limit(1).with_for_update(read=True),
)
_disown = Statement(
    "blobs.disown", delete(owners).where(owners.c.owner == _owner, owners.c.file_id == file_id_)
)
_list = Keyset(
    "blobs.list",
    rows.query.add_columns(blobs.c.created_at_ms).where(rows.alive),
    order=(blobs.c.created_at_ms, blobs.c.file_id),
    descending=True,
    make=lambda row: BlobRow(*row[:-1]).progress,
)


class BlobsState(msgspec.Struct, frozen=True):
    """What a ledger knows of files: the limits, and the folder of those outside the database."""

    settings: BlobSettings
    folder: Path | None

    @property
    def keep_ms(self) -> int:
        """For how long an upload is kept that nobody continues."""
        return round(self.settings.upload_hours * HOUR_MS)

    def folder_for(self, size: int) -> Path | None:
        """Where a complete file of this size lies; None: in the database."""
        least = self.settings.disk_bytes_min
        return None if least is None or size < least else self.folder


class Blobs:
    """What can be asked of files in a transaction: `tx.blobs`.

    - A file is named by its SHA-256. Its slices come in any order and may be repeated.
    - A slot that is taken keeps its content: the same again changes nothing, other content is
      KeyConflict.
    - Only a content that was compared with its hash is `completed`, and can be read.
    - A file is removed with the last of its owners; an upload that nobody continues expires.
    """

    def __init__(self, tx: Transaction, state: BlobsState) -> None:
        self._tx = tx
        self._state = state

    def begin(
        self,
        file_id: str,
        *,
        total_size: int,
        mime: str | None = None,
        slice_size: int | None = None,
    ) -> Progress:
        """Begin an upload, or find it; `slice_size` of the answer is the one that counts.

        KeyConflict if it is there with another size, or with slices of another size than asked.
        """
        rows.checked_hash(file_id)
        self._check_size(total_size)
        wanted = self._slice_size(slice_size)
        row = self._inserted(file_id, total_size, mime, wanted)
        given = (mime, wanted)
        if row.overdue or (row.empty and (row.mime, row.slice_size) != given):
            size = total_size if row.overdue else row.total_size
            row = row._replace(total_size=size, mime=mime, slice_size=wanted)
            row = rows.start_over(self._tx, row, keep_ms=self._state.keep_ms)
        _check_same_size(row, total_size)
        if slice_size not in {None, row.slice_size} and not row.completed:
            message = f"the slices of {file_id} have {row.slice_size} bytes, not {slice_size}"
            raise KeyConflict(message, hint="send slices of the size that it began with")
        if not row.completed:
            rows.extend(self._tx, file_id, keep_ms=self._state.keep_ms)
        return row.progress

    def begin_unnamed(self, *, total_size: int | None = None, mime: str | None = None) -> str:
        """Begin an upload whose hash is not known yet; answers the id to `append` to."""
        if total_size is not None:
            self._check_size(total_size)
        upload_id = rows.new_upload_id()
        self._insert(upload_id, UNKNOWN if total_size is None else total_size, mime, None)
        return upload_id

    def set_size(self, upload_id: str, total_size: int) -> Progress:
        """Tell the size of an unnamed upload that was begun without one; again, nothing changes.

        KeyConflict if it has another size, TooLarge if it has more bytes already.
        """
        self._check_size(total_size)
        row = rows.lock_known(self._tx, rows.checked_id(upload_id))
        if row.size not in {None, total_size}:
            message = f"{upload_id} has {row.size} bytes, not {total_size}"
            raise KeyConflict(message, hint="the size of an upload is told once")
        if row.bytes > total_size:
            raise TooLarge(f"{upload_id} has {row.bytes} bytes already, more than {total_size}")
        rows.set_size(self._tx, upload_id, total_size)
        return row._replace(total_size=total_size).progress

    def put_slice(self, file_id: str, number: int, data: bytes) -> Progress:
        """Add one slice of an upload; a repeated one changes nothing."""
        return self.put_slices(file_id, [(number, data)])

    def put_slices(self, file_id: str, given: Sequence[tuple[int, bytes]]) -> Progress:
        """Add slices of an upload, by number and content; repeated ones change nothing.

        BadInput for a number or length that the file cannot have, KeyConflict for other content
        than the slot has. Nothing of the call is kept then.
        """
        row = rows.lock_known(self._tx, rows.checked_hash(file_id))
        if len(dict(given)) < len(given):
            raise BadInput("a slice is given twice in one call", hint="give each number once")
        if row.slice_size is None:
            message = f"{file_id} is appended to in order: its slices have no common size"
            raise NotAllowedNow(message)
        if not given:
            return row.progress
        wanted = [slots.placed(row, row.slice_size, number, data) for number, data in given]
        new = slots.new_of(self._tx, row, wanted, self._state.folder)
        return slots.add(self._tx, row, new, keep_ms=self._state.keep_ms).progress

    def add_slice(
        self,
        file_id: str,
        number: int,
        offset: int,
        data: bytes,
        *,
        total_size: int | None = None,
    ) -> Progress:
        """Add a slice where an event says that it belongs; the last one completes the file.

        - For files whose slices may have any sizes: those that another program began, by the
          documented columns, and those that the first slice begins by its `total_size`.
        - KeyConflict if the file is there with another size.
        - If they are whole and are not the content of the hash, they are removed, as by `complete`.
        """
        rows.checked_hash(file_id)
        if total_size is not None:
            self._begin_in_slices(file_id, total_size)
        row = rows.lock_known(self._tx, file_id)
        wanted = slots.placed_at(row, number, offset, data)
        new = slots.new_of(self._tx, row, [wanted], self._state.folder)
        row = slots.add(self._tx, row, new, keep_ms=self._state.keep_ms)
        if row.progress.whole and not row.completed:
            self.complete(file_id)
            row = rows.known(rows.look(self._tx, file_id), file_id)
        return row.progress

    def append(self, upload_id: str, offset: int, *data: bytes) -> Progress:
        """Add bytes at the end of an unnamed upload, each piece a slice.

        NotAllowedNow unless the upload ends at this offset.
        """
        row = rows.lock_known(self._tx, rows.checked_id(upload_id))
        if row.slice_size is not None or row.completed or row.bytes != offset:
            message = f"{upload_id} has {row.bytes} bytes and is not appended to at {offset}"
            raise NotAllowedNow(message, hint="ask for its progress, and go on from there")
        end = offset + sum(map(len, data))
        if end > (self._state.settings.blob_bytes_max if row.size is None else row.size):
            message = f"{upload_id} would have {end} bytes, more than it was begun with or may have"
            raise TooLarge(message)
        new = list[Slice]()
        for piece in data:
            if not 1 <= (slots.length_of(piece) or 0) <= SLICE_BYTES_MAX:
                raise BadInput(f"a slice is 1 to {SLICE_BYTES_MAX} bytes")
            new.append(Slice(row.slices + len(new), offset, piece))
            offset += len(piece)
        return slots.add(self._tx, row, new, keep_ms=self._state.keep_ms).progress

    def progress(self, file_id: str) -> Progress | None:
        """How far a file is; None if it is not there or has expired."""
        row = rows.look(self._tx, rows.checked_id(file_id))
        return row.progress if row is not None else None

    def missing(self, file_id: str) -> list[int]:
        """The first numbers of slices that are not there, at most MISSING_MAX."""
        row = rows.known(rows.look(self._tx, rows.checked_hash(file_id)), file_id)
        return list(islice(slots.missing(self._tx, row), MISSING_MAX))

    def complete(self, file_id: str, *, owner: str | None = None) -> bool:
        """Compare a whole content with its hash, and make it readable, all in this transaction.

        - False: it has another hash. Its slices were removed, so that it can be sent again.
        - The content stays in the database; `ledger.blobs.complete` moves large ones to disk.
        """
        row = rows.lock_known(self._tx, rows.checked_hash(file_id))
        if not row.completed:
            check_whole(row)
            slots.check_seen(self._tx, row)
            if self._hash_of(row) != file_id:
                rows.start_over(self._tx, row, keep_ms=self._state.keep_ms)
                return False
        self.finish(row, file_id, owner=owner)
        return True

    def finish(
        self, row: BlobRow, file_id: str, *, disk_name: str | None = None, owner: str | None = None
    ) -> None:
        """Make a locked row the completed file of this hash: for callers that have compared them.

        - A file that was completed meanwhile stays, and the upload is removed.
        - An upload under the name of the hash that is not completed gives way.
        """
        if not row.completed:
            there = rows.lock(self._tx, file_id) if row.file_id != file_id else None
            if there is not None and there.completed:
                rows.remove(self._tx, row)
            else:
                if there is not None:
                    rows.replace(self._tx, file_id)
                self._finish(row, file_id, disk_name)
        if owner is not None:
            self._add_owner(file_id, owner)

    def read(self, file_id: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes of a completed file from `start` up to `end`, one slice at a time."""
        row = completed(rows.look(self._tx, rows.checked_hash(file_id)), file_id)
        start, end = checked_range(row, start, end)
        return pieces(self._tx, place_of(row, self._state.folder), start, end)

    def own(self, file_id: str, owner: str) -> None:
        """Let something of the caller's own the file, by a name such as `message:7`."""
        rows.lock_known(self._tx, rows.checked_hash(file_id))
        self._add_owner(file_id, owner)

    def owners(self, file_id: str) -> list[str]:
        """The names of those that own a file, at most OWNED_ROWS_MAX."""
        found = _owners.rows(self._tx, file_id_=rows.checked_id(file_id))
        return sorted(str(name) for (name,) in found)

    def remove_owner(self, owner: str) -> int:
        """The owner is gone, and with it the files that nobody else owns; how many files."""
        removed, last = 0, ""
        while owned := _owned.rows(self._tx, owner_=checked_owner(owner), file_id_=last):
            removed += sum(self._disown(str(file_id), owner) for (file_id,) in owned)
            last = str(owned[-1][0])
        return removed

    def remove(self, file_id: str) -> bool:
        """Remove a file or an upload and its slices, with or without owners; True if there."""
        row = rows.lock(self._tx, rows.checked_id(file_id))
        if row is None or row.overdue:
            return False
        rows.remove(self._tx, row)
        return True

    def find(self, *, limit: int = 100, cursor: str | None = None) -> Page[Progress]:
        """Files and uploads, the newest first."""
        return _list.read(self._tx, limit=limit, cursor=cursor)

    def _hash_of(self, row: BlobRow) -> str | None:
        """The hash of all slices; None if there is a gap, where others overlap."""
        digest = hashlib.sha256()
        try:
            for piece in pieces(self._tx, place_of(row, None), 0, row.total_size):
                digest.update(piece)
        except ContentMissing:
            return None
        return digest.hexdigest()

    def _inserted(
        self, file_id: str, size: int, mime: str | None, slice_size: int | None
    ) -> BlobRow:
        """The row, added or found, locked."""
        for _ in range(BEGIN_TRIES_MAX):
            self._insert(file_id, size, mime, slice_size)
            # A row that was in the way may be removed while this transaction waits for it.
            if (row := rows.lock(self._tx, file_id)) is not None:
                return row
        message = f"{file_id} is begun and removed by others all the time"
        raise StoreBusy(message, hint="run the transaction again")

    def _begin_in_slices(self, file_id: str, total_size: int) -> None:
        """Begin an upload in slices of any sizes, or find it."""
        self._check_size(total_size)
        row = self._inserted(file_id, total_size, None, None)
        if row.overdue:
            row = row._replace(total_size=total_size, mime=None, slice_size=None)
            row = rows.start_over(self._tx, row, keep_ms=self._state.keep_ms)
        _check_same_size(row, total_size)

    def _insert(self, file_id: str, size: int, mime: str | None, slice_size: int | None) -> None:
        """Add a row, unless there is one."""
        row = (file_id, size, _checked_mime(mime), slice_size, self._state.keep_ms)
        _begin.run(self._tx, [row])

    def _finish(self, row: BlobRow, file_id: str, disk_name: str | None) -> None:
        if disk_name is not None:
            rows.drop_slices(self._tx, row.file_id)
        elif row.file_id != file_id:
            _rename.send(self._tx, file_id_=row.file_id, new_id=file_id)
        names = {"file_id_": row.file_id, "new_id": file_id, "disk_name_": disk_name}
        _complete.send(self._tx, size_=row.bytes, **names)

    def _add_owner(self, file_id: str, owner: str) -> None:
        _own.run(self._tx, [(checked_owner(owner), file_id)])
        rows.touch(self._tx, file_id)

    def _disown(self, file_id: str, owner: str) -> int:
        row = rows.lock(self._tx, file_id)
        _disown.run(self._tx, owner_=owner, file_id_=file_id)
        if row is None or _owner_left.one(self._tx, file_id_=file_id) is not None:
            return 0
        rows.remove(self._tx, row)
        return 1

    def _check_size(self, total_size: int) -> None:
        if type(total_size) is not int or total_size < 0:
            raise BadInput(f"the size of a file is a whole number, not {total_size!r}")
        most = self._state.settings.blob_bytes_max
        if total_size > most:
            message = f"a file has at most {most} bytes, not {total_size}"
            raise TooLarge(message, hint="raise blobs.blob_bytes_max")

    def _slice_size(self, given: int | None) -> int:
        if given is None:
            return self._state.settings.slice_bytes
        if type(given) is not int or not 1 <= given <= SLICE_BYTES_MAX:
            raise BadInput(f"a slice has 1 to {SLICE_BYTES_MAX} bytes, not {given!r}")
        return given


def _check_same_size(row: BlobRow, total_size: int) -> None:
    if row.total_size != total_size:
        message = f"the file {row.file_id} has {row.total_size} bytes, not {total_size}"
        raise KeyConflict(message, hint="one hash has one size: check what was hashed")


def check_whole(row: BlobRow) -> None:
    """NotAllowedNow unless every byte of the upload is there."""
    if row.size is None:
        message = f"nobody told the size of {row.file_id}, which has {row.bytes} bytes so far"
        raise NotAllowedNow(message, hint="tell it with `set_size`, then complete it")
    if not row.progress.whole:
        message = f"{row.file_id} has {row.bytes} of {row.total_size} bytes"
        raise NotAllowedNow(message, hint="send what `missing` names, then complete it")


def completed(row: BlobRow | None, file_id: str) -> BlobRow:
    """The row; NotFound or NotAllowedNow unless its content was compared with its hash."""
    found = rows.known(row, file_id)
    if not found.completed:
        message = f"the file {file_id} is not complete: it has {found.bytes} bytes"
        raise NotAllowedNow(message, hint="read it when its upload has ended")
    return found


def checked_range(row: BlobRow, start: int, end: int | None) -> tuple[int, int]:
    """The range, its end filled in; BadInput unless it lies inside the file."""
    last = row.total_size if end is None else end
    numbers = type(start) is int and type(last) is int
    if not numbers or not 0 <= start <= last <= row.total_size:
        words = f"{row.file_id} has {row.total_size} bytes"
        raise BadInput(f"{words}: {start!r} to {last!r} is no part")
    return start, last


def checked_owner(owner: str) -> str:
    """The name; BadInput for one that is not the same name on every database."""
    check_name(owner, "an owner", chars_max=OWNER_CHARS_MAX)
    return owner


def _checked_mime(mime: str | None) -> str | None:
    if mime is None:
        return None
    check_text(mime, "a type")
    if not mime.isprintable() or len(mime) > MIME_CHARS_MAX:
        raise BadInput(f"a type has at most {MIME_CHARS_MAX} printable characters, not {mime!r}")
    return mime
