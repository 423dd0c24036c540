"""Files and folders, and what the system says about them, as errors of the one tree."""

from __future__ import annotations

import errno
import os
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


@contextmanager
def file_errors(what: Path) -> Iterator[None]:
    """Raise errors of the system as StoreDenied, StoreFull, BadInput (the path) or DiskFailed."""
    try:
        yield
    except OSError as error:
        kind = _BY_NUMBER.get(error.errno, DiskFailed)
        raise kind(f"{what}: {error.strerror or error}") from error


def path_bytes(path: Path) -> bytes:
    """The path for a C function; BadInput for one that would end earlier there."""
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise BadInput(f"a path holds no NUL: {str(path)!r:.80}")
    return encoded
