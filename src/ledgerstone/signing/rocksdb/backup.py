"""Backups: many states of a database in one folder, which share the data files they have in common.

A backup is copied, so it may lie on another disk; a checkpoint shares files with its database.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

import msgspec

from ledgerstone.errors import BadInput, StoreClosed
from ledgerstone.signing.rocksdb.database import Database
from ledgerstone.signing.rocksdb.files import path_bytes
from ledgerstone.signing.rocksdb.library import checked, load
from ledgerstone.signing.rocksdb.lifetime import Guard
from ledgerstone.signing.rocksdb.options import c_options

CLOSE_SECONDS_MAX = 600.0


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """One backup in the folder: its number, when it was made, and how large it is."""

    number: int
    made_at: int
    """Seconds since 1970."""
    size_bytes: int
    files: int


class BackupFolder:
    """A folder of backups; one object at a time may write to it.

    `verify` compares the files' sizes, `restore` also their checksums while it copies them.
    """

    def __init__(self, folder: Path, *, library_file: str | None = None) -> None:
        self.folder = folder
        self._library = load(library_file)
        self._guard = Guard(f"backups in {folder}")
        self._lock = threading.Lock()
        call = self._library.backup_engine_open
        with c_options(self._library, "") as options:
            what = self._guard.what
            self._pointer: int | None = checked(
                self._library, what, call, options, path_bytes(folder)
            )

    def create(self, database: Database) -> Backup:
        """Make a backup of the database as it is now, while it is in use."""
        library = self._library
        with self._guard.here, self._lock, self._guard, database.guard:
            call = library.backup_engine_create_new_backup_flush
            checked(library, self._guard.what, call, self._open_pointer(), database.pointer, 1)
        return self.backups()[-1]

    def backups(self) -> list[Backup]:
        """The backups, from the oldest to the newest."""
        library = self._library
        with self._guard.here, self._lock, self._guard:
            info = library.backup_engine_get_backup_info(self._open_pointer())
            try:
                return [
                    Backup(
                        number=library.backup_engine_info_backup_id(info, index),
                        made_at=library.backup_engine_info_timestamp(info, index),
                        size_bytes=library.backup_engine_info_size(info, index),
                        files=library.backup_engine_info_number_files(info, index),
                    )
                    for index in range(library.backup_engine_info_count(info))
                ]
            finally:
                library.backup_engine_info_destroy(info)

    def verify(self, number: int) -> None:
        """Raise if a file of the backup is missing or has another size."""
        with self._guard.here, self._lock, self._guard:
            call = self._library.backup_engine_verify_backup
            checked(self._library, self._guard.what, call, self._open_pointer(), number)

    def restore(self, number: int, folder: Path) -> None:
        """Copy a backup into a folder, which becomes a database; checksums are compared."""
        library = self._library
        with self._guard.here, self._lock, self._guard:
            options = library.restore_options_create()
            try:
                target = path_bytes(folder)
                call = library.backup_engine_restore_db_from_backup
                pointer = self._open_pointer()
                what = self._guard.what
                checked(library, what, call, pointer, target, target, options, number)
            finally:
                library.restore_options_destroy(options)

    def purge(self, keep: int) -> None:
        """Remove all but the newest `keep` backups."""
        if keep < 1:
            raise BadInput("at least one backup is kept")
        with self._guard.here, self._lock, self._guard:
            call = self._library.backup_engine_purge_old_backups
            checked(self._library, self._guard.what, call, self._open_pointer(), keep)

    def close(self) -> None:
        """Free what it holds; closing twice is fine."""
        if self._guard.here.elsewhere:
            return
        with self._lock:
            pointer, self._pointer = self._pointer, None
            if pointer is not None:
                self._guard.close(CLOSE_SECONDS_MAX)
                self._library.backup_engine_close(pointer)

    def _open_pointer(self) -> int:
        if self._pointer is None:
            raise StoreClosed(f"{self._guard.what}: closed")
        return self._pointer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
