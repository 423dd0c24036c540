"""A store that is opened for reading: beside its writer, without a trace, damage told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledgerstone.errors import NotAllowedNow, NotFound, StoreCorrupt
from ledgerstone.signing.keys import Family
from ledgerstone.signing.rocksdb import Database, FamilyOptions
from ledgerstone.signing.signing import Signing
from ledgerstone.signing.store import Store
from ledgerstone.signing.values import RequestId
from tests.signing.people import KAS, NOW, payment
from tests.signing.racing import race
from tests.signing.world import World, Worlds


def reading(world: World) -> Signing:
    """The same store, opened again for reading."""
    return Signing(world.store.folder, clock=lambda: world.now, read_only=True)


def test_beside_the_writer(worlds: Worlds) -> None:
    """Everything can be read while another one has the store open, as of the opening."""
    world = worlds()
    world.finalize(world.signed("r1"))
    world.approved("r2", payment(2))

    with reading(world) as beside:
        world.propose("r3", payment(3))

        assert [each.request_id for each in beside.list_requests().requests] == ["r1", "r2"]
        assert beside.audit_request(RequestId("r1")).votes is not None
        assert len(beside.list_events().events) == 2
        assert (beside.volume_today(), beside.reserved_volume()) == (10 * KAS, 10 * KAS)
        assert beside.get_volume_since(0) == 10 * KAS
        assert beside.health_check().ok
        assert beside.statistics().families["request"].rows_estimate > 0
        assert beside.disk_usage().total_bytes > 0
        assert sum(1 for _ in beside.export_lines()) == len(world.rows()) + 2 - world_rows_of("r3")
        assert beside.list_due() == ["r2"]


def world_rows_of(_: str) -> int:
    """How many rows a proposal with two inputs writes."""
    # Event, source id, use, request, context, trail, due time, proposal, two inputs.
    return 10


WRITES: list[Callable[[Signing, World], Any]] = [
    lambda signing, world: signing.upsert_group_config(world.config),
    lambda signing, _: signing.insert_event(payment(9)),
    lambda signing, _: signing.cleanup_seen_messages(),
    lambda signing, _: signing.compact(),
    lambda signing, _: signing.begin_batch(),
    lambda signing, _: signing.store_id(),
    lambda signing, _: signing.create_checkpoint(signing.store.folder.parent / "copy"),
    lambda signing, _: signing.back_up(signing.store.folder.parent / "backups"),
]


@pytest.mark.parametrize("write", WRITES)
def test_nothing_can_be_written(worlds: Worlds, write: Callable[[Signing, World], Any]) -> None:
    """A call that writes raises NotAllowedNow, and the store stays as it is."""
    world = worlds()
    world.propose()
    world.now += 10**18
    before = world.rows()

    with reading(world) as beside, pytest.raises(NotAllowedNow):
        write(beside, world)

    assert world.rows() == before


def test_no_file_is_touched(worlds: Worlds) -> None:
    """Reading makes, removes and changes no file of the folder."""
    world = worlds()
    world.propose()
    world.signing.close()

    def files() -> dict[str, tuple[int, int]]:
        found = {entry.name: entry.stat() for entry in os.scandir(world.store.folder)}
        return {name: (each.st_size, each.st_mtime_ns) for name, each in found.items()}

    before = files()
    with reading(world) as beside:
        assert beside.get_request(RequestId("r1")).request_id == "r1"

    assert files() == before


def test_there_is_none(tmp_path: Path) -> None:
    """NotFound where there is no store, and no folder is made."""
    with pytest.raises(NotFound):
        Signing(tmp_path / "nowhere", read_only=True)

    assert not (tmp_path / "nowhere").exists()


def test_families_that_are_missing(tmp_path: Path) -> None:
    """A database of before there were families has none of them: they are empty."""
    options = {"default": FamilyOptions()}
    with Database(tmp_path / "old", options) as database, database.transaction() as tx:
        tx.put("default", b"cfg:app", b"{}")
        tx.commit()

    with Store(tmp_path / "old", read_only=True) as store, store.view() as view:
        assert store.page(Family.REQUEST).rows == []
        assert view.get(Family.GROUP, b"grp:") is None
        assert store.get(Family.DEFAULT, b"cfg:app") == b"{}"


def test_a_damaged_log_is_told(worlds: Worlds) -> None:
    """A byte that was flipped in the middle of the log is StoreCorrupt also for a reader."""
    world = worlds()
    for number in range(20):
        world.propose(f"r{number}", payment(number))
    world.signing.close()
    log = max(world.store.folder.glob("*.log"), key=lambda path: path.stat().st_size)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 0xFF
    log.write_bytes(content)

    with pytest.raises(StoreCorrupt):
        reading(world)


def test_readers_and_writers_at_once(worlds: Worlds) -> None:
    """Readers that open again and again beside writers, flushes and compactions see whole rows."""
    world = worlds()
    world.propose("first", payment(1000))

    def work(number: int) -> None:
        for step in range(5):
            if number < 4:
                world.propose(f"r{number}-{step}", payment(10 * number + step))
                world.store.database.flush()
                world.signing.compact(Family.REQUEST)
            else:
                with reading(world) as beside:
                    found = beside.list_requests(rows_max=1000).requests
                    assert "first" in [each.request_id for each in found]

    race(work)


def test_the_time_of_an_event(worlds: Worlds) -> None:
    """An event that was given no time has that of our clock, and the same one ever after."""
    world = worlds()
    bare = payment(1, timestamp_nanos=0)

    first = world.signing.stamped_event(bare)
    world.signing.insert_event(first)
    world.now += 5
    again = world.signing.stamped_event(bare)
    other = world.signing.stamped_event(payment(2, timestamp_nanos=0))

    assert first.timestamp_nanos == NOW
    assert again == first
    assert other.timestamp_nanos == NOW + 5
