"""How a database and its families are opened, as RocksDB's option texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from ledgerstone.signing.rocksdb.library import Library, checked

MIB = 1024 * 1024


class FamilyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How one column family is kept.

    - `appends`: a merge appends the operand's bytes to the value. RocksDB does it by itself;
      whoever reads the value adds the operands up.
    - `bloom_bits`: bits per key of the filter that spares reads of absent keys; 0 for none.
    """

    write_buffer_bytes: int = 8 * MIB
    cache_bytes: int = 8 * MIB
    bloom_bits: int = 10
    appends: bool = False

    @property
    def text(self) -> str:
        table = [f"block_cache={self.cache_bytes}"]
        if self.bloom_bits:
            table.append(f"filter_policy=bloomfilter:{self.bloom_bits}:false")
        parts = [
            f"write_buffer_size={self.write_buffer_bytes}",
            f"block_based_table_factory={{{';'.join(table)}}}",
        ]
        if self.appends:
            parts.append("merge_operator={id=stringappend;delimiter=}")
        return ";".join(parts)


class DatabaseOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a database is opened.

    - Files are written out by fsync, the log is flushed with every write, and checks are paranoid.
    - Recovery tolerates only a record that is torn at the end of the log, as a crash leaves one.
      Any other damage of the log is an error.
    - No log file is used again for another one: in such a file a damaged record looks like an old
      one, and would be taken for the end.
    """

    create: bool = True
    wal_bytes_max: int = 64 * MIB
    write_buffers_bytes_max: int = 64 * MIB
    open_files_max: int = 256
    log_files_max: int = 5
    log_file_bytes_max: int = 4 * MIB

    @property
    def text(self) -> str:
        create = str(self.create).lower()
        return ";".join(
            (
                f"create_if_missing={create}",
                f"create_missing_column_families={create}",
                "use_fsync=true",
                "paranoid_checks=true",
                "manual_wal_flush=false",
                "wal_recovery_mode=kTolerateCorruptedTailRecords",
                "recycle_log_file_num=0",
                "track_and_verify_wals_in_manifest=true",
                f"max_total_wal_size={self.wal_bytes_max}",
                f"db_write_buffer_size={self.write_buffers_bytes_max}",
                f"max_open_files={self.open_files_max}",
                f"keep_log_file_num={self.log_files_max}",
                f"max_log_file_size={self.log_file_bytes_max}",
            )
        )


@contextmanager
def c_options(library: Library, text: str) -> Iterator[int]:
    """The C object of an option text, for the length of the block."""
    base = library.options_create()
    made = library.options_create()
    try:
        call = library.get_options_from_string
        checked(library, "options", call, base, text.encode(), made)
        yield made
    finally:
        library.options_destroy(made)
        library.options_destroy(base)
