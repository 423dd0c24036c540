"""The contract of a handler that has to stop: told at its next call, abandoned if it makes none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert

from ledgerstone.cancellation import current
from ledgerstone.engine.duties import Duty
from ledgerstone.engine.source import Claim, ExecutorKind, Handler
from ledgerstone.engine.worker import Worker
from ledgerstone.errors import HandlerTimeout, LeaseLost, NotAllowedNow
from ledgerstone.jobs import Job
from ledgerstone.jobs import Status as JobStatus
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.chores import ChoreSource, Status
from tests.chores.workshop import chores, counts, enqueue, standing
from tests.contract.jobs import examples as jobs
from tests.harness.own_table import OwnTable, note, notes, notes_kept
from tests.harness.threads import signaled
from tests.harness.workers import running, started

WRITERS = 6
SOON = 0.05
IMPATIENT = {"concurrency": 1, "notice_seconds": SOON, "claim_ahead_ms": 0}


class CancellationContract(OwnTable):
    """What holds for a handler that has to stop. Fixtures: `ledger`."""

    @pytest.mark.slow
    def test_writers_that_time_out(self, ledger: Ledger) -> None:
        """Timeouts in the middle of transactions leave locks and connections as they should be."""
        ids = enqueue(ledger, 3 * WRITERS, attempts=1)
        written: list[str] = []

        def write(claim: Claim) -> None:
            for number in range(1_000_000):
                name = f"{claim.key} {number}"
                ledger.run(partial(_write, name=name))
                written.append(name)

        with running(ledger, _Timed(Handler(write), 4 * SOON), concurrency=WRITERS):
            until(lambda: counts(ledger)[Status.DEAD] == 3 * WRITERS, what="the timeouts")
            ledger.run(partial(_write, name="after"))

        assert sorted(notes_kept(ledger)) == sorted([*written, "after"])
        # Each connection of the pool answers what it is asked.
        for _ in range(3 * WRITERS):
            assert {standing(ledger, key).id for key in ids} == set(ids)

    @pytest.mark.parametrize("where", [ExecutorKind.THREAD, ExecutorKind.LOOP])
    def test_one_that_takes_no_notice_is_replaced(
        self, ledger: Ledger, where: ExecutorKind
    ) -> None:
        """Its claim is settled, its place is free, and nothing that it does later counts."""
        (first,) = enqueue(ledger, 1, attempts=1)
        go, over = threading.Event(), list[object]()

        def sync(claim: Claim) -> str:
            if claim.key == first:
                signaled(go)
                over.append(_raised(lambda: ledger.run(partial(_write, name="late"))))
            return "done"

        async def awaited(claim: Claim) -> str:
            return sync(claim)

        call = sync if where is ExecutorKind.THREAD else awaited
        with running(ledger, _Timed(Handler(call, where=where), SOON), **IMPATIENT) as worker:
            until(lambda: standing(ledger, first).status is Status.DEAD, what="the timeout")
            pump = worker.pumps[0]
            shown = (pump.running, worker.abandoned)
            go.set()
            until(lambda: worker.abandoned == 0, what="the end of the handler")
            (second,) = enqueue(ledger, 1)
            until(lambda: standing(ledger, second).status is Status.DONE, what="the next one")
            until(lambda: pump.running == 0, what="that nothing runs")

        chore = standing(ledger, first)
        assert shown == (0, 1)
        assert over == [HandlerTimeout]
        assert (chore.status, chore.result) == (Status.DEAD, None)
        assert notes_kept(ledger) == []
        assert (pump.counters.done, pump.counters.failed) == (1, 1)

    def test_claiming_stops_when_too_many_are_abandoned(self, ledger: Ledger) -> None:
        """With so many handlers that do not stop the worker claims nothing, and says why."""
        enqueue(ledger, 1, attempts=1)
        go = threading.Event()

        def stuck(_: Claim) -> None:
            signaled(go)

        with running(ledger, _Timed(Handler(stuck), SOON), **IMPATIENT) as worker:
            counters = worker.pumps[0].counters
            until(lambda: counters.stalled, what="the reason")
            (waits,) = enqueue(ledger, 1)
            said = copy(worker.report().sources["chores"])
            go.set()
            until(lambda: standing(ledger, waits).status is Status.DONE, what="the next one")

        assert (said.claimed, said.abandoned) == (1, 1)
        assert "job.check()" in said.stalled
        assert counters.stalled is None

    def test_a_worker_stops_without_them(self, ledger: Ledger) -> None:
        """A handler that does not stop keeps no worker from stopping; its item is returned."""
        (key,) = enqueue(ledger, 1)
        begun, go = threading.Event(), threading.Event()

        def stuck(_: Claim) -> None:
            begun.set()
            signaled(go)

        with running(ledger, chores(stuck), **IMPATIENT) as worker:
            signaled(begun)
            worker.stop(grace_seconds=0)
            chore, abandoned = standing(ledger, key), worker.abandoned
            go.set()
            until(lambda: worker.abandoned == 0, what="the end of the handler")

        assert (chore.status, chore.attempt, abandoned) == (Status.QUEUED, 0, 1)
        assert standing(ledger, key).status is Status.QUEUED

    def test_one_that_finishes_after_it_was_told(self, ledger: Ledger) -> None:
        """A handler that had finished before it could hear that its worker stops has finished."""
        (key,) = enqueue(ledger, 1)
        begun, go = threading.Event(), threading.Event()

        def finish(_: Claim) -> str:
            begun.set()
            signaled(go)
            return "finished"

        with running(ledger, chores(finish), notice_seconds=60) as worker:
            signaled(begun)
            stopping = threading.Thread(target=worker.stop, kwargs={"grace_seconds": 0})
            stopping.start()
            until(lambda: _is_told(worker), what="the stop")
            go.set()
            stopping.join(WAIT_SECONDS_MAX)

        chore = standing(ledger, key)
        assert (chore.status, chore.result) == (Status.DONE, "finished")

    def test_atomic_handlers(self, ledger: Ledger) -> None:
        """What an atomic handler wrote before its timeout is undone."""
        (key,) = enqueue(ledger, 1, attempts=1)

        def write(tx: Transaction, _: Claim) -> None:
            _write(tx, name="undone")
            until(lambda: notes(tx.connection) == [], what="HandlerTimeout")

        with running(ledger, _Timed(Handler(write, atomic=True), SOON)):
            until(lambda: standing(ledger, key).status is Status.DEAD, what="the timeout")

        assert (standing(ledger, key).error or "").startswith("timeout")
        assert notes_kept(ledger) == []

    def test_a_timeout_waits_for_no_duty(self, ledger: Ledger) -> None:
        """Periodic work that takes long delays no timeout."""
        (key,) = enqueue(ledger, 1, attempts=1)
        busy, told, go = threading.Event(), threading.Event(), threading.Event()

        def occupy(_: object) -> int:
            busy.set()
            signaled(go)
            return 0

        def late(_: Claim) -> None:
            signaled(busy)
            try:
                until(current().check, what="HandlerTimeout")
            finally:
                told.set()

        duty = Duty("long", 3600, occupy)
        source = _Timed(Handler(late), SOON)
        worker = Worker(ledger.database, [source], ledger.settings.engine, duties=[duty])
        with started(worker):
            signaled(told)
            go.set()
            until(lambda: standing(ledger, key).status is Status.DEAD, what="the failure")

        assert (standing(ledger, key).error or "").startswith("timeout")


class JobCancellationContract(OwnTable):
    """The same for jobs, which can call. Fixtures: `ledger`."""

    @pytest.mark.parametrize(("name", "calls"), [("a", 5), ("b", 7)])
    def test_every_call_raises(self, ledger: Ledger, name: str, calls: int) -> None:
        """Once its lease is lost its calls and its statements raise before they start."""
        begun, heard = threading.Event(), list[object]()

        @ledger.job("a")
        def work(job: Job) -> None:
            if heard:
                return
            begun.set()
            with pytest.raises(LeaseLost):
                until(job.check, what="LeaseLost")
            calls = [
                job.check,
                lambda: job.canceled,
                lambda: job.progress(0.5),
                lambda: job.step("a", int),
                lambda: ledger.run(partial(_write, name="late")),
            ]
            for call in calls:
                heard.append(_raised(call))
            with pytest.raises(LeaseLost), job.transaction():
                pass

        @ledger.job("b")
        def open_before(job: Job) -> None:
            if heard:
                return
            with ledger.reading() as tx:
                begun.set()
                until(lambda: _raised(job.check), what="LeaseLost")
                calls = [
                    lambda: tx.connection,
                    tx.cursor,
                    lambda: tx.command("SELECT 1"),
                    lambda: tx.savepoint().__enter__(),
                    lambda: tx.wake("jobs"),
                    lambda: tx.at_commit("late", lambda: None),
                    lambda: tx.jobs.enqueue_many([]),
                ]
                heard.extend(_raised(call) for call in calls)

        job_id = jobs.enqueue(ledger, name, max_attempts=1)
        worker = ledger.worker()
        with started(worker):
            signaled(begun)
            (claim,) = worker.pumps[0].held().values()
            worker.pumps[0].lose(claim)
            until(lambda: jobs.standing(ledger, job_id).status is JobStatus.SUCCEEDED)

        assert heard == [LeaseLost] * calls
        assert notes_kept(ledger) == []

    def test_after_it_has_ended_itself(self, ledger: Ledger) -> None:
        """A handler that has ended its job is not told of a lost lease any more."""
        begun, go = threading.Event(), threading.Event()

        @ledger.job("a")
        def work(job: Job) -> None:
            with job.transaction("ended"):
                pass
            begun.set()
            signaled(go)
            job.check()
            ledger.run(partial(_write, name="after"))

        job_id = jobs.enqueue(ledger, "a", max_attempts=1)
        worker = ledger.worker()
        with started(worker):
            signaled(begun)
            for _ in range(3):
                worker.beat()
            go.set()
            until(lambda: not worker.pumps[0].held(), what="its end")

        row = jobs.standing(ledger, job_id)
        assert (row.status, row.result, row.last_error_code) == (
            JobStatus.SUCCEEDED,
            "ended",
            None,
        )
        assert notes_kept(ledger) == ["after"]
        jobs.assert_replayed(ledger, job_id)

    def test_progress_in_the_transaction_that_ends_it(self, ledger: Ledger) -> None:
        """Progress would wait for that transaction: it is refused at once."""
        refused: list[object] = []

        @ledger.job("a")
        def work(job: Job) -> None:
            with job.transaction():
                refused.append(_raised(lambda: job.progress(0.5)))
            refused.append(_raised(lambda: job.progress(1)))

        @ledger.job("b")
        def joined(job: Job) -> None:
            with ledger.transaction() as tx:
                job.complete(tx)
                refused.append(_raised(lambda: job.progress(0.5)))

        ids = [jobs.enqueue(ledger, name, max_attempts=1) for name in "ab"]
        ledger.worker().tick()

        assert {jobs.standing(ledger, i).status for i in ids} == {JobStatus.SUCCEEDED}
        assert refused == [NotAllowedNow] * 3

    def test_a_step_of_a_job_that_has_ended(self, ledger: Ledger) -> None:
        """A new step would wait for the transaction that ended the job: it is refused, not done."""
        refused: list[object] = []
        done: list[int] = []

        @ledger.job("a")
        def work(job: Job) -> None:
            job.step("early", lambda: done.append(1))
            with ledger.transaction() as tx:
                job.complete(tx)
                job.step("early", lambda: done.append(2))
                refused.append(_raised(lambda: job.step("late", lambda: done.append(3))))

        job_id = jobs.enqueue(ledger, "a", max_attempts=1)
        ledger.worker().tick()

        assert jobs.standing(ledger, job_id).status is JobStatus.SUCCEEDED
        assert (refused, done) == ([NotAllowedNow], [1])


class _Timed(ChoreSource):
    """Chores whose handlers may take so long."""

    def __init__(self, handler: Handler, seconds: float) -> None:
        super().__init__(handler)
        self._seconds = seconds

    def claim(self, tx: Any, ask: Any) -> list[Claim]:
        claims = super().claim(tx, ask)
        return [msgspec.structs.replace(each, timeout_seconds=self._seconds) for each in claims]


def _write(tx: Transaction, *, name: str) -> None:
    tx.connection.execute(insert(note).values(name=name, count=1))


def _raised(call: Callable[[], object]) -> type[BaseException] | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - which one is what is asked
        return type(error)
    return None


def _is_told(worker: Worker) -> bool:
    return any(attempt.told_at is not None for attempt in worker.pumps[0].attempts)
