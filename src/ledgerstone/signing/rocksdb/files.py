"""Files and folders, and what the system says about them, as errors of the one tree."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ledgerstone.errors import BadInput, DiskFailed, LedgerstoneError, StoreDenied, StoreFull

_BY_NUMBER: dict[int | None, type[LedgerstoneError]] = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), StoreDenied),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), StoreFull),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY), BadInput),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP), BadInput),
}


_WITHOUT_NAMELESS_FILES = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
"""Errors of a file system, or a kernel, that knows no files without a name."""

OPENING_BYTES = 1024 * 1024
"""Room for what opening writes beside data files; it was a twentieth of that."""

WRITING_BYTES = 2 * 1024 * 1024
"""Room that a write leaves free beside twice its own size: others write meanwhile."""


@contextmanager
def file_errors(what: Path) -> Iterator[None]:
    """Raise errors of the system as StoreDenied, StoreFull, BadInput (the path) or DiskFailed."""
    try:
        yield
    except OSError as error:
        kind = _BY_NUMBER.get(error.errno, DiskFailed)
        raise kind(f"{what}: {error.strerror or error}") from error


def check_room(folder: Path) -> None:
    """StoreFull unless the folder has room for what opening a database there writes.

    RocksDB as Debian builds it ends the process if it cannot write while it opens a database. What
    the log holds may become data files. A file without a name takes the room for a moment: it tells
    of quotas and limits too, and a crash leaves nothing of it behind.
    """
    with file_errors(folder):
        logs = sum(path.stat().st_size for path in folder.glob("*.log"))
        needed = OPENING_BYTES + logs
        try:
            probe = os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o600)
        except OSError as error:
            if error.errno not in _WITHOUT_NAMELESS_FILES:
                raise
            room = shutil.disk_usage(folder).free >= needed
        else:
            room = _allocated(probe, needed)
    if not room:
        message = f"{folder}: opening it needs {needed:,} bytes of free space"
        raise StoreFull(message, hint="make room on its disk")


def check_free(folder: Path, size: int) -> None:
    """StoreFull unless the file system has room for a write of so many bytes.

    A write that meets a full disk leaves a database that only reads until it is opened again; as
    Debian builds RocksDB, it may also end the process.
    """
    try:
        found = os.statvfs(folder)
    except OSError:
        # Writing tells what is wrong.
        return
    free = found.f_bavail * found.f_frsize
    if free < WRITING_BYTES + 2 * size:
        message = f"{folder}: {free:,} bytes are free, too few to write {size:,}"
        raise StoreFull(message, hint="make room on its disk; nothing was written")


def _allocated(probe: int, size: int) -> bool:
    try:
        os.posix_fallocate(probe, 0, size)
    except OSError as error:
        if _BY_NUMBER.get(error.errno) is StoreFull:
            return False
        raise
    else:
        return True
    finally:
        os.close(probe)


def path_bytes(path: Path) -> bytes:
    """The path for a C function; BadInput for one that would end earlier there."""
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise BadInput(f"a path holds no NUL: {str(path)!r:.80}")
    return encoded
