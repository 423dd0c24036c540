"""Lives of requests and kill -9: nothing acknowledged is lost, and the volume is what was paid."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgerstone import Ledger
from ledgerstone.signing import Signing
from ledgerstone.signing.rocksdb import Batch, Database
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.harness.sizes import sized
from tests.signing import checker
from tests.signing.people import NOW, group, payment
from tests.signing.processes import started
from tests.signing.world import World, Worlds

FAILPOINTS = ("signing.committing", "signing.committed")


def killed_in_round(folder: Path, number: int) -> list[str]:
    """Signers that die, by a failpoint or from outside; what was acknowledged."""
    failpoint = None
    if number % 3 < 2:
        failpoint = f"{FAILPOINTS[number % 3]}=kill@{9 + number * 17 % 150}"
    code = ["-m", "tests.signing.crash_signers", str(folder), str(number)]
    with started(code, failpoint=failpoint) as signers:
        assert signers.stdout is not None
        said = []
        for line in signers.stdout:
            said.append(line)
            if failpoint is None and len(said) == 20 + number % 70:
                signers.kill()
        assert signers.wait(WAIT_SECONDS_MAX) == -9
    return [line.decode().strip() for line in said if line.endswith(b"\n")]


@pytest.mark.slow
@pytest.mark.torture
def test_killed_again_and_again(folder: Path) -> None:
    """After every kill all that was acknowledged is there, and every sum is right."""
    acknowledged: list[str] = []

    for number in range(sized(6, full=100)):
        acknowledged += killed_in_round(folder, number)
        assert checker.problems(folder, acknowledged, threshold=2) == []

    assert {line.split()[0] for line in acknowledged} >= {*checker.ENDS, "archived"}
    with Signing(folder) as signing:
        assert signing.health_check().ok


DELETE = """
import sys
from ledgerstone.signing import Signing, sweeping
sweeping.TRANSACTION_ROWS_MAX = 3
with Signing(sys.argv[1]) as signing:
    while signing.delete_old_archives(2**62, rows_max=5).rows:
        pass
"""


@pytest.mark.slow
@pytest.mark.torture
def test_killed_while_deleting(folder: Path) -> None:
    """A deletion that is cut off anywhere is taken up again, and leaves nothing behind."""
    with World(folder, group(2, 3)).signing:
        pass
    for number in range(sized(3, full=100)):
        archive_two(folder, number)
        failpoint = f"signing.deleting=kill@{1 + number % 5}"
        with started(["-c", DELETE, str(folder)], failpoint=failpoint) as child:
            assert child.wait(WAIT_SECONDS_MAX) == -9
    with started(["-c", DELETE, str(folder)]) as child:
        assert child.wait(WAIT_SECONDS_MAX) == 0

    files = checker.read(folder)
    assert list(files.active) == [b"kept"]
    assert list(files.request) == [b"req:kept"]
    assert files.partial_sig == {}
    assert checker.problems(folder, ["proposed kept"], threshold=2) == []


def archive_two(folder: Path, number: int) -> None:
    """Two requests of this round that are archived with signatures, beside one that stays."""
    world = World(folder, group(2, 3))
    with world.signing:
        world.propose("kept", payment(0, event_id="kept"))
        for name in (f"a{number}", f"b{number}"):
            world.abort(world.signed(name, payment(event_id=name)))
        world.signing.archive_old_requests(NOW + 1)


RELAY = """
import sys
from ledgerstone import Ledger
from ledgerstone.signing import Signing
with Signing(sys.argv[1]) as signing, Ledger(sys.argv[2]) as ledger:
    print(ledger.relay_signing(signing))
"""


@pytest.mark.slow
@pytest.mark.torture
def test_killed_between_publish_and_confirm(folder: Path, tmp_path: Path) -> None:
    """The message was committed, is published again, and is in the outbox once."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    rounds = sized(1, full=100)
    new = []
    for number in range(rounds):
        world = World(folder, group(2, 3))
        with world.signing:
            world.finalize(world.signed(f"r{number}", payment(number)))
        with started(["-c", RELAY, str(folder), url], failpoint="signing.published=kill") as child:
            assert child.wait(WAIT_SECONDS_MAX) == -9
        with started(["-c", RELAY, str(folder), url]) as child:
            said, _ = child.communicate(timeout=WAIT_SECONDS_MAX)
        new += said.split()

    assert new == [b"0"] * rounds
    with Signing(folder) as signing:
        assert signing.list_outgoing() == []
    with Ledger(url) as ledger, ledger.reading() as tx:
        assert len(tx.outbox.find(limit=2 * rounds).rows) == rounds


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("volume", b"vol:" + bytes(8), (1).to_bytes(8, "big")),
        ("default", b"own:reserved", (1).to_bytes(16, "big")),
        ("partial_sig", b"req_sig:r1:peer-1:" + bytes(4), None),
        ("event", None, None),
        ("signer_ack", b"req_ack:r1:peer-1", None),
        ("request", b"req:r1", None),
        ("default", b"own:trail:r1:" + bytes(4), None),
    ],
    ids=str,
)
def test_the_checker_can_fail(
    worlds: Worlds, family: str, key: bytes | None, value: bytes | None
) -> None:
    """A planted error is found: the checker does not only agree."""
    world = worlds()
    request = world.signed()
    world.finalize(request)
    folder = world.store.folder
    said = ["proposed r1", "voted r1 peer-1", "signed r1 peer-1 0", "finalized r1"]
    world.signing.close()
    assert checker.problems(folder, said, threshold=2) == []

    batch = Batch()
    with Database(folder, {}) as database:
        at = next(iter(database.scan(family))).key if key is None else key
        if value is None:
            batch.delete(family, at)
        else:
            batch.put(family, at, value)
        database.write(batch)

    try:
        found = checker.problems(folder, said, threshold=2)
    except KeyError as error:
        found = [repr(error)]
    assert found


def test_the_checker_misses_an_end(worlds: Worlds) -> None:
    """An acknowledged end that is not there is a loss."""
    world = worlds()
    world.propose()
    world.signing.close()

    for end in (*checker.ENDS, "archived"):
        found = checker.problems(world.store.folder, [f"{end} r1"], threshold=2)
        assert found == [f"lost: {end} r1"]


@pytest.mark.parametrize(
    ("finished", "problem"), [(True, "active and archived"), (False, "before its end")]
)
def test_the_checker_finds_a_wrong_archive(worlds: Worlds, finished: bool, problem: str) -> None:
    """A request that is in two places, or was archived while it could go on."""
    world = worlds()
    request = world.propose()
    if finished:
        world.abort(request)
    folder = world.store.folder
    world.signing.close()

    batch = Batch()
    with Database(folder, {}) as database:
        value = database.get("request", b"req:r1")
        assert value is not None
        batch.put("request", b"archive:req:r1", value)
        if not finished:
            batch.delete("request", b"req:r1")
        database.write(batch)

    (found,) = checker.problems(folder, [], threshold=2)
    assert problem in found
