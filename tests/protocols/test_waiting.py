"""Events that wait for a key: what becomes of them when it comes, and when they fail."""

from __future__ import annotations

from ledgerstone import Ledger, errors
from ledgerstone.engine.source import Ask
from ledgerstone.protocols import Blocked, Envelope, Projecting, Running, applying, rechecks
from ledgerstone.protocols.incoming import ERROR_CHARS_MAX
from ledgerstone.protocols.results import Reason
from ledgerstone.testing.clock import ManualClock
from tests.protocols.letters import arrive, count, given_key, letters, rows, written

HALL = ("key", "ann/hall")


def test_a_busy_store_is_no_failure_of_what_waits(ledger: Ledger, clock: ManualClock) -> None:
    """While the database is busy an event goes on waiting, and nothing is held against it."""
    protocol = letters()
    keys, busy = list[int](), list[int]()

    @protocol.projector("late")
    def late(db: Projecting, _event: Envelope) -> None:
        if not keys:
            raise Blocked(HALL)
        if busy:
            raise errors.StoreBusy("locked")
        db.insert("seat", name="late", after="")

    running = ledger.protocol(protocol)
    arrive(running, Envelope(type="late"))
    running.work()
    keys.append(1)
    busy.append(1)
    arrive(running, given_key())
    running.work(rounds_max=3)
    waits = count(running, "blocked"), count(running, "incoming")
    busy.clear()
    clock.advance(3600)

    running.work()

    assert waits == (1, 0)
    assert (count(running, "seat"), count(running, "blocked")) == (1, 0)
    assert count(running, "recheck_queue") == 0


def test_a_key_that_comes_between_two_looks(ledger: Ledger) -> None:
    """An event that is blocked at its first look and applied at its second waits no more."""
    protocol = letters()
    missing: list[int] = []

    @protocol.projector("late")
    def late(db: Projecting, _event: Envelope) -> None:
        if missing:
            missing.pop()
            raise Blocked(HALL)
        db.insert("seat", name="late", after="")

    running = ledger.protocol(protocol)
    missing.extend([1] * 10)
    arrive(running, Envelope(type="late"))
    running.work()
    kept = count(running, "blocked")
    missing[:] = [1]
    arrive(running, given_key())

    running.work()

    assert (kept, missing) == (1, [])
    assert (count(running, "seat"), count(running, "blocked")) == (1, 0)


def test_what_fails_when_its_key_has_come(ledger: Ledger, clock: ManualClock) -> None:
    """It comes in again, is tried as often as others, and is parked with a reason that fits."""
    protocol = letters()
    keys: list[int] = []
    tries: list[int] = []

    @protocol.projector("late")
    def late(_db: Projecting, _event: Envelope) -> None:
        if not keys:
            raise Blocked(HALL)
        tries.append(1)
        raise LookupError("x" * 2 * ERROR_CHARS_MAX)

    running = ledger.protocol(protocol)
    arrive(running, Envelope(type="late", created_at_ms=77))
    running.work()
    keys.append(1)
    arrive(running, given_key())
    running.work()
    kept = "SELECT status, attempts, LENGTH(last_error), created_at_ms FROM incoming"
    back = rows(running, kept)
    for _ in range(10):
        clock.advance(3600)
        running.work()

    assert back == [("queued", 1, ERROR_CHARS_MAX, 77)]
    assert (count(running, "blocked"), rows(running, kept)[0][0]) == (0, "parked")
    assert len(tries) == ledger.settings.protocols.attempts_max


def test_the_moment_of_the_sender(clock: ManualClock, running: Running) -> None:
    """An event keeps the moment that its sender gave it; another one has that of its arrival."""
    arrive(running, given_key(), written("old", at=77), written("new", at=0))
    arrived_ms = clock.now_ms()
    clock.advance(60)

    running.work()

    moments = rows(running, "SELECT words, sent_at_ms FROM letter ORDER BY id")
    assert moments == [("old", 77), ("new", arrived_ms)]


def test_parked_items_are_retried_with_all_their_chances(
    ledger: Ledger, clock: ManualClock, running: Running
) -> None:
    """A retry by hand forgets the attempts and the deaths of workers that went before."""
    arrive(running, given_key())
    source = running.sources()[0]
    for _ in range(2):
        ledger.run(lambda tx: source.claim(tx, Ask(10, "a worker", 30.0)))
        clock.advance(31)
        ledger.run(lambda tx: source.rescue(tx, limit=10, crashes_max=2))
        clock.advance(3600)
    kept = "SELECT status, attempts, crashes FROM incoming"
    parked = rows(running, kept)

    count_ = ledger.run(lambda tx: tx.protocols.retry_parked())

    assert [(row[0], row[2]) for row in parked] == [("parked", 2)]
    assert (count_, rows(running, kept)) == (1, [("queued", 0, 0)])


def test_an_event_that_always_lacks_something_else(ledger: Ledger) -> None:
    """Where markers are locked, an event locks a bounded number of them, and is parked then."""
    protocol = letters()
    named: list[int] = []

    @protocol.projector("greedy")
    def greedy(_db: Projecting, _event: Envelope) -> None:
        named.append(1)
        raise Blocked(("key", f"number {len(named)}"))

    running = ledger.protocol(protocol)
    arrive(running, Envelope(type="greedy"))

    running.work()

    locks = not ledger.database.dialect.one_writer
    assert (count(running, "blocked"), count(running, "incoming")) == ((0, 1) if locks else (1, 0))
    assert len(named) == (applying.REASONS_MAX + 2 if locks else 2)


def test_an_event_without_a_projector(running: Running) -> None:
    """An event of an unknown type is parked at its first try, and keeps no other."""
    arrive(running, Envelope(type="nobody knows it"), given_key())

    running.work()

    assert rows(running, "SELECT status, attempts FROM incoming") == [("parked", 1)]
    assert count(running, "letter_key") == 1


def test_a_key_of_a_protocol_that_runs_elsewhere(ledger: Ledger, running: Running) -> None:
    """Its marker waits for a worker that has the protocol."""
    ledger.run(lambda tx: rechecks.wake(tx, "elsewhere", [Reason("key", "x")]))

    running.work()

    assert rows(running, "SELECT protocol, attempts FROM recheck_queue") == [("elsewhere", 0)]
