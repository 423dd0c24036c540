"""What has expired is removed, a bounded piece at a time; and what a crash left in the folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import BigInteger, Text, bindparam, delete, false, select, true, update

from ledgerstone.blobs import folder, rows
from ledgerstone.blobs.blobs import BlobsState
from ledgerstone.blobs.rows import file_id_
from ledgerstone.blobs.tables import blobs, slices, uploads
from ledgerstone.engine.duties import Duty
from ledgerstone.errors import DiskFailed, StoreDenied, StoreError
from ledgerstone.store.sql.batch import WithRows
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

EVERY_SECONDS = 60.0
BLOBS_MAX = 100
"""Expired blobs that one turn looks at."""
UPLOADS_MAX = 1000
"""Uploads by HTTP that one turn forgets."""
PROBLEMS_MAX = 10
FILE_ERRORS = (DiskFailed, StoreDenied)
SLICES_MAX = 1000
"""Slices that one turn removes: it holds others up for no longer than that."""

_limit = bindparam("limit_", type_=BigInteger())
_last = bindparam("last", type_=BigInteger())
_overdue = Statement(
    "blobs.overdue",
    select(blobs.c.file_id, blobs.c.disk_name)
    .where(blobs.c.expires_at_ms <= now_ms(), blobs.c.completed == false())
    .order_by(blobs.c.expires_at_ms)
    .limit(_limit)
    .with_for_update(skip_locked=True),
)
_some = Statement(
    "blobs.expired_slices",
    select(slices.c.slice_no)
    .where(slices.c.file_id == file_id_)
    .order_by(slices.c.slice_no)
    .limit(_limit),
)
_remove = Statement(
    "blobs.remove_slices",
    delete(slices).where(slices.c.file_id == file_id_, slices.c.slice_no <= _last),
)
_old = Statement(
    "blobs.old_uploads",
    select(uploads.c.upload_id)
    .where(uploads.c.expires_at_ms <= now_ms())
    .order_by(uploads.c.expires_at_ms)
    .limit(_limit)
    .with_for_update(skip_locked=True),
)
_forget = WithRows(
    "blobs.forget_uploads",
    incoming=(uploads.c.upload_id,),
    build=lambda row: delete(uploads).where(
        uploads.c.upload_id.in_(select(row.upload_id)), uploads.c.expires_at_ms <= now_ms()
    ),
)
_kept = Statement(
    "blobs.kept",
    select(blobs.c.file_id).where(
        blobs.c.file_id == bindparam("name_", type_=Text()), blobs.c.completed == true()
    ),
)


_postpone = Statement(
    "blobs.postpone",
    update(blobs).where(blobs.c.file_id == file_id_).values(expires_at_ms=now_ms()),
)


class Collected(msgspec.Struct, frozen=True):
    """What was removed: uploads with their slices, and files that no row names.

    `problems` are the first PROBLEMS_MAX files that the system does not let go.
    """

    uploads: int
    slices: int
    files: int
    problems: list[str]


def duty(state: BlobsState) -> Duty:
    """Removes what has expired, a bounded piece at a time."""
    return Duty("expire:blobs", EVERY_SECONDS, lambda tx: expire(tx, state).uploads)


def expire(tx: Transaction, state: BlobsState) -> Collected:
    """Remove expired uploads and files that were removed, a bounded piece."""
    old = _old.rows(tx, limit_=UPLOADS_MAX)
    if old:
        _forget.run(tx, sorted(old))
    removed, left, problems = 0, SLICES_MAX, list[str]()
    for file_id, disk_name in _overdue.rows(tx, limit_=BLOBS_MAX):
        found = _some.rows(tx, file_id_=file_id, limit_=left + 1)
        if found:
            part = found[:left]
            left -= _remove.run(tx, file_id_=file_id, last=part[-1][0])
            if len(found) > len(part):
                break
        try:
            gone = _without_file(tx, state.folder, file_id, disk_name)
        except FILE_ERRORS as error:
            gone = _note(problems, error)
        if gone:
            rows.forget(tx, file_id)
            removed += 1
        else:
            # It waits behind all others, and keeps none of them.
            _postpone.send(tx, file_id_=file_id)
        if left <= 0:
            break
    return Collected(removed, SLICES_MAX - left, 0, problems)


def collect(database: Database[Any], state: BlobsState) -> Collected:
    """All that has expired, and what no row names in the folder."""
    uploads = slices_removed = 0
    while True:
        turn = database.run(lambda tx: expire(tx, state))
        uploads, slices_removed = uploads + turn.uploads, slices_removed + turn.slices
        if not turn.uploads and not turn.slices:
            break
    problems = turn.problems
    files = 0 if state.folder is None else _sweep(database, state.folder, problems)
    return Collected(uploads, slices_removed, files, problems)


def _note(problems: list[str], error: StoreError) -> bool:
    """Remember what is wrong with a file, which is still there: False."""
    if len(problems) < PROBLEMS_MAX and error.message not in problems:
        problems.append(error.message)
    return False


def _without_file(tx: Transaction, home: Path | None, file_id: str, name: str | None) -> bool:
    """Remove the files of an expired blob; False where one is being written just now."""
    if home is None or not home.is_dir():
        return name is None
    folder.remove_incoming(home, file_id)
    if name is None:
        return True
    with folder.removing(home) as alone:
        if alone and not _is_kept(tx, name):
            folder.remove(home, name)
        return alone


def _is_kept(tx: Transaction, name: str) -> bool:
    """Whether a completed file has this content."""
    return _kept.one(tx, name_=name) is not None


def _sweep(database: Database[Any], home: Path, problems: list[str]) -> int:
    """Remove files that no completed row names, and those that nobody assembles any more."""
    removed = 0
    for upload in folder.incoming(home):
        try:
            removed += folder.remove_incoming(home, upload)
        except FILE_ERRORS as error:
            _note(problems, error)
    for name in folder.names(home):
        try:
            with folder.removing(home) as alone, database.reading() as tx:
                if alone and not _is_kept(tx, name):
                    removed += folder.remove(home, name)
        except FILE_ERRORS as error:
            _note(problems, error)
    return removed
