"""The store and kill -9: nothing acknowledged is lost, and what belongs together stays together."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgerstone.signing import upkeep
from ledgerstone.signing.keys import Family
from ledgerstone.signing.rocksdb import Batch, Database
from ledgerstone.signing.store import Store
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.harness.sizes import sized
from tests.signing.crash_writer import DAY
from tests.signing.processes import started

FAILPOINTS = ("signing.committing", "signing.committed")


def killed_in_round(folder: Path, number: int) -> set[bytes]:
    """One writer that dies, by a failpoint or from outside; what it acknowledged."""
    failpoint = None
    if number % 3 < 2:
        failpoint = f"{FAILPOINTS[number % 3]}=kill@{7 + number * 13 % 200}"
    code = ["-m", "tests.signing.crash_writer", str(folder), str(number)]
    with started(code, failpoint=failpoint) as writer:
        assert writer.stdout is not None
        said = []
        for line in writer.stdout:
            said.append(line)
            if failpoint is None and len(said) == 20 + number % 50:
                writer.kill()
        assert writer.wait(WAIT_SECONDS_MAX) == -9
    # The last line may be cut off by the kill; it was acknowledged all the same.
    return {line.strip() for line in said if line.endswith(b"\n")}


def check(folder: Path, acknowledged: set[bytes]) -> None:
    """Read the promises off the files, with nothing of the store."""
    families = ("event", "request", "volume")
    with Database(folder, {}, read_only=True) as database:
        events, requests, volumes = (dict(database.scan(name)) for name in families)
    names = {key.removeprefix(b"evt:") for key in events}

    assert acknowledged <= names
    assert names == {key.removeprefix(b"req:") for key in requests}
    amounts = [int.from_bytes(value, "big") for value in events.values()]
    assert int.from_bytes(volumes[DAY], "big") == sum(amounts)


@pytest.mark.slow
@pytest.mark.torture
def test_killed_again_and_again(folder: Path) -> None:
    """After every kill all acknowledged transactions are there, whole, and the volume is right."""
    acknowledged: set[bytes] = set()

    for number in range(sized(6, full=100)):
        acknowledged |= killed_in_round(folder, number)
        check(folder, acknowledged)

    assert acknowledged
    with Store(folder) as store:
        assert upkeep.health(store).ok


MIGRATE = """
import sys
from pathlib import Path
from ledgerstone.signing.store import Store
with Store(Path(sys.argv[1])) as store:
    print(store.migrate().moved)
"""


@pytest.mark.slow
@pytest.mark.torture
def test_killed_while_migrating(folder: Path) -> None:
    """Each row is in one family or the other after a kill, and the next run moves the rest."""
    expected = {b"evt:%05d" % number: b"%d" % number for number in range(1200)}
    rounds = sized(3, full=100)
    for number in range(rounds):
        put_old_rows(folder, expected)
        failpoint = f"signing.migrating=kill@{1 + number % 3}"
        with started(["-c", MIGRATE, str(folder)], failpoint=failpoint) as child:
            assert child.wait(WAIT_SECONDS_MAX) == -9
        with Store(folder) as store:
            found = [
                row
                for family in (Family.DEFAULT, Family.EVENT)
                for row in store.database.scan_prefix(family, b"evt:")
            ]
            assert {row.key: row.value for row in found} == expected
            assert len(found) == len(expected)
        with started(["-c", MIGRATE, str(folder)]) as child:
            assert child.wait(WAIT_SECONDS_MAX) == 0

    with Store(folder) as store:
        assert list(store.database.scan(Family.DEFAULT)) == []
        assert {store.volume(b"vol:%08d" % day) for day in range(300)} == {7 * rounds}


def put_old_rows(folder: Path, events: dict[bytes, bytes]) -> None:
    """Rows as they lay before there were families."""
    batch = Batch()
    for key, value in events.items():
        batch.put(Family.DEFAULT, key, value)
        batch.delete(Family.EVENT, key)
    for day in range(300):
        batch.put(Family.DEFAULT, b"vol:%08d" % day, (7).to_bytes(8, "big"))
    with Store(folder) as store:
        store.database.write(batch)


RESTORE = """
import sys
from pathlib import Path
from ledgerstone.signing.upkeep import restore_checkpoint
restore_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.torture
def test_killed_while_restoring(folder: Path, tmp_path: Path) -> None:
    """A restore that is cut off leaves no half of a store; the next one succeeds."""
    with Store(folder) as store:
        store.insert(Family.EVENT, b"evt:a", b"1")
        upkeep.checkpoint(store, tmp_path / "checkpoint")
    for number in range(sized(1, full=100)):
        target = tmp_path / f"restored{number}"
        code = ["-c", RESTORE, str(tmp_path / "checkpoint"), str(target)]

        with started(code, failpoint="signing.restoring=kill") as child:
            assert child.wait(WAIT_SECONDS_MAX) == -9
        assert not target.exists()
        with started(code) as child:
            assert child.wait(WAIT_SECONDS_MAX) == 0

        with Store(target) as store:
            assert store.get(Family.EVENT, b"evt:a") == b"1"


FILL = """
import resource, sys
from pathlib import Path
from ledgerstone.errors import StoreFull
from ledgerstone.signing.keys import Family
from ledgerstone.signing.store import Store
with Store(Path(sys.argv[1])) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    for number in range(1000):
        try:
            with store.transaction() as tx:
                tx.put(Family.EVENT, b"evt:%04d" % number, bytes(5000))
                tx.add_volume(b"vol:day", 1)
        except StoreFull:
            break
        print(number)
    for _ in range(3):
        try:
            store.insert(Family.EVENT, b"evt:more", b"1")
        except StoreFull:
            continue
        raise SystemExit("written although the disk is full")
    assert store.get(Family.EVENT, b"evt:0000") == bytes(5000)
"""


OPEN = """
import resource, sys
from pathlib import Path
from ledgerstone.errors import StoreFull
from ledgerstone.signing.store import Store
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
for size in (0, 100, 1000, 10_000, 30_000, 100_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        Store(Path(sys.argv[1])).close()
    except StoreFull:
        print(size, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
Store(Path(sys.argv[1])).close()
"""


def test_opening_on_a_full_disk(store: Store, folder: Path) -> None:
    """It is told by the same error: the process goes on, and opens the store when there is room."""
    store.insert(Family.EVENT, b"evt:a", b"1")
    store.close()

    with started(["-c", OPEN, str(folder)]) as child:
        said, _ = child.communicate(timeout=WAIT_SECONDS_MAX)

    assert (child.returncode, len(said.split())) == (0, 6)
    with Store(folder) as reopened:
        assert reopened.get(Family.EVENT, b"evt:a") == b"1"


def test_a_full_disk(folder: Path) -> None:
    """It is told by its own error, reads go on, and all that was acknowledged is there later."""
    with started(["-c", FILL, str(folder)]) as child:
        said, _ = child.communicate(timeout=WAIT_SECONDS_MAX)
        assert child.returncode == 0
    acknowledged = len(said.split())

    with Store(folder) as store:
        rows = store.page(Family.EVENT, b"evt:").rows
        assert acknowledged <= len(rows) < 1000
        assert store.volume(b"vol:day") == len(rows)
        store.insert(Family.EVENT, b"evt:more", b"1")
    assert acknowledged > 10
