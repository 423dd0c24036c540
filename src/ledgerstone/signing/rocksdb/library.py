"""The shared library of RocksDB: found, loaded, and every C function that we call declared.

- A function that may wait (for the disk, a lock or a background thread) releases the GIL.
- A function that only touches memory keeps the GIL: to give it away and wait for it again costs
  more than the call.
- No Python function is ever called by RocksDB. `docs/decisions/rocksdb.md` says why.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import threading
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_ubyte, c_uint32, c_uint64, c_void_p
from typing import Any

from ledgerstone.errors import LibraryMissing, Unsupported
from ledgerstone.signing.rocksdb.statuses import error_of_status

DEBIAN_PACKAGE = "librocksdb7.8"
FILE_NAMES = (
    "librocksdb.so.7.8",
    "librocksdb.so.7",
    "librocksdb.so.8",
    "librocksdb.so.9.10",
    "librocksdb.so.9",
    "librocksdb.so.10",
    "librocksdb.so",
)
"""Tried in this order. The files of a database can be read by the version that wrote them and by
newer ones, so the oldest comes first: a database then stays usable on every machine."""

_POINTER = c_void_p
_SIZE = ctypes.c_size_t
_FLAG = c_ubyte
_ERROR = c_void_p
_BYTES = (c_char_p, _SIZE)
_OUT_SIZE = POINTER(_SIZE)

_WAITING: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "list_column_families": (_POINTER, (_POINTER, c_char_p, _OUT_SIZE, _ERROR)),
    "transactiondb_open_column_families": (
        _POINTER,
        (_POINTER, _POINTER, c_char_p, c_int, _POINTER, _POINTER, _POINTER, _ERROR),
    ),
    "transactiondb_close": (None, (_POINTER,)),
    "open_for_read_only_column_families": (
        _POINTER,
        (_POINTER, c_char_p, c_int, _POINTER, _POINTER, _POINTER, _FLAG, _ERROR),
    ),
    "close": (None, (_POINTER,)),
    "get_cf": (_POINTER, (_POINTER, _POINTER, _POINTER, *_BYTES, _OUT_SIZE, _ERROR)),
    "create_iterator_cf": (_POINTER, (_POINTER, _POINTER, _POINTER)),
    "transactiondb_write": (None, (_POINTER, _POINTER, _POINTER, _ERROR)),
    "transaction_get_cf": (_POINTER, (_POINTER, _POINTER, _POINTER, *_BYTES, _OUT_SIZE, _ERROR)),
    "transaction_get_for_update_cf": (
        _POINTER,
        (_POINTER, _POINTER, _POINTER, *_BYTES, _OUT_SIZE, _FLAG, _ERROR),
    ),
    "transaction_put_cf": (None, (_POINTER, _POINTER, *_BYTES, *_BYTES, _ERROR)),
    "transaction_merge_cf": (None, (_POINTER, _POINTER, *_BYTES, *_BYTES, _ERROR)),
    "transaction_delete_cf": (None, (_POINTER, _POINTER, *_BYTES, _ERROR)),
    "transaction_create_iterator_cf": (_POINTER, (_POINTER, _POINTER, _POINTER)),
    "transaction_commit": (None, (_POINTER, _ERROR)),
    "transaction_rollback": (None, (_POINTER, _ERROR)),
    "transaction_destroy": (None, (_POINTER,)),
    "iter_seek": (None, (_POINTER, *_BYTES)),
    "iter_next": (None, (_POINTER,)),
    "iter_destroy": (None, (_POINTER,)),
    "transactiondb_create_snapshot": (_POINTER, (_POINTER,)),
    "transactiondb_release_snapshot": (None, (_POINTER, _POINTER)),
    "flush_cf": (None, (_POINTER, _POINTER, _POINTER, _ERROR)),
    "compact_range_cf_opt": (None, (_POINTER, _POINTER, _POINTER, *_BYTES, *_BYTES)),
    "property_value_cf": (_POINTER, (_POINTER, _POINTER, c_char_p)),
    "property_int_cf": (c_int, (_POINTER, _POINTER, c_char_p, POINTER(c_uint64))),
    "livefiles": (_POINTER, (_POINTER,)),
    "livefiles_destroy": (None, (_POINTER,)),
    "transactiondb_checkpoint_object_create": (_POINTER, (_POINTER, _ERROR)),
    "checkpoint_create": (None, (_POINTER, c_char_p, c_uint64, _ERROR)),
    "checkpoint_object_destroy": (None, (_POINTER,)),
    "backup_engine_open": (_POINTER, (_POINTER, c_char_p, _ERROR)),
    "backup_engine_close": (None, (_POINTER,)),
    "backup_engine_create_new_backup_flush": (None, (_POINTER, _POINTER, _FLAG, _ERROR)),
    "backup_engine_purge_old_backups": (None, (_POINTER, c_uint32, _ERROR)),
    "backup_engine_verify_backup": (None, (_POINTER, c_uint32, _ERROR)),
    "backup_engine_restore_db_from_backup": (
        None,
        (_POINTER, c_char_p, c_char_p, _POINTER, c_uint32, _ERROR),
    ),
    "backup_engine_get_backup_info": (_POINTER, (_POINTER,)),
}

_QUICK: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "free": (None, (_POINTER,)),
    "list_column_families_destroy": (None, (_POINTER, _SIZE)),
    "options_create": (_POINTER, ()),
    "options_destroy": (None, (_POINTER,)),
    "get_options_from_string": (None, (_POINTER, c_char_p, _POINTER, _ERROR)),
    "transactiondb_options_create": (_POINTER, ()),
    "transactiondb_options_destroy": (None, (_POINTER,)),
    "transaction_options_create": (_POINTER, ()),
    "transaction_options_set_lock_timeout": (None, (_POINTER, c_int64)),
    "transaction_options_set_deadlock_detect": (None, (_POINTER, _FLAG)),
    "transaction_options_destroy": (None, (_POINTER,)),
    "writeoptions_create": (_POINTER, ()),
    "writeoptions_set_sync": (None, (_POINTER, _FLAG)),
    "writeoptions_destroy": (None, (_POINTER,)),
    "readoptions_create": (_POINTER, ()),
    "readoptions_set_snapshot": (None, (_POINTER, _POINTER)),
    "readoptions_set_fill_cache": (None, (_POINTER, _FLAG)),
    "readoptions_set_iterate_upper_bound": (None, (_POINTER, _POINTER, _SIZE)),
    "readoptions_destroy": (None, (_POINTER,)),
    "flushoptions_create": (_POINTER, ()),
    "flushoptions_set_wait": (None, (_POINTER, _FLAG)),
    "flushoptions_destroy": (None, (_POINTER,)),
    "compactoptions_create": (_POINTER, ()),
    "compactoptions_set_bottommost_level_compaction": (None, (_POINTER, _FLAG)),
    "compactoptions_destroy": (None, (_POINTER,)),
    "restore_options_create": (_POINTER, ()),
    "restore_options_destroy": (None, (_POINTER,)),
    "column_family_handle_destroy": (None, (_POINTER,)),
    "transaction_begin": (_POINTER, (_POINTER, _POINTER, _POINTER, _POINTER)),
    "writebatch_create": (_POINTER, ()),
    "writebatch_destroy": (None, (_POINTER,)),
    "writebatch_put_cf": (None, (_POINTER, _POINTER, *_BYTES, *_BYTES)),
    "writebatch_merge_cf": (None, (_POINTER, _POINTER, *_BYTES, *_BYTES)),
    "writebatch_delete_cf": (None, (_POINTER, _POINTER, *_BYTES)),
    "iter_valid": (_FLAG, (_POINTER,)),
    "iter_key": (_POINTER, (_POINTER, _OUT_SIZE)),
    "iter_value": (_POINTER, (_POINTER, _OUT_SIZE)),
    "iter_get_error": (None, (_POINTER, _ERROR)),
    "livefiles_count": (c_int, (_POINTER,)),
    "livefiles_column_family_name": (_POINTER, (_POINTER, c_int)),
    "livefiles_size": (_SIZE, (_POINTER, c_int)),
    "livefiles_smallestkey": (_POINTER, (_POINTER, c_int, _OUT_SIZE)),
    "livefiles_largestkey": (_POINTER, (_POINTER, c_int, _OUT_SIZE)),
    "backup_engine_info_count": (c_int, (_POINTER,)),
    "backup_engine_info_timestamp": (c_int64, (_POINTER, c_int)),
    "backup_engine_info_backup_id": (c_uint32, (_POINTER, c_int)),
    "backup_engine_info_size": (c_uint64, (_POINTER, c_int)),
    "backup_engine_info_number_files": (c_uint32, (_POINTER, c_int)),
    "backup_engine_info_destroy": (None, (_POINTER,)),
}

Call = Callable[..., Any]


class Library:
    """The C functions of RocksDB, without their prefix: `library.transaction_commit(…)`."""

    def __init__(self, file: str) -> None:
        self.file = file
        for functions, table in ((ctypes.CDLL(file), _WAITING), (ctypes.PyDLL(file), _QUICK)):
            for name, (result, arguments) in table.items():
                try:
                    function = getattr(functions, f"rocksdb_{name}")
                except AttributeError:
                    raise Unsupported(
                        f"{file} has no function rocksdb_{name}",
                        hint=f"install RocksDB 7.8 or newer; on Debian: {DEBIAN_PACKAGE}",
                    ) from None
                function.restype = result
                function.argtypes = list(arguments)
                setattr(self, name, function)

    def __getattr__(self, name: str) -> Call:
        # Only for the type checker: every declared function is an attribute of the instance.
        raise AttributeError(name)

    def text(self, pointer: int | None) -> str:
        """The C string, freed; nothing if there is none."""
        if not pointer:
            return ""
        try:
            return ctypes.string_at(pointer).decode("utf-8", "replace")
        finally:
            self.free(pointer)

    def bytes_of(self, pointer: int | None, size: int) -> bytes | None:
        """The value that a C function allocated, freed; None if there is none."""
        if pointer is None:
            return None
        try:
            return ctypes.string_at(pointer, size)
        finally:
            self.free(pointer)


def checked(library: Library, what: str, call: Call, *arguments: object) -> Any:
    """`call(*arguments)` of a C function whose last parameter is an error.

    `what` names the file or act in the message of the error that is raised.
    """
    error = c_void_p()
    result = call(*arguments, byref(error))
    if error.value is not None:
        raise error_of_status(library.text(error.value), what)
    return result


def load(file: str | None = None) -> Library:
    """The library: the given file, or the first of `FILE_NAMES` that the system has."""
    with _loading:
        key = file or ""
        if key not in _loaded:
            _loaded[key] = _opened(file)
        return _loaded[key]


_loaded: dict[str, Library] = {}
_loading = threading.Lock()


def _opened(file: str | None) -> Library:
    names = (file,) if file else FILE_NAMES
    for name in names:
        if _exists(name):
            return Library(name)
    found = None if file else ctypes.util.find_library("rocksdb")
    if found is not None:
        return Library(found)
    raise LibraryMissing(
        f"the library of RocksDB was not found: {file or 'librocksdb.so'}",
        hint=f"on Debian, as root: apt-get install --no-install-recommends {DEBIAN_PACKAGE};"
        " elsewhere install RocksDB 7.8 or newer, and name its file by the setting"
        " signing.rocksdb_library if it lies in no system folder",
    )


def _exists(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
