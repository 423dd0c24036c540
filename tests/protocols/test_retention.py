"""Retention: everything is kept, or a snapshot is made and the content of old events is pruned."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import msgspec
import pytest
from sqlalchemy import text

from ledgerstone import Ledger, errors
from ledgerstone.engine.worker import Worker
from ledgerstone.items.sequencer import Sequencer
from ledgerstone.protocols import Retention, Running
from ledgerstone.protocols.log import SEQUENCE
from ledgerstone.protocols.retention import pruning, snapshots
from ledgerstone.protocols.retention.snapshots import last_position
from ledgerstone.settings import Settings
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import until
from tests.harness.child import Child
from tests.protocols.letters import (
    SCHEMA,
    arrive,
    count,
    given_key,
    letters,
    rows,
    seat,
    words_of,
    written,
)

PRUNING = Retention(keep_days=0, snapshot_days=0.001)
DAY = 86_400


def filled(running: Running, *, letters: int = 60, first: int = 0) -> None:
    """Events that were applied, some after they had waited."""
    events = [written(f"{i:04}") for i in range(first, first + letters)]
    running.import_events([*events, given_key(), seat("b", "a"), seat("a")])
    running.work()


def send(ledger: Ledger, sql: str) -> None:
    """A statement of another program."""
    ledger.run(lambda tx: tx.connection.execute(text(sql)))


def contents(running: Running) -> int:
    """How many events have their content."""
    (row,) = rows(running, "SELECT COUNT(*) FROM events WHERE LENGTH(payload) > 0")
    return int(row[0])


def position(ledger: Ledger) -> int:
    """The last position of the log."""
    if not ledger.database.dialect.one_writer:
        ledger.run(Sequencer(SEQUENCE).append)
    with ledger.reading() as tx:
        return last_position(tx)


def test_everything_is_kept(ledger: Ledger) -> None:
    """Unless the protocol or the settings say otherwise."""
    running = ledger.protocol(letters())
    filled(running)
    running.snapshot()
    worker = ledger.worker()
    worker.tick()
    worker.stop(grace_seconds=0)

    assert contents(running) == count(running, "events") == 63


def test_pruned_is_what_a_snapshot_has(ledger: Ledger) -> None:
    """What came behind the snapshot keeps its content; identities, numbers and tables stay."""
    running = ledger.protocol(letters())
    filled(running)
    made = running.snapshot()
    filled(running, letters=5, first=60)
    before = words_of(running)

    pruned = running.prune(keep_days=0)

    assert (made.snapshot_rows, pruned.pruned, contents(running)) == (63, 63, 5)
    assert count(running, "events") == 68
    assert words_of(running) == before
    kept = "SELECT after_position, to_position, events, snapshot_position FROM event_pruned"
    assert rows(running, kept) == [(0, made.snapshot_position, 63, made.snapshot_position)]
    assert running.verify().problems == []


def test_a_pruned_event_is_still_known(running: Running) -> None:
    """One that arrives again changes nothing."""
    filled(running)
    running.snapshot()
    running.prune(keep_days=0)
    arrive(running, written("0007"), given_key())

    running.work()

    assert (len(words_of(running)), count(running, "events")) == (60, 63)


def test_without_a_snapshot_nothing_is_pruned(running: Running) -> None:
    """An operator who prunes before there is one is told that nothing was."""
    filled(running)

    assert running.prune(keep_days=0).pruned == 0
    assert contents(running) == 63


def test_so_many_days_are_kept(clock: ManualClock, running: Running) -> None:
    """An event is pruned when a snapshot that old has it."""
    filled(running)
    running.snapshot()
    clock.advance(3 * DAY)
    filled(running, letters=5, first=60)
    running.snapshot()

    early, due = running.prune(keep_days=4), running.prune(keep_days=2)

    assert (early.pruned, due.pruned, contents(running)) == (0, 63, 5)


def test_a_reader_behind_what_was_pruned(ledger: Ledger) -> None:
    """A tail and an export are refused with words, and lose nothing in silence."""
    running = ledger.protocol(letters())
    filled(running)
    tail = running.tail()
    position(ledger)
    tail.read(limit=10)
    stood = tail.after
    made = running.snapshot()
    filled(running, letters=5, first=60)
    position(ledger)
    running.prune(keep_days=0)

    with pytest.raises(errors.EventsPruned, match=f"up to position {made.snapshot_position}"):
        tail.read()
    with pytest.raises(errors.EventsPruned, match="was pruned"):
        list(running.export_events())
    on = running.tail(after=made.snapshot_position or 0)
    words = [each.event.data.get("words") for each in on.read()]

    assert tail.after == stood
    assert words == [f"{i:04}" for i in range(60, 65)]
    assert len(list(running.export_events(kept_only=True))) == 5


def test_a_worker_does_it(ledger: Ledger, clock: ManualClock) -> None:
    """As the settings of the ledger say, a snapshot now and then, and the rest is pruned."""
    settings = msgspec.structs.replace(
        ledger.settings,
        protocols=msgspec.structs.replace(
            ledger.settings.protocols, retention={"letters": Retention(keep_days=1)}
        ),
    )
    with Ledger(settings=settings, clock=clock) as made:
        running = made.protocol(letters())
        worker = made.worker()
        filled(running)
        for number in range(3):
            filled(running, letters=1, first=100 + number)
            until(partial(_copied, worker, running, number + 1))
            clock.advance(1.1 * DAY)
        filled(running, letters=1, first=200)
        until(lambda: _copied(worker, running, 4) and contents(running) == 1)
        worker.stop(grace_seconds=0)

    removed = "SELECT removed_at_ms IS NULL FROM protocol_snapshot ORDER BY position"
    assert [bool(row[0]) for row in rows(running, removed)] == [False] * 3 + [True]
    assert (count(running, "events"), len(words_of(running))) == (67, 64)


def _copied(worker: Worker, running: Running, times: int) -> bool:
    """Whether there are so many snapshots when the worker has done what is due."""
    worker.tick()
    sql = "SELECT COUNT(*) FROM protocol_snapshot WHERE completed_at_ms IS NOT NULL"
    return int(rows(running, sql)[0][0]) == times


@pytest.mark.slow
def test_what_is_wrong_is_found(ledger: Ledger) -> None:
    """Tables that do not follow from the snapshot and the rest, and a snapshot that was changed."""
    running = ledger.protocol(letters())
    filled(running)
    running.snapshot()
    running.prune(keep_days=0)
    good = running.verify()

    send(ledger, "UPDATE letter SET words = 'changed' WHERE words = '0003'")
    changed = running.verify()
    send(ledger, "DELETE FROM letter WHERE words = 'changed'")
    removed = running.verify()
    send(ledger, "UPDATE protocol_snapshot_part SET table_name = 'seat' WHERE number = 0")
    damaged = running.verify()

    assert (good.problems, good.rows, good.restored_rows) == ([], 63, 63)
    assert changed.problems == [
        "letter has 60 rows, and 60 when it is made anew: some have other values"
    ]
    assert removed.problems == ["letter has 59 rows, and 60 when it is made anew"]
    assert damaged.problems != []


def test_without_a_snapshot_all_is_made_anew(ledger: Ledger) -> None:
    """From the log alone; events that stand in it before what they need are applied, too."""
    running = ledger.protocol(letters())
    filled(running)

    verified = running.verify()

    assert (verified.problems, verified.applied_events, verified.snapshot_position) == ([], 63, 0)


def test_values_and_a_new_column(ledger: Ledger) -> None:
    """A snapshot has the values of a protocol; one from before a column was added is restored."""
    running = ledger.protocol(letters())
    filled(running)
    ledger.run(lambda tx: tx.protocols.values().set("flag", 7))
    running.snapshot()
    running.prune(keep_days=0)
    wider = SCHEMA.replace("name TEXT PRIMARY KEY,", "name TEXT PRIMARY KEY, color TEXT,")

    with Ledger(str(ledger.settings.url)) as other:
        verified = other.protocol(letters(schema=wider)).verify()

    parts = rows(running, "SELECT table_name FROM protocol_snapshot_part ORDER BY number")
    names = [row[0] for row in parts]
    assert names == ["letter_key", "letter", "letter", "seat", "protocol_value"]
    assert verified.problems == []


@pytest.mark.slow
def test_what_is_compared_is_one_state(ledger: Ledger) -> None:
    """While others apply events and a snapshot is made, nothing differs."""
    running = ledger.protocol(letters())
    filled(running)
    stop = Event()

    def apply() -> None:
        with Ledger(str(ledger.settings.url)) as other:
            there, number = other.protocol(letters()), 100
            while not stop.is_set():
                there.import_events([written(f"{i}") for i in range(number, number + 20)])
                number += 20

    with ThreadPoolExecutor(1) as beside:
        applying = beside.submit(apply)
        try:
            first = running.verify()
            running.snapshot()
            second = running.verify()
            until(lambda: len(words_of(running)) > 500)
        finally:
            stop.set()
        applying.result()

    assert (first.problems, second.problems, running.verify().problems) == ([], [], [])
    assert second.snapshot_position > 0


def test_a_worker_that_lost_its_lease(ledger: Ledger) -> None:
    """One that was paused while another took over prunes nothing and completes no snapshot."""
    running = ledger.protocol(letters())
    filled(running)
    running.snapshot()
    filled(running, letters=5, first=60)
    with ledger.reading() as tx:
        within = pruning.bounds(tx, "letters", keep_days=0)
    assert within is not None

    def lost(_: object) -> None:
        raise errors.LeaseLost

    with pytest.raises(errors.LeaseLost):
        pruning.prune(ledger.database, "letters", within, lost, steps_max=1)
    with pytest.raises(errors.LeaseLost):
        snapshots.make(ledger.database, running.protocol, lost)

    assert (contents(running), count(running, "protocol_snapshot")) == (68, 1)


WORK = """
import sys
from ledgerstone import Ledger
from ledgerstone.settings import Settings
from tests.protocols.letters import letters
engine = {"lease_seconds": 1.0, "rescue_seconds": 0.1, "crashes_max": 100}
with Ledger(settings=Settings.load(url=sys.argv[1], environ={}, engine=engine)) as ledger:
    running = ledger.protocol(letters())
    print("ready", flush=True)
    sys.stdin.readline()
    running.snapshot()
    running.prune(keep_days=0)
