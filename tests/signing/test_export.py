"""Export and import: the same bytes come back, and a damaged file is noticed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ledgerstone.errors import KeyConflict, Malformed
from ledgerstone.signing import Signing, export
from ledgerstone.signing.keys import Family, GroupKey
from ledgerstone.signing.values import RequestId
from tests.signing.people import payment
from tests.signing.world import World, Worlds


@pytest.fixture
def world(worlds: Worlds) -> World:
    """A store with a life in it, and a row that nothing reads."""
    made = worlds()
    made.finalize(made.signed())
    made.vote(made.propose("r2", payment(2)), 1)
    with made.store.transaction() as tx:
        tx.put(Family.DEFAULT, b"of another program", b"\xff\0")
    return made


def test_there_and_back(world: World, worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty store that imports an export has the same rows; twice changes nothing."""
    monkeypatch.setattr(export, "STEP_ROWS", 3)
    lines = [*world.signing.export_lines()]
    other = worlds()
    other.delete(GroupKey(group_id=other.group_id))

    first = other.signing.import_lines(lines)
    second = other.signing.import_lines(f"{line}\n" for line in lines)

    rows = world.rows()
    assert other.rows() == rows
    assert (first, second) == ((len(rows), 0), (0, len(rows)))


def test_an_export_is_of_one_moment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is written after its beginning is not in it."""
    monkeypatch.setattr(export, "STEP_ROWS", 1)
    before = world.rows()
    lines = world.signing.export_lines()
    begun = [next(lines), next(lines)]

    world.vote(RequestId("r2"), 2)
    world.propose("r3", payment(3))
    documents = [msgspec.json.decode(line) for line in [*begun, *lines]]

    keys = {(each["family"], bytes.fromhex(each["key"])) for each in documents[1:-1]}
    assert keys == set(before)
    assert {bytes.fromhex(each["value"]) for each in documents[1:-1]} == set(before.values())


def test_readable(world: World) -> None:
    """Each record is shown in clear beside its bytes."""
    documents = [msgspec.json.decode(line) for line in world.signing.export_lines()]

    shown = [each["record"] for each in documents[1:-1] if each["family"] == "request"]
    assert documents[0] == {"format": "ledgerstone signing export", "version": 1}
    assert documents[-1] == {"rows": len(documents) - 2}
    assert [each["request_id"] for each in shown] == ["r1", "r2"]
    assert shown[0]["final_tx_id"] == "66" * 32


def test_files_that_are_refused(world: World, folder: Path) -> None:
    """A file that is cut off, has a line too many, or is none, is Malformed."""
    lines = [*world.signing.export_lines()]
    broken = {
        "empty": [],
        "cut off": lines[:-1],
        "a row less": [*lines[:-2], lines[-1]],
        "more behind the end": [*lines, lines[1]],
        "another version": [lines[0].replace("1", "2"), *lines[1:]],
        "half a line": [lines[0], lines[1][:-5], *lines[2:]],
        "no hex": [lines[0], lines[1].replace('"key":"', '"key":"x'), *lines[2:]],
        "another family": [
            lines[0],
            lines[-2].replace('"family":"volume"', '"family":"seen"'),
            *lines[2:],
        ],
        "no family": [lines[0], lines[1].replace('"family":"', '"family":"x'), *lines[2:]],
    }

    for number, (name, given) in enumerate(broken.items()):
        with Signing(folder / str(number)) as signing, pytest.raises(Malformed):
            signing.import_lines(given)
            pytest.fail(name)


def test_nothing_is_overwritten(world: World, worlds: Worlds) -> None:
    """A row that the store holds otherwise is a KeyConflict."""
    lines = [*world.signing.export_lines()]
    other = worlds()
    other.propose("r1", payment(3))

    with pytest.raises(KeyConflict):
        other.signing.import_lines(lines)

    assert other.signing.audit_request(other.propose("r1", payment(3))).event == payment(3)
