"""The store of signing: ten families of bytes, read and changed in transactions.

Keys and values are bytes here; `keys` and `values` say what they mean. Every change that a call
acknowledged is on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, Self, TypeVar

import msgspec

from ledgerstone.errors import (
    BadInput,
    DiskFailed,
    KeyConflict,
    LockTimeout,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    TooLarge,
)
from ledgerstone.failpoints import hit
from ledgerstone.settings import SigningSettings
from ledgerstone.signing.access import PAGE_ROWS
from ledgerstone.signing.families import OPTIONS
from ledgerstone.signing.folder import migration_wanted, store_folder
from ledgerstone.signing.keys import Family
from ledgerstone.signing.migration import MigrationReport, add_up_volumes, migrate
from ledgerstone.signing.rocksdb import (
    Database,
    Row,
    Scan,
    Transaction,
    file_errors,
    keep_few_files,
    list_of_files,
    path_bytes,
    prefix_end,
)
from ledgerstone.signing.values import Stored
from ledgerstone.signing.volume import added, volume_of, volume_value
from ledgerstone.store.wakeup import ALL, WakeSignals

T = TypeVar("T")

KEY_BYTES_MAX = 4096
PAGE_ROWS_MAX = 10_000
PAGE_BYTES_MAX = 16 * 1024 * 1024
TRANSACTION_BYTES_MAX = 256 * 1024 * 1024
"""Writes of one transaction wait in memory until it commits."""
FOLDER_MODE = 0o700
READ_TRIES_SAME = 4
READ_PAUSE_SECONDS = 0.01
READ_SECONDS_MAX = 30.0
"""How long opening for reading is tried beside a process that replaces its files all the time."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows in the order of their keys; `after` is the cursor of the next page, if any."""

    rows: list[Row]
    after: bytes | None


class Readable(Protocol):
    """The rows under a view: a snapshot, or a database that was opened for reading only."""

    def get(self, family: str, key: bytes) -> bytes | None: ...
    def scan(self, family: str, *, start: bytes = b"", end: bytes | None = None) -> Scan: ...
    def close(self) -> None: ...


class _Unchanging:
    """A database that was opened for reading only: it stays at the moment of its opening.

    Families that the database does not have are empty: only a writer creates them.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._families = frozenset(database.families)

    def get(self, family: str, key: bytes) -> bytes | None:
        return self._database.get(family, key) if family in self._families else None

    def scan(self, family: str, *, start: bytes = b"", end: bytes | None = None) -> Scan:
        if family not in self._families:
            # No key is empty, so there is no row before this end.
            return self._database.scan(Family.DEFAULT, end=b"\0")
        return self._database.scan(family, start=start, end=end)

    def close(self) -> None:
        """Nothing: the database is closed by its store."""


class View:
    """The store as it was at one moment; released at the end of its block."""

    def __init__(self, snapshot: Readable) -> None:
        self._snapshot = snapshot

    def get(self, family: Family, key: bytes) -> bytes | None:
        return self._snapshot.get(family, key)

    def page(
        self,
        family: Family,
        prefix: bytes = b"",
        *,
        after: bytes | None = None,
        rows_max: int = PAGE_ROWS,
    ) -> Page:
        start, end = _bounds(prefix, after)
        return _page(self._snapshot.scan(family, start=start, end=end), rows_max)

    def volume(self, key: bytes) -> int:
        return volume_of(self.get(Family.VOLUME, key), key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._snapshot.close()


class StoreTransaction:
    """Changes of several families that happen together: committed at the end of the block.

    - An exception in the block undoes all of it.
    - A key that is changed, or read for update, is locked until the end. `LockTimeout` and
      `StoreBusy` mean that another transaction has it: run the whole block again (`Store.run`).
    - Lock keys in one order everywhere, family by family and byte by byte: no deadlocks then.
    """

    def __init__(
        self,
        transaction: Transaction,
        *,
        value_bytes_max: int,
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        self._transaction = transaction
        self._committed = committed
        self._value_bytes_max = value_bytes_max
        self._written_bytes = 0

    def get(self, family: Family, key: bytes) -> bytes | None:
        return self._transaction.get(family, key)

    def get_for_update(self, family: Family, key: bytes) -> bytes | None:
        """The value of the key, or None; nobody else changes it before this transaction ends."""
        return self._transaction.get_for_update(family, _checked_key(key))

    def page(
        self,
        family: Family,
        prefix: bytes = b"",
        *,
        after: bytes | None = None,
        rows_max: int = PAGE_ROWS,
    ) -> Page:
        start, end = _bounds(prefix, after)
        return _page(self._transaction.scan(family, start=start, end=end), rows_max)

    def volume(self, key: bytes) -> int:
        return volume_of(self.get(Family.VOLUME, key), key)

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Set the value of the key, whatever was there."""
        self._put(family, _checked_key(key), value)

    def delete(self, family: Family, key: bytes) -> None:
        """Remove the key; nothing happens if it is not there."""
        self._transaction.delete(family, key)

    def insert(self, family: Family, key: bytes, value: bytes) -> Stored:
        """Store the value if the key is free; KeyConflict if it holds another value."""
        found = self.get_for_update(family, key)
        if found is None:
            self._put(family, key, value)
            return Stored.NEW
        if found != value:
            raise KeyConflict(f"{key!r:.200} holds another value")
        return Stored.SAME

    def add_volume(self, key: bytes, amount: int) -> int:
        """Add the amount to the number under the key, saturating; the new number."""
        volume = added(volume_of(self.get_for_update(Family.VOLUME, key), key), amount)
        self._put(Family.VOLUME, key, volume_value(volume))
        return volume

    def _put(self, family: Family, key: bytes, value: bytes) -> None:
        if len(value) > self._value_bytes_max:
            raise TooLarge(
                f"a value of {len(value)} bytes, at most {self._value_bytes_max}",
                hint="the limit is the setting signing.value_bytes_max",
            )
        self._written_bytes += len(key) + len(value)
        if self._written_bytes > TRANSACTION_BYTES_MAX:
            raise TooLarge(
                f"a transaction writes at most {TRANSACTION_BYTES_MAX} bytes",
                hint="commit in several steps",
            )
        self._transaction.put(family, key, value)

    def commit(self) -> None:
        """Make the changes durable, and end the transaction; the end of the block does it."""
        hit("signing.committing")
        self._transaction.commit()
        hit("signing.committed")
        self._committed()

    def rollback(self) -> None:
        """Undo the changes, and end the transaction; done twice is fine."""
        self._transaction.rollback()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._transaction:
            if kind is None:
                self.commit()


