"""A RocksDB database: a folder that one process at a time has open for writing."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from ctypes import byref, c_char_p, c_size_t, c_uint64
from pathlib import Path
from typing import NamedTuple, Self

from ledgerstone.errors import (
    BadInput,
    NotAllowedNow,
    NotFound,
    StoreCorrupt,
    StoreError,
)
from ledgerstone.signing.rocksdb.batch import Batch
from ledgerstone.signing.rocksdb.files import check_room, file_errors, path_bytes
from ledgerstone.signing.rocksdb.handles import CLOSE_SECONDS_MAX, Handles, transaction_options
from ledgerstone.signing.rocksdb.library import Library, checked, load
from ledgerstone.signing.rocksdb.lifetime import (
    Child,
    Children,
    Guard,
    Rank,
    fill,
)
from ledgerstone.signing.rocksdb.log_records import CURRENT, check_logs
from ledgerstone.signing.rocksdb.options import DatabaseOptions, FamilyOptions, c_options
from ledgerstone.signing.rocksdb.scan import Scan, prefix_end
from ledgerstone.signing.rocksdb.snapshot import Snapshot
from ledgerstone.signing.rocksdb.stack import with_stack
from ledgerstone.signing.rocksdb.transaction import Transaction

DEFAULT_FAMILY = "default"
LOCK_TIMEOUT_SECONDS = 5.0
_ALWAYS = 2
"""Rewrite the files of the last level, too: RocksDB would only move them there, one by one."""


class DataFile(NamedTuple):
    """A file with the rows of one family from one key to another."""

    family: str
    size_bytes: int
    first_key: bytes
    last_key: bytes


class Database:
    """Column families of keys and values, in one folder.

    - Families that are missing are created; families of others are opened too, by default options.
    - Every write is on disk (fsync) when the call returns. Writes of several threads share one.
    - `close` ends open scans, transactions (rolled back) and snapshots first. It may be called
      twice; a database that is forgotten closes itself.
    - In a forked child every call raises `WrongProcess`, and nothing of the parent is touched.
    """

    def __init__(
        self,
        folder: Path,
        families: Mapping[str, FamilyOptions],
        *,
        options: DatabaseOptions | None = None,
        read_only: bool = False,
        lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
        library_file: str | None = None,
    ) -> None:
        self.folder = folder
        self.read_only = read_only
        self.library = with_stack(lambda: load(library_file))
        self.guard = Guard(str(folder))
        self.children = Children(self.library)
        self._handles = Handles(
            self.library,
            self.guard,
            self.children,
            read_only=read_only,
            lock_timeout_seconds=lock_timeout_seconds,
        )
        # Before it is opened: what is opened by a call that a signal interrupts is closed, too.
        self._finalizer = weakref.finalize(self, self._handles.close_forgotten)
        options = options or DatabaseOptions(create=not read_only)
        try:
            with_stack(lambda: self._open(families, options))
        except BaseException:
            # Now, and not when the error is forgotten: the folder may be opened again.
            self._finalizer()
            raise
        self.read_options = self._handles.read_options

    def _open(self, families: Mapping[str, FamilyOptions], options: DatabaseOptions) -> None:
        folder = self.folder
        if options.create and not folder.exists():
            with file_errors(folder):
                folder.mkdir(exist_ok=True)
        if not self.read_only and folder.is_dir():
            self._handles.folder_lock.take(folder)
            check_room(folder)
        found = []
        if exists(folder):
            with file_errors(folder):
                check_logs(folder)
            found = family_names(folder, self.library)
        if not found:
            _check_new(folder)
            if not options.create:
                raise NotFound(f"there is no database in {folder}")
        wanted = dict.fromkeys([DEFAULT_FAMILY, *found], FamilyOptions()) | dict(families)
        if self.read_only:
            wanted = {name: wanted[name] for name in found}
        self._handles.open(folder, options.text, wanted)

    @property
    def families(self) -> list[str]:
        """The names of the families, as they were opened."""
        return list(self._handles.families)

    def close(self) -> None:
        """Close it, after the calls in progress have returned."""
        self._handles.close(CLOSE_SECONDS_MAX)
        self._finalizer.detach()

    @property
    def closed(self) -> bool:
        return not self._handles.slot

    def get(self, family: str, key: bytes, *, snapshot: Snapshot | None = None) -> bytes | None:
        """The value of the key; None if it is not there."""
        library = self.library
        size = c_size_t()
        with self.guard:
            at = checked(
                library,
                self.guard.what,
                library.get_cf,
                self._handles.pointer,
                self._reading(snapshot),
                self.family(family),
                key,
                len(key),
                byref(size),
            )
            return library.bytes_of(at, size.value)

    def write(self, batch: Batch) -> None:
        """All writes of the batch, or none; waits for keys that transactions have locked."""
        library = self.library
        self._check_writable()
        with self.guard, _c_batch(self, batch) as c_batch:
            call = library.transactiondb_write
            options = self._handles.write_options
            checked(library, self.guard.what, call, self._handles.pointer, options, c_batch)

    def transaction(self, *, lock_timeout_seconds: float | None = None) -> Transaction:
        """Begin a transaction; `lock_timeout_seconds` replaces that of the database."""
        return Transaction(self, lock_timeout_seconds=lock_timeout_seconds)

    def snapshot(self) -> Snapshot:
        """Keep the present moment for reads."""
        return Snapshot(self)

    def scan(
        self,
        family: str,
        *,
        start: bytes = b"",
        end: bytes | None = None,
        snapshot: Snapshot | None = None,
        fill_cache: bool = True,
    ) -> Scan:
        """Rows from `start` to before `end` (none: to the last), as they are at this moment."""
        return self.open_scan(
            family, start=start, end=end, snapshot=snapshot, fill_cache=fill_cache
        )

    def scan_prefix(self, family: str, prefix: bytes) -> Scan:
        """Rows whose keys begin with the prefix."""
        return self.scan(family, start=prefix, end=prefix_end(prefix))

    def flush(self, family: str | None = None) -> None:
        """Write what is in memory, of a family (none: of all), into data files."""
        library = self.library
        self._check_writable()
        with self.guard, _flush_options(library) as options:
            for name in self.families if family is None else [family]:
                what, handle = self.guard.what, self.family(name)
                checked(library, what, library.flush_cf, self._handles.pointer, options, handle)

    def compact(self, family: str, *, start: bytes | None = None, end: bytes | None = None) -> None:
        """Rewrite the data files of a range (none: of everything) without what was removed.

        Files whose ranges do not overlap are merged, too.
        """
        library = self.library
        before = self.number("rocksdb.background-errors")
        self._check_writable()
        with self.guard, _compact_options(library) as options:
            library.compact_range_cf_opt(
                self._handles.pointer,
                self.family(family),
                options,
                start,
                len(start or b""),
                end,
                len(end or b""),
            )
        # The C function tells nothing of how it ended.
        if self.number("rocksdb.background-errors") > before:
            raise StoreCorrupt(
                f"{self.guard.what}: compaction of {family} failed; see its file LOG"
            )

    def text(self, name: str, family: str = DEFAULT_FAMILY) -> str:
        """A property as text, such as `rocksdb.stats`."""
        with self.guard:
            call = self.library.property_value_cf
            at = call(self._handles.pointer, self.family(family), name.encode())
            if at is None:
                raise BadInput(f"RocksDB has no property {name!r}")
            return self.library.text(at)

    def number(self, name: str, family: str = DEFAULT_FAMILY) -> int:
        """A property as a number, such as `rocksdb.estimate-num-keys`."""
        value = c_uint64()
        with self.guard:
            call = self.library.property_int_cf
            if call(self._handles.pointer, self.family(family), name.encode(), byref(value)):
                raise BadInput(f"RocksDB has no numeric property {name!r}")
            return value.value

    def data_files(self) -> list[DataFile]:
        """The data files of all families, as they are in use now."""
        library = self.library
        size = c_size_t()
        with self.guard:
            files = library.livefiles(self._handles.pointer)
            try:
                return [
                    DataFile(
                        family=ctypes.string_at(
                            library.livefiles_column_family_name(files, number)
                        ).decode(),
                        size_bytes=library.livefiles_size(files, number),
                        first_key=ctypes.string_at(
                            library.livefiles_smallestkey(files, number, byref(size)), size.value
                        ),
                        last_key=ctypes.string_at(
                            library.livefiles_largestkey(files, number, byref(size)), size.value
                        ),
                    )
                    for number in range(library.livefiles_count(files))
                ]
            finally:
                library.livefiles_destroy(files)

    def file_bytes(self) -> dict[str, int]:
        """By family, the bytes of its data files."""
        found = dict.fromkeys(self.families, 0)
        for file in self.data_files():
            found[file.family] += file.size_bytes
        return found

    def checkpoint(self, target: Path) -> None:
        """Make `target`, which must not exist, a database of this moment that can be opened."""
        library = self.library
        self._check_writable()
        with self.guard:
            what = f"checkpoint {target}"
            create = library.transactiondb_checkpoint_object_create
            made = checked(library, what, create, self._handles.pointer)
            try:
                checked(library, what, library.checkpoint_create, made, path_bytes(target), 0)
            finally:
                library.checkpoint_object_destroy(made)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def family(self, name: str) -> int:
        """The C handle of a family."""
        try:
            return self._handles.families[name]
        except KeyError:
            raise BadInput(f"{self.guard.what} has no column family {name!r}") from None

    @property
    def pointer(self) -> int:
        """The C handle, for calls inside the guard."""
        return self._handles.pointer

    def begin(self, lock_timeout_seconds: float | None) -> Child:
        """A new C transaction."""
        library, handles = self.library, self._handles
        self._check_writable()
        with self.guard:
            self.children.destroy_forgotten()
            options = handles.transaction_options
            if lock_timeout_seconds is not None:
                options = transaction_options(library, lock_timeout_seconds)
            child = self.children.add(Rank.TRANSACTION, library.transaction_destroy)
            begin = library.transaction_begin
            fill(child.slot, begin, handles.pointer, handles.write_options, options, None)
            if lock_timeout_seconds is not None:
                library.transaction_options_destroy(options)
            return child

    def begin_snapshot(self) -> Child:
        """A new C snapshot, and the options that read it."""
        library, handles = self.library, self._handles
        self._check_writable()
        with self.guard:
            self.children.destroy_forgotten()
            release = library.transactiondb_release_snapshot
            child = self.children.add(Rank.SNAPSHOT, release, handles.pointer)
            fill(child.slot, library.transactiondb_create_snapshot, handles.pointer)
            child.options.append(library.readoptions_create())
            library.readoptions_set_snapshot(child.options[0], child.pointer)
            return child

    def open_scan(
        self,
        family: str,
        *,
        start: bytes,
        end: bytes | None,
        snapshot: Snapshot | None = None,
        transaction: int | None = None,
        fill_cache: bool = True,
        known: Callable[[Child], None] = lambda _: None,
    ) -> Scan:
        """A new C iterator, at the first row; `known` is told of it before it is made."""
        library = self.library
        with self.guard:
            self.children.destroy_forgotten()
            handle = self.family(family)
            # RocksDB keeps the address of the bound and not its bytes.
            bound = None if end is None else ctypes.create_string_buffer(end, len(end))
            child = self.children.add(Rank.ITERATOR, library.iter_destroy, kept=bound)
            known(child)
            child.options.append(library.readoptions_create())
            options = child.options[0]
            library.readoptions_set_fill_cache(options, fill_cache)
            if snapshot is not None:
                library.readoptions_set_snapshot(options, snapshot.handle.pointer)
            if bound is not None:
                library.readoptions_set_iterate_upper_bound(options, bound, len(bound))
            if transaction is not None:
                create = library.transaction_create_iterator_cf
                fill(child.slot, create, transaction, options, handle)
            else:
                fill(child.slot, library.create_iterator_cf, self.pointer, options, handle)
            library.iter_seek(child.pointer, start, len(start))
            return Scan(library, self.guard, self.children, child, end=end, owner=self)

    def end(self, child: Child) -> None:
        """Destroy a C object; where the database is closed, that was done."""
        with suppress(StoreError), self.guard:
            self.children.destroy(child)

    def _reading(self, snapshot: Snapshot | None) -> int:
        if snapshot is None:
            return self.read_options
        (options,) = snapshot.handle.options
        return options

    def _check_writable(self) -> None:
        if self.read_only:
            raise NotAllowedNow(f"{self.guard.what} was opened for reading only")


def exists(folder: Path) -> bool:
    """Whether a database is in the folder."""
    with file_errors(folder):
        return (folder / CURRENT).exists()


def _check_new(folder: Path) -> None:
    """StoreCorrupt if the folder holds data files: a new database in it would remove them."""
    with file_errors(folder):
        left = sorted(path.name for path in folder.glob("*.sst"))
    if left:
        raise StoreCorrupt(
            f"{folder} holds {left[0]} and {len(left) - 1} other data files, and no file {CURRENT}",
            hint="restore a checkpoint or a backup into a new folder",
        )


def list_of_files(folder: Path) -> tuple[bytes, int] | None:
    """RocksDB's list of its files, by name and size: it grows before any file is dropped."""
    try:
        name = (folder / CURRENT).read_bytes()
        return name, (folder / name.decode().strip()).stat().st_size
    except (OSError, UnicodeDecodeError):
        # There is none, or it was replaced just now: opening says which.
        return None


