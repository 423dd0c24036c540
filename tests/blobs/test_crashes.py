"""A process that stores or removes a file is killed at every step, in the database and on disk."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from sqlalchemy import text

from ledgerstone import Ledger
from ledgerstone.settings import Settings
from ledgerstone.testing.fixtures import Home
from tests.contract.blobs.contents import content, hash_of
from tests.contract.blobs.slices import rows, tables_of
from tests.harness.processes import WorkerProcess

DATA = content(30_000)
ID = hash_of(DATA)
STEPS_MAX = 40
ON_DISK = ["blobs.assembled=kill", "blobs.intended=kill", "blobs.renamed=kill"]

pytestmark = pytest.mark.slow


def steps(disk: bool) -> Iterator[str]:
    """Every step at which a process can be killed, one after the other."""
    yield from ON_DISK if disk else ()
    for number in range(1, STEPS_MAX):
        yield f"transaction.before_commit=kill@{number}"
        yield f"transaction.after_commit=kill@{number}"


def opened(home: Home, terms: Mapping[str, object]) -> Ledger:
    """The ledger that the killed process had open."""
    return Ledger(settings=Settings.load(url=home.url, environ={}, blobs=dict(terms)))


def killed(
    home: Home, act: str, given: object, step: str | None, terms: Mapping[str, object]
) -> bool:
    """Whether the process was killed before it came to its end."""
    settings = {f"blobs_{name}": value for name, value in terms.items()}
    arguments = (act, str(given))
    with WorkerProcess(
        home.url, "tests.blobs.storing", settings=settings, failpoint=step, arguments=arguments
    ) as process:
        code = process.wait()
    assert code in {0, -signal.SIGKILL}
    return code != 0


def expire(ledger: Ledger) -> None:
    """What nobody completed has expired."""
    late = f"UPDATE {tables_of(ledger)}blobs SET expires_at_ms = 1 WHERE NOT completed"  # noqa: S608
    with ledger.transaction() as tx:
        tx.connection.execute(text(late))


def files(terms: Mapping[str, object]) -> list[str]:
    """The names of the files in the folder."""
    found = [path.name for path in Path(str(terms["folder"])).rglob("*") if path.is_file()]
    return [name for name in found if name != "lock"]


def check_nothing_is_left(home: Home, terms: Mapping[str, object]) -> None:
    """Nothing is left when what is there was removed, and what was abandoned has expired."""
    with opened(home, terms) as ledger:
        ledger.blobs.remove(ID)
        expire(ledger)
        ledger.blobs.collect()
    assert files(terms) == []
    assert [rows(home, name) for name in ("blobs", "blob_slices", "blob_owners")] == [0, 0, 0]


def terms_of(tmp_path: Path, *, disk: bool) -> dict[str, object]:
    """Settings that keep files in the database, or on disk."""
    folder = {"folder": str(tmp_path / "files"), "slice_bytes": 8192}
    return folder | ({"disk_bytes_min": 1} if disk else {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file to be stored."""
    made = tmp_path / "a.bin"
    made.write_bytes(DATA)
    return made


@pytest.mark.parametrize(("act", "disk"), [("put", False), ("put", True), ("pipe", False)])
def test_killed_while_it_stores(
    migrated_home: Home, path: Path, tmp_path: Path, act: str, disk: bool
) -> None:
    """What was being stored is whole or cannot be read, is stored when put again, and expires."""
    terms, done = terms_of(tmp_path, disk=disk), 0

    for step in steps(disk=disk):
        if not killed(migrated_home, act, path, step, terms):
            break
        done += 1
        with opened(migrated_home, terms) as ledger:
            found = ledger.blobs.get(ID)
            assert found is None or not found.completed or ledger.blobs.verify(ID)
            ledger.blobs.put(path)
            assert ledger.blobs.verify(ID)
        check_nothing_is_left(migrated_home, terms)

    assert done >= 6


@pytest.mark.parametrize("disk", [False, True])
def test_killed_while_it_removes(
    migrated_home: Home, path: Path, tmp_path: Path, disk: bool
) -> None:
    """What was being removed is there with all its bytes, or not there; nothing stays behind."""
    terms, done = terms_of(tmp_path, disk=disk), 0

    for step in steps(disk=False):
        assert not killed(migrated_home, "put", path, None, terms)
        if not killed(migrated_home, "remove", ID, step, terms):
            break
        done += 1
        with opened(migrated_home, terms) as ledger:
            assert ledger.blobs.get(ID) is None or ledger.blobs.verify(ID)
        check_nothing_is_left(migrated_home, terms)

    assert done >= 2


@pytest.mark.parametrize("step", ON_DISK)
def test_killed_and_abandoned(migrated_home: Home, path: Path, tmp_path: Path, step: str) -> None:
    """What a crash left in the folder goes with the upload when that expires, by the duty."""
    terms = terms_of(tmp_path, disk=True)

    assert killed(migrated_home, "put", path, step, terms)
    left = files(terms)
    with opened(migrated_home, terms) as ledger:
        expire(ledger)
        worker = ledger.worker()
        worker.tick()
        worker.stop(grace_seconds=0)

    assert len(left) == 1
    assert files(terms) == []
