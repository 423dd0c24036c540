"""A typed binding of RocksDB's C API: the part of it that signing needs.

Database ─── Transaction     locks keys, commits together
         ├── Snapshot        reads of one moment
         ├── Scan            rows in order, damage reported
         └── Batch           writes together, without locks of one's own
BackupFolder                 backups: create, verify, restore, purge
"""

from __future__ import annotations

from ledgerstone.signing.rocksdb.backup import Backup, BackupFolder
from ledgerstone.signing.rocksdb.batch import Batch
from ledgerstone.signing.rocksdb.database import Database, exists, family_names, list_of_files
from ledgerstone.signing.rocksdb.few_files import drop_logs, keep_few_files
from ledgerstone.signing.rocksdb.files import file_errors, path_bytes
from ledgerstone.signing.rocksdb.options import DatabaseOptions, FamilyOptions
from ledgerstone.signing.rocksdb.scan import Row, Scan, prefix_end
from ledgerstone.signing.rocksdb.snapshot import Snapshot
from ledgerstone.signing.rocksdb.transaction import Transaction

__all__ = [
    "Backup",
    "BackupFolder",
    "Batch",
    "Database",
    "DatabaseOptions",
    "FamilyOptions",
    "Row",
    "Scan",
    "Snapshot",
    "Transaction",
    "drop_logs",
    "exists",
    "family_names",
    "file_errors",
    "keep_few_files",
    "list_of_files",
    "path_bytes",
    "prefix_end",
]
