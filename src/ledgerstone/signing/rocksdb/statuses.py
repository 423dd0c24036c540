"""RocksDB's errors are texts: each becomes an error of the one tree.

A text begins with the name of its status ("Corruption: …"); what follows tells the rest.
"""

from __future__ import annotations

from ledgerstone.errors import (
    BadInput,
    DiskFailed,
    LedgerstoneError,
    LockTimeout,
    NotFound,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreLocked,
    Unsupported,
)

_NEWER_FORMAT = ("unsupported format_version", "unknown footer version", "unknown checksum type")
_NO_SPACE = ("no space left", "disk quota exceeded", "file too large", "max allowed space")
_DENIED = ("permission denied", "read-only file system", "operation not permitted")
_LOCKED = ("lock hold by", "while lock file")


def error_of_status(text: str, what: str) -> LedgerstoneError:
    """The error that says what RocksDB's status says, about `what`."""
    message = f"{what}: {text}"
    lower = text.lower()
    if any(words in lower for words in _NEWER_FORMAT):
        return Unsupported(message, hint="a newer RocksDB wrote it: use that version, or export it")
    if any(words in lower for words in _NO_SPACE):
        return StoreFull(message)
    if lower.startswith("io error"):
        return _io_error(message, lower)
    for begin, error in _BY_STATUS.items():
        if text.startswith(begin):
            return error(message)
    return StoreError(message)


def _io_error(message: str, lower: str) -> LedgerstoneError:
    if any(words in lower for words in _DENIED):
        return StoreDenied(message)
    if any(words in lower for words in _LOCKED):
        return StoreLocked(message)
    return DiskFailed(message)


_BY_STATUS: dict[str, type[LedgerstoneError]] = {
    "Corruption": StoreCorrupt,
    "Operation timed out": LockTimeout,
    "Resource busy": StoreBusy,
    "Operation aborted": StoreBusy,
    "Operation expired": StoreBusy,
    "Operation failed. Try again": StoreBusy,
    "Invalid argument": BadInput,
    "NotFound": NotFound,
    "Not implemented": Unsupported,
    "Shutdown in progress": StoreClosed,
    "Merge in progress": StoreCorrupt,
}
"""By the words that a status begins with."""
