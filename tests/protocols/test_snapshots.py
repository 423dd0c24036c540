"""Snapshots: when one is made, what is told of a changed one, and who may go on with it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from sqlalchemy import text

from ledgerstone import Ledger, errors
from ledgerstone.engine.source import Ask
from ledgerstone.protocols import Retention, Running
from ledgerstone.protocols.registry import Registry
from ledgerstone.protocols.retention import pruning
from ledgerstone.protocols.retention import source as retention
from ledgerstone.protocols.retention.source import RetentionSource
from ledgerstone.testing.clock import ManualClock
from tests.protocols.letters import count, letters, rows, seat
from tests.protocols.test_retention import DAY, contents, filled

ASK = Ask(10, "a worker", 30.0)


def seats(running: Running, first: int, last: int) -> None:
    """So many events that wait for nothing."""
    running.import_events([seat(f"{number:02}") for number in range(first, last)])


@pytest.fixture
def kept(ledger: Ledger, clock: ManualClock) -> Iterator[Running]:
    """A protocol with a snapshot every day, whose events are kept for none."""
    policy = {"letters": Retention(keep_days=0, snapshot_days=1)}
    settings = msgspec.structs.replace(ledger.settings.protocols, retention=policy)
    whole = msgspec.structs.replace(ledger.settings, protocols=settings)
    with Ledger(settings=whole, clock=clock) as made:
        yield made.protocol(letters())


def test_nothing_new(running: Running) -> None:
    """A snapshot of a log that has not grown is not made a second time."""
    empty = running.snapshot()
    filled(running)

    first, second = running.snapshot(), running.snapshot()

    assert (empty.snapshot_position, second.snapshot_position) == (None, None)
    assert first.snapshot_position is not None
    assert count(running, "protocol_snapshot") == 1


def test_a_snapshot_a_day(kept: Running, clock: ManualClock) -> None:
    """A snapshot is made when the last one is as old as the settings say."""
    made: list[int] = []
    for seconds in (0, DAY - 60, 60):
        clock.advance(seconds)
        seats(kept, len(made), len(made) + 1)
        kept.work()
        made.append(count(kept, "protocol_snapshot"))

    assert made == [1, 1, 2]


def test_much_is_pruned_in_turns(
    kept: Running, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker prunes so many events in a turn, and the rest in the next ones, which are soon."""
    monkeypatch.setattr(pruning, "STEP_EVENTS", 2)
    monkeypatch.setattr(retention, "STEPS_MAX", 1)
    seats(kept, 0, 5)
    left = []

    for _ in range(3):
        kept.work()
        left.append(contents(kept))
        clock.advance(1)

    assert left == [3, 1, 0]


@pytest.mark.usefixtures("clock")
def test_an_operator_prunes_all(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call prunes all that may be pruned, however many steps that takes."""
    monkeypatch.setattr(pruning, "STEP_EVENTS", 2)
    monkeypatch.setattr(retention, "STEPS_MAX", 1)
    seats(running, 0, 5)
    running.snapshot()

    assert running.prune(keep_days=0).pruned == 5
    assert contents(running) == 0


@pytest.mark.usefixtures("clock")
def test_a_part_of_another_snapshot(ledger: Ledger, running: Running) -> None:
    """Rows that can be read and are not those that were written are found out."""
    bodies = []
    for number in range(2):
        seats(running, number, number + 1)
        running.snapshot()
        part = "SELECT body FROM protocol_snapshot_part WHERE table_name = 'seat'"
        bodies.append(rows(running, part)[-1][0])
    swapped = text("UPDATE protocol_snapshot_part SET body = :body WHERE table_name = 'seat'")
    ledger.run(lambda tx: tx.connection.execute(swapped, {"body": bodies[0]}))

    (problem,) = running.verify().problems
    assert problem.endswith("is not what was written")


def test_a_claim_that_was_lost_retains_nothing(
    kept: Running, ledger: Ledger, clock: ManualClock
) -> None:
    """A worker whose claim another has by now makes no snapshot and prunes nothing."""
    seats(kept, 0, 5)
    policy = {"letters": Retention(keep_days=0, snapshot_days=1)}
    settings = msgspec.structs.replace(ledger.settings.protocols, retention=policy)
    source = RetentionSource(Registry(settings, [kept.protocol]), kept.database)
    (old,) = ledger.run(lambda tx: source.claim(tx, ASK))
    clock.advance(ASK.lease_seconds + 1)
    ledger.run(lambda tx: source.rescue(tx, limit=10, crashes_max=3))
    clock.advance(3600)
    (new,) = ledger.run(lambda tx: source.claim(tx, ASK))

    with pytest.raises(errors.LeaseLost):
        source.handler(old).call(old)

    assert (count(kept, "protocol_snapshot"), contents(kept)) == (0, 5)
    source.handler(new).call(new)
    assert (count(kept, "protocol_snapshot"), contents(kept)) == (1, 0)
