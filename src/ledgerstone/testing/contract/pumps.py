"""The pump contract: how work is moved, whatever the database.

Step by step (`tick`) where order matters, in threads where concurrency is what is promised; threads
are lined up by barriers and events, never by sleeping.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from ledgerstone.chores import ChoreSource, NewChore, Status
from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.source import Cancel, Claim, Handler, Snooze, Where
from ledgerstone.engine.worker import Worker
from ledgerstone.errors import HandlerTimeout, Interrupted, LeaseLost, SchemaMissing, TargetDown
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.settings import EngineSettings
from ledgerstone.testing import children
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.waiting import until

PROMPTLY = 30.0
"""How long a thread may take for what should happen at once, on a busy machine."""


class PumpContract:
    """One step at a time, with a clock that is moved by hand."""

    def test_a_step(self, ledger: Ledger, clock: ManualClock) -> None:
        """A step claims, runs and settles; the next finds nothing."""
        seen: list[str] = []
        enqueue(ledger, 3)
        worker = ledger.worker(chores(lambda claim: seen.append(claim.body)))

        (first,) = worker.tick()
        (second,) = worker.tick()

        assert sorted(seen) == ["0", "1", "2"]
        assert (first.claimed, first.settled, second.claimed) == (3, 3, 0)
        assert counts(ledger)[Status.DONE] == 3

    def test_what_a_handler_returns(self, ledger: Ledger, clock: ManualClock) -> None:
        """A value is the result; Snooze puts off; Cancel ends it."""
        returns: dict[str, Any] = {"0": {"answer": 42}, "1": Snooze(60), "2": Cancel("not needed")}
        ids = enqueue(ledger, 3)

        ledger.worker(chores(lambda claim: returns[claim.body])).tick()

        with ledger.reading() as tx:
            done, snoozed, canceled = (tx.chores.get(key) for key in ids)
        assert (done.status, done.result) == (Status.DONE, {"answer": 42})
        assert (snoozed.status, snoozed.attempt) == (Status.QUEUED, 0)
        assert (canceled.status, canceled.error) == (Status.CANCELED, "canceled: not needed")

    @pytest.mark.parametrize("where", list(Where))
    def test_what_cannot_be_kept(self, ledger: Ledger, clock: ManualClock, where: Where) -> None:
        """A result that is no JSON is that item's failure, not the worker's."""
        ids = enqueue(ledger, 2, attempts=1)

        async def awaited(claim: Claim) -> object:
            return children.unkeepable(claim)

        call = awaited if where is Where.LOOP else children.unkeepable
        (step,) = ledger.worker(chores(call, where=where)).tick()

        assert step.settled == 2
        with ledger.reading() as tx:
            bad, good = (tx.chores.get(key) for key in ids)
        assert (bad.status, good.status) == (Status.DEAD, Status.DONE)
        assert bad.error is not None
        assert bad.error.startswith("bad_input")

    def test_atomic_results_that_cannot_be_kept(self, ledger: Ledger, clock: ManualClock) -> None:
        """Then nothing that the atomic handler wrote is kept either."""
        (key,) = enqueue(ledger, 1, attempts=1)

        def odd(tx: Transaction, _: Claim) -> object:
            tx.chores.enqueue("after")
            return object()

        ledger.worker(chores(odd, atomic=True)).tick()

        assert sum(counts(ledger).values()) == 1
        assert _chore(ledger, key).status is Status.DEAD

    def test_errors_in_any_words(self, ledger: Ledger, clock: ManualClock) -> None:
        """An error is kept whatever its words are: too long, with NUL, with half a character."""
        words = ["x" * 100_000, "a\0b", "half \ud800 of one", "{} %s \\ '\" 🜨"]
        ids = enqueue(ledger, len(words), attempts=1)

        def fail(claim: Claim) -> None:
            raise ValueError(words[int(claim.body)])

        ledger.worker(chores(fail)).tick()

        with ledger.reading() as tx:
            kept = [tx.chores.get(key) for key in ids]
        assert {chore.status for chore in kept} == {Status.DEAD}
        assert all((chore.error or "").startswith("ValueError: ") for chore in kept)

    def test_a_failing_handler(self, ledger: Ledger, clock: ManualClock) -> None:
        """An exception is a failure with its reason; after the back-off it is tried again."""
        (key,) = enqueue(ledger, 1)
        worker = ledger.worker(chores(_divide, backoff=Backoff(seconds=10, jitter=0)))

        worker.tick()
        clock.advance(9)
        (early,) = worker.tick()
        clock.advance(2)
        (late,) = worker.tick()

        assert (early.claimed, late.claimed) == (0, 1)
        with ledger.reading() as tx:
            chore = tx.chores.get(key)
        assert chore.attempt == 2
        assert chore.error is not None
        assert chore.error.startswith("ZeroDivisionError")

    def test_a_target_that_is_down(self, ledger: Ledger, clock: ManualClock) -> None:
        """While a target is down no attempt is burned, and after some failures it is left alone."""
        calls = 0
        down = True

        def send(_: Claim) -> None:
            nonlocal calls
            calls += 1
            if down:
                raise TargetDown("the broker")

        ids = enqueue(ledger, 1)
        worker = ledger.worker(_Targeted(send))
        for _ in range(20):
            worker.tick()
            clock.advance(2)
        assert calls < 15
        down = False
        clock.advance(60)
        worker.tick()

        with ledger.reading() as tx:
            chore = tx.chores.get(ids[0])
        assert (chore.status, chore.attempt) == (Status.DONE, 1)

    def test_atomic_handlers(self, ledger: Ledger, clock: ManualClock) -> None:
        """The writes of an atomic handler and its settlement are one transaction."""
        enqueue(ledger, 1)

        def follow_up(tx: Transaction, _: Claim) -> None:
            tx.chores.enqueue("after", delay_seconds=60)
            if fails:
                raise ZeroDivisionError

        fails = True
        worker = ledger.worker(chores(follow_up, atomic=True, backoff=Backoff(seconds=1)))
        worker.tick()
        assert sum(counts(ledger).values()) == 1
        fails = False
        clock.advance(10)
        worker.tick()

        assert counts(ledger)[Status.DONE] == 1
        assert counts(ledger)[Status.QUEUED] == 1

    def test_atomic_handlers_that_lost_their_claim(
        self, ledger: Ledger, clock: ManualClock
    ) -> None:
        """If the claim was lost meanwhile, nothing that the atomic handler wrote is kept."""
        (key,) = enqueue(ledger, 1)

        def too_slow(tx: Transaction, _: Claim) -> None:
            tx.chores.enqueue("after")
            clock.advance(3600)
            source.rescue(tx, limit=10, crashes_max=3)

        source = chores(too_slow, atomic=True)
        worker = ledger.worker(source)
        worker.tick()

        with ledger.reading() as tx:
            chore = tx.chores.get(key)
            total = sum(tx.chores.counts().values())
        assert total == 1
        assert chore.status is not Status.DONE

    def test_duties_once_per_cluster(self, ledger: Ledger, clock: ManualClock) -> None:
        """Of several workers one rescues in a turn, and the next turn comes by the clock."""
        ids = enqueue(ledger, 2)
        doomed = ledger.worker(chores(_nothing))
        ledger.run(lambda tx: doomed.pumps[0].source.claim(tx, _ask(ledger, limit=1)))
        clock.advance(3600)
        first, second = ledger.worker(chores(_nothing)), ledger.worker(chores(_nothing))

        first.tick(limit=1)
        second.tick(limit=1)

        reports = [worker.report().duties for worker in (first, second)]
        assert [report.get("rescue:chores") for report in reports] == [1, None]
        with ledger.reading() as tx:
            assert {tx.chores.get(key).status for key in ids} == {Status.DONE}

    def test_heartbeats_keep_claims(self, ledger: Ledger, clock: ManualClock) -> None:
        """A claim that is still held at the second beat is extended; a quick one costs nothing."""
        (key,) = enqueue(ledger, 1)
        extended: list[int] = []
        lease = ledger.settings.engine.lease_seconds

        def long(_: Claim) -> None:
            for _turn in range(6):
                clock.advance(lease / 3)
                extended.append(worker.beat())
                assert (
                    ledger.run(
                        lambda tx: worker.pumps[0].source.rescue(tx, limit=10, crashes_max=3)
                    )
                    == 0
                )

        worker = ledger.worker(chores(long))
        worker.tick()

        assert extended == [0, 1, 1, 1, 1, 1]
        with ledger.reading() as tx:
            assert tx.chores.get(key).status is Status.DONE


class RunningContract:
    """In threads, with the database's own clock."""

    @pytest.mark.parametrize("where", [Where.THREAD, Where.LOOP])
    def test_never_more_than_allowed(self, ledger: Ledger, where: Where) -> None:
        """As many handlers run at once as there are places, and never more."""
        enqueue(ledger, 40)
        count = _Gauge()
        full = threading.Event()

        def sync(_: Claim) -> None:
            with count:
                if count.now == 4:
                    full.set()
                full.wait(PROMPTLY)

        async def awaited(_: Claim) -> None:
            with count:
                if count.now == 4:
                    full.set()
                # Not an asyncio event: those who wait for it may be on another loop.
                await asyncio.to_thread(full.wait, PROMPTLY)

        handler = Handler(sync if where is Where.THREAD else awaited, where=where)
        with running(ledger, ChoreSource(handler), concurrency=4):
            until(lambda: counts(ledger)[Status.DONE] == 40)

        assert count.most == 4

    def test_async_and_sync_share_the_places(self, ledger: Ledger) -> None:
        """The limit holds over both kinds together."""
        enqueue(ledger, 60)
        count = _Gauge()

        def sync(_: Claim) -> None:
            with count:
                pass

        async def awaited(_: Claim) -> None:
            with count:
                await asyncio.sleep(0)

        class Mixed(ChoreSource):
            def handler(self, claim: Claim) -> Handler:
                odd = int(claim.body) % 2
                return Handler(awaited, where=Where.LOOP) if odd else Handler(sync)

        with running(ledger, Mixed(Handler(sync)), concurrency=3):
            until(lambda: counts(ledger)[Status.DONE] == 60)

        assert count.most <= 3

    def test_handlers_in_processes(self, ledger: Ledger) -> None:
        """A handler may run in a process of its own, and its result and errors come back."""
        ids = enqueue(ledger, 2, attempts=1)

        with running(ledger, chores(children.pid_or_fail, where=Where.PROCESS)):
            until(lambda: counts(ledger)[Status.QUEUED] + counts(ledger)[Status.RUNNING] == 0)

        with ledger.reading() as tx:
            good, bad = (tx.chores.get(key) for key in ids)
        assert good.result != os.getpid()
        assert bad.status is Status.DEAD
        assert bad.error is not None
        assert "odd numbers are refused" in bad.error

    def test_a_process_that_dies(self, ledger: Ledger) -> None:
        """A child that dies takes only its own item with it, and that counts as a crash."""
        ids = enqueue(ledger, 4, attempts=1)

        with running(ledger, chores(children.die_on_zero, where=Where.PROCESS)):
            until(lambda: counts(ledger)[Status.QUEUED] + counts(ledger)[Status.RUNNING] == 0)

        with ledger.reading() as tx:
            victim, *others = (tx.chores.get(key) for key in ids)
        assert (victim.status, victim.crashes) == (Status.DEAD, 1)
        assert {chore.status for chore in others} == {Status.DONE}

    @pytest.mark.parametrize("where", [Where.THREAD, Where.LOOP])
    def test_lease_lost_is_raised_into_the_handler(self, ledger: Ledger, where: Where) -> None:
        """A handler that lost its claim hears of it where it is, and cannot settle."""
        (key,) = enqueue(ledger, 1)
        begun, heard = threading.Event(), threading.Event()

        def sync(_: Claim) -> None:
            begun.set()
            try:
                while not stop.is_set():
                    pass
            except LeaseLost:
                heard.set()
                raise

        async def awaited(_: Claim) -> None:
            begun.set()
            try:
                await asyncio.sleep(PROMPTLY)
            except LeaseLost:
                heard.set()
                raise

        stop = threading.Event()
        handler = Handler(sync if where is Where.THREAD else awaited, where=where)
        source = ChoreSource(handler)
        with running(ledger, source, concurrency=1) as worker:
            assert begun.wait(PROMPTLY)
            _take_away(ledger, key)
            until(lambda: worker.beat() == 0 and heard.is_set(), what="LeaseLost in the handler")
            stop.set()
            until(lambda: worker.pumps[0].tally.refused == 1, what="the refusal")

        with ledger.reading() as tx:
            reasons = [event.reason or "" for event in tx.chores.history(key)]
        assert any(reason.startswith("refused") for reason in reasons)

    @pytest.mark.parametrize("where", [Where.THREAD, Where.LOOP])
    def test_timeouts(self, ledger: Ledger, where: Where) -> None:
        """A handler that runs past its limit is told, and that is its failure."""
        (key,) = enqueue(ledger, 1)
        heard = threading.Event()

        def sync(_: Claim) -> None:
            try:
                while not heard.is_set():
                    pass
            except HandlerTimeout:
                heard.set()
                raise

        async def awaited(_: Claim) -> None:
            try:
                await asyncio.sleep(PROMPTLY)
            except HandlerTimeout:
                heard.set()
                raise

        handler = Handler(sync if where is Where.THREAD else awaited, where=where)
        with running(ledger, _Timed(handler)):
            until(lambda: _chore(ledger, key).error is not None, what="the failure")

        assert heard.is_set()
        error = _chore(ledger, key).error
        assert error is not None
        assert error.startswith("timeout")

    def test_stopping_in_good_order(self, ledger: Ledger) -> None:
        """Running handlers finish, what only waited goes back with its attempt refunded."""
        ids = enqueue(ledger, 6)
        begun, go = threading.Semaphore(0), threading.Event()

        def wait(_: Claim) -> None:
            begun.release()
            go.wait(PROMPTLY)

        with running(ledger, chores(wait), concurrency=2, claim_ahead_ms=10_000) as worker:
            assert begun.acquire(timeout=PROMPTLY)
            assert begun.acquire(timeout=PROMPTLY)
            stopping = threading.Thread(target=worker.stop)
            stopping.start()
            until(lambda: worker.pumps[0].waiting == 0)
            go.set()
            stopping.join(PROMPTLY)

        with ledger.reading() as tx:
            chores_ = [tx.chores.get(key) for key in ids]
        assert sorted(c.status.value for c in chores_) == ["done"] * 2 + ["queued"] * 4
        assert {c.attempt for c in chores_ if c.status is Status.QUEUED} == {0}

    @pytest.mark.parametrize("where", [Where.THREAD, Where.LOOP])
    def test_stopping_when_the_grace_is_over(self, ledger: Ledger, where: Where) -> None:
        """A handler that does not finish in time is interrupted and its item returned."""
        (key,) = enqueue(ledger, 1)
        begun, told = threading.Event(), threading.Event()

        def sync(_: Claim) -> None:
            begun.set()
            try:
                while not told.is_set():
                    pass
            except Interrupted:
                told.set()
                raise

        async def awaited(_: Claim) -> None:
            begun.set()
            try:
                await asyncio.sleep(PROMPTLY)
            except Interrupted:
                told.set()
                raise

        handler = Handler(sync if where is Where.THREAD else awaited, where=where)
        with running(ledger, ChoreSource(handler)) as worker:
            assert begun.wait(PROMPTLY)
            worker.stop(grace_seconds=0)

        chore = _chore(ledger, key)
        assert told.is_set()
        assert (chore.status, chore.attempt) == (Status.QUEUED, 0)

    def test_busy_handlers_do_not_starve_the_heartbeat(self, ledger: Ledger) -> None:
        """While handlers keep the processor and every pooled connection, leases are kept."""
        settings = msgspec.structs.replace(ledger.settings.engine, lease_seconds=1.5)
        ids = enqueue(ledger, 2)
        over = threading.Event()
        sources = [chores(lambda _: _spin(over)), chores(_nothing)]
        busy = Worker(ledger.database, sources[:1], settings)
        rescuer = Worker(ledger.database, sources[1:], settings)

        with _started(busy):
            until(lambda: busy.pumps[0].running == 2)
            for _ in range(3):
                seen = _lease_until(ledger, ids[0])
                until(lambda before=seen: _lease_until(ledger, ids[0]) > before)  # type: ignore[misc]
            rescued = rescuer.pumps[0].rescue()
            over.set()
            until(lambda: counts(ledger)[Status.DONE] == 2)

        assert rescued == 0

    def test_an_error_that_waiting_cannot_help(self, ledger: Ledger) -> None:
        """A worker whose tables are gone does not spin: it ends and says why."""
        with ledger.transaction() as tx:
            tx.connection.exec_driver_sql("DROP TABLE chore")
        worker = ledger.worker(chores(_nothing))

        with _started(worker):
            until(lambda: worker.failure is not None)

        assert isinstance(worker.failure, SchemaMissing)

    def test_unsettled_outcomes_are_bounded(self, ledger: Ledger) -> None:
        """While nothing can be settled, only so much is claimed."""
        enqueue(ledger, 500)
        source = _Unsettled(Handler(_nothing))
        options = {"concurrency": 5, "batch_max": 20, "unsettled_max": 40}

        with running(ledger, source, **options) as worker:
            until(lambda: source.tries >= 3)
            claimed = worker.pumps[0].tally.claimed
            source.allowed.set()
            until(lambda: counts(ledger)[Status.DONE] == 500)

        assert claimed <= 40 + 20 + 5

    def test_two_databases_in_one_process(self, ledger: Ledger, tmp_path: Any) -> None:
        """Ledgers on different databases do not know each other."""
        from ledgerstone import chores as chores_room

        with Ledger(f"sqlite:///{tmp_path}/other.db") as other:
            chores_room.install(other.database)
            enqueue(ledger, 5)
            enqueue(other, 7)

            with running(ledger, chores(_nothing)), running(other, chores(_nothing)):
                until(lambda: counts(ledger)[Status.DONE] == 5 and counts(other)[Status.DONE] == 7)

            assert sum(counts(other).values()) == 7

    def test_work_committed_elsewhere_is_found(self, ledger: Ledger) -> None:
        """A worker that is idle begins what a transaction of the same process has committed."""
        with running(ledger, chores(_nothing)) as worker:
            until(lambda: worker.pumps[0].tally.trouble is None)
            for number in range(1, 6):
                enqueue(ledger, 1)
                until(lambda n=number: counts(ledger)[Status.DONE] == n)  # type: ignore[misc]

            assert worker.pumps[0].tally.done == 5


