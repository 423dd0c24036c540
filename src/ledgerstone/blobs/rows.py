"""The row of a blob: read and locked, before anything is done to its slices.

Each writer of slices or owners of a blob locks its row first. Two writers of one blob take turns,
two writers of different blobs do not meet.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import BigInteger, Text, bindparam, case, delete, false, or_, select, update

from ledgerstone.blobs.progress import Progress
from ledgerstone.blobs.tables import FILE_ID_CHARS, blobs, owners, slices
from ledgerstone.errors import BadInput, NotFound
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

_BEGINNING = re.compile(r"[0-9a-f]{4,63}\Z")
_HASH = re.compile(r"[0-9a-f]{64}\Z")
_UPLOAD = re.compile(r"upload-[0-9a-f]{57}\Z")
UPLOAD_PREFIX = "upload-"
UNKNOWN = -1
"""The total size of an upload that is appended to until it ends."""

file_id_ = bindparam("file_id_", type_=Text())
_overdue = case((blobs.c.expires_at_ms <= now_ms(), 1), else_=0)
_columns = (
    blobs.c.file_id,
    blobs.c.total_size,
    blobs.c.mime,
    case((blobs.c.completed, 1), else_=0),
    blobs.c.slice_size,
    blobs.c.slices_stored,
    blobs.c.bytes_stored,
    blobs.c.generation,
    _overdue,
    blobs.c.disk_name,
    case((blobs.c.created_at_ms > 0, now_ms() - blobs.c.created_at_ms), else_=0),
)
query = select(*_columns)
alive = or_(blobs.c.expires_at_ms.is_(None), blobs.c.expires_at_ms > now_ms())
_look = Statement("blobs.look", query.where(blobs.c.file_id == file_id_))
_lock = Statement("blobs.lock", query.where(blobs.c.file_id == file_id_).with_for_update())
_stored = Statement(
    "blobs.note_stored",
    update(blobs)
    .where(blobs.c.file_id == file_id_)
    .values(
        slices_stored=blobs.c.slices_stored + bindparam("slices_", type_=BigInteger()),
        bytes_stored=blobs.c.bytes_stored + bindparam("bytes_", type_=BigInteger()),
        expires_at_ms=now_ms() + bindparam("keep_ms", type_=BigInteger()),
    ),
)
_size = bindparam("total_size_", type_=BigInteger())
_set_size = Statement(
    "blobs.set_size", update(blobs).where(blobs.c.file_id == file_id_).values(total_size=_size)
)
_begin_so = Statement(
    "blobs.begin_so",
    select(blobs.c.file_id)
    .where(blobs.c.file_id >= file_id_, blobs.c.file_id < bindparam("behind", type_=Text()), alive)
    .order_by(blobs.c.file_id)
    .limit(2),
)
_extend = Statement(
    "blobs.extend",
    update(blobs)
    .where(blobs.c.file_id == file_id_)
    .values(expires_at_ms=now_ms() + bindparam("keep_ms", type_=BigInteger())),
)
_touch = Statement(
    "blobs.touch",
    update(blobs).where(blobs.c.file_id == file_id_).values(total_size=blobs.c.total_size),
)
_empty = Statement(
    "blobs.empty",
    update(blobs)
    .where(blobs.c.file_id == file_id_)
    .values(
        total_size=_size,
        mime=bindparam("mime_", type_=Text()),
        slice_size=bindparam("slice_size_", type_=BigInteger()),
        slices_stored=0,
        bytes_stored=0,
        generation=blobs.c.generation + 1,
        created_at_ms=now_ms(),
        expires_at_ms=now_ms() + bindparam("keep_ms", type_=BigInteger()),
    ),
)
_delete_slices = Statement(
    "blobs.delete_slices", delete(slices).where(slices.c.file_id == file_id_)
)
_delete_owners = Statement(
    "blobs.delete_owners", delete(owners).where(owners.c.file_id == file_id_)
)
_delete = Statement("blobs.delete", delete(blobs).where(blobs.c.file_id == file_id_))
_expire = Statement(
    "blobs.expire",
    update(blobs).where(blobs.c.file_id == file_id_).values(completed=false(), expires_at_ms=0),
)


class BlobRow(NamedTuple):
    """A blob as the database keeps it."""

    file_id: str
    total_size: int
    mime: str | None
    completed: int
    slice_size: int | None
    slices: int
    bytes: int
    generation: int
    overdue: int
    disk_name: str | None
    elapsed_ms: int

    @property
    def size(self) -> int | None:
        """Its size, where that is known."""
        return None if self.total_size == UNKNOWN else self.total_size

    @property
    def empty(self) -> bool:
        """Whether it is an upload without a slice."""
        return self.slices == 0 and not self.completed

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return Progress(
            file_id=self.file_id,
            total_size=self.size,
            mime=self.mime,
            slice_size=self.slice_size,
            slices=self.slices,
            # A program that knows the documented columns only counts nothing.
            bytes=self.total_size if self.completed else self.bytes,
            completed=bool(self.completed),
            elapsed_ms=0 if self.completed else max(0, self.elapsed_ms),
        )


def new_upload_id() -> str:
    """The id of an upload whose hash is not known yet; nobody can guess it."""
    return (UPLOAD_PREFIX + secrets.token_hex(FILE_ID_CHARS))[:FILE_ID_CHARS]


def checked_hash(file_id: str) -> str:
    """The id; BadInput unless it is SHA-256 in small hexadecimal digits."""
    if not _matches(_HASH, file_id):
        message = f"the id of a file is its SHA-256 in 64 small hexadecimal digits, not {file_id!r}"
        raise BadInput(message)
    return file_id


def is_hash(file_id: str) -> bool:
    """Whether the id says which hash the content has."""
    return bool(_HASH.match(file_id))


def checked_id(file_id: str) -> str:
    """The id; BadInput unless it is a hash or the id of an upload."""
    return file_id if _matches(_UPLOAD, file_id) else checked_hash(file_id)


def _matches(pattern: re.Pattern[str], given: object) -> bool:
    return isinstance(given, str) and pattern.match(given) is not None


def look(tx: Transaction, file_id: str) -> BlobRow | None:
    """The row, if there is one that has not expired."""
    return _alive(_look.one(tx, file_id_=file_id))


def lock(tx: Transaction, file_id: str) -> BlobRow | None:
    """The row, also of one that has expired, locked until the transaction ends."""
    row = _lock.one(tx, file_id_=file_id)
    return BlobRow(*row) if row is not None else None


def lock_known(tx: Transaction, file_id: str) -> BlobRow:
    """The row, locked; NotFound if it is not there or has expired."""
    return known(_alive(lock(tx, file_id)), file_id)


def id_of(tx: Transaction, beginning: str) -> str:
    """The id of the one file whose id begins so, or what is an id; BadInput for several."""
    if not _matches(_BEGINNING, beginning):
        return checked_id(beginning)
    # No digit comes behind an f.
    found = _begin_so.rows(tx, file_id_=beginning, behind=f"{beginning}g")
    if len(found) > 1:
        raise BadInput(f"several files begin with {beginning}", hint="give more digits of one")
    if not found:
        message = f"no file begins with {beginning}"
        raise NotFound(message, hint="`ledgerstone blobs list` shows how they begin")
    return str(found[0][0])


def known(row: BlobRow | None, file_id: str) -> BlobRow:
    """The row; NotFound if there is none."""
    if row is None:
        raise NotFound(f"there is no file {file_id}", hint="it may have expired: begin it again")
    return row


def _alive(row: tuple[object, ...] | None) -> BlobRow | None:
    if row is None:
        return None
    found = BlobRow(*row)  # type: ignore[arg-type]
    return None if found.overdue else found


def note_stored(tx: Transaction, file_id: str, *, slices: int, bytes_: int, keep_ms: int) -> None:
    """Slices were added; the upload lives on for so long."""
    _stored.send(tx, file_id_=file_id, slices_=slices, bytes_=bytes_, keep_ms=keep_ms)


def set_size(tx: Transaction, file_id: str, total_size: int) -> None:
    """The size of a locked upload is known now."""
    _set_size.send(tx, file_id_=file_id, total_size_=total_size)


def extend(tx: Transaction, file_id: str, *, keep_ms: int) -> None:
    """The upload lives on for so long."""
    _extend.send(tx, file_id_=file_id, keep_ms=keep_ms)


def touch(tx: Transaction, file_id: str) -> None:
    """Something of the blob changed that a transaction that began before does not see.

    PostgreSQL lets that transaction lock the row, unless the row itself was changed.
    """
    _touch.send(tx, file_id_=file_id)


def start_over(tx: Transaction, row: BlobRow, *, keep_ms: int) -> BlobRow:
    """Remove all slices of an upload, which then begins anew, on the terms of this row."""
    _delete_slices.send(tx, file_id_=row.file_id)
    _empty.send(
        tx,
        file_id_=row.file_id,
        total_size_=row.total_size,
        mime_=row.mime,
        slice_size_=row.slice_size,
        keep_ms=keep_ms,
    )
    generation = row.generation + 1
    return row._replace(slices=0, bytes=0, generation=generation, overdue=0, elapsed_ms=0)


def drop_slices(tx: Transaction, file_id: str) -> None:
    """Remove the slices, and leave the row to the caller."""
    _delete_slices.send(tx, file_id_=file_id)


def remove(tx: Transaction, row: BlobRow) -> None:
    """Remove a blob whose row is locked, with its slices and owners.

    One that has a file on disk is there no more, and is removed with its file by the next turn of
    the duty: a file cannot come back if the transaction is undone.
    """
    _delete_owners.send(tx, file_id_=row.file_id)
    if row.disk_name is not None:
        _expire.send(tx, file_id_=row.file_id)
        return
    _delete_slices.send(tx, file_id_=row.file_id)
    _delete.send(tx, file_id_=row.file_id)


def replace(tx: Transaction, file_id: str) -> None:
    """Remove an upload whose content has arrived by another one; its owners stay."""
    _delete_slices.send(tx, file_id_=file_id)
    _delete.send(tx, file_id_=file_id)


def forget(tx: Transaction, file_id: str) -> None:
    """Remove the row and the owners of a blob that has neither slices nor a file any more."""
    _delete_owners.send(tx, file_id_=file_id)
    _delete.send(tx, file_id_=file_id)
