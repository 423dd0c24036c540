"""Duties on the store of the settings: opened for a turn, and left to others between turns."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ledgerstone import Ledger, failpoints
from ledgerstone.engine.store_duties import StoreDuties
from ledgerstone.failpoints import FailpointHit
from ledgerstone.settings import Settings, SigningSettings
from ledgerstone.signing.duties import CLEAN_UP_SECONDS, ROWS_MAX, duties
from ledgerstone.signing.duty_store import OpenStore
from ledgerstone.signing.folder import FOLDER
from ledgerstone.signing.keys import Family, SeenKey
from ledgerstone.signing.signing import Signing, open_in_this_process
from ledgerstone.signing.states import Status
from ledgerstone.signing.values import PeerId, RequestId, SessionId
from ledgerstone.testing.clock import ManualClock
from tests.signing.people import DAY, group, payment
from tests.signing.processes import started
from tests.signing.world import MINUTE, World

LATE = RequestId("late")
PAID = RequestId("paid")
LOCKED = "store_locked: another process has the store in"

Opener = Callable[..., StoreDuties[Any]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data folder of the settings."""
    return tmp_path / "data"


@pytest.fixture
def clock() -> ManualClock:
    """The ledger's clock, by which turns come."""
    return ManualClock()


@pytest.fixture
def ledgers() -> Iterator[list[Ledger]]:
    """The ledgers that a test has opened."""
    opened: list[Ledger] = []
    yield opened
    for ledger in opened:
        ledger.close()


@pytest.fixture
def duties_of(tmp_path: Path, data: Path, clock: ManualClock, ledgers: list[Ledger]) -> Opener:
    """Makes the duties of a ledger with these settings of signing."""

    def make(**changes: Any) -> StoreDuties[Any]:
        section = SigningSettings(**({"data_dir": str(data)} | changes))
        settings = Settings(url=f"sqlite:///{tmp_path}/ledger.db", signing=section)
        ledgers.append(Ledger(settings=settings, clock=clock))
        (duties,) = ledgers[-1].store_duties()
        return duties

    return make


def messages(ledger: Ledger) -> int:
    """How many messages the outbox has."""
    with ledger.reading() as tx:
        return len(tx.outbox.find(limit=100).rows)


def open_world(data: Path) -> World:
    """A store that is open, with a group."""
    return World(data / FOLDER, group(2, 3))


def test_a_turn(duties_of: Opener, data: Path, ledgers: list[Ledger]) -> None:
    """It expires and publishes what is due, and leaves the store closed."""
    world = open_world(data)
    world.propose(LATE, payment(1))
    world.finalize(world.signed(PAID, payment(2)))
    world.signing.close()
    turns = duties_of(publish=True)

    did = turns.tick()

    assert did == {"signing.expire": 1, "signing.forget": 0, "signing.publish": 1}
    assert messages(ledgers[0]) == 1
    with Signing(data / FOLDER) as signing:
        assert signing.get_request(LATE).decision.status is Status.EXPIRED
        assert signing.list_outgoing() == []


def test_a_store_that_is_not_there(duties_of: Opener, data: Path, clock: ManualClock) -> None:
    """It is not made; when it is there, it is looked after."""
    turns = duties_of()

    before = turns.tick()
    made = data.exists()
    world = open_world(data)
    world.propose(LATE, payment(1))
    world.signing.close()
    clock.advance(60)
    after = turns.tick()

    assert (sum(before.values()), made) == (0, False)
    assert after["signing.expire"] == 1


HOLD = """
import signal, sys
from ledgerstone.signing import Signing
with Signing(sys.argv[1]):
    print("open", flush=True)
    signal.pause()
"""


@contextmanager
def held(data: Path) -> Iterator[None]:
    """Another process has the store open."""
    with started(["-c", HOLD, str(data / FOLDER)]) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        yield
        holder.kill()


