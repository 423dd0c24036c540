"""The folder of files that are kept beside the database: written whole, or not there.

    incoming/UPLOAD ──write, fsync──▶ named in the row ──rename, fsync──▶ ab/HASH ──▶ completed row

The row names the file before it is renamed: whatever a crash leaves is found by a row that expires.
From the rename to the commit a writer has the folder's lock shared; a file is removed under the
exclusive lock, after a look at the row. So no file is removed that is about to be completed.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ledgerstone.blobs.paths import path_in, told
from ledgerstone.blobs.tables import FILE_ID_CHARS
from ledgerstone.errors import NotAllowedNow, StoreLocked

INCOMING = "incoming"
LOCK = "lock"
LOCK_SECONDS_MAX = 30.0
"""How long a file waits for its name while others are removed."""
PAUSE_SECONDS = 0.01
_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600


@contextmanager
def assembling(folder: Path, upload_id: str) -> Iterator[BinaryIO]:
    """An empty file for the content of an upload; NotAllowedNow while another process has it.

    If the block fails, the file is removed: on a full disk it would be in the way.
    """
    path = folder / INCOMING / upload_id
    with _opened(path) as file:
        if not _locked(file, fcntl.LOCK_EX) or not _is_at(file, path):
            message = f"the upload {upload_id} is being completed by another process"
            raise NotAllowedNow(message, hint="ask for its progress in a moment")
        file.truncate(0)
        try:
            yield file
        except BaseException:
            if _is_at(file, path):
                with suppress(OSError):
                    path.unlink()
            raise


def write(folder: Path, upload_id: str, file: BinaryIO, piece: bytes) -> None:
    """Add bytes to a file that is being assembled."""
    with told(folder / INCOMING / upload_id):
        file.write(piece)


def publish(folder: Path, upload_id: str, file: BinaryIO, name: str) -> None:
    """Give a written file its name, on disk when this returns."""
    target = path_in(folder, name)
    with told(target):
        file.flush()
        os.fsync(file.fileno())
        _make(target.parent)
        (folder / INCOMING / upload_id).rename(target)
        for changed in (target.parent, folder / INCOMING, folder):
            _sync(changed)


@contextmanager
def publishing(folder: Path) -> Iterator[None]:
    """In this block no file is removed."""
    with _opened(folder / LOCK) as lock:
        began = time.monotonic()
        while not _locked(lock, fcntl.LOCK_SH):
            if time.monotonic() - began > LOCK_SECONDS_MAX:
                message = f"another process removes files of {folder} and does not end"
                raise StoreLocked(message, hint="look for a process that is stopped")
            time.sleep(PAUSE_SECONDS)
        yield


@contextmanager
def removing(folder: Path) -> Iterator[bool]:
    """In this block no file is given its name; False where one is just now: try it later."""
    with _opened(folder / LOCK) as lock:
        yield _locked(lock, fcntl.LOCK_EX)


def remove(folder: Path, name: str) -> bool:
    """Remove a file; whether it was there."""
    path = path_in(folder, name)
    with told(path):
        try:
            path.unlink()
        except FileNotFoundError:
            return False
    return True


def remove_incoming(folder: Path, upload_id: str) -> bool:
    """Remove what was assembled of an upload, unless a process is at it; whether it did."""
    path = folder / INCOMING / upload_id
    with told(path):
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return False
    with file, told(path):
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
    with told(folder):
        try:
            return sorted(path.name for path in folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []


def _make(folder: Path) -> None:
    """The folder, private, and on disk."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)
        _sync(folder.parent)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with told(path):
        _make(path.parent)
        file = os.fdopen(os.open(path, flags, _PRIVATE_FILE), "r+b")
    try:
        yield file
    finally:
        # What counts was flushed and synced before; the first error is the one that tells.
        with suppress(OSError):
            file.close()


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
