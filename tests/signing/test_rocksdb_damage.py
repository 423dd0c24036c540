"""Damaged files: a torn end of the log is tolerated, everything else is reported."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ledgerstone.errors import LedgerstoneError, StoreCorrupt, StoreError
from ledgerstone.signing.rocksdb import Batch, Database
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.signing.conftest import FAMILIES

ROWS = 300

WRITER = """
import os, sys
from pathlib import Path
from ledgerstone.signing.rocksdb import Batch, Database
from tests.signing.conftest import FAMILIES
database = Database(Path(sys.argv[1]), FAMILIES)
for number in range(int(sys.argv[2])):
    batch = Batch()
    batch.put("rows", b"%04d" % number, b"%04d" % number * 50)
    database.write(batch)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def crashed(folder: Path) -> Path:
    """A database whose rows are in its log only, as a process that was killed left it."""
    top = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", WRITER, folder, str(ROWS)],
        cwd=top,
        env={"PYTHONPATH": f"{top}:{top / 'src'}"},
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == -9
    return folder


def log_of(folder: Path) -> Path:
    return max(folder.glob("*.log"), key=lambda file: file.stat().st_size)


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0x40
    file.write_bytes(content)


def rows(folder: Path) -> int:
    with Database(folder, FAMILIES) as database:
        return sum(1 for _ in database.scan("rows"))


def write(database: Database, count: int) -> None:
    batch = Batch()
    for number in range(count):
        batch.put("rows", b"%06d" % number, bytes(range(256)))
    database.write(batch)


def test_killed_after_writing_loses_nothing(crashed: Path) -> None:
    """All that was acknowledged is there."""
    assert rows(crashed) == ROWS


@pytest.mark.parametrize("left", [0.0, 0.5, None])
def test_an_older_log_that_was_cut_is_reported(
    folder: Path, database: Database, tmp_path: Path, left: float | None
) -> None:
    """Only the newest log may be torn: one before it that was cut or removed is damage."""
    for _ in range(3):
        write(database, 10)
        batch = Batch()
        batch.put("sums", b"a", b"1")
        database.write(batch)
        # Its data file is written, and a new log begun; the older one still holds the rows.
        database.compact("sums")
    write(database, 20)
    shutil.copytree(folder, tmp_path / "crashed")
    *older, newest = sorted((tmp_path / "crashed").glob("*.log"))
    assert len(older) == 3

    for log in older:
        copied = shutil.copytree(tmp_path / "crashed", tmp_path / log.stem) / log.name
        if left is None:
            copied.unlink()
        else:
            copied.write_bytes(log.read_bytes()[: int(log.stat().st_size * left)])
        with pytest.raises(StoreCorrupt):
            rows(copied.parent)
    newest.unlink()
    assert rows(newest.parent) == 10


@pytest.mark.parametrize("cut", [1, 7, 100, 150])
def test_a_torn_end_is_tolerated(crashed: Path, cut: int) -> None:
    """A last record that is incomplete, as a crash leaves it, costs that record only."""
    log = log_of(crashed)
    log.write_bytes(log.read_bytes()[:-cut])

    assert rows(crashed) == ROWS - 1


@pytest.mark.parametrize("part", [0.02, 0.3, 0.5, 0.9, 0.999])
def test_a_flipped_byte_in_the_log_is_reported(crashed: Path, part: float) -> None:
    """Wherever it is, also in the last complete record: the database does not open without it."""
    log = log_of(crashed)
    flip(log, int(log.stat().st_size * part))

    with pytest.raises(StoreCorrupt, match=str(crashed)):
        rows(crashed)


def test_a_flipped_byte_in_every_region_of_the_log(crashed: Path, tmp_path: Path) -> None:
    """No byte of a record can change without a report, or the row being as it was."""
    log = log_of(crashed)
    size = log.stat().st_size
    for number, at in enumerate(range(3, size, size // 40)):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(crashed, copy)
        flip(copy / log.name, at)

        with pytest.raises(StoreError):
            assert rows(copy) == ROWS, f"byte {at} of {size}"
            raise StoreCorrupt("as it was")
        shutil.rmtree(copy)


@pytest.mark.slow
def test_a_flipped_byte_in_a_data_file_is_reported(folder: Path) -> None:
    """By the scan that meets it and by the read of a row, instead of rows that are missing."""
    with Database(folder, FAMILIES) as database:
        # Twice: a compaction of one file alone only moves it.
        for _ in range(2):
            write(database, 2000)
            database.flush()
    file = max(folder.glob("*.sst"))
    flip(file, file.stat().st_size // 2)

    with Database(folder, FAMILIES) as database:
        found = 0
        with pytest.raises(StoreCorrupt, match="checksum"):
            for _ in database.scan("rows"):
                found += 1
        refused = 0
        for number in range(2000):
            try:
                assert database.get("rows", b"%06d" % number) == bytes(range(256))
            except StoreCorrupt:
                refused += 1
        with pytest.raises(StoreCorrupt):
            database.compact("rows")

    assert 0 < found < 2000
    assert refused > 0


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_a_missing_file_is_reported(folder: Path, name: str) -> None:
    """A file that somebody removed is told when the database is opened or read."""
    with Database(folder, FAMILIES) as database:
        write(database, 1)
        database.flush()
    for file in folder.glob(name):
        file.unlink()

    with pytest.raises(LedgerstoneError):
        rows(folder)


def test_a_new_database_replaces_no_old_one(folder: Path, database: Database) -> None:
    """Without CURRENT and log nothing is begun anew: a new database removes the old data files."""
    write(database, 10)
    database.flush()
    database.close()
    for file in (folder / "CURRENT", *folder.glob("*.log"), *folder.glob("MANIFEST-*")):
        file.unlink()
    before = sorted(folder.iterdir())

    with pytest.raises(StoreCorrupt, match="no file CURRENT"):
        rows(folder)

    assert sorted(folder.iterdir()) == before
