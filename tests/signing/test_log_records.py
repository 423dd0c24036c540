"""Headers of log records: a torn end of a log is told from damage, whatever bit is flipped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from io import SEEK_END, BytesIO
from pathlib import Path

import pytest

from ledgerstone.errors import StoreCorrupt
from ledgerstone.signing import upkeep
from ledgerstone.signing.rocksdb import Database
from ledgerstone.signing.rocksdb.log_records import damaged_at
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.signing.conftest import FAMILIES

pytestmark = pytest.mark.slow

BLOCK_BYTES = 32 * 1024
HEADER_BYTES = 7
HEADER_BITS = range(8 * HEADER_BYTES)

WRITER = """
import os, sys
from pathlib import Path
from ledgerstone.signing.rocksdb import Batch, Database
from tests.signing.conftest import FAMILIES

def put(family, key, value):
    batch = Batch()
    batch.put(family, key, value)
    database.write(batch)

database = Database(Path(sys.argv[1]), FAMILIES)
older, newest, size = map(int, sys.argv[2:])
for number in range(older):
    put("rows", b"older%04d" % number, os.urandom(size))
if older:
    put("sums", b"key", b"value")
    # Its data file is written, and a new log begun; the older one still holds the rows.
    database.compact("sums")
for number in range(newest):
    put("rows", b"newest%04d" % number, os.urandom(size))
