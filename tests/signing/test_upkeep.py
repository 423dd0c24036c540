"""Looking after the store: health, sizes, compaction, checkpoints, backups, restoring."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerstone.errors import NotAllowedNow, NotFound, StoreCorrupt
from ledgerstone.signing import upkeep
from ledgerstone.signing.keys import Family
from ledgerstone.signing.store import Store

ROWS = 50


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    """A store with a few rows in every family."""
    with Store(folder) as opened:
        with opened.transaction() as tx:
            for family in Family:
                for number in range(ROWS):
                    tx.put(family, b"%s:%d" % (family.encode(), number), bytes(100))
        yield opened


def test_a_healthy_store(store: Store) -> None:
    """Nothing is wrong, and there is room on the disk."""
    found = upkeep.health(store)

    assert found.ok, found.problems
    assert found.background_errors == 0
    assert found.free_bytes > 0


def test_a_damaged_store_is_not_healthy(folder: Path) -> None:
    """A block that cannot be read is named with its family."""
    with Store(folder) as store:
        store.insert(Family.EVENT, b"evt:a", bytes(1000))
        store.database.flush()
    (file,) = folder.glob("*.sst")
    damaged = bytearray(file.read_bytes())
    damaged[20] ^= 1
    file.write_bytes(damaged)

    with Store(folder) as store:
        found = upkeep.health(store)

    assert not found.ok
    assert found.problems[0].startswith("event: ")
    with pytest.raises(StoreCorrupt):
        upkeep.verify(folder)


def test_statistics_and_disk_usage(store: Store) -> None:
    """Each family has its numbers, and together they are the folder."""
    in_memory = upkeep.disk_usage(store)
    store.database.flush()
    found = upkeep.statistics(store)
    usage = upkeep.disk_usage(store)

    assert set(found.families) == set(Family)
    assert all(one.rows_estimate == ROWS for one in found.families.values())
    assert all(usage.families[family] > 0 for family in Family)
    assert "Compaction Stats" in found.text
    assert in_memory.log_bytes > 0
    assert usage.total_bytes == sum(
        file.stat().st_size for file in store.folder.iterdir() if file.is_file()
    )


def test_compaction(store: Store) -> None:
    """Of one family and of all."""
    store.database.flush()
    for family in Family:
        while store.delete_prefix(family, b"", rows_max=20):
            pass
    upkeep.compact(store, Family.EVENT)
    upkeep.compact(store)

    assert sum(upkeep.disk_usage(store).families.values()) == 0


def test_a_checkpoint_brings_everything_back(store: Store, tmp_path: Path) -> None:
    """All rows of its moment and none of later, in a new folder; the checkpoint stays as it is."""
    upkeep.checkpoint(store, tmp_path / "checkpoints" / "one")
    store.insert(Family.EVENT, b"later", b"1")

    rows = upkeep.restore_checkpoint(tmp_path / "checkpoints" / "one", tmp_path / "restored")
    with Store(tmp_path / "restored") as restored:
        restored.insert(Family.EVENT, b"only here", b"1")
        assert restored.get(Family.EVENT, b"later") is None
        assert restored.get(Family.SEEN, b"seen:7") == bytes(100)

    assert rows == dict.fromkeys(Family, ROWS)
    assert upkeep.verify(tmp_path / "checkpoints" / "one") == rows
    assert (tmp_path / "restored").stat().st_mode & 0o777 == 0o700


def test_backups_bring_everything_back(store: Store, tmp_path: Path) -> None:
    """The newest, or one by its number; old ones go; each can be verified."""
    backups = tmp_path / "backups"
    first = upkeep.back_up(store, backups)
    store.insert(Family.EVENT, b"later", b"1")
    upkeep.back_up(store, backups)
    upkeep.restore_backup(backups, tmp_path / "first", first.number)
    third = upkeep.back_up(store, backups, keep=2)

    assert upkeep.verify(tmp_path / "first")["event"] == ROWS
    assert upkeep.verify_backup(backups)["event"] == ROWS + 1
    assert upkeep.restore_backup(backups, tmp_path / "newest")["event"] == ROWS + 1
    assert third.number == 3
    with pytest.raises(NotFound, match="no backup 1"):
        upkeep.verify_backup(backups, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "backups",
        "database",
        "first",
        "newest",
    ]


def test_a_damaged_backup_is_reported(store: Store, tmp_path: Path) -> None:
    """A flipped byte, although the size is the same."""
    upkeep.back_up(store, tmp_path / "backups")
    file = max((tmp_path / "backups" / "shared_checksum").iterdir())
    damaged = bytearray(file.read_bytes())
    damaged[30] ^= 1
    file.write_bytes(damaged)

    with pytest.raises(StoreCorrupt):
        upkeep.verify_backup(tmp_path / "backups")
    with pytest.raises(StoreCorrupt):
        upkeep.restore_backup(tmp_path / "backups", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_damaged_checkpoint_is_not_restored(store: Store, tmp_path: Path) -> None:
    """The target is not made, and nothing is left beside it."""
    upkeep.checkpoint(store, tmp_path / "checkpoint")
    file = min((tmp_path / "checkpoint").glob("*.sst"))
    damaged = bytearray(file.read_bytes())
    damaged[30] ^= 1
    file.unlink()
    file.write_bytes(damaged)

    with pytest.raises(StoreCorrupt):
        upkeep.restore_checkpoint(tmp_path / "checkpoint", tmp_path / "restored")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "database"]


def test_nothing_is_overwritten(store: Store, tmp_path: Path) -> None:
    """A target that holds something is refused, and what is not there is named."""
    upkeep.checkpoint(store, tmp_path / "checkpoint")

    with pytest.raises(NotAllowedNow, match="exists"):
        upkeep.checkpoint(store, tmp_path / "checkpoint")
    with pytest.raises(NotAllowedNow, match="not empty"):
        upkeep.restore_checkpoint(tmp_path / "checkpoint", store.folder)
    with pytest.raises(NotFound, match="none"):
        upkeep.restore_checkpoint(tmp_path / "none", tmp_path / "restored")
    with pytest.raises(NotFound, match="none"):
        upkeep.restore_backup(tmp_path / "none", tmp_path / "restored")
    with pytest.raises(NotFound, match="none"):
        upkeep.verify(tmp_path / "none")


def test_little_room_is_a_problem(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Health says so before the disk is full."""
    plenty = upkeep.health(store)
    monkeypatch.setattr(upkeep, "FREE_BYTES_MIN", plenty.free_bytes * 2)

    found = upkeep.health(store)

    assert plenty.ok
    assert [problem for problem in found.problems if "are free on the disk" in problem]
