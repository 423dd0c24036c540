"""How far an upload is, and what doctor says of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgerstone import Ledger, errors
from ledgerstone.blobs import Progress
from ledgerstone.blobs.blobs import BlobsState
from ledgerstone.blobs.read import checks
from ledgerstone.room import CheckStatus
from ledgerstone.settings import BlobSettings, Settings


def test_progress() -> None:
    """Slices, bytes, percent, rate and time left follow from what is stored and since when."""
    half = Progress(
        file_id="a", total_size=1000, slice_size=300, slices=2, bytes=500, elapsed_ms=2000
    )

    assert (half.slices_total, half.percent, half.whole) == (4, 50, False)
    assert (half.bytes_per_second, half.seconds_left) == (250, 2)


def test_progress_that_cannot_be_told() -> None:
    """Without a size, or before any time has passed, nothing is made up."""
    begun = Progress(file_id="a", total_size=None, bytes=500)
    empty = Progress(file_id="a", total_size=0)

    assert (begun.percent, begun.slices_total, begun.seconds_left) == (None, None, None)
    assert (begun.bytes_per_second, begun.whole) == (None, False)
    assert (empty.percent, empty.whole, empty.completed) == (100, True, False)


@pytest.mark.parametrize(
    ("packet", "verdicts"), [(None, []), ("16777216", []), ("524288", [CheckStatus.PROBLEM])]
)
def test_a_packet_that_is_too_small(packet: str | None, verdicts: list[CheckStatus]) -> None:
    """A slice that the server would refuse is told, with what to do."""
    found = list(checks._packet(BlobsState(BlobSettings(), None), packet))

    assert [check.verdict for check in found] == verdicts


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    """A folder that is none is told, and one that is not there though files lie in it."""
    wrong, missing = tmp_path / "file", tmp_path / "missing"
    wrong.write_text("a file")

    found = [
        list(checks._folder(BlobsState(BlobSettings(), home), on_disk))
        for home, on_disk in ((wrong, 0), (missing, 0), (missing, 1), (None, 1))
    ]

    told = [[check.verdict for check in each] for each in found]
    assert told == [[CheckStatus.PROBLEM], [], [CheckStatus.PROBLEM], [CheckStatus.PROBLEM]]


def test_a_folder_is_named_for_a_server() -> None:
    """Files outside the database need a folder, which a database on a server does not have."""
    settings = Settings.load(url="postgresql://here/db", environ={}, blobs={"disk_bytes_min": 1})

    with pytest.raises(errors.SettingsError, match="name a folder"):
        Ledger(settings=settings)