@pytest.mark.slow
def test_another_process_has_it_open(duties_of: Opener, data: Path, clock: ManualClock) -> None:
    """That is said where there is something to do; it is done when the store is free."""
    open_world(data).signing.close()
    turns = duties_of()

    with held(data):
        idle = dict(turns.tick()), dict(turns.trouble)
    world = open_world(data)
    world.propose(LATE, payment(1))
    world.signing.close()
    clock.advance(60)
    with held(data):
        turns.tick()
        trouble = dict(turns.trouble)
    clock.advance(60)
    after = turns.tick()

    assert idle == ({"signing.expire": 0, "signing.forget": 0}, {})
    assert list(trouble) == ["signing.expire"]
    assert trouble["signing.expire"].startswith(LOCKED)
    assert (after["signing.expire"], turns.trouble) == (1, {})


def test_this_process_has_it_open(duties_of: Opener, data: Path, clock: ManualClock) -> None:
    """Code of this process has it open: that one is used, and stays open."""
    world = open_world(data)
    world.propose(LATE, payment(1))
    turns = duties_of()
    world.now += MINUTE

    first = turns.tick()
    status = world.decision(LATE).status
    world.signing.close()
    clock.advance(60)
    after = turns.tick()

    assert (first["signing.expire"], status) == (1, Status.EXPIRED)
    assert (after["signing.expire"], turns.trouble) == (0, {})


def test_a_reader_that_is_closed_leaves_the_writer_known(tmp_path: Path) -> None:
    """The store that this process has open for writing is found, also after a reader beside it."""
    folder = tmp_path / FOLDER
    with Signing(folder) as writer:
        Signing(folder, read_only=True).close()

        assert open_in_this_process(folder) is writer
    assert open_in_this_process(folder) is None


def test_a_store_that_may_not_be_read(duties_of: Opener, data: Path, clock: ManualClock) -> None:
    """Damage is reported turn after turn, and ends nothing."""
    world = open_world(data)
    world.signing.close()
    current = data / FOLDER / "CURRENT"
    whole = current.read_bytes()
    current.write_bytes(b"MANIFEST-999999\n")
    turns = duties_of()

    turns.tick()
    trouble = dict(turns.trouble)
    current.write_bytes(whole)
    clock.advance(60)
    turns.tick()

    assert set(trouble) == {"signing.expire", "signing.forget"}
    assert turns.trouble == {}


def test_an_error_of_the_system(duties_of: Opener) -> None:
    """A folder that the system refuses to look at is reported by its own error."""
    turns = duties_of(data_dir="x" * 5000)

    turns.tick()

    assert set(turns.trouble) == {"signing.expire", "signing.forget"}
    assert turns.trouble["signing.expire"].startswith("bad_input: ")


def test_a_crash_between_publish_and_confirm(
    duties_of: Opener, data: Path, clock: ManualClock, ledgers: list[Ledger]
) -> None:
    """The store is closed also then, and the outbox keeps one message."""
    world = open_world(data)
    world.finalize(world.signed(PAID, payment(2)))
    world.signing.close()
    turns = duties_of(publish=True)

    failpoints.arm("signing.published=fail")
    try:
        with pytest.raises(FailpointHit):
            turns.tick()
    finally:
        failpoints.arm("")
    with Signing(data / FOLDER) as signing:
        waiting = len(signing.list_outgoing())
    clock.advance(60)
    turns.tick()

    assert waiting == 1
    assert messages(ledgers[0]) == 1
    with Signing(data / FOLDER) as signing:
        assert signing.list_outgoing() == []


def test_archive_and_delete(duties_of: Opener, data: Path) -> None:
    """Requests are archived and deleted as the settings say; without them none is."""
    world = open_world(data)
    world.finalize(world.signed(PAID, payment(2)))
    world.signing.close()

    kept = duties_of().tick()
    gone = duties_of(archive_days=0, delete_days=0).tick()

    assert "signing.archive" not in kept
    assert (gone["signing.archive"], gone["signing.delete"]) == (1, 1)


def test_nothing_is_old_enough(duties_of: Opener, data: Path) -> None:
    """Rows that are too young do not make a turn open the store for writing."""
    world = open_world(data)
    world.now = time.time_ns()
    for number in (1, 2):
        world.finalize(world.signed(f"r{number}", payment(number)))
    world.signing.archive_old_requests(world.now + 1, rows_max=1)
    world.signing.mark_seen_message(PeerId("ann"), SessionId(bytes(32)), 1)
    world.signing.close()
    turns = duties_of(archive_days=1, delete_days=1)

    with held(data):
        did = turns.tick()

    assert (sum(did.values()), turns.trouble) == (0, {})
    assert set(did) == {f"signing.{name}" for name in ("expire", "forget", "archive", "delete")}


