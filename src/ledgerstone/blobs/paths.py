"""Where files lie outside the database, and what the system has against them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ledgerstone.errors import DiskFailed, StoreDenied, StoreFull


def path_in(folder: Path, name: str) -> Path:
    """Where the file of a content lies in the folder of blobs."""
    return folder / name[:2] / name


@contextmanager
def told(path: Path) -> Iterator[None]:
    """What the system has against it is told as an error of the store."""
    try:
        yield
    except OSError as error:
        words = f"{path}: {error.strerror or error}"
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise StoreFull(words, hint="make room on the disk of the folder") from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise StoreDenied(words, hint="give this user the folder of files") from error
        raise DiskFailed(
            words, hint="look at blobs.folder, and at the log of the system"
        ) from error
