"""Uploads by HTTP, as the database keeps them: the resource that a client resumes.

The bytes of an unfinished upload are those of an unnamed blob of the same id. When it is finished
the blob has the hash as its name, and the upload remembers which; so a client that missed the last
answer learns that all has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import BigInteger, Text, bindparam, delete, insert, select, update

from ledgerstone.blobs.blobs import Blobs, checked_owner
from ledgerstone.blobs.progress import Progress
from ledgerstone.blobs.rows import UNKNOWN
from ledgerstone.blobs.store import BlobStore
from ledgerstone.blobs.tables import MIME_CHARS_MAX, uploads
from ledgerstone.blobs.tus.request import FINAL, PARTIAL, metadata_of
from ledgerstone.errors import LedgerstoneError, NotAllowedNow, NotFound
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.transaction import Transaction

_id = bindparam("upload_id_", type_=Text())
_expires = now_ms() + bindparam("keep_ms", type_=BigInteger())
_create = Statement(
    "blobs.create_upload",
    insert(uploads).values(
        upload_id=_id,
        owner=bindparam("owner_", type_=Text()),
        total_size=bindparam("total_size_", type_=BigInteger()),
        metadata=bindparam("metadata_", type_=Text()),
        concat=bindparam("concat_", type_=Text()),
        expires_at_ms=_expires,
    ),
)
_look = Statement(
    "blobs.upload",
    select(
        uploads.c.upload_id,
        uploads.c.file_id,
        uploads.c.owner,
        uploads.c.total_size,
        uploads.c.metadata,
        uploads.c.concat,
        uploads.c.expires_at_ms,
    ).where(uploads.c.upload_id == _id, uploads.c.expires_at_ms > now_ms()),
)
_extend = Statement(
    "blobs.extend_upload",
    update(uploads).where(uploads.c.upload_id == _id).values(expires_at_ms=_expires),
)
_set_size = Statement(
    "blobs.set_upload_size",
    update(uploads)
    .where(uploads.c.upload_id == _id)
    .values(total_size=bindparam("total_size_", type_=BigInteger())),
)
_finish = Statement(
    "blobs.finish_upload",
    update(uploads)
    .where(uploads.c.upload_id == _id)
    .values(file_id=bindparam("hash_", type_=Text()), expires_at_ms=_expires),
)
_forget = Statement("blobs.forget_upload", delete(uploads).where(uploads.c.upload_id == _id))


class Upload(NamedTuple):
    """An upload as a client sees it.

    `file_id` is None until it is finished. `told_size` came with bytes that are not stored yet.
    """

    upload_id: str
    file_id: str | None
    owner: str | None
    total_size: int
    metadata: str | None
    concat: str | None
    expires_at_ms: int
    offset: int = 0
    told_size: int | None = None

    @property
    def size(self) -> int | None:
        """Its size, where that is known or told now."""
        known = None if self.total_size == UNKNOWN else self.total_size
        return known if self.told_size is None else self.told_size

    @property
    def whole(self) -> bool:
        """Whether every byte is there."""
        return self.offset == self.total_size

    @property
    def partial(self) -> bool:
        """Whether it is to be a part of another one."""
        return self.concat == PARTIAL

    @property
    def joined(self) -> bool:
        """Whether it was made of others, so that nothing is added to it."""
        return self.concat is not None and self.concat.startswith(FINAL)

    @property
    def to_finish(self) -> bool:
        """Whether every byte is there, and nobody was told yet."""
        return self.whole and self.file_id is None and not self.partial


class FinishedUpload(msgspec.Struct, frozen=True, kw_only=True):
    """What `finished` is told: the file, whose it is, and what the client said of it."""

    upload_id: str
    file_id: str
    size: int
    owner: str
    metadata: dict[str, bytes]


Finished = Callable[[Any, FinishedUpload], None]
"""Called with the transaction that completes the file: what it writes commits with that."""


class Uploads:
    """The uploads of one ledger; every call is a transaction, or several."""

    def __init__(self, store: BlobStore, finished: Finished) -> None:
        self._store = store
        self._finished = finished

    def create(
        self, *, owner: str, total_size: int | None, metadata: str | None, concat: str | None
    ) -> Upload:
        """A new upload."""

        def create(tx: Transaction) -> str:
            mime = _mime_of(metadata)
            upload_id = Blobs(tx, self._store.state).begin_unnamed(total_size=total_size, mime=mime)
            _create.run(
                tx,
                upload_id_=upload_id,
                owner_=checked_owner(owner),
                total_size_=UNKNOWN if total_size is None else total_size,
                metadata_=metadata,
                concat_=concat,
                keep_ms=self._store.state.keep_ms,
            )
            return upload_id

        return self.get(self._store.database.run(create), owner)

    def join(
        self, parts: Sequence[str], *, owner: str, metadata: str | None, concat: str
    ) -> Upload:
        """A final upload: the bytes of these parts, one after the other.

        NotAllowedNow unless each is a part that is whole.
        """
        found = [self.get(part, owner) for part in parts]
        for part in found:
            if not part.partial or not part.whole:
                message = f"{part.upload_id} is no part, or not whole"
                raise NotAllowedNow(message, hint="finish every part, then join them")
        total = sum(part.total_size for part in found)
        made = self.create(owner=owner, total_size=total, metadata=metadata, concat=concat)
        try:
            offset = 0
            for part in found:
                offset = self._store.copy(part.upload_id, made.upload_id, offset)
            return self.finish(self.get(made.upload_id, owner))
        except Exception:
            # Nobody knows its id; the client asks again, and gets another one.
            with suppress(LedgerstoneError):
                self.terminate(made)
            raise

    def get(self, upload_id: str, owner: str) -> Upload:
        """An upload of this owner; NotFound for one that is not there, expired or another's."""
        with self._store.database.reading() as tx:
            return self._look(tx, upload_id, owner)

    def append(self, upload: Upload, pieces: Sequence[bytes]) -> Upload:
        """Add bytes, and the size if it came with them; answers the upload as it is then.

        NotAllowedNow if the upload ends elsewhere, KeyConflict if it has another size.
        """

        def append(tx: Transaction) -> Progress:
            calls = Blobs(tx, self._store.state)
            if upload.told_size is not None:
                calls.set_size(upload.upload_id, upload.told_size)
                _set_size.run(tx, upload_id_=upload.upload_id, total_size_=upload.told_size)
            told = calls.append(upload.upload_id, upload.offset, *pieces)
            _extend.run(tx, upload_id_=upload.upload_id, keep_ms=self._store.state.keep_ms)
            return told

        done = self._store.database.run(append)
        size = UNKNOWN if done.total_size is None else done.total_size
        return upload._replace(offset=done.bytes, total_size=size, told_size=None)

    def finish(self, upload: Upload) -> Upload:
        """Make a whole upload a file, and tell of it, in one transaction."""
        if upload.to_finish:
            # Another request may have finished it, or removed it: `get` tells.
            with suppress(NotFound):
                then = partial(self._then, upload)
                self._store.complete(upload.upload_id, owner=upload.owner, then=then)
        return self.get(upload.upload_id, upload.owner or "")

    def terminate(self, upload: Upload) -> None:
        """Remove an upload with its bytes. A finished one is forgotten, its file stays."""

        def terminate(tx: Transaction) -> None:
            Blobs(tx, self._store.state).remove(upload.upload_id)
            _forget.run(tx, upload_id_=upload.upload_id)

        self._store.database.run(terminate)

    def _then(self, upload: Upload, tx: Transaction, done: Progress) -> None:
        keep_ms = self._store.state.keep_ms
        _finish.run(tx, upload_id_=upload.upload_id, hash_=done.file_id, keep_ms=keep_ms)
        told = FinishedUpload(
            upload_id=upload.upload_id,
            file_id=done.file_id,
            size=upload.total_size,
            owner=upload.owner or "",
            metadata=metadata_of(upload.metadata) if upload.metadata else {},
        )
        self._finished(tx, told)

    def _look(self, tx: Transaction, upload_id: str, owner: str) -> Upload:
        row = _look.one(tx, upload_id_=upload_id)
        if row is None or row[2] != owner:
            raise NotFound(f"there is no upload {upload_id}")
        found = Upload(*row)
        if found.file_id is not None:
            return found._replace(offset=found.total_size)
        told = Blobs(tx, self._store.state).progress(upload_id)
        if told is None:
            raise NotFound(f"there is no upload {upload_id}")
        return found._replace(offset=told.bytes)


def _mime_of(metadata: str | None) -> str | None:
    """The type that the client names, if it is one."""
    named = metadata_of(metadata) if metadata else {}
    words = named.get("filetype", b"").decode("latin-1")
    return words if words.isprintable() and 0 < len(words) <= MIME_CHARS_MAX else None