def test_what_is_old_behind_what_is_not(duties_of: Opener, data: Path) -> None:
    """A turn steps over many young rows, and does what comes behind them."""
    world = open_world(data)
    world.now = time.time_ns()
    for number in range(ROWS_MAX + 5):
        world.propose(f"r{number:03}", payment(number))
    world.abort(RequestId(f"r{ROWS_MAX:03}"))
    for number in range(ROWS_MAX + 5):
        at = 0 if number == ROWS_MAX + 2 else time.time_ns()
        key = SeenKey(peer_id=PeerId("ann"), session_id=SessionId(bytes(32)), seq_no=number)
        with world.store.transaction() as tx:
            tx.put(key.family, key.encode(), at.to_bytes(8, "big"))
    world.signing.close()

    did = duties_of(archive_days=0, delete_days=0).tick()

    assert (did["signing.archive"], did["signing.forget"]) == (1, 1)


def test_a_damaged_row_is_told(duties_of: Opener, data: Path, clock: ManualClock) -> None:
    """It is reported at every turn, and what comes behind it is done."""
    world = open_world(data)
    for number in (1, 2):
        world.abort(world.propose(f"r{number}", payment(number)))
    with world.store.transaction() as tx:
        tx.put(Family.REQUEST, b"req:r1", b"damaged")
    world.signing.close()
    turns = duties_of(archive_days=0)

    turns.tick()
    first = dict(turns.trouble)
    clock.advance(60)
    with held(data):
        turns.tick()

    assert list(first) == list(turns.trouble) == ["signing.archive"]
    assert first["signing.archive"].startswith("malformed")
    assert turns.trouble == first
    with Signing(data / FOLDER) as signing:
        archived = signing.list_requests(archived=True).requests
    assert [each.request_id for each in archived] == ["r2"]


def test_a_turn_ends(tmp_path: Path) -> None:
    """A turn that has taken its time stops behind a page, and the next turn goes on there."""
    seconds = itertools.count()
    world = World(tmp_path / FOLDER, group(2, 3))
    world.now += 3 * DAY
    for number in range(4 * ROWS_MAX):
        # Two pages of young messages, then two of old ones.
        at = world.now if number < 2 * ROWS_MAX else 0
        key = SeenKey(peer_id=PeerId("ann"), session_id=SessionId(bytes(32)), seq_no=number)
        with world.store.transaction() as tx:
            tx.put(key.family, key.encode(), at.to_bytes(8, "big"))
    with world.signing as signing:
        store = OpenStore(signing, monotonic=lambda: next(seconds) * CLEAN_UP_SECONDS)
        turns = duties(store, publish=lambda _: 0)

        did = [turns.tick()["signing.forget"] for _ in range(4)]

    assert did == [0, 0, ROWS_MAX, ROWS_MAX]


def test_settings_say_never(tmp_path: Path) -> None:
    """Without `work_seconds` there are no duties."""
    section = SigningSettings(work_seconds=None)
    settings = Settings(url=f"sqlite:///{tmp_path}/ledger.db", signing=section)

    with Ledger(settings=settings) as ledger:
        assert ledger.store_duties() == []


def test_a_commit_makes_publishing_prompt(tmp_path: Path, data: Path, clock: ManualClock) -> None:
    """Where the application has the store open, an end is published without a turn's wait."""
    world = open_world(data)
    world.signing.settings = SigningSettings(publish=True)
    with world.signing, Ledger(f"sqlite:///{tmp_path}/ledger.db", clock=clock) as ledger:
        turns = ledger.signing_duties(world.signing)
        turns.tick()

        world.finalize(world.signed(PAID, payment(2)))
        turns.wait(0)
        did = turns.tick()

        assert did == {"signing.publish": 1}
        assert messages(ledger) == 1
