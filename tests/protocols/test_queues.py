"""What is deferred, what goes out, and the tick."""

from __future__ import annotations

import msgspec
import pytest

from ledgerstone import Ledger, errors
from ledgerstone.cancellation import Cancellation
from ledgerstone.engine.source import Ask, Outcome, OutcomeKind
from ledgerstone.protocols import (
    Envelope,
    Protocol,
    Reading,
    Reason,
    Result,
    Retention,
    Running,
    rechecks,
    refusals,
)
from ledgerstone.protocols.commands import Transactions
from ledgerstone.protocols.read.status import facts_of
from ledgerstone.settings import Settings
from ledgerstone.store import leases
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import until
from tests.protocols.letters import arrive, count, given_key, letters, rows, words_of, written


def defer(ledger: Ledger, words: str, partition: str = "p", **options: float) -> None:
    """Defer a letter."""
    ledger.run(
        lambda tx: tx.protocols.defer(written(words), partition=partition, **options)  # type: ignore[arg-type]
    )


def test_deferred_events_keep_their_order(
    ledger: Ledger, clock: ManualClock, running: Running
) -> None:
    """A head that is not due yet holds its partition, and no other."""
    arrive(running, given_key())
    defer(ledger, "first", delay_seconds=60)
    defer(ledger, "second")
    defer(ledger, "other", "q")
    running.work()
    early = words_of(running)
    clock.advance(61)

    running.work()

    assert (early, words_of(running)) == (["other"], ["other", "first", "second"])
    assert (count(running, "deferred"), count(running, "deferred_lane")) == (0, 0)


def test_a_failing_head(ledger: Ledger, clock: ManualClock, running: Running) -> None:
    """It holds its partition while it is retried, is parked, and the next one follows."""
    arrive(running, given_key())
    ledger.run(lambda tx: tx.protocols.defer(Envelope(type="broken"), partition="p"))
    defer(ledger, "behind")
    running.work()
    early = words_of(running)

    for _ in range(6):
        clock.advance(600)
        running.work()

    assert (early, words_of(running)) == ([], ["behind"])
    assert rows(running, "SELECT status FROM incoming") == [("parked",)]


def test_the_key_of_a_deferred_event(ledger: Ledger, running: Running) -> None:
    """Same key, same content: once. Other content: a conflict."""
    with ledger.transaction() as tx:
        assert tx.protocols.defer(written("a"), partition="p", key="k")
        assert not tx.protocols.defer(written("a"), partition="p", key="k")
    with pytest.raises(errors.KeyConflict), ledger.transaction() as tx:
        tx.protocols.defer(written("b"), partition="p", key="k")

    assert count(running, "deferred") == 1


def test_what_goes_out(ledger: Ledger, clock: ManualClock) -> None:
    """It is handed to the sender until it takes it; one that fails keeps no other."""
    protocol, sent, down = letters(), list[tuple[str, bytes]](), {"b"}

    @protocol.sender
    def send(address: str, blob: bytes) -> None:
        if address in down:
            raise errors.TargetDown(address)
        sent.append((address, blob))

    running = ledger.protocol(protocol)
    with ledger.transaction() as tx:
        for address in "abc":
            tx.protocols.send(b"x", address=address)
    running.work()
    first = list(sent)
    down.clear()
    clock.advance(60)

    running.work()

    assert sorted(first) == [("a", b"x"), ("c", b"x")]
    assert (sent[-1], count(running, "outgoing")) == (("b", b"x"), 0)


def test_what_is_parked(ledger: Ledger, clock: ManualClock) -> None:
    """Items of both queues are listed with their errors, queued again, and dropped by number."""
    protocol, sent, down = letters(), list[str](), [True]

    @protocol.sender
    def send(address: str, _blob: bytes) -> None:
        if down:
            raise RuntimeError("down")
        sent.append(address)

    running = ledger.protocol(protocol)
    running.receive([b"{nonsense", b"{more"], received_by="ann")
    with ledger.transaction() as tx:
        for address in "abc":
            tx.protocols.send(b"xy", address=address)
    for _ in range(6):
        running.work()
        clock.advance(2000)
    with ledger.reading() as tx:
        inside, outside = tx.protocols.parked(), tx.protocols.parked(queue="outgoing")
    down.clear()

    with ledger.transaction() as tx:
        first = [each.id for each in outside.rows if each.to == "a"]
        one = tx.protocols.retry_parked(queue="outgoing", ids=first)
        second = [each.id for each in outside.rows if each.to == "b"]
        dropped = tx.protocols.drop_parked(second * 2, queue="outgoing")
        never = tx.protocols.drop_parked(first, queue="outgoing")
    running.work()
    others = ledger.run(lambda tx: tx.protocols.retry_parked())
    running.work()

    assert [(each.to, each.bytes, each.attempts) for each in inside.rows] == [
        ("ann", 9, 1),
        ("ann", 5, 1),
    ]
    assert {(each.to, each.bytes, each.attempts, each.last_error) for each in outside.rows} == {
        (address, 2, 5, "RuntimeError: down") for address in "abc"
    }
    assert (one, dropped, never, others, sent) == (1, 1, 0, 3, ["a", "c"])
    assert (count(running, "outgoing"), count(running, "incoming")) == (0, 2)
    with pytest.raises(errors.BadInput, match="name it"), ledger.transaction() as tx:
        tx.protocols.retry_parked(ids=[1])