def chores(
    call: Callable[..., Any],
    *,
    where: Where = Where.THREAD,
    atomic: bool = False,
    backoff: Backoff | None = None,
) -> ChoreSource:
    """Chores done by this handler."""
    return ChoreSource(Handler(call, where=where, atomic=atomic), backoff=backoff)


def enqueue(ledger: Ledger, count: int, *, attempts: int = 5) -> list[str]:
    """So many chores, numbered from 0; their ids in that order."""
    new = [NewChore(body=number, max_attempts=attempts) for number in range(count)]
    with ledger.transaction() as tx:
        return [enqueued.id for enqueued in tx.chores.enqueue_many(new)]


def counts(ledger: Ledger) -> dict[Status, int]:
    """How many stand where."""
    with ledger.reading() as tx:
        return tx.chores.counts()


@contextmanager
def running(ledger: Ledger, source: ChoreSource, **options: Any) -> Iterator[Worker]:
    """A worker that runs, and is stopped at the end."""
    settings: EngineSettings = msgspec.structs.replace(ledger.settings.engine, **options)
    worker = Worker(ledger.database, [source], settings)
    with _started(worker):
        yield worker


@contextmanager
def _started(worker: Worker) -> Iterator[None]:
    worker.start()
    try:
        yield
    finally:
        worker.stop(grace_seconds=PROMPTLY)


