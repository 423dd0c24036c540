"""The contract of whole files: put from a path or a stream, resumed, kept in a folder."""

from __future__ import annotations

import io
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text

from ledgerstone import Ledger, errors
from ledgerstone.blobs import Progress
from ledgerstone.blobs.blobs import HOUR_MS
from ledgerstone.blobs.rows import look, start_over
from ledgerstone.settings import Settings
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from tests.contract.blobs.contents import content, cut, hash_of
from tests.contract.blobs.slices import DATA as SLICES_DATA
from tests.contract.blobs.slices import ID as SLICES_ID
from tests.contract.blobs.slices import begin_plainly, rows
from tests.harness.limits import small_files
from tests.harness.sizes import sized

SLICE = 4096
DATA = content(100_000)
ID = hash_of(DATA)
LARGE = sized(24, full=200) * 1_048_576
MEMORY_MAX = 16 * 1_048_576


@pytest.fixture
def on_disk(ledger: Ledger, home: Home, tmp_path: Path) -> Iterator[Ledger]:
    """A ledger on the same database that keeps large files in a folder."""
    terms = {"folder": str(tmp_path / "large"), "disk_bytes_min": 50_000, "slice_bytes": SLICE}
    settings = Settings.load(url=home.url, environ={}, blobs=terms)
    with Ledger(settings=settings, clock=ledger.database.clock) as opened:
        yield opened