def test_the_tick(ledger: Ledger, clock: ManualClock) -> None:
    """Each job that is due runs; one that fails is on record, and keeps no other from running."""
    protocol = letters()

    @protocol.job("broken.job", every_seconds=10)
    def broken(_db: Reading) -> Result:
        raise RuntimeError("no")

    @protocol.job("writes", every_seconds=10)
    def writes(db: Reading) -> Result:
        return Result(envelopes=[given_key(str(db.now_ms))], again_seconds=100)

    running = ledger.protocol(protocol)

    first, second = running.tick(), running.tick()
    clock.advance(11)
    third = running.tick()

    assert [each.name for each in first.ran] == ["broken.job", "writes"]
    assert (second.ran, [each.name for each in third.ran]) == ([], ["broken.job"])
    kept = "SELECT name, runs, failures, last_error FROM protocol_job ORDER BY name"
    assert rows(running, kept) == [
        ("broken.job", 2, 2, "RuntimeError: no"),
        ("writes", 1, 0, None),
    ]
    assert count(running, "events") == 1


def test_a_job_that_was_removed_from_the_code(ledger: Ledger) -> None:
    """Its last failure stays on record, and is no trouble any more."""
    protocol = letters()

    @protocol.job("old", every_seconds=10)
    def old(_db: Reading) -> Result:
        raise RuntimeError("no")

    ledger.protocol(protocol).tick()

    with ledger.reading() as tx:
        (before,), (after,) = facts_of(tx, [protocol]), facts_of(tx, [letters()])

    assert (before.failing_jobs, after.failing_jobs) == (["old"], [])


def test_one_tick_at_a_time(ledger: Ledger, clock: ManualClock) -> None:
    """While a process ticks no other does; one that lost its lease commits nothing more."""
    protocol = letters()
    others: list[bool] = []

    @protocol.job("slow", every_seconds=10, manages_transactions=True)
    def slow(at: Transactions) -> Result:
        with Ledger(str(ledger.settings.url), clock=clock) as other:
            beside = other.protocol(letters_with_job())
            others.append(beside.tick().held)
            clock.advance(61)
            others.append(beside.tick().held)
        at.run(lambda db: db.insert("seat", name="too late", after=""))
        return Result()

    running = ledger.protocol(protocol)

    ticked = running.tick()

    assert (others, ticked.held) == ([True, False], True)
    assert count(running, "seat") == 0


@pytest.mark.parametrize("fails", [False, True])
def test_a_job_that_is_longer_than_its_lease(
    ledger: Ledger, clock: ManualClock, fails: bool
) -> None:
    """It is run once and on record, whether it succeeds or fails, and nobody ticks meanwhile."""
    protocol, held = letters(), list[bool]()

    @protocol.job("long", every_seconds=3600)
    def long(_db: Reading) -> Result:
        clock.advance(61)
        if not ledger.database.dialect.one_writer:
            with Ledger(str(ledger.settings.url), clock=clock) as other:
                held.append(other.protocol(letters_with_job()).tick().held)
        if fails:
            raise RuntimeError("no")
        return Result(envelopes=[given_key()])

    running = ledger.protocol(protocol)

    ticked = [running.tick() for _ in range(3)]

    assert [len(each.ran) for each in ticked] == [1, 0, 0]
    assert (all(held), [each.held for each in ticked]) == (True, [False] * 3)
    kept = rows(running, "SELECT runs, failures, last_error FROM protocol_job WHERE name = 'long'")
    assert kept == [(1, int(fails), "RuntimeError: no" if fails else None)]
    assert count(running, "events") == int(not fails)