"""


@pytest.fixture
def quick(ledger: Ledger, home: Home) -> Iterator[Running]:
    """The protocol on a ledger whose leases end soon."""
    ledger.close()
    engine = {"lease_seconds": 1.0, "rescue_seconds": 0.1, "crashes_max": 100}
    with Ledger(settings=Settings.load(url=home.url, environ={}, engine=engine)) as made:
        yield made.protocol(letters())


@pytest.mark.slow
@pytest.mark.parametrize(
    "failpoint",
    [
        "protocols.snapshot_part=kill@1",
        "protocols.snapshot_part=kill@2",
        "protocols.snapshot_copied=kill@1",
        "protocols.snapshot_cleaned=kill@1",
        "protocols.pruned=kill@1",
    ],
)
def test_a_process_is_killed(quick: Running, home: Home, failpoint: str) -> None:
    """In the middle of a snapshot or of pruning: the next one ends it, and all is as without it."""
    filled(quick)
    quick.snapshot()
    filled(quick, letters=2500, first=60)
    with Child(WORK, home.url, failpoint=failpoint) as child:
        child.go()
        code, _ = child.ended()

    until(lambda: not quick.snapshot().busy)
    quick.prune(keep_days=0)

    assert code != 0
    assert contents(quick) == 0
    assert (count(quick, "events"), len(words_of(quick))) == (2563, 2560)
    assert quick.verify().problems == []
    whole = "SELECT COUNT(*) FROM protocol_snapshot WHERE removed_at_ms IS NULL"
    assert rows(quick, whole) == [(1,)]
    (pruned,) = rows(quick, "SELECT SUM(events) FROM event_pruned")
    assert int(pruned[0]) == 2563