class _Gauge:
    """How many are inside, and how many were at most."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


class _Targeted(ChoreSource):
    """Chores that all go to one target."""

    def __init__(self, call: Callable[[Claim], None]) -> None:
        super().__init__(Handler(call))

    def claim(self, tx: Any, ask: Any) -> list[Claim]:
        if "the broker" in ask.avoid:
            return []
        claims = super().claim(tx, ask)
        return [msgspec.structs.replace(claim, target="the broker") for claim in claims]


class _Timed(ChoreSource):
    """Chores that may take half a second."""

    def claim(self, tx: Any, ask: Any) -> list[Claim]:
        claims = super().claim(tx, ask)
        return [msgspec.structs.replace(claim, timeout_seconds=0.5) for claim in claims]


class _Unsettled(ChoreSource):
    """Chores that cannot be settled until they may."""

    def __init__(self, handler: Handler) -> None:
        super().__init__(handler)
        self.tries = 0
        self.allowed = threading.Event()

    def settle(self, tx: Any, outcomes: Any) -> Any:
        self.tries += 1
        if not self.allowed.is_set():
            from ledgerstone.errors import StoreUnavailable

            raise StoreUnavailable("not yet")
        return super().settle(tx, outcomes)


def _ask(ledger: Ledger, *, limit: int) -> Any:
    from ledgerstone.engine.source import Ask

    return Ask(limit, "doomed", ledger.settings.engine.lease_seconds)


def _take_away(ledger: Ledger, key: str) -> None:
    """As if the lease had run out and another had claimed it."""
    with ledger.transaction() as tx:
        tx.connection.exec_driver_sql("UPDATE chore SET lease_until_ms = 0")
        ChoreSource(Handler(_nothing)).rescue(tx, limit=10, crashes_max=3)
        assert tx.chores.get(key).status is Status.QUEUED
        # Not due again: the handler that lost it is to be seen alone.
        tx.connection.exec_driver_sql("UPDATE chore SET available_at_ms = 9999999999999")


def _chore(ledger: Ledger, key: str) -> Any:
    with ledger.reading() as tx:
        return tx.chores.get(key)


def _lease_until(ledger: Ledger, key: str) -> int:
    with ledger.reading() as tx:
        found = tx.connection.exec_driver_sql("SELECT MIN(lease_until_ms) FROM chore").scalar()
        assert found is not None, key
        return int(found)


def _spin(over: threading.Event) -> None:
    while not over.is_set():
        sum(range(1000))


def _divide(_: Claim) -> float:
    return 1 / 0


def _nothing(_: Claim) -> None:
    pass