def family_names(folder: Path, library: Library | None = None) -> list[str]:
    """The column families of the database in the folder."""
    library = library or load()
    size = c_size_t()
    with c_options(library, DatabaseOptions().text) as options:
        call = library.list_column_families
        names = checked(library, str(folder), call, options, path_bytes(folder), byref(size))
    try:
        array = ctypes.cast(names, ctypes.POINTER(c_char_p))
        return [(array[number] or b"").decode() for number in range(size.value)]
    finally:
        library.list_column_families_destroy(names, size)


@contextmanager
def _c_batch(database: Database, batch: Batch) -> Iterator[int]:
    library = database.library
    c_batch = library.writebatch_create()
    try:
        for act, family, key, value in batch.writes:
            handle = database.family(family)
            if act == "delete":
                library.writebatch_delete_cf(c_batch, handle, key, len(key))
            else:
                write = library.writebatch_put_cf if act == "put" else library.writebatch_merge_cf
                write(c_batch, handle, key, len(key), value, len(value))
        yield c_batch
    finally:
        library.writebatch_destroy(c_batch)


@contextmanager
def _flush_options(library: Library) -> Iterator[int]:
    options = library.flushoptions_create()
    try:
        library.flushoptions_set_wait(options, 1)
        yield options
    finally:
        library.flushoptions_destroy(options)


@contextmanager
def _compact_options(library: Library) -> Iterator[int]:
    options = library.compactoptions_create()
    try:
        library.compactoptions_set_bottommost_level_compaction(options, _ALWAYS)
        yield options
    finally:
        library.compactoptions_destroy(options)
