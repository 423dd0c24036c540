"""The folder of files that are kept beside the database: written whole, or not there.

    incoming/UPLOAD ──write, fsync──▶ named in the row ──rename, fsync──▶ ab/HASH ──▶ completed row

The row names the file before it is renamed: whatever a crash leaves is found by a row that expires.
From the rename to the commit a writer has the folder's lock shared; a file is removed under the
exclusive lock, after a look at the row. So no file is removed that is about to be completed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ledgerstone.blobs.content import path_in
from ledgerstone.blobs.tables import FILE_ID_CHARS
from ledgerstone.errors import NotAllowedNow

INCOMING = "incoming"
LOCK = "lock"
_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600


@contextmanager
def assembling(folder: Path, upload_id: str) -> Iterator[BinaryIO]:
    """An empty file for the content of an upload; NotAllowedNow while another process has it."""
    path = folder / INCOMING / upload_id
    _make(path.parent)
    with _opened(path) as file:
        if not _locked(file, fcntl.LOCK_EX) or not _is_at(file, path):
            message = f"the upload {upload_id} is being completed by another process"
            raise NotAllowedNow(message, hint="ask for its progress in a moment")
        file.truncate(0)
        yield file


def publish(folder: Path, upload_id: str, file: BinaryIO, name: str) -> None:
    """Give a written file its name, on disk when this returns."""
    file.flush()
    os.fsync(file.fileno())
    target = path_in(folder, name)
    _make(target.parent)
    (folder / INCOMING / upload_id).rename(target)
    for changed in (target.parent, folder / INCOMING, folder):
        _sync(changed)


@contextmanager
def publishing(folder: Path) -> Iterator[None]:
    """In this block no file is removed."""
    _make(folder)
    with _opened(folder / LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


@contextmanager
def removing(folder: Path) -> Iterator[bool]:
    """In this block no file is given its name; False where one is just now: try it later."""
    _make(folder)
    with _opened(folder / LOCK) as lock:
        yield _locked(lock, fcntl.LOCK_EX)


def remove(folder: Path, name: str) -> bool:
    """Remove a file; whether it was there."""
    try:
        path_in(folder, name).unlink()
    except FileNotFoundError:
        return False
    return True


def remove_incoming(folder: Path, upload_id: str) -> bool:
    """Remove what was assembled of an upload, unless a process is at it; whether it did."""
    path = folder / INCOMING / upload_id
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return False
    with file:
        if not _locked(file, fcntl.LOCK_EX) or not _is_at(file, path):
            return False
        path.unlink()
        return True


def incoming(folder: Path) -> Iterator[str]:
    """The uploads of which a file was begun."""
    yield from _names(folder / INCOMING)


def names(folder: Path) -> Iterator[str]:
    """The names of the files that have one."""
    for part in _names(folder):
        if len(part) == len("ab"):
            yield from (name for name in _names(folder / part) if len(name) == FILE_ID_CHARS)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return []


def _make(folder: Path) -> None:
    """The folder, private, and on disk."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)
        _sync(folder.parent)


def _opened(path: Path) -> BinaryIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, _PRIVATE_FILE), "r+b")


def _locked(file: BinaryIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether the path still leads to this file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
