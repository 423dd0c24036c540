"""The files of a store stay few, however often it is opened."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ledgerstone.signing import upkeep
from ledgerstone.signing.keys import Family
from ledgerstone.signing.rocksdb.few_files import LOGS_MAX, SMALL_FILES_MAX
from ledgerstone.signing.store import Store
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

pytestmark = pytest.mark.slow

OPENINGS = 40
DESCRIPTORS = 64
FAMILIES = (Family.SEEN, Family.EVENT)

READ = """
import sys
from pathlib import Path
from ledgerstone.signing.keys import Family
from ledgerstone.signing.store import Store
with Store.open(folder=Path(sys.argv[1])) as store:
    print(len(store.page(Family.SEEN, rows_max=1000).rows))
"""


def counts(folder: Path) -> tuple[int, int]:
    """How many logs and data files there are."""
    return len(list(folder.glob("*.log"))), len(list(folder.glob("*.sst")))


def open_and_write(folder: Path, openings: int) -> None:
    """Write a row in each of two families, under keys that grow, once an opening."""
    for number in range(openings):
        with Store.open(folder=folder) as store:
            for family in FAMILIES:
                store.insert(family, b"key:%06d" % number, b"%d" % number)


def all_rows(store: Store, family: Family) -> list[bytes]:
    return [row.value for row in store.page(family, rows_max=1000).rows]


def test_many_openings_leave_few_files(folder: Path) -> None:
    """Logs and data files have a maximum, and every row is there."""
    open_and_write(folder, OPENINGS)

    logs, data_files = counts(folder)
    assert logs <= LOGS_MAX + 1
    assert data_files <= (len(FAMILIES) + 1) * (SMALL_FILES_MAX + 1)
    with Store.open(folder=folder) as store:
        for family in FAMILIES:
            assert all_rows(store, family) == [b"%d" % number for number in range(OPENINGS)]


def test_a_store_opens_with_few_descriptors(folder: Path) -> None:
    """Also one that many openings have left."""
    open_and_write(folder, OPENINGS)

    ended = subprocess.run(
        [sys.executable, "-c", READ, folder],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS)),
        capture_output=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    assert int(ended.stdout) == OPENINGS


def test_a_store_of_many_files_is_tidied_up_by_one_opening(folder: Path) -> None:
    """A program that tidies nothing up left a log and a data file for each opening."""
    for number in range(OPENINGS):
        with Store(folder) as store:
            store.insert(Family.SEEN, b"key:%06d" % number, b"%d" % number)
    assert min(counts(folder)) >= OPENINGS - 1

    with Store.open(folder=folder) as store:
        assert len(all_rows(store, Family.SEEN)) == OPENINGS
    logs, data_files = counts(folder)
    assert logs == 1
    assert data_files <= (len(FAMILIES) + 1) * (SMALL_FILES_MAX + 1)


def test_compact_leaves_one_file_of_a_small_family(folder: Path) -> None:
    """Files whose keys do not overlap are merged, and logs of before the opening dropped."""
    open_and_write(folder, SMALL_FILES_MAX)

    with Store.open(folder=folder) as store:
        upkeep.compact(store)
        files = [file for file in store.database.data_files() if file.family == Family.SEEN]
        assert len(files) == 1
        assert len(all_rows(store, Family.SEEN)) == SMALL_FILES_MAX
    assert counts(folder)[0] == 1
