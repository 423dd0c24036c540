"""Keeps the files of a database few, however often it is opened.

Each opening begins a log, and writes the rows of the logs before it into a data file of each
family. In a database with transactions RocksDB drops logs only after a flush; and data files whose
ranges do not overlap, as those of keys that grow, are never merged. A database that each command
opens for one write would have a log and a data file for each command.
"""

from __future__ import annotations

from ledgerstone.signing.rocksdb.batch import Batch
from ledgerstone.signing.rocksdb.database import DEFAULT_FAMILY, Database, DataFile

LOGS_MAX = 8
SMALL_FILES_MAX = 8
"""Of one family."""
SMALL_FILE_BYTES_MAX = 4 * 1024 * 1024
NO_KEY = b"own:flush"
"""Never stored: removing it gives a flush something to write."""


def keep_few_files(database: Database) -> None:
    """Drop logs and merge small data files, if there are too many."""
    if sum(1 for _ in database.folder.glob("*.log")) > LOGS_MAX:
        drop_logs(database)
    small: dict[str, list[DataFile]] = {}
    for file in database.data_files():
        if file.size_bytes < SMALL_FILE_BYTES_MAX:
            small.setdefault(file.family, []).append(file)
    for family, files in small.items():
        if len(files) > SMALL_FILES_MAX:
            first = min(file.first_key for file in files)
            database.compact(family, start=first, end=max(file.last_key for file in files))


def drop_logs(database: Database) -> None:
    """Drop the logs whose rows are in data files; those of before the opening are."""
    batch = Batch()
    batch.delete(DEFAULT_FAMILY, NO_KEY)
    database.write(batch)
    database.flush(DEFAULT_FAMILY)