def test_a_job_with_its_own_transactions_that_is_longer_than_its_lease(
    ledger: Ledger, home: Home
) -> None:
    """Its lease is renewed while it runs, and what it answers is applied with its settlement."""
    ledger.close()
    protocol = letters()

    @protocol.job("long", every_seconds=3600, manages_transactions=True)
    def long(at: Transactions) -> Result:
        def moment(db: Reading) -> int:
            return db.now_ms

        ends = at.reading(moment) + 1100
        until(lambda: at.reading(moment) > ends)
        at.run(lambda db: db.insert("seat", name="in time", after=""))
        return Result(envelopes=[given_key()], again_seconds=7200)

    settings = Settings.load(url=home.url, environ={}, protocols={"tick_lease_seconds": 1.0})
    with Ledger(settings=settings) as made:
        running = made.protocol(protocol)

        ticked = running.tick()

        assert (ticked.held, [each.error for each in ticked.ran]) == (False, [None])
        assert (count(running, "seat"), count(running, "events")) == (1, 1)
        pause = "SELECT runs, next_at_ms - succeeded_at_ms FROM protocol_job"
        assert rows(running, pause) == [(1, 7_200_000)]


def test_a_tick_that_is_interrupted(ledger: Ledger) -> None:
    """A worker that stops gives the lease back: another one runs the job at once."""
    protocol, stopping = letters(), Cancellation()

    @protocol.job("long", every_seconds=3600, manages_transactions=True)
    def long(at: Transactions) -> Result:
        stopping.cancel(errors.Interrupted("the worker is stopping"))
        at.run(lambda db: db.insert("seat", name="after it", after=""))
        return Result()

    running = ledger.protocol(protocol)
    token = stopping.begin()
    with pytest.raises(errors.Interrupted):
        running.tick()
    Cancellation.leave(token)
    seats = count(running, "seat")

    again = running.tick()

    assert (again.held, [each.error for each in again.ran]) == (False, [None])
    assert (seats, count(running, "seat")) == (0, 1)


def letters_with_job() -> Protocol:
    """The protocol, with a job that does nothing."""
    protocol = letters()
    protocol.job("slow", every_seconds=10)(lambda _: Result())
    return protocol


def test_a_worker_does_it_all(ledger: Ledger) -> None:
    """What comes in is applied, what waits is woken, and jobs run, by a worker of the ledger."""
    protocol = letters()

    @protocol.job("greets", every_seconds=10)
    def greets(_db: Reading) -> Result:
        return Result(envelopes=[given_key()])

    running = ledger.protocol(protocol)
    arrive(running, written("hello"))
    worker = ledger.worker()

    for _ in range(3):
        worker.tick()

    worker.stop(grace_seconds=0)
    assert words_of(running) == ["hello"]


@pytest.mark.parametrize("queue", ["incoming", "outgoing", "deferred", "rechecks", "retention"])
def test_a_settlement_that_comes_too_late(ledger: Ledger, clock: ManualClock, queue: str) -> None:
    """It is on record for each table of items that the claim was lost, and forgotten later."""
    protocol = letters(retention=Retention(keep_days=1))
    protocol.sender(lambda _address, _blob: None)
    running = ledger.protocol(protocol)
    arrive(running, written("a"))
    with ledger.transaction() as tx:
        tx.protocols.send(b"x", address="a")
        tx.protocols.defer(written("b"), partition="p")
        rechecks.wake(tx, "letters", [Reason("key", "k")])
    (source,) = [each for each in running.sources() if each.name == f"protocols.{queue}"]
    (late,) = ledger.run(lambda tx: source.claim(tx, Ask(1, "a worker", 30.0)))
    clock.advance(31)
    ledger.run(lambda tx: source.rescue(tx, limit=1, crashes_max=5))

    ledger.run(lambda tx: source.settle(tx, [Outcome(late, OutcomeKind.DONE)]))

    kept = rows(running, "SELECT queue, item, attempt, worker, reason FROM protocol_refusal")
    reason = f"claim {late.token} settled done too late"
    assert kept == [(f"protocols.{queue}", late.key, 1, "a worker", reason)]
    clock.advance(31 * 86_400)
    assert ledger.run(lambda tx: refusals.forget(tx, keep_days=30)) == 1


def test_without_the_room(ledger: Ledger) -> None:
    """A ledger whose settings do without protocols has none."""
    settings = msgspec.structs.replace(
        ledger.settings,
        protocols=msgspec.structs.replace(ledger.settings.protocols, enabled=False),
    )
    with (
        Ledger(settings=settings) as without,
        pytest.raises(errors.BadInput, match="no room protocols"),
        without.reading() as tx,
    ):
        tx.protocols.retry_parked()


def test_a_lease_of_a_tick_is_given_back(ledger: Ledger) -> None:
    """A tick that is done keeps nobody out."""
    ledger.protocol(letters_with_job()).tick()

    name = "protocols.tick:letters"
    assert ledger.run(lambda tx: leases.acquire(tx, name, "x", seconds=1)) is not None
