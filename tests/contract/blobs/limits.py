"""The contract of the limits of files: what is just allowed, what just not, and what stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import text

from ledgerstone import Ledger, errors
from ledgerstone.blobs import content as reading
from ledgerstone.blobs import expiry, folder
from ledgerstone.blobs.blobs import OWNED_ROWS_MAX
from ledgerstone.blobs.expiry import PROBLEMS_MAX
from ledgerstone.blobs.tables import FILE_ID_CHARS
from ledgerstone.errors import DiskFailed
from ledgerstone.ledger import Transaction
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from tests.contract.blobs.contents import content
from tests.contract.blobs.files import DATA, ID, Pipe
from tests.contract.blobs.slices import HOUR, SIZE, begun, rows, stored

NAME = "a" * FILE_ID_CHARS
EXPIRE = "UPDATE blobs SET expires_at_ms = 1 WHERE file_id = :id"


class LimitContract:
    """Fixtures: `ledger` and its `clock`, its `home`, and `on_disk`."""

    def test_a_file_never_expires(self, ledger: Ledger, home: Home) -> None:
        """What is complete stays, whatever moment its row names."""
        file_id = stored(ledger)
        ledger.run(lambda tx: tx.connection.execute(text(EXPIRE), {"id": file_id}))

        collected = ledger.blobs.collect()

        assert (collected.uploads, rows(home, "blobs")) == (0, 1)

    def test_a_file_that_is_in_use_keeps_no_other(
        self, on_disk: Ledger, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While files get their names, what expired and has one waits behind what has none."""
        monkeypatch.setattr(expiry, "BLOBS_MAX", 1)
        named, other = (on_disk.run(lambda tx: tx.blobs.begin_unnamed()) for _ in "12")
        name = text("UPDATE blobs SET disk_name = :name, expires_at_ms = 1 WHERE file_id = :id")
        on_disk.run(lambda tx: tx.execute(name, {"name": NAME, "id": named}))
        clock.advance(25 * HOUR)

        with folder.publishing(tmp_path / "large"):
            turns = [_expire(on_disk) for _ in range(3)]
        after = _expire(on_disk)

        assert (sum(turns), turns[0], after) == (1, 0, 1)
        assert on_disk.blobs.get(other) is None

    def test_an_expired_upload_is_not_there(self, ledger: Ledger, clock: ManualClock) -> None:
        """Who removes one that has expired is told that there is none."""
        file_id = begun(ledger)
        clock.advance(25 * HOUR)

        assert not ledger.run(lambda tx: tx.blobs.remove(file_id))

    def test_numbers_of_slices(self, ledger: Ledger) -> None:
        """A slice behind the last one is refused, also one without bytes; so is one given twice."""
        count = 10
        file_id = begun(ledger, content(count * SIZE))

        for given in ([(count, b"")], [(-1, b"")], [(0, b"x" * SIZE), (0, b"x" * SIZE)]):
            with pytest.raises(errors.BadInput):
                ledger.run(lambda tx, given=given: tx.blobs.put_slices(file_id, given))  # type: ignore[misc]

    def test_where_an_upload_ends(self, ledger: Ledger) -> None:
        """Bytes are added at its end, neither before it nor behind a gap."""
        upload = ledger.run(lambda tx: tx.blobs.begin_unnamed())
        ledger.run(lambda tx: tx.blobs.append(upload, 0, b"abc"))

        for offset in (2, 4):
            with pytest.raises(errors.NotAllowedNow, match="has 3 bytes"):
                ledger.run(lambda tx, at=offset: tx.blobs.append(upload, at, b"d"))  # type: ignore[misc]

        assert ledger.run(lambda tx: tx.blobs.append(upload, 3, b"d")).bytes == 4

    def test_a_size_that_is_reached(self, ledger: Ledger) -> None:
        """The size of an upload may be told when it has all its bytes, and not when it has more."""
        upload = ledger.run(lambda tx: tx.blobs.begin_unnamed())
        ledger.run(lambda tx: tx.blobs.append(upload, 0, b"abc"))

        with pytest.raises(errors.TooLarge):
            ledger.run(lambda tx: tx.blobs.set_size(upload, 2))

        assert ledger.run(lambda tx: tx.blobs.set_size(upload, 3)).whole

    @pytest.mark.slow
    def test_an_owner_of_many_files(self, ledger: Ledger, home: Home) -> None:
        """All files of an owner are removed, however many those are."""
        ids = [f"{number:064x}" for number in range(OWNED_ROWS_MAX + 1)]
        add = text("INSERT INTO blobs (file_id, total_size) VALUES (:id, 1)")
        own = text("INSERT INTO blob_owners (owner, file_id) VALUES ('ann', :id)")

        def fill(tx: Transaction) -> None:
            tx.connection.execute(add, [{"id": each} for each in ids])
            tx.connection.execute(own, [{"id": each} for each in ids])

        ledger.run(fill)

        removed = ledger.run(lambda tx: tx.blobs.remove_owner("ann"))

        assert removed == len(ids)
        assert (rows(home, "blobs"), rows(home, "blob_owners")) == (0, 0)

    def test_pieces_of_a_file(self, on_disk: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file on disk is read in pieces of a bounded size."""
        monkeypatch.setattr(reading, "PIECE_BYTES", 30_000)
        on_disk.blobs.put(Pipe(DATA))

        pieces = list(on_disk.blobs.read(ID))

        assert [len(piece) for piece in pieces] == [30_000] * 3 + [10_000]
        assert b"".join(pieces) == DATA


class FolderContract:
    """The folder beside the database."""

    def test_nothing_is_removed_while_a_file_gets_its_name(self, tmp_path: Path) -> None:
        """Several may give names at once, and one alone removes."""
        both = folder.publishing(tmp_path), folder.publishing(tmp_path)
        with both[0], both[1], folder.removing(tmp_path) as beside:
            assert not beside
        with folder.removing(tmp_path) as alone, folder.removing(tmp_path) as second:
            assert (alone, second) == (True, False)

    def test_other_names(self, tmp_path: Path) -> None:
        """Only what is named like a file of ours is one."""
        for path in (f"ab/{NAME}", "ab/readme", f"abc/{NAME}", NAME, f"a/{NAME}"):
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(b"")

        assert list(folder.names(tmp_path)) == [NAME]

    def test_one_that_was_broken_off(self, tmp_path: Path) -> None:
        """What a crash left of an assembled file is not the beginning or the end of the next."""
        left = tmp_path / folder.INCOMING / "upload"
        left.parent.mkdir()
        left.write_bytes(b"a long one")

        with folder.assembling(tmp_path, "upload") as file:
            folder.write(tmp_path, "upload", file, b"short")
            folder.publish(tmp_path, "upload", file, NAME)

        assert (tmp_path / NAME[:2] / NAME).read_bytes() == b"short"

    def test_it_is_on_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file is synced before it gets its name, and the folders that changed after that."""
        synced: list[tuple[int, bool]] = []
        target = tmp_path / NAME[:2] / NAME
        sync = os.fsync

        def noted(descriptor: int) -> None:
            synced.append((os.fstat(descriptor).st_ino, target.exists()))
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", noted)
        with folder.assembling(tmp_path, "upload") as file:
            folder.write(tmp_path, "upload", file, b"bytes")
            folder.publish(tmp_path, "upload", file, NAME)

        folders = (target.parent, tmp_path / folder.INCOMING, tmp_path)
        assert (target.stat().st_ino, False) in synced
        assert {(each.stat().st_ino, True) for each in folders} <= set(synced)

    def test_so_many_problems(self) -> None:
        """The first problems are told, each once."""
        problems: list[str] = []

        for number in range(3 * PROBLEMS_MAX):
            assert not expiry._note(problems, DiskFailed(f"disk {number // 2}"))

        assert problems == [f"disk {number}" for number in range(PROBLEMS_MAX)]


def _expire(ledger: Ledger) -> int:
    """One turn of the duty; how many uploads it removed."""
    return ledger.run(lambda tx: expiry.expire(tx, ledger.blobs.state)).uploads
