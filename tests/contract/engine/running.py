"""The running contract: what holds while workers run in threads, by the database's own clock.

Threads are lined up by barriers and events, never by sleeping.
"""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledgerstone.engine.source import Claim, ExecutorKind, Handler
from ledgerstone.engine.worker import Worker
from ledgerstone.errors import HandlerTimeout, Interrupted, LeaseLost, SchemaMissing
from ledgerstone.ledger import Ledger
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.chores import Chores, ChoreSource, NewChore, Status, install
from tests.chores.work import nothing
from tests.chores.workshop import chores, counts, enqueue, standing
from tests.harness import children
from tests.harness.workers import Gauge, call_until_told, running, started

LEARNED = 50
"""After so many quick ones a worker claims ahead."""


class RunningContract:
    """In threads, with the database's own clock."""

    @pytest.mark.parametrize("where", [ExecutorKind.THREAD, ExecutorKind.LOOP])
    def test_never_more_than_allowed(self, ledger: Ledger, where: ExecutorKind) -> None:
        """As many handlers run at once as there are places, and never more."""
        enqueue(ledger, 40)
        count = Gauge()
        full = threading.Event()

        def sync(_: Claim) -> None:
            with count:
                if count.now == 4:
                    full.set()
                full.wait(WAIT_SECONDS_MAX)

        async def awaited(_: Claim) -> None:
            with count:
                if count.now == 4:
                    full.set()
                # Not an asyncio event: those who wait for it may be on another loop.
                await asyncio.to_thread(full.wait, WAIT_SECONDS_MAX)

        handler = Handler(sync if where is ExecutorKind.THREAD else awaited, where=where)
        with running(ledger, ChoreSource(handler), concurrency=4):
            until(lambda: counts(ledger)[Status.DONE] == 40)

        assert count.most == 4

    def test_async_and_sync_share_the_places(self, ledger: Ledger) -> None:
        """The limit holds over both kinds together."""
        enqueue(ledger, 60)
        count = Gauge()

        def sync(_: Claim) -> None:
            with count:
                pass

        async def awaited(_: Claim) -> None:
            with count:
                await asyncio.sleep(0)

        class Mixed(ChoreSource):
            def handler(self, claim: Claim) -> Handler:
                odd = int(claim.body) % 2
                return Handler(awaited, where=ExecutorKind.LOOP) if odd else Handler(sync)

        with running(ledger, Mixed(Handler(sync)), concurrency=3):
            until(lambda: counts(ledger)[Status.DONE] == 60)

        assert count.most <= 3

    @pytest.mark.slow
    def test_handlers_in_processes(self, ledger: Ledger) -> None:
        """A handler may run in a process of its own, and its result and errors come back."""
        ids = enqueue(ledger, 2, attempts=1)

        with running(ledger, chores(children.pid_or_fail, where=ExecutorKind.PROCESS)):
            until(lambda: counts(ledger)[Status.QUEUED] + counts(ledger)[Status.RUNNING] == 0)

        with ledger.reading() as tx:
            good, bad = (Chores(tx).get(key) for key in ids)
        assert good.result != os.getpid()
        assert bad.status is Status.DEAD
        assert bad.error is not None
        assert "odd numbers are refused" in bad.error

    @pytest.mark.slow
    def test_a_process_that_dies(self, ledger: Ledger) -> None:
        """A child that dies takes only its own item with it, and that counts as a crash."""
        ids = enqueue(ledger, 4, attempts=1)

        with running(ledger, chores(children.die_on_zero, where=ExecutorKind.PROCESS)):
            until(lambda: counts(ledger)[Status.QUEUED] + counts(ledger)[Status.RUNNING] == 0)

        with ledger.reading() as tx:
            victim, *others = (Chores(tx).get(key) for key in ids)
        assert (victim.status, victim.crashes) == (Status.DEAD, 1)
        assert {chore.status for chore in others} == {Status.DONE}

    @pytest.mark.parametrize("where", [ExecutorKind.THREAD, ExecutorKind.LOOP])
    def test_a_handler_learns_of_a_lost_lease(self, ledger: Ledger, where: ExecutorKind) -> None:
        """A handler that lost its claim learns so at its next call or await, and cannot settle."""
        (key,) = enqueue(ledger, 1)
        begun, heard = threading.Event(), threading.Event()

        def sync(_: Claim) -> None:
            begun.set()
            try:
                call_until_told(ledger)
            except LeaseLost:
                heard.set()
                raise

        async def awaited(_: Claim) -> None:
            begun.set()
            try:
                await asyncio.sleep(WAIT_SECONDS_MAX)
            except asyncio.CancelledError:
                heard.set()
                raise

        handler = Handler(sync if where is ExecutorKind.THREAD else awaited, where=where)
        source = ChoreSource(handler)
        with running(ledger, source, concurrency=1) as worker:
            assert begun.wait(WAIT_SECONDS_MAX)
            _take_away(ledger, key)
            until(lambda: worker.beat() == 0 and heard.is_set(), what="LeaseLost in the handler")
            until(lambda: worker.pumps[0].counters.refused == 1, what="the refusal")

        with ledger.reading() as tx:
            reasons = [event.reason or "" for event in Chores(tx).history(key)]
        assert any(reason.startswith("refused") for reason in reasons)

    @pytest.mark.parametrize("where", [ExecutorKind.THREAD, ExecutorKind.LOOP])
    def test_timeouts(self, ledger: Ledger, where: ExecutorKind) -> None:
        """A handler that runs past its limit is told, and that is its failure."""
        (key,) = enqueue(ledger, 1)
        heard = threading.Event()

        def sync(_: Claim) -> None:
            try:
                call_until_told(ledger)
            except HandlerTimeout:
                heard.set()
                raise

        async def awaited(_: Claim) -> None:
            try:
                await asyncio.sleep(WAIT_SECONDS_MAX)
            except asyncio.CancelledError:
                heard.set()
                raise

        handler = Handler(sync if where is ExecutorKind.THREAD else awaited, where=where)
        with running(ledger, _Timed(handler)):
            until(lambda: standing(ledger, key).error is not None, what="the failure")

        assert heard.is_set()
        error = standing(ledger, key).error
        assert error is not None
        assert error.startswith("timeout")

    def test_stopping_in_good_order(self, ledger: Ledger) -> None:
        """Running handlers finish, what only waited goes back with its attempt refunded."""
        begun, slow, go = threading.Semaphore(0), threading.Event(), threading.Event()

        def wait(_: Claim) -> None:
            if slow.is_set():
                begun.release()
                go.wait(WAIT_SECONDS_MAX)

        with running(ledger, chores(wait), concurrency=2, claim_ahead_ms=10_000) as worker:
            # What waits is claimed ahead only when handlers are known to be quick.
            enqueue(ledger, LEARNED)
            until(lambda: counts(ledger)[Status.DONE] == LEARNED)
            slow.set()
            ids = enqueue(ledger, 6)
            assert begun.acquire(timeout=WAIT_SECONDS_MAX)
            assert begun.acquire(timeout=WAIT_SECONDS_MAX)
            until(lambda: worker.pumps[0].waiting == 4)
            stopping = threading.Thread(target=worker.stop)
            stopping.start()
            until(lambda: worker.pumps[0].waiting == 0)
            go.set()
            stopping.join(WAIT_SECONDS_MAX)

        with ledger.reading() as tx:
            chores_ = [Chores(tx).get(key) for key in ids]
        assert sorted(c.status.value for c in chores_) == ["done"] * 2 + ["queued"] * 4
        assert {c.attempt for c in chores_ if c.status is Status.QUEUED} == {0}

    def test_stopping_while_they_are_handed_over(self, ledger: Ledger) -> None:
        """What is claimed at the moment of the stop goes back at once, refunded."""
        ids = enqueue(ledger, 40)
        stopped, over = threading.Event(), threading.Event()

        def work(claim: Claim) -> None:
            # The first are quick: the next are then claimed ahead.
            if int(claim.body) >= 10:
                over.wait(WAIT_SECONDS_MAX)

        class Stopping(ChoreSource):
            def handler(self, claim: Claim) -> Handler:
                if int(claim.body) >= 10:
                    worker.pumps[0].stop_claiming()
                    stopped.set()
                return super().handler(claim)

        settings = msgspec.structs.replace(
            ledger.settings.engine, concurrency=2, claim_ahead_ms=10_000
        )
        worker = Worker(ledger.database, [Stopping(Handler(work))], settings)
        with started(worker):
            assert stopped.wait(WAIT_SECONDS_MAX)
            until(lambda: counts(ledger)[Status.RUNNING] <= 2)
            over.set()

        with ledger.reading() as tx:
            left = [Chores(tx).get(key) for key in ids]
        assert {c.attempt for c in left if c.status is Status.QUEUED} == {0}
        assert sum(c.status is Status.DONE for c in left) <= 12

    @pytest.mark.parametrize("where", [ExecutorKind.THREAD, ExecutorKind.LOOP])
    def test_stopping_when_the_grace_is_over(self, ledger: Ledger, where: ExecutorKind) -> None:
        """A handler that does not finish in time is interrupted and its item returned."""
        (key,) = enqueue(ledger, 1)
        begun, told = threading.Event(), threading.Event()

        def sync(_: Claim) -> None:
            begun.set()
            try:
                call_until_told(ledger)
            except Interrupted:
                told.set()
                raise

        async def awaited(_: Claim) -> None:
            begun.set()
            try:
                await asyncio.sleep(WAIT_SECONDS_MAX)
            except asyncio.CancelledError:
                told.set()
                raise

        handler = Handler(sync if where is ExecutorKind.THREAD else awaited, where=where)
        with running(ledger, ChoreSource(handler)) as worker:
            assert begun.wait(WAIT_SECONDS_MAX)
            worker.stop(grace_seconds=0)

        chore = standing(ledger, key)
        assert told.wait(WAIT_SECONDS_MAX)
        assert (chore.status, chore.attempt) == (Status.QUEUED, 0)

    @pytest.mark.slow
    def test_busy_handlers_do_not_starve_the_heartbeat(self, ledger: Ledger) -> None:
        """While handlers keep the processor and every pooled connection, leases are kept."""
        settings = msgspec.structs.replace(
            ledger.settings.engine, lease_seconds=WAIT_SECONDS_MAX, heartbeat_seconds=0.1
        )
        ids = enqueue(ledger, 2)
        over = threading.Event()
        sources = [chores(lambda _: _spin(over)), chores(nothing)]
        busy = Worker(ledger.database, sources[:1], settings)
        rescuer = Worker(ledger.database, sources[1:], settings)

        with started(busy):
            until(lambda: busy.pumps[0].running == 2)
            for _ in range(3):
                seen = _lease_until(ledger, ids[0])
                until(lambda before=seen: _lease_until(ledger, ids[0]) > before)  # type: ignore[misc]
            rescued = ledger.run(rescuer.pumps[0].rescue)
            over.set()
            until(lambda: counts(ledger)[Status.DONE] == 2)

        assert rescued == 0

    def test_an_error_that_waiting_cannot_help(self, ledger: Ledger) -> None:
        """A worker whose tables are gone does not spin: it ends and says why."""
        with ledger.transaction() as tx:
            tx.connection.exec_driver_sql("DROP TABLE chore")
        worker = ledger.worker(chores(nothing))

        with started(worker):
            until(lambda: worker.failure is not None)

        assert isinstance(worker.failure, SchemaMissing)

    @pytest.mark.slow
    def test_unsettled_outcomes_are_bounded(self, ledger: Ledger) -> None:
        """While nothing can be settled, only so much is claimed."""
        enqueue(ledger, 500)
        source = _Unsettled(Handler(nothing))
        options = {"concurrency": 5, "batch_max": 20, "unsettled_max": 40}

        with running(ledger, source, **options) as worker:
            until(lambda: source.tries >= 3)
            claimed = worker.pumps[0].counters.claimed
            source.allowed.set()
            until(lambda: counts(ledger)[Status.DONE] == 500)

        assert claimed <= 40 + 20 + 5

    def test_two_databases_in_one_process(self, ledger: Ledger, tmp_path: Any) -> None:
        """Ledgers on different databases do not know each other."""
        with Ledger(f"sqlite:///{tmp_path}/other.db") as other:
            install(other.database)
            enqueue(ledger, 5)
            enqueue(other, 7)

            with running(ledger, chores(nothing)), running(other, chores(nothing)):
                until(lambda: counts(ledger)[Status.DONE] == 5 and counts(other)[Status.DONE] == 7)

            assert sum(counts(other).values()) == 7

    def test_claims_that_nothing_can_run(self, ledger: Ledger) -> None:
        """If a source knows no handler for some claims, the others are done all the same."""
        ids = enqueue(ledger, 20, attempts=1)

        class Forgetful(ChoreSource):
            def handler(self, claim: Claim) -> Handler:
                if int(claim.body) % 2:
                    raise LookupError(claim.body)
                return super().handler(claim)

        with running(ledger, Forgetful(Handler(nothing)), concurrency=3):
            until(lambda: counts(ledger)[Status.QUEUED] + counts(ledger)[Status.RUNNING] == 0)

        states = [standing(ledger, key).status for key in ids]
        assert states == [Status.DONE, Status.DEAD] * 10

    def test_work_committed_elsewhere_is_found(self, ledger: Ledger) -> None:
        """A worker that is idle begins what a transaction of the same process has committed."""
        with running(ledger, chores(nothing)) as worker:
            until(lambda: worker.pumps[0].counters.trouble is None)
            for number in range(1, 6):
                enqueue(ledger, 1)
                until(lambda n=number: counts(ledger)[Status.DONE] == n)  # type: ignore[misc]

            # It counts what it has settled after the commit.
            until(lambda: worker.pumps[0].counters.done == 5)

    def test_a_lost_lease_ends_no_other_process(self, ledger: Ledger, tmp_path: Path) -> None:
        """Only the child of the claim that was lost is killed; the others finish their items."""
        gates = [tmp_path / name for name in ("lost", "kept")]
        new = [NewChore(body=str(gate), max_attempts=1) for gate in gates]
        with ledger.transaction() as tx:
            lost, kept = (enqueued.id for enqueued in Chores(tx).enqueue_many(new))

        source = chores(children.begun_and_gated, where=ExecutorKind.PROCESS)
        with running(ledger, source, concurrency=2) as worker:
            until(lambda: all(children.begun(gate) for gate in gates), what="both to begin")
            taken = [each for each in worker.pumps[0].held().values() if each.key == lost]
            worker.pumps[0].lose(taken[0])
            until(lambda: standing(ledger, lost).status is not Status.RUNNING, what="its end")
            gates[1].touch()
            until(lambda: standing(ledger, kept).status is not Status.RUNNING)

        assert standing(ledger, kept).status is Status.DONE
        assert standing(ledger, kept).crashes == 0


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

    def settle(self, tx: Any, outcomes: Any, **how: Any) -> Any:
        self.tries += 1
        if not self.allowed.is_set():
            from ledgerstone.errors import StoreUnavailable

            raise StoreUnavailable("not yet")
        return super().settle(tx, outcomes, **how)


def _take_away(ledger: Ledger, key: str) -> None:
    """As if the lease had run out and another had claimed it."""
    with ledger.transaction() as tx:
        tx.connection.exec_driver_sql("UPDATE chore SET lease_until_ms = 0")
        ChoreSource(Handler(nothing)).rescue(tx, limit=10, crashes_max=3)
        assert Chores(tx).get(key).status is Status.QUEUED
        # Not due again: the handler that lost it is to be seen alone.
        tx.connection.exec_driver_sql("UPDATE chore SET available_at_ms = 9999999999999")


def _lease_until(ledger: Ledger, key: str) -> int:
    with ledger.reading() as tx:
        found = tx.connection.exec_driver_sql("SELECT MIN(lease_until_ms) FROM chore").scalar()
        assert found is not None, key
        return int(found)


def _spin(over: threading.Event) -> None:
    while not over.is_set():
        sum(range(1000))
