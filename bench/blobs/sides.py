"""Both sides: a hand-written loop on the driver's connection, and the calls of the ledger.

The driver's side has the tables, the indexes and the session settings of the ledger. It reads the
file once, inserts the slices that `put` inserts, as many in a transaction, and counts them in the
row of the file; it hashes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

from bench.ledgers import opened
from bench.measure import Timing, settle_memory
from ledgerstone.blobs.store import BATCH_BYTES
from ledgerstone.ledger import Ledger

SLICE_BYTES = 262_144
DRIVER_ID = "d" * 64
BEGIN = "INSERT INTO blobs (file_id, total_size, slice_size) VALUES (?, ?, ?)"
ADD = 'INSERT INTO blob_slices (file_id, slice_no, "offset", data) VALUES (?, ?, ?, ?)'
COUNT = (
    "UPDATE blobs SET slices_stored = slices_stored + ?, bytes_stored = bytes_stored + ?"
    " WHERE file_id = ?"
)
COMPLETE = "UPDATE blobs SET completed = 1 WHERE file_id = ?"
READ = "SELECT data FROM blob_slices WHERE file_id = ? AND slice_no = ?"

Side = Callable[[str, Path], Timing]


def driver_write(url: str, file: Path) -> Timing:
    """The slices of the file, by the driver."""
    with opened(url) as ledger:
        return _timed(file, lambda: _write(ledger, file))


def put_path(url: str, file: Path) -> Timing:
    """`ledger.blobs.put(path)`: read and hashed, read and hashed again, stored, completed."""
    with opened(url) as ledger:
        return _timed(file, lambda: ledger.blobs.put(file))


def put_stream(url: str, file: Path) -> Timing:
    """`ledger.blobs.put(stream)`: stored under an id, hashed, renamed."""

    def put(ledger: Ledger) -> None:
        with file.open("rb") as stream:
            ledger.blobs.put(stream)

    with opened(url) as ledger:
        return _timed(file, lambda: put(ledger))


def driver_read(url: str, file: Path) -> Timing:
    """Each slice by its key, by the driver."""
    with opened(url) as ledger:
        _write(ledger, file)
        return _timed(file, lambda: _read(ledger, file))


def read(url: str, file: Path) -> Timing:
    """`ledger.blobs.read`: each slice in a transaction of its own."""
    with opened(url) as ledger:
        file_id = ledger.blobs.put(file).file_id
        return _timed(file, lambda: sum(map(len, ledger.blobs.read(file_id))))


def _timed(file: Path, work: Callable[[], object]) -> Timing:
    settle_memory()
    began, cpu_began = perf_counter(), process_time()
    work()
    ended, cpu_ended = perf_counter(), process_time()
    size = file.stat().st_size
    return Timing(count=size, seconds=ended - began, cpu_seconds=cpu_ended - cpu_began)


def _write(ledger: Ledger, path: Path) -> None:
    most, size = BATCH_BYTES // SLICE_BYTES, path.stat().st_size
    connection = ledger.database.engine.raw_connection()
    cursor = connection.cursor()
    number = 0
    with path.open("rb") as file:
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute(BEGIN, (DRIVER_ID, size, SLICE_BYTES))
        while batch := [data for _ in range(most) if (data := file.read(SLICE_BYTES))]:
            for data in batch:
                cursor.execute(ADD, (DRIVER_ID, number, number * SLICE_BYTES, data))
                number += 1
            cursor.execute(COUNT, (len(batch), sum(map(len, batch)), DRIVER_ID))
            cursor.execute("COMMIT")
            cursor.execute("BEGIN IMMEDIATE")
        cursor.execute(COMPLETE, (DRIVER_ID,))
        cursor.execute("COMMIT")
    connection.close()


def _read(ledger: Ledger, path: Path) -> None:
    size, found, number = path.stat().st_size, 0, 0
    connection = ledger.database.engine.raw_connection()
    cursor = connection.cursor()
    while found < size:
        found += len(cursor.execute(READ, (DRIVER_ID, number)).fetchone()[0])
        number += 1
    connection.close()