def files(folder: Path) -> list[str]:
    """The names of the files in a folder, however deep."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return sorted(str(path.relative_to(folder)) for path in found)


class Pipe(io.RawIOBase):
    """A stream that gives a few bytes at a time, and fails if it is told to."""

    def __init__(self, data: bytes, fails_at: int | None = None) -> None:
        super().__init__()
        self._data = io.BytesIO(data)
        self._fails_at = fails_at

    def read(self, size: int = -1) -> bytes:
        if self._fails_at is not None and self._data.tell() >= self._fails_at:
            message = "the other side is gone"
            raise ConnectionResetError(message)
        return self._data.read(min(size, 1000))


class Interrupted(Exception):
    """Ends a put in the middle."""


class FileContract:
    """What holds of whole files. Fixtures: `ledger`, `home`, `clock`, `on_disk`."""

    def test_from_a_path(self, ledger: Ledger, tmp_path: Path) -> None:
        """A file is stored under its hash with its type and owner; again, it changes nothing."""
        path = tmp_path / "a.bin"
        path.write_bytes(DATA)

        put = ledger.blobs.put(path, mime="image/png", owner="message:1")
        again = ledger.blobs.put(path, owner="message:2")

        assert (put.file_id, put.completed, put.mime) == (ID, True, "image/png")
        assert again.file_id == ID
        assert b"".join(ledger.blobs.read(ID)) == DATA
        assert ledger.run(lambda tx: tx.blobs.owners(ID)) == ["message:1", "message:2"]

    @pytest.mark.parametrize("size", [0, 1, 262_144, 262_145])
    def test_from_a_stream(self, ledger: Ledger, home: Home, size: int) -> None:
        """A stream of any size is stored under the hash that it turns out to have."""
        data = content(size)

        put = ledger.blobs.put(Pipe(data))

        assert (put.file_id, put.total_size) == (hash_of(data), size)
        assert b"".join(ledger.blobs.read(put.file_id)) == data
        assert rows(home, "blobs") == 1

    def test_a_stream_that_is_there(self, ledger: Ledger, home: Home) -> None:
        """A stream whose content is there leaves nothing beside it, complete or not."""
        ledger.run(lambda tx: tx.blobs.begin(ID, total_size=len(DATA), slice_size=SLICE))
        ledger.run(lambda tx: tx.blobs.put_slice(ID, 3, DATA[3 * SLICE : 4 * SLICE]))

        first, second = ledger.blobs.put(Pipe(DATA)), ledger.blobs.put(Pipe(DATA), owner="a")

        assert first.file_id == second.file_id == ID
        assert rows(home, "blobs") == 1
        assert b"".join(ledger.blobs.read(ID)) == DATA

    def test_a_stream_that_breaks(self, ledger: Ledger, home: Home) -> None:
        """A stream that fails leaves nothing."""
        with pytest.raises(ConnectionResetError):
            ledger.blobs.put(Pipe(DATA, fails_at=60_000))

        assert (rows(home, "blobs"), rows(home, "blob_slices")) == (0, 0)

    def test_it_goes_on(self, on_disk: Ledger, home: Home, tmp_path: Path) -> None:
        """A put that was interrupted goes on where it stopped, and tells how far it is."""
        path = tmp_path / "a.bin"
        path.write_bytes(content(9_000_000))
        told: list[Progress] = []

        def stop(_: Progress) -> None:
            raise Interrupted

        with pytest.raises(Interrupted):
            on_disk.blobs.put(path, on_progress=stop)
        before = rows(home, "blob_slices")
        put = on_disk.blobs.put(path, on_progress=told.append)

        assert before == 1024
        assert put.completed
        assert [each.bytes for each in told] == [4_194_304, 8_388_608, 9_000_000]
        assert told[-1].percent == 100

    def test_a_part_in_other_slices(self, ledger: Ledger, home: Home, tmp_path: Path) -> None:
        """A part that came in slices of any size gives way to the whole file."""
        begin_plainly(ledger)
        ledger.run(lambda tx: tx.blobs.add_slice(SLICES_ID, 0, 0, SLICES_DATA[:450]))
        path = tmp_path / "a.bin"
        path.write_bytes(SLICES_DATA)

        put = ledger.blobs.put(path)

        assert (put.completed, rows(home, "blob_slices")) == (True, 1)
        assert b"".join(ledger.blobs.read(SLICES_ID)) == SLICES_DATA

    def test_too_large(self, ledger: Ledger, home: Home) -> None:
        """A file above the limit is refused, from a stream as soon as it is."""
        small = Settings.load(url=home.url, environ={}, blobs={"blob_bytes_max": 50_000})
        with Ledger(settings=small) as limited, pytest.raises(errors.TooLarge):
            limited.blobs.put(Pipe(DATA))

        assert rows(home, "blob_slices") == 0

    def test_on_disk(self, on_disk: Ledger, home: Home, tmp_path: Path) -> None:
        """A large file lies in the folder under its hash, a small one in the database."""
        large, small = on_disk.blobs.put(Pipe(DATA)), on_disk.blobs.put(Pipe(DATA[:5000]))

        assert files(tmp_path / "large") == [f"{ID[:2]}/{ID}"]
        assert (tmp_path / "large" / ID[:2] / ID).read_bytes() == DATA
        assert rows(home, "blob_slices") == 2
        assert b"".join(on_disk.blobs.read(large.file_id, 4000, 99_000)) == DATA[4000:99_000]
        assert b"".join(on_disk.blobs.read(small.file_id)) == DATA[:5000]
        assert on_disk.blobs.verify(ID)

    def test_a_slice_of_a_file_on_disk(self, on_disk: Ledger, tmp_path: Path) -> None:
        """A repeated slice of a file on disk changes nothing, other content is refused."""
        path = tmp_path / "a.bin"
        path.write_bytes(DATA)
        on_disk.blobs.put(path)

        on_disk.run(lambda tx: tx.blobs.put_slice(ID, 2, DATA[2 * SLICE : 3 * SLICE]))
        with pytest.raises(errors.KeyConflict):
            on_disk.run(lambda tx: tx.blobs.put_slice(ID, 2, b"x" * SLICE))

    def test_removed_from_disk(
        self, on_disk: Ledger, home: Home, clock: ManualClock, tmp_path: Path
    ) -> None:
        """A removed file is there no more at once; its bytes go with the next turn of the duty."""
        on_disk.blobs.put(Pipe(DATA), owner="a")
        with on_disk.database.engine.connect() as theirs:
            on_disk.join(theirs).blobs.remove_owner("a")
            theirs.rollback()
        undone = on_disk.blobs.verify(ID)

        on_disk.run(lambda tx: tx.blobs.remove_owner("a"))
        gone = on_disk.blobs.get(ID)
        worker = on_disk.worker()
        worker.tick()
        worker.stop(grace_seconds=0)

        assert (undone, gone) == (True, None)
        assert files(tmp_path / "large") == []
        assert rows(home, "blobs") == 0

    def test_put_again_before_it_was_removed(self, on_disk: Ledger, tmp_path: Path) -> None:
        """A file that is put again after its removal stays."""
        on_disk.blobs.put(Pipe(DATA))
        on_disk.blobs.remove(ID)

        on_disk.blobs.put(Pipe(DATA))
        collected = on_disk.blobs.collect()

        assert collected.files == 0
        assert files(tmp_path / "large") == [f"{ID[:2]}/{ID}"]
        assert on_disk.blobs.verify(ID)

    def test_the_duty_spares_a_file_of_another_row(
        self, on_disk: Ledger, clock: ManualClock, tmp_path: Path
    ) -> None:
        """An expired upload that had named the file of a completed row leaves that file."""
        upload = on_disk.run(lambda tx: tx.blobs.begin_unnamed())
        name = text("UPDATE blobs SET disk_name = :name WHERE file_id = :upload")
        named = {"name": ID, "upload": upload}
        on_disk.run(lambda tx: tx.execute(name, named))
        on_disk.blobs.put(Pipe(DATA))
        clock.advance(25 * 3600)

        collected = on_disk.blobs.collect()

        assert collected.uploads == 1
        assert on_disk.blobs.verify(ID)

    def test_a_file_damaged_on_disk(self, on_disk: Ledger, tmp_path: Path) -> None:
        """A file that was changed, cut or removed is noticed, and never read as if whole."""
        on_disk.blobs.put(Pipe(DATA))
        path = tmp_path / "large" / ID[:2] / ID

        path.write_bytes(DATA[:-1] + b"?")
        changed = on_disk.blobs.verify(ID)
        path.write_bytes(DATA[:-1])
        short = on_disk.blobs.verify(ID)
        path.unlink()

        assert (changed, short, on_disk.blobs.verify(ID)) == (False, False, False)
        with pytest.raises(errors.ContentMissing):
            list(on_disk.blobs.read(ID))

    def test_a_folder_that_is_none(self, ledger: Ledger, home: Home, tmp_path: Path) -> None:
        """What the system has against the folder is an error that says so; the upload stays."""
        (tmp_path / "large").write_text("a file")
        terms = {"folder": str(tmp_path / "large"), "disk_bytes_min": 1}
        settings = Settings.load(url=home.url, environ={}, blobs=terms)
        path = tmp_path / "a.bin"
        path.write_bytes(DATA)

        with Ledger(settings=settings) as wrong, pytest.raises(errors.DiskFailed, match="large"):
            wrong.blobs.put(path)

        assert ledger.blobs.put(path).completed
        assert b"".join(ledger.blobs.read(ID)) == DATA

    def test_a_full_disk(self, on_disk: Ledger, tmp_path: Path) -> None:
        """A disk that is full is told, keeps no part of the file, and the upload goes on later."""
        upload = on_disk.run(lambda tx: tx.blobs.begin_unnamed(total_size=len(DATA)))
        on_disk.run(lambda tx: tx.blobs.append(upload, 0, DATA))

        with small_files(60_000), pytest.raises(errors.StoreFull, match=f"incoming/{upload}"):
            on_disk.blobs.complete(upload)
        left = files(tmp_path / "large")

        assert left == []
        assert on_disk.blobs.complete(upload).file_id == ID
        assert on_disk.blobs.verify(ID)

    def test_a_file_that_cannot_be_removed(
        self, on_disk: Ledger, home: Home, tmp_path: Path
    ) -> None:
        """A file that the system keeps is named, and keeps no other from its removal."""
        other = content(60_000, 3)
        for data in (DATA, other):
            on_disk.blobs.put(Pipe(data))
        path = tmp_path / "large" / ID[:2] / ID
        path.unlink()
        path.mkdir()

        verified = on_disk.blobs.verify(ID)
        for data in (DATA, other):
            on_disk.blobs.remove(hash_of(data))
        worker = on_disk.worker()
        worker.tick()
        worker.stop(grace_seconds=0)
        left = rows(home, "blobs")
        problems = on_disk.blobs.collect().problems
        path.rmdir()
        on_disk.blobs.collect()

        assert (verified, left) == (False, 1)
        assert str(path) in problems[0]
        assert files(tmp_path / "large") == []
        assert rows(home, "blobs") == 0

    def test_a_folder_that_is_gone(self, on_disk: Ledger, home: Home, tmp_path: Path) -> None:
        """While the folder is not there, what lies in it stays to be removed, and nothing else."""
        on_disk.blobs.put(Pipe(DATA))
        on_disk.blobs.put(Pipe(DATA[:5000]))
        (tmp_path / "large").rename(tmp_path / "away")

        verified = on_disk.blobs.verify(ID)
        on_disk.blobs.remove(ID)
        meanwhile = on_disk.blobs.collect()
        (tmp_path / "away").rename(tmp_path / "large")
        afterwards = on_disk.blobs.collect()

        assert (verified, meanwhile.uploads, afterwards.uploads) == (False, 0, 1)
        assert files(tmp_path / "large") == []
        assert rows(home, "blobs") == 1

    @pytest.mark.parametrize("kept", ["ledger", "on_disk"])
    def test_two_uploads_of_one_content(
        self, request: pytest.FixtureRequest, kept: str, home: Home
    ) -> None:
        """Uploads of the same content that end at once become one file, with both owners."""
        opened: Ledger = request.getfixturevalue(kept)
        size = len(DATA)
        uploads = [opened.run(lambda tx: tx.blobs.begin_unnamed(total_size=size)) for _ in "1234"]
        for upload in uploads:
            opened.run(lambda tx, to=upload: tx.blobs.append(to, 0, DATA))  # type: ignore[misc]
        start = threading.Barrier(len(uploads))

        def complete(upload: str) -> str:
            start.wait()
            return opened.blobs.complete(upload, owner=upload).file_id

        with ThreadPoolExecutor(len(uploads)) as pool:
            found = set(pool.map(complete, uploads))
        opened.blobs.collect()

        assert found == {ID}
        assert rows(home, "blobs") == 1
        assert opened.run(lambda tx: tx.blobs.owners(ID)) == sorted(uploads)
        assert b"".join(opened.blobs.read(ID)) == DATA

    def test_changed_while_it_was_completed(self, ledger: Ledger) -> None:
        """What was compared is what is completed: slices that came meanwhile are not."""
        begun = ledger.run(lambda tx: tx.blobs.begin(ID, total_size=len(DATA), slice_size=SLICE))
        ledger.run(lambda tx: tx.blobs.put_slices(ID, cut(DATA, SLICE)))
        with ledger.reading() as tx:
            compared = look(tx, ID)
        assert compared is not None
        ledger.run(lambda tx: start_over(tx, compared, keep_ms=HOUR_MS))
        other = content(len(DATA), seed=2)
        ledger.run(lambda tx: tx.blobs.put_slices(ID, cut(other, SLICE)))

        with pytest.raises(errors.NotAllowedNow, match="was changed while"):
            ledger.blobs._finish(compared, ID, owner=None, then=lambda _, __: None)

        assert not begun.completed
        with pytest.raises(errors.HashMismatch):
            ledger.blobs.complete(ID)

    @pytest.mark.torture
    def test_memory_stays_flat(self, ledger: Ledger, tmp_path: Path) -> None:
        """To store and read a file takes a few slices of memory, however large it is."""
        path = tmp_path / "large.bin"
        with path.open("wb") as file:
            for seed in range(LARGE // 1_048_576):
                file.write(content(1_048_576, seed))
        tracemalloc.start()
        try:
            put = ledger.blobs.put(path)
            size = sum(map(len, ledger.blobs.read(put.file_id)))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

        assert size == LARGE
        assert peak < MEMORY_MAX
