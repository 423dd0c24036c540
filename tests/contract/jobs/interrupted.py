"""The job contract, an async handler that waits: the loop goes on, and nothing is half done."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Iterator
from traceback import walk_stack

import pytest
from sqlalchemy import insert

from ledgerstone.engine.worker import Worker
from ledgerstone.jobs import AsyncJob, Status
from ledgerstone.jobs.handlers.async_job import THREAD
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.settings import Settings
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.contract.jobs.async_jobs import ACTS
from tests.contract.jobs.examples import (
    assert_replayed,
    count,
    enqueue,
    history_of,
    standing,
)
from tests.harness.ledgers import opened
from tests.harness.own_table import note, notes_kept, tables
from tests.harness.threads import signaled
from tests.harness.workers import started

STORE = {"pool_size_max": 1}
TURNS = 5
"""Of a loop, after which whoever was told something has heard it."""


class InterruptedContract:
    """What happens while an async handler waits for the database. Fixtures: `home`."""

    @pytest.fixture
    def ledger(self, home: Home) -> Iterator[Ledger]:
        """One whose handlers share a connection: who holds it keeps the others waiting."""
        with opened(home.url, store=STORE) as ledger:
            tables.create_all(ledger.database.engine)
            yield ledger

    @pytest.fixture
    def watcher(self, home: Home) -> Iterator[Ledger]:
        """A ledger on the same database, to look at what becomes of it."""
        with Ledger(home.url, settings=Settings.load(url=home.url, environ={})) as ledger:
            yield ledger

    @pytest.mark.parametrize("act", ["progress", "step", "canceled", "transaction"])
    def test_the_loop_goes_on(self, ledger: Ledger, watcher: Ledger, act: str) -> None:
        """While one handler waits for the database, others on its loop go on."""
        scene = _Scene()

        @ledger.job("a")
        async def work(job: AsyncJob) -> None:
            await scene.ready()
            waiting = asyncio.ensure_future(ACTS[act](job))
            await _turns()
            scene.going_on.set()
            await waiting

        job_id = enqueue(watcher, "a", max_attempts=1)

        with started(ledger.worker()):
            scene.begin()
            with ledger.reading():
                scene.go()
                signaled(scene.going_on)
                meanwhile = standing(watcher, job_id)
            until(lambda: standing(watcher, job_id).status is Status.SUCCEEDED)

        assert (meanwhile.status, meanwhile.progress) == (Status.RUNNING, None)
        assert_replayed(watcher, job_id)

    @pytest.mark.parametrize("act", ["progress", "step", "canceled", "transaction"])
    def test_told_while_it_waits(self, ledger: Ledger, watcher: Ledger, act: str) -> None:
        """Who is told to stop hears of it when the database has answered; nothing is half done."""
        scene, heard = _Scene(), list[type[BaseException]]()

        @ledger.job("a")
        async def work(job: AsyncJob) -> str | None:
            if heard:
                return "again"
            await scene.ready()
            try:
                await ACTS[act](job)
            except BaseException as error:
                heard.append(type(error))
                raise
            return None

        job_id = enqueue(watcher, "a", max_attempts=1)
        worker = ledger.worker()

        with started(worker):
            scene.begin()
            with ledger.reading():
                scene.go()
                until(_waits_for_a_connection)
                scene.lose(worker)
                before = list(heard)
            until(lambda: standing(watcher, job_id).status is Status.SUCCEEDED)
            ledger.run(lambda tx: tx.connection.execute(insert(note).values(name="free", count=1)))

        row = standing(watcher, job_id)
        assert (before, heard) == ([], [asyncio.CancelledError])
        assert (row.attempt, row.result) == (1, "again")
        assert _returned_for(watcher, job_id) == ["lease_lost"]
        assert notes_kept(watcher) == ["free"]
        assert_replayed(watcher, job_id)

    @pytest.mark.parametrize("act", ["progress", "step", "transaction"])
    def test_cancelled_while_it_waits(self, ledger: Ledger, watcher: Ledger, act: str) -> None:
        """After a timeout of its own a handler goes on where the database has left it."""
        scene = _Scene()

        @ledger.job("a")
        async def work(job: AsyncJob) -> None:
            await scene.ready()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(None) as scene.limit, asyncio.TaskGroup() as group:
                    group.create_task(ACTS[act](job))
                    group.create_task(job.progress(0.75))
            await job.progress(1)
            async with job.transaction("late"):
                pass

        job_id = enqueue(watcher, "a", max_attempts=1)

        with started(ledger.worker()):
            scene.begin()
            with ledger.reading():
                scene.go()
                until(_waits_for_a_connection)
                scene.call_time()
            until(lambda: standing(watcher, job_id).status is not Status.RUNNING)

        row = standing(watcher, job_id)
        assert (row.status, row.result, row.progress) == (Status.SUCCEEDED, "late", 1)
        assert 0.75 not in [event.detail.get("progress") for event in history_of(watcher, job_id)]
        assert_replayed(watcher, job_id)

    def test_told_inside_its_transaction(self, ledger: Ledger, watcher: Ledger) -> None:
        """What was written before is undone, also what the database was still at work on."""
        scene = _Scene()

        @ledger.job("a")
        async def work(job: AsyncJob) -> None:
            if scene.leave.is_set():
                return
            await scene.ready()
            async with job.transaction() as tx:
                await tx.jobs.enqueue("elsewhere", key="next")
                await tx.run(scene.slowly)

        job_id = enqueue(watcher, "a", max_attempts=1)
        worker = ledger.worker()

        with started(worker):
            scene.begin()
            scene.go()
            signaled(scene.inside)
            scene.lose(worker)
            meanwhile = standing(watcher, job_id).status
            scene.leave.set()
            until(lambda: standing(watcher, job_id).status is Status.SUCCEEDED)

        assert meanwhile is Status.RUNNING
        assert _returned_for(watcher, job_id) == ["lease_lost"]
        assert notes_kept(watcher) == []
        assert count(watcher, "job") == 1
        assert_replayed(watcher, job_id)

    def test_told_while_it_commits(self, ledger: Ledger, watcher: Ledger) -> None:
        """A commit that has begun is all of it: the handler is not canceled any more."""
        scene, ended = _Scene(), threading.Event()

        @ledger.job("a")
        async def work(job: AsyncJob) -> None:
            await scene.ready()
            async with job.transaction({"n": 1}) as tx:
                await tx.run(lambda tx: tx.at_commit("slow", lambda: scene.slowly(tx)))
            await _turns()
            ended.set()

        job_id = enqueue(watcher, "a", max_attempts=1)
        worker = ledger.worker()

        with started(worker):
            scene.begin()
            scene.go()
            signaled(scene.inside)
            scene.lose(worker)
            scene.leave.set()
            signaled(ended)

        row = standing(watcher, job_id)
        assert (row.status, row.result, row.last_error_code) == (
            Status.SUCCEEDED,
            {"n": 1},
            None,
        )
        assert notes_kept(watcher) == ["slow"]
        assert_replayed(watcher, job_id)

    @pytest.mark.slow
    def test_a_worker_that_does_not_wait(self, home: Home, watcher: Ledger) -> None:
        """When a worker stops without its handler, the handler's transaction is undone."""
        scene = _Scene()
        impatient = {**STORE, "busy_timeout_seconds": 0.2, "transaction_tries_max": 1}

        with opened(home.url, store=impatient) as ledger:
            tables.create_all(ledger.database.engine)

            @ledger.job("a")
            async def work(job: AsyncJob) -> None:
                await scene.ready()
                async with job.transaction() as tx:
                    await tx.run(scene.slowly)

            job_id = enqueue(watcher, "a")
            worker = ledger.worker()
            worker.start()
            scene.begin()
            scene.go()
            signaled(scene.inside)

            worker.stop(grace_seconds=0)
            scene.leave.set()

            kept = notes_kept(ledger)
            watcher.run(lambda tx: tx.connection.execute(insert(note).values(name="b", count=1)))
        assert (kept, notes_kept(watcher)) == ([], ["b"])
        assert standing(watcher, job_id).status in {Status.QUEUED, Status.RUNNING}
        assert_replayed(watcher, job_id)