class Store:
    """The families of one folder, which one process at a time has open.

    - Threads may share it. `close` waits for calls in progress, and may be called twice.
    - Opening creates the folder, which only its owner can read, and the families.
    - `StoreLocked` names the folder if another process has it open.
    - With `read_only` nothing is created, locked or written, and another process may have it open
      meanwhile. It shows the moment of its opening; a call that writes raises `NotAllowedNow`.
    """

    def __init__(
        self, folder: Path, settings: SigningSettings | None = None, *, read_only: bool = False
    ) -> None:
        path_bytes(folder)
        self.folder = folder
        self.settings = settings or SigningSettings()
        self.read_only = read_only
        self.wake_signals = WakeSignals()
        """Notified after each commit of this process."""
        if read_only:
            self.database = _opened_for_reading(folder, self.settings)
            self._reads: Readable | Database = _Unchanging(self.database)
            return
        with file_errors(folder):
            folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        self.database = Database(
            folder,
            OPTIONS,
            lock_timeout_seconds=self.settings.lock_timeout_seconds,
            library_file=self.settings.rocksdb_library,
        )
        self._reads = self.database

    @classmethod
    def open(
        cls,
        settings: SigningSettings | None = None,
        *,
        folder: Path | None = None,
        read_only: bool = False,
    ) -> Self:
        """Open a folder (none: that of settings and environment), and tidy up after the original.

        - Rows of the default family are moved if settings or environment say so.
        - Volumes that are operands still are added up.
        - Logs are dropped and small data files merged, if many openings left many of them.
        """
        settings = settings or SigningSettings()
        store = cls(folder or store_folder(settings), settings, read_only=read_only)
        if read_only:
            return store
        try:
            if migration_wanted(settings):
                store.migrate()
            # The call that needs the damaged block, or the room, reports it; the others go on.
            with suppress(StoreCorrupt):
                add_up_volumes(store.database)
            with suppress(StoreCorrupt, StoreFull):
                keep_few_files(store.database)
        except BaseException:
            store.close()
            raise
        return store

    def migrate(self) -> MigrationReport:
        """Move rows of the default family into their own, in bounded steps; repeatable."""
        return migrate(self.database)

    def get(self, family: Family, key: bytes) -> bytes | None:
        return self._reads.get(family, key)

    def page(
        self,
        family: Family,
        prefix: bytes = b"",
        *,
        after: bytes | None = None,
        rows_max: int = PAGE_ROWS,
    ) -> Page:
        start, end = _bounds(prefix, after)
        return _page(self._reads.scan(family, start=start, end=end), rows_max)

    def volume(self, key: bytes) -> int:
        return volume_of(self.get(Family.VOLUME, key), key)

    def view(self) -> View:
        """Keep this moment for reads that must fit together."""
        return View(_Unchanging(self.database) if self.read_only else self.database.snapshot())

    def transaction(self) -> StoreTransaction:
        """Begin a transaction; it commits at the end of its block."""
        transaction = self.database.transaction()
        return StoreTransaction(
            transaction,
            value_bytes_max=self.settings.value_bytes_max,
            committed=lambda: self.wake_signals.notify((ALL,)),
        )

    def run(self, work: Callable[[StoreTransaction], T]) -> T:
        """Run `work(tx)` in a transaction; all of it again if it met another transaction.

        LockTimeout is raised at once: the wait for the key was the call's time.
        """
        for _ in range(self.settings.transaction_tries_max - 1):
            try:
                with self.transaction() as tx:
                    return work(tx)
            except LockTimeout:
                raise
            except StoreBusy:
                continue
        with self.transaction() as tx:
            return work(tx)

    def insert(self, family: Family, key: bytes, value: bytes) -> Stored:
        """Store the value if the key is free; of several callers at once one gets NEW."""
        return self.run(lambda tx: tx.insert(family, key, value))

    def add_volume(self, key: bytes, amount: int) -> int:
        """Add the amount to the number under the key, saturating; the new number."""
        return self.run(lambda tx: tx.add_volume(key, amount))

    def delete_prefix(self, family: Family, prefix: bytes, *, rows_max: int = PAGE_ROWS) -> int:
        """Remove at most so many rows with the prefix, in one transaction; how many there were."""

        def work(tx: StoreTransaction) -> int:
            page = tx.page(family, prefix, rows_max=rows_max)
            for row in page.rows:
                tx.delete(family, row.key)
            return len(page.rows)

        return self.run(work)

    def close(self) -> None:
        """Close the database; what was acknowledged is on disk already."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened_for_reading(folder: Path, settings: SigningSettings) -> Database:
    """Open what another process may be writing.

    A flush or a compaction of that process replaces files between two steps of the opening, which
    then tells of a missing file, another one each time, or finds neither the log that was dropped
    nor the data file that replaced it. Damage stays the same, and is raised.
    """
    give_up = time.monotonic() + READ_SECONDS_MAX
    told: list[str] = []
    while True:
        before = list_of_files(folder)
        try:
            database = Database(
                folder, OPTIONS, read_only=True, library_file=settings.rocksdb_library
            )
        except (StoreCorrupt, DiskFailed) as error:
            told = [*told, error.message][-READ_TRIES_SAME:]
            stays = len(told) == READ_TRIES_SAME and len(set(told)) == 1
            if stays or time.monotonic() > give_up:
                raise
        else:
            if list_of_files(folder) == before:
                return database
            database.close()
            if time.monotonic() > give_up:
                raise StoreBusy(
                    f"{folder} is being rewritten all the time by the process that has it open",
                    hint="try again when that process has less to do",
                )
        time.sleep(READ_PAUSE_SECONDS)


def _bounds(prefix: bytes, after: bytes | None) -> tuple[bytes, bytes | None]:
    if after is not None and not after.startswith(prefix):
        raise BadInput(f"the cursor {after!r} does not begin with {prefix!r}")
    return (prefix if after is None else after + b"\0"), prefix_end(prefix)


def _page(scan: Scan, rows_max: int) -> Page:
    if not 1 <= rows_max <= PAGE_ROWS_MAX:
        scan.close()
        raise BadInput(f"a page has 1 to {PAGE_ROWS_MAX} rows, not {rows_max}")
    rows: list[Row] = []
    size = 0
    with scan:
        for row in scan:
            rows.append(row)
            size += len(row.key) + len(row.value)
            if len(rows) == rows_max or size >= PAGE_BYTES_MAX:
                return Page(rows=rows, after=row.key)
    return Page(rows=rows, after=None)


def _checked_key(key: bytes) -> bytes:
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise BadInput(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}")
    return key
