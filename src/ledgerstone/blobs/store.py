"""Files in transactions of their own: from a path or a stream in, piece by piece out.

    blob = ledger.blobs.put(Path("film.mp4"), owner="message:7")
    for piece in ledger.blobs.read(blob.file_id, start=1_000_000):
        ...

No call holds more than a few slices in memory, or a transaction for longer than one batch of them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

import msgspec
from sqlalchemy import Text, bindparam, update

from ledgerstone.blobs import expiry, folder, rows
from ledgerstone.blobs.blobs import Blobs, BlobsState, check_whole, checked_range, completed
from ledgerstone.blobs.content import Place, piece_at, place_of
from ledgerstone.blobs.progress import Progress
from ledgerstone.blobs.rows import BlobRow, file_id_
from ledgerstone.blobs.tables import blobs
from ledgerstone.errors import (
    BadInput,
    ContentMissing,
    DiskFailed,
    Duplicate,
    HashMismatch,
    LedgerstoneError,
    NotAllowedNow,
)
from ledgerstone.failpoints import hit
from ledgerstone.store.sql.pages import Page
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

T = TypeVar("T")

READ_BYTES = 1_048_576
BATCH_BYTES = 4_194_304
"""What one transaction of `put` writes."""
FINISH_TRIES_MAX = 3


class Stream(Protocol):
    """Bytes to be read; an empty answer is the end. It may give fewer than it was asked for."""

    def read(self, size: int, /) -> bytes: ...


OnProgress = Callable[[Progress], None]
Then = Callable[[Any, Progress], None]
"""Called in the transaction that completes a file: what it writes is kept with that, or not."""

_intend = Statement(
    "blobs.intend",
    update(blobs)
    .where(blobs.c.file_id == file_id_)
    .values(disk_name=bindparam("name_", type_=Text())),
)


def _quiet(_: Progress) -> None:
    """The caller does not want to know."""


def _nothing(_: object, __: Progress) -> None:
    """Nothing else is written."""


def _dropped(_: bytes) -> None:
    """The bytes are stored already."""


class BlobStore:
    """Files of one ledger: `ledger.blobs`; `database` and `state` are where and how they lie."""

    def __init__(self, database: Database[Any], state: BlobsState) -> None:
        self.database = database
        self.state = state

    def put(
        self,
        source: Path | Stream,
        *,
        mime: str | None = None,
        owner: str | None = None,
        on_progress: OnProgress = _quiet,
    ) -> Progress:
        """Store a file or a stream; the same content is stored once.

        - A file that was stored in part goes on where it stopped; a stream begins anew.
        - `on_progress` is told after each batch.
        """
        if isinstance(source, Path):
            with source.open("rb") as file:
                return self._put_file(file, mime=mime, owner=owner, on_progress=on_progress)
        return self._put_stream(source, mime=mime, owner=owner, on_progress=on_progress)

    def complete(
        self, file_id: str, *, owner: str | None = None, then: Then = _nothing
    ) -> Progress:
        """Compare a whole upload with its hash, and make it a file that can be read.

        - The answer has the hash, which an upload without a name did not have before.
        - HashMismatch if it was begun with another hash; its slices are removed then.
        - `then` is called in the transaction that completes it.
        """
        row = self._row(rows.checked_id(file_id))
        if not row.completed:
            check_whole(row)
        return self._completed(row, owner=owner, then=then)

    def get(self, file_id: str) -> Progress | None:
        """How far a file is; None if it is not there or has expired."""
        with self.database.reading() as tx:
            return self._calls(tx).progress(file_id)

    def id_of(self, beginning: str) -> str:
        """The id of the one file or upload whose id begins so; BadInput if there are several."""
        with self.database.reading() as tx:
            return rows.id_of(tx, beginning)

    def find(self, *, limit: int = 100, cursor: str | None = None) -> Page[Progress]:
        """Files and uploads, the newest first."""
        with self.database.reading() as tx:
            return self._calls(tx).find(limit=limit, cursor=cursor)

    def read(self, file_id: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes of a completed file from `start` up to `end`, one slice in memory at a time.

        ContentMissing in the middle if the file is removed meanwhile.
        """
        row = completed(self._row(rows.checked_hash(file_id)), file_id)
        start, end = checked_range(row, start, end)
        return self._pieces(place_of(row, self.state.folder), start, end)

    def copy(self, part: str, upload_id: str, offset: int) -> int:
        """Append the bytes of one whole upload to another; answers where that ends then."""
        row = self._row(rows.checked_id(part))
        check_whole(row)
        for piece in self._pieces(Place(row.file_id, None), 0, row.bytes):
            self._run(partial(_append, upload_id=upload_id, offset=offset, data=[piece]))
            offset += len(piece)
        return offset

    def verify(self, file_id: str) -> bool:
        """Whether every byte of a completed file is there and as its hash says."""
        digest = hashlib.sha256()
        try:
            for piece in self.read(file_id):
                digest.update(piece)
        except (ContentMissing, DiskFailed):
            return False
        return digest.hexdigest() == file_id

    def remove(self, file_id: str) -> bool:
        """Remove a file or an upload, with or without owners; True if there."""
        return self._run(lambda calls: calls.remove(file_id))

    def collect(self) -> expiry.Collected:
        """Remove now what has expired, and files of the folder that no row names."""
        return expiry.collect(self.database, self.state)

    def _put_file(
        self, file: BinaryIO, *, mime: str | None, owner: str | None, on_progress: OnProgress
    ) -> Progress:
        file_id, size = _hashed(file)
        row = self.database.run(partial(self._begun, file_id=file_id, size=size, mime=mime))
        if row.completed or row.slice_size is None:
            return self._completed(row, owner=owner)
        began, digest, number, sent = time.monotonic(), hashlib.sha256(), 0, 0
        for batch in _batches(file, row.slice_size):
            given = list(enumerate(batch, number))
            done = self._run(partial(Blobs.put_slices, file_id=file_id, given=given))
            for piece in batch:
                digest.update(piece)
            number += len(batch)
            sent += sum(map(len, batch))
            on_progress(_told(done, sent, began))
        if digest.hexdigest() != file_id:
            raise BadInput("the file changed while it was read", hint="put it again")
        return self._completed(row._replace(bytes=sent), owner=owner, found=file_id)

    def _begun(self, tx: Transaction, *, file_id: str, size: int, mime: str | None) -> BlobRow:
        """The upload of a file; a part of it in slices of other sizes gives way."""
        self._calls(tx).begin(file_id, total_size=size, mime=mime)
        row = rows.lock_known(tx, file_id)
        if row.slice_size is None and not row.progress.whole:
            row = row._replace(slice_size=self.state.settings.slice_bytes)
            row = rows.start_over(tx, row, keep_ms=self.state.keep_ms)
        return row

    def _put_stream(
        self, stream: Stream, *, mime: str | None, owner: str | None, on_progress: OnProgress
    ) -> Progress:
        upload = self._run(lambda calls: calls.begin_unnamed(mime=mime))
        began, digest, sent = time.monotonic(), hashlib.sha256(), 0
        try:
            for batch in _batches(stream, self.state.settings.slice_bytes):
                done = self._run(partial(_append, upload_id=upload, offset=sent, data=batch))
                for piece in batch:
                    digest.update(piece)
                sent += sum(map(len, batch))
                on_progress(_told(done, sent, began))
            return self._completed(self._row(upload), owner=owner, found=digest.hexdigest())
        except Exception:
            with suppress(LedgerstoneError):
                self.remove(upload)
            raise

    def _completed(
        self, row: BlobRow, *, owner: str | None, found: str | None = None, then: Then = _nothing
    ) -> Progress:
        """The end of every upload; `found` is its hash where every slice was seen already."""
        home = self.state.folder_for(row.bytes)
        if home is None or row.completed:
            found = row.file_id if row.completed else found or self._hash_of(row)
            self._check_hash(row, found)
            return self._finish(row, found, owner=owner, then=then)
        with folder.assembling(home, row.file_id) as file:
            keep = partial(folder.write, home, row.file_id, file)
            found = self._hash_of(row, keep)
            self._check_hash(row, found)
            hit("blobs.assembled")
            self.database.run(partial(_intend.run, file_id_=row.file_id, name_=found))
            hit("blobs.intended")
            with folder.publishing(home):
                folder.publish(home, row.file_id, file, found)
                hit("blobs.renamed")
                return self._finish(row, found, disk_name=found, owner=owner, then=then)

    def _check_hash(self, row: BlobRow, found: str) -> None:
        """HashMismatch if an upload that has a name has another hash; it begins anew then."""
        if not rows.is_hash(row.file_id) or row.file_id == found:
            return

        def start_over(tx: Transaction) -> None:
            locked = rows.lock(tx, row.file_id)
            if locked is not None and not locked.completed and _same(locked, row):
                rows.start_over(tx, locked, keep_ms=self.state.keep_ms)

        self.database.run(start_over)
        message = f"what was stored as {row.file_id} has the hash {found}: its slices were removed"
        raise HashMismatch(message)

    def _finish(
        self,
        read: BlobRow,
        found: str,
        *,
        owner: str | None,
        then: Then,
        disk_name: str | None = None,
    ) -> Progress:
        """Complete an upload that is still as it was when it was read and had this hash."""

        def finish(tx: Transaction) -> Progress:
            row = rows.lock_known(tx, read.file_id)
            if not row.completed and not _same(row, read):
                message = f"the upload {row.file_id} was changed while it was completed"
                raise NotAllowedNow(message, hint="complete it again when it is whole")
            self._calls(tx).finish(row, found, disk_name=disk_name, owner=owner)
            done = rows.known(rows.look(tx, found), found).progress
            then(tx, done)
            return done

        for _ in range(FINISH_TRIES_MAX - 1):
            # Two uploads of one content may be completed at once: the second finds the first.
            with suppress(Duplicate):
                return self.database.run(finish)
        return self.database.run(finish)

    def _hash_of(self, row: BlobRow, keep: Callable[[bytes], None] = _dropped) -> str:
        """The hash of all slices, each of which is given to `keep`."""
        digest = hashlib.sha256()
        for piece in self._pieces(Place(row.file_id, None), 0, row.bytes):
            digest.update(piece)
            keep(piece)
        return digest.hexdigest()

    def _pieces(self, place: Place, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            # A transaction for each piece: a slow reader must not keep one open.
            with self.database.reading() as tx:
                piece = piece_at(tx, place, start, end=end)
            yield piece
            start += len(piece)

    def _row(self, file_id: str) -> BlobRow:
        with self.database.reading() as tx:
            return rows.known(rows.look(tx, file_id), file_id)

    def _run(self, work: Callable[[Blobs], T]) -> T:
        return self.database.run(lambda tx: work(Blobs(tx, self.state)))

    def _calls(self, tx: Transaction) -> Blobs:
        return Blobs(tx, self.state)


def _append(calls: Blobs, *, upload_id: str, offset: int, data: list[bytes]) -> Progress:
    return calls.append(upload_id, offset, *data)


def _same(row: BlobRow, read: BlobRow) -> bool:
    """Whether no slice came or went since the row was read."""
    return (row.generation, row.bytes) == (read.generation, read.bytes)


def _hashed(file: BinaryIO) -> tuple[str, int]:
    """The hash and the size of a file, which is read from its beginning again then."""
    digest, size = hashlib.sha256(), 0
    while piece := file.read(READ_BYTES):
        digest.update(piece)
        size += len(piece)
    file.seek(0)
    return digest.hexdigest(), size


def _batches(stream: Stream, slice_size: int) -> Iterator[list[bytes]]:
    """The slices of a stream, all but the last of this size, as many as one transaction takes."""
    most = max(1, BATCH_BYTES // slice_size)
    batch: list[bytes] = []
    while piece := _filled(stream, slice_size):
        batch.append(piece)
        if len(batch) == most or len(piece) < slice_size:
            yield batch
            batch = []
    if batch:
        yield batch


def _filled(stream: Stream, size: int) -> bytes:
    """The next bytes, fewer only at the end: a pipe gives what it has."""
    piece = stream.read(size)
    while len(piece) < size and (more := stream.read(size - len(piece))):
        piece += more
    return piece


def _told(done: Progress, sent: int, began: float) -> Progress:
    """The progress of this call: what it has sent, and for how long."""
    elapsed_ms = round((time.monotonic() - began) * 1000)
    return msgspec.structs.replace(done, bytes=sent, elapsed_ms=elapsed_ms)
