"""Looking after the store: health, statistics, disk usage, compaction, checkpoints, backups."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from ledgerstone.errors import LedgerstoneError, NotAllowedNow, NotFound
from ledgerstone.failpoints import hit
from ledgerstone.signing.families import OPTIONS
from ledgerstone.signing.keys import Family
from ledgerstone.signing.rocksdb import (
    Backup,
    BackupFolder,
    Database,
    drop_logs,
    exists,
    file_errors,
    path_bytes,
)
from ledgerstone.signing.store import FOLDER_MODE, Store

FREE_BYTES_MIN = 64 * 1024 * 1024
"""Less free space than this is a problem: RocksDB needs room to write what it compacts."""


PROBE_KEY = b"own:health"
"""Never stored: removing it shows that the store can be written."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the store can be read and written; `problems` says what is wrong."""

    problems: list[str]
    background_errors: int
    write_stopped: bool
    free_bytes: int

    @property
    def ok(self) -> bool:
        return not self.problems


class FamilyStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One family: about how many rows, and its bytes in files and in memory."""

    rows_estimate: int
    file_bytes: int
    memory_bytes: int


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """All families, and RocksDB's own words."""

    families: dict[str, FamilyStatistics]
    cache_bytes: int
    running_compactions: int
    text: str


class DiskUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the folder: data files by family, the write-ahead log, and everything else."""

    families: dict[str, int]
    log_bytes: int
    other_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(self.families.values()) + self.log_bytes + self.other_bytes


def health(store: Store) -> Health:
    """Read a row of each family, write nothing to the log, and ask RocksDB how it is."""
    problems = []
    for family in Family:
        try:
            store.page(family, rows_max=1)
        except LedgerstoneError as error:
            problems.append(f"{family}: {error}")
    problems += _folder_problems(store.folder)
    if not store.read_only:
        problems += _write_problems(store)
    errors = store.database.number("rocksdb.background-errors")
    stopped = bool(store.database.number("rocksdb.is-write-stopped"))
    free = _free_bytes(store.folder)
    if errors:
        problems.append(f"RocksDB had {errors} errors in the background: see {store.folder}/LOG")
    if stopped:
        problems.append("RocksDB has stopped writes until compactions catch up")
    if free < FREE_BYTES_MIN:
        problems.append(f"only {free} bytes are free on the disk of {store.folder}")
    return Health(
        problems=problems, background_errors=errors, write_stopped=stopped, free_bytes=free
    )


def _folder_problems(folder: Path) -> list[str]:
    if not folder.is_dir():
        return [f"{folder} is gone: what is written now is lost"]
    if not os.access(folder, os.W_OK | os.X_OK):
        return [f"{folder} cannot be written by this user"]
    return []


def _write_problems(store: Store) -> list[str]:
    """Write to the log, and leave nothing: after some errors RocksDB only reads."""
    try:
        with store.transaction() as tx:
            tx.delete(Family.DEFAULT, PROBE_KEY)
    except LedgerstoneError as error:
        return [f"nothing can be written: {error}"]
    return []


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def statistics(store: Store) -> Statistics:
    """Sizes and counts, as RocksDB estimates them."""
    database = store.database
    files = database.file_bytes()
    families = {
        name: FamilyStatistics(
            rows_estimate=database.number("rocksdb.estimate-num-keys", name),
            file_bytes=files[name],
            memory_bytes=database.number("rocksdb.cur-size-all-mem-tables", name),
        )
        for name in database.families
    }
    return Statistics(
        families=families,
        cache_bytes=sum(
            database.number("rocksdb.block-cache-usage", name) for name in database.families
        ),
        running_compactions=database.number("rocksdb.num-running-compactions"),
        text=database.text("rocksdb.stats"),
    )


def disk_usage(store: Store) -> DiskUsage:
    """The bytes of the folder. No file is opened: closing `LOCK` again would free the lock."""
    sizes = dict.fromkeys(("sst", "log", "other"), 0)
    with file_errors(store.folder), os.scandir(store.folder) as entries:
        for entry in entries:
            kind = entry.name.rpartition(".")[2]
            sizes[kind if kind in sizes else "other"] += entry.stat(follow_symlinks=False).st_size
    families = store.database.file_bytes()
    # Data files that nothing uses any more go soon; until then they belong to no family.
    unused = max(0, sizes["sst"] - sum(families.values()))
    return DiskUsage(families=families, log_bytes=sizes["log"], other_bytes=sizes["other"] + unused)


def compact(store: Store, family: Family | None = None) -> None:
    """Rewrite the data files of a family (none: of all) without what was removed; drop old logs."""
    drop_logs(store.database)
    for name in [family] if family is not None else store.database.families:
        store.database.compact(name)


def checkpoint(store: Store, target: Path) -> None:
    """Make `target`, which must not exist, a copy of this moment while the store is in use.

    Data files are shared with the store by hard links where both lie on one file system: it is
    quick and small, and no protection against a damaged disk. A backup is.
    """
    with file_errors(target):
        if target.exists():
            raise NotAllowedNow(f"{target} exists", hint="name a folder that does not")
        target.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    store.database.checkpoint(target)


def back_up(store: Store, backups: Path, *, keep: int | None = None) -> Backup:
    """Add a backup of this moment to a folder of backups; keep only the newest `keep`."""
    if store.read_only:
        raise NotAllowedNow(f"{store.folder} was opened for reading only")
    path_bytes(backups)
    with file_errors(backups):
        backups.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    with BackupFolder(backups, library_file=store.settings.rocksdb_library) as folder:
        made = folder.create(store.database)
        if keep is not None:
            folder.purge(keep)
        return made


def verify(folder: Path, *, library_file: str | None = None) -> dict[str, int]:
    """Read every row of a store or checkpoint; by family, how many there are.

    Damage raises `StoreCorrupt`. Nothing is written, and another process may have it open.
    """
    if not exists(folder):
        raise NotFound(f"there is no database in {folder}")
    with Database(folder, OPTIONS, read_only=True, library_file=library_file) as database:
        return count_rows(database)


def count_rows(database: Database) -> dict[str, int]:
    """By family, how many rows there are; every block is read and its checksum compared."""
    return {
        name: sum(1 for _ in database.scan(name, fill_cache=False)) for name in database.families
    }


def verify_backup(
    backups: Path, number: int | None = None, *, library_file: str | None = None
) -> dict[str, int]:
    """Restore a backup (none: the newest) into a scratch folder and read every row of it."""
    with (
        file_errors(backups),
        tempfile.TemporaryDirectory(prefix="verify-", dir=backups.parent) as scratch,
    ):
        _copy_backup(backups, number, Path(scratch) / "store", library_file)
        return verify(Path(scratch) / "store", library_file=library_file)


def restore_backup(
    backups: Path, folder: Path, number: int | None = None, *, library_file: str | None = None
) -> dict[str, int]:
    """Make `folder` a store from a backup (none: the newest); by family, how many rows it has."""
    return _restore(
        folder, lambda scratch: _copy_backup(backups, number, scratch, library_file), library_file
    )


def restore_checkpoint(
    checkpoint: Path, folder: Path, *, library_file: str | None = None
) -> dict[str, int]:
    """Make `folder` a store from a checkpoint, by copying; by family, how many rows it has."""
    if not exists(checkpoint):
        raise NotFound(f"there is no checkpoint in {checkpoint}")
    ignored = shutil.ignore_patterns("LOCK", "LOG", "LOG.old.*")

    def copy(scratch: Path) -> None:
        shutil.copytree(checkpoint, scratch, ignore=ignored)

    return _restore(folder, copy, library_file)


def _restore(
    folder: Path, fill: Callable[[Path], None], library_file: str | None
) -> dict[str, int]:
    """Fill a folder beside the target, verify and sync it, and only then give it its name."""
    path_bytes(folder)
    with file_errors(folder):
        return _restored(folder, fill, library_file)


def _restored(
    folder: Path, fill: Callable[[Path], None], library_file: str | None
) -> dict[str, int]:
    if folder.exists() and any(folder.iterdir()):
        raise NotAllowedNow(
            f"{folder} is not empty",
            hint="stop the service and move the old folder away: nothing is overwritten",
        )
    folder.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}.restoring-", dir=folder.parent))
    try:
        filled = scratch / "store"
        fill(filled)
        filled.chmod(FOLDER_MODE)
        rows = verify(filled, library_file=library_file)
        for path in filled.iterdir():
            _sync(path)
        _sync(filled)
        hit("signing.restoring")
        filled.replace(folder)
        _sync(folder.parent)
        return rows
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _copy_backup(backups: Path, number: int | None, target: Path, library_file: str | None) -> None:
    if not backups.is_dir():
        raise NotFound(f"there are no backups in {backups}")
    with BackupFolder(backups, library_file=library_file) as folder:
        numbers = [backup.number for backup in folder.backups()]
        if not numbers or (number is not None and number not in numbers):
            raise NotFound(f"{backups} has no backup {number if number is not None else 'at all'}")
        chosen = numbers[-1] if number is None else number
        folder.verify(chosen)
        folder.restore(chosen, target)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
