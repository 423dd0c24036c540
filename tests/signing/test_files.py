"""Folders that cannot be used, and a store that can no longer be written."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ledgerstone.errors import BadInput, DiskFailed, LedgerstoneError, StoreDenied, StoreFull
from ledgerstone.signing import Signing, upkeep
from ledgerstone.signing.rocksdb import file_errors, files
from ledgerstone.signing.rocksdb.files import check_room
from ledgerstone.signing.values import Stored
from tests.harness.limits import small_files
from tests.signing.people import payment
from tests.signing.world import Worlds

SMALL = 300_000


def test_health_notices_that_nothing_can_be_written(worlds: Worlds) -> None:
    """After a write that failed RocksDB only reads: health says so, until the store is reopened."""
    world = worlds()
    world.propose("r0", payment(0))
    with small_files(SMALL), pytest.raises(StoreFull):
        for number in range(1, 1000):
            world.propose(f"r{number}", payment(number, metadata={"reason": "x" * 2000}))

    found = world.signing.health_check()

    assert not found.ok
    assert found.problems[0].startswith("nothing can be written: ")
    world.signing.close()
    with Signing(world.store.folder) as reopened:
        assert reopened.health_check().ok
        assert reopened.list_requests(rows_max=1).requests[0].request_id == "r0"


def test_little_room_stops_a_write_before_it_begins(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is StoreFull and changes nothing, reads go on, and with more room writes do, too."""
    world = worlds()
    request = world.signed()
    before = world.rows()
    monkeypatch.setattr(files, "WRITING_BYTES", 2**62)

    with pytest.raises(StoreFull, match="bytes are free, too few to write"):
        world.finalize(request)
    found = world.signing.health_check()

    assert world.rows() == before
    assert found.problems[0].startswith("nothing can be written: ")
    monkeypatch.undo()
    assert world.finalize(request) is Stored.NEW
    assert world.signing.health_check().ok


def test_health_leaves_nothing(worlds: Worlds) -> None:
    """Looking whether the store can be written changes no row."""
    world = worlds()
    before = world.rows()

    assert world.signing.health_check().ok

    assert world.rows() == before


def test_health_of_a_folder_that_is_gone(worlds: Worlds) -> None:
    """A folder that was removed under the store is a problem, and no failure of the check."""
    world = worlds()
    shutil.rmtree(world.store.folder)

    found = world.signing.health_check()

    assert f"{world.store.folder} is gone: what is written now is lost" in found.problems
    with pytest.raises(LedgerstoneError):
        world.signing.disk_usage()


Call = Callable[[Worlds, Path], object]
CALLS: dict[str, Call] = {
    "open": lambda _, path: Signing(path),
    "checkpoint": lambda worlds, path: worlds().signing.create_checkpoint(path),
    "back up": lambda worlds, path: worlds().signing.back_up(path),
    "restore": lambda worlds, path: upkeep.restore_checkpoint(
        worlds().store.folder, path / "store"
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("name", ["file/below", "x" * 300, "a\0b"])
def test_paths_that_cannot_be(
    worlds: Worlds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, name: str
) -> None:
    """A path that cannot be a folder is BadInput, and nothing is made beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()

    with pytest.raises(BadInput):
        call(worlds, Path(name))

    assert {path.name for path in tmp_path.iterdir()} <= {"file", "world-1"}


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.EACCES, StoreDenied),
        (errno.EROFS, StoreDenied),
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.ENOENT, BadInput),
        (errno.EIO, DiskFailed),
    ],
)
def test_errors_of_the_system(number: int, error: type[LedgerstoneError]) -> None:
    """Each error of the system is one of the tree, which names the file."""
    with pytest.raises(error, match="folder: "), file_errors(Path("folder")):
        raise OSError(number, os.strerror(number))


def test_the_room_for_a_log(tmp_path: Path) -> None:
    """Opening needs as much room as the log holds: it becomes data files."""
    check_room(tmp_path)
    with (tmp_path / "000007.log").open("wb") as log:
        log.truncate(2**43)

    with pytest.raises(StoreFull, match="8,796,094,070,784 bytes"):
        check_room(tmp_path)
