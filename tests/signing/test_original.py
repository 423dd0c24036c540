"""One database, used by the original and by us in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledgerstone.settings import SigningSettings
from ledgerstone.signing import Signing
from ledgerstone.signing.keys import Family, VolumeKey
from ledgerstone.signing.rocksdb.library import load
from ledgerstone.signing.values import EventHash, GroupId, RequestId
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.signing.people import DAY
from tests.signing.processes import started
from tests.signing.shapes import GOLDEN, golden
from tests.signing.test_bincode import BY_NAME

REQUEST = "550e8400-e29b-41d4-a716-446655440000"
DIED = 9


def original(folder: Path, *words: str, ends: int = 0) -> list[bytes]:
    """The original works on the folder; what it showed."""
    folder.mkdir(parents=True, exist_ok=True)
    code = ["-m", "tests.signing.original", load().file, str(folder), *words]
    with started(code) as process:
        said, _ = process.communicate(timeout=WAIT_SECONDS_MAX)
    assert process.returncode == ends
    return [bytes.fromhex(line.decode()) for line in said.splitlines()]


def day_key(day: int) -> str:
    return VolumeKey(day_start_nanos=day * DAY).encode().hex()


def cases(kind: str) -> list[dict[str, Any]]:
    return [case for case in GOLDEN if case["type"] == kind]


def documented_rows() -> list[tuple[str, bytes, str]]:
    """The golden values under the keys of the documented table: family, key, value in hex."""
    (group,), (added,), (ack,) = (
        cases(kind) for kind in ("GroupConfig", "RequestInput", "SignerAckRecord")
    )
    request, name = cases("SigningRequest")[-1], REQUEST.encode()
    return [
        ("group", b"grp:" + bytes.fromhex(group["group_id"]), group["bytes"]),
        *(
            ("event", b"evt:" + bytes.fromhex(case["event_hash"]), case["bytes"])
            for case in cases("SigningEvent")
        ),
        ("request", b"req:" + name, request["bytes"]),
        ("request", b"archive:req:old", request["bytes"]),
        ("request_input", b"req_input:%b:\0\0\0\0" % name, added["bytes"]),
        ("signer_ack", b"req_ack:%b:peer-3" % name, ack["bytes"]),
        ("seen", b"seen:peer-3:%b:" % (b"s" * 32) + bytes(7) + b"\5", bytes(8).hex()),
    ]


def check_records(signing: Signing) -> None:
    """Every golden value is read by the operation of its name."""

    def values(kind: str) -> list[Any]:
        return [golden(BY_NAME[kind], case["value"]) for case in cases(kind)]

    (group,) = cases("GroupConfig")
    found = signing.get_group_config(GroupId(bytes.fromhex(group["group_id"])))
    assert [found] == values("GroupConfig")
    events = [EventHash(bytes.fromhex(case["event_hash"])) for case in cases("SigningEvent")]
    assert [signing.get_event(each) for each in events] == values("SigningEvent")
    assert signing.get_request(RequestId(REQUEST)) == values("SigningRequest")[-1]
    assert len(signing.list_requests(archived=True).requests) == 1
    assert signing.list_request_inputs(RequestId(REQUEST)) == values("RequestInput")
    assert signing.list_signer_acks(RequestId(REQUEST)) == values("SignerAckRecord")


def test_what_the_original_wrote_is_read(folder: Path) -> None:
    """Every structure under its documented key, by a process that was killed."""
    rows = documented_rows()
    words = [f"put:{family}:{key.hex()}:{value}" for family, key, value in rows]
    original(folder, *words, "add:0:10", "add:0:30", "die", ends=DIED)

    with Signing(folder) as signing:
        check_records(signing)
        assert signing.get_volume_since(0) == 40

    shown = original(folder, *(f"show:{family}:{key.hex()}" for family, key, _ in rows))
    assert shown == [bytes.fromhex(value) for _, _, value in rows]


def test_rows_of_before_there_were_families(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read after the migration, which the documented switch asks for."""
    rows = [each for each in documented_rows() if each[0] != "default"]
    folder = tmp_path / "threshold-signing"
    words = [f"put:default:{key.hex()}:{value}" for _, key, value in rows]
    original(folder, *words, f"put:default:{b'cfg:app'.hex()}:{b'{}'.hex()}")

    with Signing(folder) as signing:
        assert signing.list_events().events == {}
    monkeypatch.setenv("KASPA_IGRA_ENABLE_MIGRATIONS", "true")
    with Signing(folder) as signing:
        check_records(signing)
    monkeypatch.setenv("KASPA_DATA_DIR", str(tmp_path))
    with Signing() as signing:
        check_records(signing)
        assert signing.store.get(Family.DEFAULT, b"cfg:app") == b"{}"
        assert signing.store.page(Family.DEFAULT, b"req").rows == []


@pytest.mark.parametrize("flushed", [False, True])
def test_volumes_are_right_for_both(folder: Path, *, flushed: bool) -> None:
    """The amounts that each of them added are in the sum of the other, also operands."""
    adds = ["add:0:1", "add:0:2", "add:0:4", f"add:{DAY}:5", f"add:{DAY}:{2**64 - 1}"]
    flush = ["flush"] if flushed else []
    original(folder, *adds[:2], *flush, *adds[2:], "die", ends=DIED)

    with Signing(folder) as signing:
        days = [signing.volume_of_day(day * DAY) for day in range(2)]
        signing.store.database.flush()
        signing.compact(Family.VOLUME)
    shown = original(folder, f"show:volume:{day_key(0)}", "add:0:8", f"show:volume:{day_key(1)}")

    assert days == [7, 2**64 - 1]
    assert shown == [(7).to_bytes(8, "big"), b"\xff" * 8]
    with Signing(folder) as signing:
        assert signing.store.add_volume(bytes.fromhex(day_key(0)), 16) == 31
    assert original(folder, f"show:volume:{day_key(0)}") == [(31).to_bytes(8, "big")]


def test_opened_for_reading_nothing_is_added_up(folder: Path) -> None:
    """The sum is right, and no file is changed."""
    original(folder, "add:0:1", "add:0:2", "flush")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    with Signing(folder, settings=SigningSettings(), read_only=True) as signing:
        assert signing.get_volume_since(0) == 3

    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_damaged_volume_does_not_hinder_opening(folder: Path) -> None:
    """It stays as it is, and the others are added up."""
    original(folder, f"put:volume:{day_key(0)}:{bytes(9).hex()}", f"add:{DAY}:1", f"add:{DAY}:2")

    with Signing(folder) as signing:
        assert signing.volume_of_day(DAY) == 3

    shown = original(folder, f"show:volume:{day_key(0)}", f"show:volume:{day_key(1)}")
    assert shown == [bytes(9), (3).to_bytes(8, "big")]