class _Scene:
    """A handler on its loop and a test beside it, who wait for each other."""

    def __init__(self) -> None:
        self.going_on = threading.Event()
        self.inside = threading.Event()
        self.leave = threading.Event()
        self.limit = asyncio.Timeout(None)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._go: asyncio.Event | None = None

    async def ready(self) -> None:
        """In the handler: it is there, and waits for the test."""
        self._loop, self._go = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._go.wait()

    def slowly(self, tx: Transaction) -> None:
        """In the handler's transaction: write, and wait for the test."""
        tx.connection.execute(insert(note).values(name="slow", count=1))
        self.inside.set()
        signaled(self.leave)

    def begin(self) -> None:
        """In the test: wait until the handler is there."""
        signaled(self._ready)

    def go(self) -> None:
        """In the test: let it go on, until it has to wait again."""
        assert self._loop is not None
        assert self._go is not None
        self._loop.call_soon_threadsafe(self._go.set)
        self.take_turns()

    def lose(self, worker: Worker) -> None:
        """In the test: its handler is told that the claim is another's."""
        (pump,) = worker.pumps
        (claim,) = pump.held().values()
        pump.lose(claim)
        self.take_turns()

    def call_time(self) -> None:
        """In the test: the limit that the handler has set itself is over."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(lambda: self.limit.reschedule(0))
        self.take_turns()

    def take_turns(self) -> None:
        """In the test: let the loop go on a little."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(_turns(), self._loop).result(WAIT_SECONDS_MAX)


def _returned_for(ledger: Ledger, job_id: str) -> list[str]:
    """Why it was returned, each time."""
    events = history_of(ledger, job_id)
    back = [each for each in events[1:] if each.next_status == "queued"]
    return [each.detail["error"]["code"] for each in back]


def _waits_for_a_connection() -> bool:
    """Whether the thread of an async job has come to the pool, and has to wait there."""
    # Python before 3.11.8 and 3.12.1 stands still if it collects garbage in the middle of this.
    gc.disable()
    try:
        frames = sys._current_frames()
    finally:
        gc.enable()
    return any(
        frame.f_globals["__name__"] == "sqlalchemy.util.queue"
        for thread in threading.enumerate()
        if thread.name == THREAD and thread.ident is not None
        for frame, _ in walk_stack(frames.get(thread.ident))
    )


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