os.kill(os.getpid(), 9)
"""

Crash = Callable[[int, int, int], Path]


@pytest.fixture
def crash(folder: Path) -> Crash:
    """Leaves a database as a killed process does: rows in an older and in its newest log."""

    def make(older: int, newest: int, row_bytes: int) -> Path:
        top = Path(__file__).parents[2]
        ended = subprocess.run(
            [sys.executable, "-c", WRITER, folder, str(older), str(newest), str(row_bytes)],
            cwd=top,
            env={"PYTHONPATH": f"{top}:{top / 'src'}"},
            timeout=WAIT_SECONDS_MAX,
            check=False,
        )
        assert ended.returncode == -9
        return folder

    return make


def headers(content: bytes) -> Iterator[int]:
    """Where the records of a whole log begin."""
    at = 0
    while at + HEADER_BYTES <= len(content):
        if BLOCK_BYTES - at % BLOCK_BYTES < HEADER_BYTES:
            at += BLOCK_BYTES - at % BLOCK_BYTES
            continue
        yield at
        at += HEADER_BYTES + int.from_bytes(content[at + 4 : at + 6], "little")


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def rows(folder: Path, *, read_only: bool = True) -> int:
    with Database(folder, FAMILIES, read_only=read_only) as database:
        return sum(1 for _ in database.scan("rows"))


def silent(file: Path, headers_at: list[int]) -> list[tuple[int, int]]:
    """The header bits whose change nothing reports."""
    content = file.read_bytes()
    found = []
    for at in headers_at:
        for bit in HEADER_BITS:
            file.write_bytes(flipped(content, 8 * at + bit))
            try:
                rows(file.parent)
            except StoreCorrupt:
                continue
            found.append((at, bit))
    file.write_bytes(content)
    return found


def test_a_flipped_bit_in_a_header_of_a_log_is_reported(crash: Crash) -> None:
    """Each bit of each record, in the newest log and in an older one."""
    folder = crash(8, 8, 100)
    logs = sorted(folder.glob("*.log"))
    assert len(logs) == 2

    for log in logs:
        found = list(headers(log.read_bytes()))
        assert len(found) >= 8
        assert silent(log, found) == []
    assert rows(folder) == 16


def test_a_flipped_bit_in_a_header_of_the_manifest_is_reported(crash: Crash) -> None:
    """A data file that the damaged list of files does not name is removed otherwise."""
    folder = crash(2, 0, 100)
    with Database(folder, FAMILIES) as database:
        database.flush()
    (manifest,) = folder.glob("MANIFEST-*")
    found = list(headers(manifest.read_bytes()))

    assert len(found) > 5
    assert silent(manifest, found) == []


def test_a_flipped_bit_in_a_log_of_several_blocks_is_reported(crash: Crash) -> None:
    """Rows that are larger than a block have a header in each block."""
    folder = crash(0, 6, 25_000)
    (log,) = folder.glob("*.log")
    found = list(headers(log.read_bytes()))
    assert len(found) > 8

    assert silent(log, found) == []


def test_a_log_torn_at_any_length_is_tolerated(crash: Crash) -> None:
    """A crash leaves the begin of what was written: every row that is complete is there."""
    folder = crash(0, 4, 40)
    (log,) = folder.glob("*.log")
    content = log.read_bytes()
    ends = [*list(headers(content))[1:], len(content)]

    for size in range(len(content)):
        log.write_bytes(content[:size])
        assert rows(folder) == sum(end <= size for end in ends), size


def test_a_log_of_several_blocks_that_was_torn_is_tolerated(crash: Crash) -> None:
    """Also in the middle of a row that is larger than a block."""
    folder = crash(0, 4, 50_000)
    (log,) = folder.glob("*.log")
    content = log.read_bytes()

    for size in range(0, len(content), 3001):
        log.write_bytes(content[:size])
        assert rows(folder) == size // (len(content) // 4), size


def test_a_manifest_torn_at_any_length_of_its_last_record_is_tolerated(crash: Crash) -> None:
    """A crash in the middle of a flush: the rows are in the log still."""
    folder = crash(0, 4, 40)
    (manifest,) = folder.glob("MANIFEST-*")
    content = manifest.read_bytes()
    *_, last = headers(content)

    for size in range(last + 1, len(content)):
        manifest.write_bytes(content[:size])
        assert rows(folder) == 4, size


@pytest.mark.parametrize("zeros", [7, 500, 3 * BLOCK_BYTES])
def test_zeros_at_the_end_are_tolerated(crash: Crash, zeros: int) -> None:
    """Some file systems leave space that was allocated and not written at a power cut."""
    folder = crash(0, 4, 40)
    (log,) = folder.glob("*.log")
    log.write_bytes(log.read_bytes() + bytes(zeros))

    assert rows(folder) == 4


def test_zeros_in_the_middle_are_reported(crash: Crash) -> None:
    """A page that the disk has lost is damage, and no end: rows follow it."""
    folder = crash(0, 6, 25_000)
    (log,) = folder.glob("*.log")
    content = bytearray(log.read_bytes())
    content[BLOCK_BYTES : 2 * BLOCK_BYTES] = bytes(BLOCK_BYTES)
    log.write_bytes(content)

    with pytest.raises(StoreCorrupt):
        rows(folder)


def test_a_damaged_header_with_a_row_behind_it_is_reported(crash: Crash) -> None:
    """Also if its CRC was changed too: the record behind it is complete."""
    folder = crash(0, 4, 40)
    (log,) = folder.glob("*.log")
    content = bytearray(log.read_bytes())
    at = list(headers(bytes(content)))[1]
    content[at : at + 6] = bytes(5) + b"\x7f"
    log.write_bytes(content)

    with pytest.raises(StoreCorrupt):
        rows(folder)


class Growing(BytesIO):
    """A log to which a writer appends the rest when a reader has read its begin."""

    def __init__(self, content: bytes, size: int) -> None:
        super().__init__(content[:size])
        self._rest = content[size:]

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        here = self.tell()
        self.seek(0, SEEK_END)
        self.write(self._rest)
        self.seek(here)
        self._rest = b""
        return found


def test_a_log_that_grows_is_not_damaged(crash: Crash) -> None:
    """A reader beside a writer does not take what is written meanwhile for damage."""
    folder = crash(0, 250, 400)
    (log,) = folder.glob("*.log")
    content = log.read_bytes()

    for header in list(headers(content))[1:60:10]:
        for size in (header, header + 100):
            assert damaged_at(Growing(content, size)) is None, size


def test_damage_is_reported_before_anything_is_changed(crash: Crash, tmp_path: Path) -> None:
    """By an opening for writing, for reading and by a restore: all files stay as they were."""
    folder = crash(4, 4, 100)
    for name in ("MANIFEST-*", "*.log"):
        file = max(folder.glob(name))
        content = file.read_bytes()
        at = list(headers(content))[2]
        file.write_bytes(flipped(content, 8 * at + 47))
        before = {path.name: path.read_bytes() for path in folder.iterdir()}

        for opening in (
            lambda: rows(folder, read_only=False),
            lambda: rows(folder),
            lambda: upkeep.verify(folder),
            lambda: upkeep.restore_checkpoint(folder, tmp_path / "restored"),
        ):
            with pytest.raises(StoreCorrupt, match=f"{file.name}.*byte {at} "):
                opening()
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        assert not (tmp_path / "restored").exists()
        file.write_bytes(content)
    assert rows(folder, read_only=False) == 8
