"""What is deferred, partition by partition: turns, keys, failures and leases."""

from __future__ import annotations

import pytest

from ledgerstone import Ledger, errors
from ledgerstone.engine.source import Ask, Outcome, OutcomeKind
from ledgerstone.ids import new_id
from ledgerstone.protocols import Envelope, Projecting, Running, deferred
from ledgerstone.protocols.incoming import ERROR_CHARS_MAX
from ledgerstone.testing.clock import ManualClock
from tests.protocols.letters import arrive, count, given_key, letters, rows, words_of, written
from tests.protocols.test_queues import defer

ASK = Ask(10, "a worker", 30.0)


def test_a_partition_that_is_longer_than_a_turn(
    ledger: Ledger, clock: ManualClock, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many events the other partitions have their turn, and then the rest is applied."""
    monkeypatch.setattr(deferred, "TURN_EVENTS_MAX", 2)
    arrive(running, given_key())
    running.work()
    for words in "abcde":
        defer(ledger, words)
    defer(ledger, "other", "q")

    running.work(rounds_max=1)
    first = words_of(running)
    for _ in range(3):
        clock.advance(1)
        running.work()

    assert first == ["a", "b", "other"]
    assert words_of(running) == ["a", "b", "other", "c", "d", "e"]
    assert (count(running, "deferred"), count(running, "deferred_lane")) == (0, 0)


def test_a_key_with_another_partition(ledger: Ledger, running: Running) -> None:
    """The partition is content: the same key with another partition is a conflict."""
    with ledger.transaction() as tx:
        assert tx.protocols.defer(written("a"), partition="p", key="k")

    with pytest.raises(errors.KeyConflict), ledger.transaction() as tx:
        tx.protocols.defer(written("a"), partition="q", key="k")

    assert rows(running, "SELECT partition_key FROM deferred") == [("p",)]


def test_a_new_event_makes_its_partition_due(
    ledger: Ledger, clock: ManualClock, running: Running
) -> None:
    """A partition that was put off is due as soon as its newest event, and never later."""
    arrive(running, given_key())
    running.work()
    defer(ledger, "first")
    source = running.sources()[2]
    (claim,) = ledger.run(lambda tx: source.claim(tx, ASK))
    put_off = Outcome(claim, OutcomeKind.RETURNED, delay_seconds=600.0)
    ledger.run(lambda tx: source.settle(tx, [put_off]))
    running.work()
    waits = words_of(running)

    defer(ledger, "second", delay_seconds=60)
    clock.advance(61)
    defer(ledger, "third", delay_seconds=600)
    running.work()

    assert (waits, words_of(running)) == ([], ["first", "second"])


def test_as_many_attempts_as_the_settings_say(ledger: Ledger, clock: ManualClock) -> None:
    """A deferred event is tried `attempts_max` times, and parked with a reason that fits."""
    protocol = letters()
    tries: list[int] = []

    @protocol.projector("long")
    def long(_db: Projecting, _event: Envelope) -> None:
        tries.append(1)
        raise LookupError("x" * 2 * ERROR_CHARS_MAX)

    running = ledger.protocol(protocol)
    ledger.run(lambda tx: tx.protocols.defer(Envelope(type="long"), partition="p"))
    attempts_max = ledger.settings.protocols.attempts_max
    for _ in range(attempts_max - 1):
        running.work()
        clock.advance(3600)
    waits = rows(running, "SELECT attempts, LENGTH(last_error) FROM deferred")

    running.work()

    assert waits == [(attempts_max - 1, ERROR_CHARS_MAX)]
    assert len(tries) == attempts_max
    parked = rows(running, "SELECT status, LENGTH(last_error) FROM incoming")
    assert parked == [("parked", ERROR_CHARS_MAX)]


@pytest.mark.parametrize(
    "busy", [errors.StoreBusy("locked"), errors.StoreUnavailable("away")], ids=["busy", "away"]
)
def test_a_busy_store_is_no_failure_of_the_head(
    ledger: Ledger, clock: ManualClock, busy: errors.LedgerstoneError
) -> None:
    """What the database is to blame for counts as no attempt, and the event stays the head."""
    protocol = letters()
    trouble = [True]

    @protocol.projector("late")
    def late(db: Projecting, _event: Envelope) -> None:
        if trouble:
            raise busy
        db.insert("seat", name="late", after="")

    running = ledger.protocol(protocol)
    ledger.run(lambda tx: tx.protocols.defer(Envelope(type="late"), partition="p"))
    running.work(rounds_max=1)
    waits = rows(running, "SELECT attempts, last_error FROM deferred")
    trouble.clear()
    clock.advance(3600)

    running.work()

    assert waits == [(0, None)]
    assert (count(running, "seat"), count(running, "incoming")) == (1, 0)


@pytest.mark.usefixtures("clock")
def test_a_partition_that_was_settled_is_left_alone(ledger: Ledger, running: Running) -> None:
    """A worker whose claim has ended applies nothing of the partition any more."""
    defer(ledger, "first")
    source = running.sources()[2]
    (claim,) = ledger.run(lambda tx: source.claim(tx, ASK))
    returned = Outcome(claim, OutcomeKind.RETURNED, delay_seconds=600.0)
    ledger.run(lambda tx: source.settle(tx, [returned]))

    with pytest.raises(errors.LeaseLost):
        source.handler(claim).call(claim)

    assert (count(running, "deferred"), count(running, "events")) == (1, 0)


def test_how_long_an_event_can_be_deferred(ledger: Ledger, running: Running) -> None:
    """A delay of the past, or one that is too long, is refused, and nothing is kept."""
    longest = deferred.DELAY_SECONDS_MAX
    for delay in (-0.001, longest + 1):
        with pytest.raises(errors.BadInput, match="deferred by 0 to"), ledger.transaction() as tx:
            tx.protocols.defer(written("a"), partition="p", delay_seconds=delay)
    nothing = count(running, "deferred"), count(running, "deferred_lane")

    defer(ledger, "a", new_id(), delay_seconds=longest)

    assert (nothing, count(running, "deferred")) == ((0, 0), 1)
