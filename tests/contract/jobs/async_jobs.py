"""The job contract, inside an async handler: what a plain one can do, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from ledgerstone.errors import BadInput, LeaseLost, NotAllowedNow
from ledgerstone.jobs import AsyncJob, Cancel, Job, Status
from ledgerstone.jobs.handlers import async_job as jobs_awaited
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.settings import Settings
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from tests.contract.jobs.examples import (
    GRACE,
    assert_replayed,
    count,
    drain,
    enqueue,
    history_of,
    standing,
    take_away,
    tick,
)
from tests.harness.joinable import async_url, url_for
from tests.harness.own_table import OwnTable, note, notes_kept, tables


class AwaitedContract(OwnTable):
    """What an async handler can do with its job. Fixtures: `ledger`, `clock`."""

    def test_progress_is_seen_at_once(self, ledger: Ledger, clock: ManualClock) -> None:
        """Stage and progress are seen by others while the handler still runs."""
        seen: list[Any] = []

        @ledger.job("a")
        async def work(job: AsyncJob) -> None:
            for fraction, stage in ((0, "reading"), (0.5, None), (1, "writing")):
                await job.progress(fraction, stage)
                row = standing(ledger, job.id)
                seen.append((row.status, row.progress, row.stage))
            with pytest.raises(BadInput):
                await job.progress(2)

        job_id = enqueue(ledger, work)

        tick(ledger)

        running = Status.RUNNING
        assert seen == [(running, 0, "reading"), (running, 0.5, "reading"), (running, 1, "writing")]
        assert standing(ledger, job_id).status is Status.SUCCEEDED
        assert_replayed(ledger, job_id)

    def test_the_job_knows_where_it_comes_from(self, ledger: Ledger, clock: ManualClock) -> None:
        """An async handler sees of its job what another one sees."""
        seen: list[dict[str, Any]] = []
        given = {"requested_by": "ada", "correlation_id": "c-1", "trace_context": "00-ab-cd-01"}

        def look(job: Job) -> None:
            seen.append(_facts(job))

        async def look_too(job: AsyncJob) -> None:
            seen.append(_facts(job))

        ledger.kinds.add("a", look)
        ledger.kinds.add("b", look_too)
        ids = [enqueue(ledger, call, **given) for call in (look, look_too)]

        tick(ledger)

        plain, awaited = seen
        assert [facts.pop("id") for facts in seen] == ids
        assert [facts.pop("type") for facts in seen] == ["a", "b"]
        assert plain == awaited
        assert given.items() <= plain.items()

    def test_a_wish_to_cancel(self, ledger: Ledger, clock: ManualClock) -> None:
        """A running job that was asked to stop hears of it when it asks."""
        seen: list[bool] = []

        @ledger.job("a")
        async def work(job: AsyncJob) -> Any:
            seen.append(await job.canceled)
            ledger.run(lambda tx: tx.jobs.cancel(job.id))
            seen.append(await job.canceled)
            clock.advance(1)
            seen.append(await job.canceled)
            return Cancel("as asked")

        job_id = enqueue(ledger, work)

        tick(ledger)

        assert seen == [False, False, True]
        assert standing(ledger, job_id).status is Status.CANCELED

    def test_steps_are_remembered(self, ledger: Ledger, clock: ManualClock) -> None:
        """A finished step, async or not, is not done again in another attempt; others are."""
        done: list[str] = []

        async def fetch(name: str, *, amount: int) -> dict[str, Any]:
            await asyncio.sleep(0)
            done.append(name)
            return {"amount": amount, "pair": (1, 2)}

        def note_down(name: str) -> str:
            done.append(name)
            return name

        @ledger.job("a", max_attempts=3)
        async def work(job: AsyncJob) -> list[Any]:
            answers = [
                await job.step("fetched", fetch, "fetched", amount=5),
                await job.step("fetched", fetch, "again", amount=6),
                await job.step("noted", note_down, "noted"),
                await job.step("made", lambda: fetch("made", amount=7)),
                *await asyncio.gather(
                    *[job.step(name, fetch, name, amount=1) for name in ("left", "right")]
                ),
            ]
            done.append(f"attempt {job.attempt}")
            if job.attempt < 3:
                raise ValueError(job.attempt)
            return [answer["amount"] if isinstance(answer, dict) else answer for answer in answers]

        job_id = enqueue(ledger, work)

        drain(ledger.worker(), clock)

        row = standing(ledger, job_id)
        assert sorted(done[:5]) == ["fetched", "left", "made", "noted", "right"]
        assert done[5:] == ["attempt 1", "attempt 2", "attempt 3"]
        assert (row.status, row.result) == (Status.SUCCEEDED, [5, 5, "noted", 7, 1, 1])

    def test_a_step_that_raises(self, ledger: Ledger, clock: ManualClock) -> None:
        """What a step raises is raised where it is awaited, and it is not remembered."""
        seen: list[str] = []

        def plain() -> None:
            raise StopIteration

        async def awaited() -> None:
            raise KeyError

        @ledger.job("a")
        async def work(job: AsyncJob) -> None:
            for call in (plain, awaited):
                try:
                    await job.step("odd", call)
                except (RuntimeError, KeyError) as error:
                    seen.append(type(error).__name__)

        job_id = enqueue(ledger, work)

        tick(ledger)

        assert seen == ["RuntimeError", "KeyError"]
        assert count(ledger, "job_step") == 0
        assert standing(ledger, job_id).status is Status.SUCCEEDED

    def test_an_async_step_of_a_plain_handler(self, ledger: Ledger, clock: ManualClock) -> None:
        """A handler that cannot await a step is told so, and nothing is remembered."""
        refused: list[str] = []

        async def fetch(number: int = 7) -> int:
            return number

        @ledger.job("a")
        def work(job: Job) -> None:
            for call in (fetch, lambda: fetch(8)):
                try:
                    job.step("fetched", call)  # type: ignore[unused-coroutine]
                except BadInput as error:
                    refused.append(str(error))

        enqueue(ledger, work)

        tick(ledger)

        assert len(refused) == 2
        assert all("AsyncJob" in words for words in refused)
        assert count(ledger, "job_step") == 0

    def test_one_commit(self, ledger: Ledger, clock: ManualClock) -> None:
        """The handler's rows, the job that follows and the success are one commit."""
        before: list[Any] = []

        @ledger.job("a")
        async def work(job: AsyncJob) -> dict[str, int]:
            async with job.transaction(result={"n": 1}) as tx:
                await tx.run(_insert)
                await tx.jobs.enqueue("elsewhere", {"after": job.id}, key="next")
                before.append((notes_kept(ledger), standing(ledger, job.id).status))
            before.append((notes_kept(ledger), standing(ledger, job.id).status))
            with pytest.raises(NotAllowedNow):
                await tx.run(_insert)
            return {"n": 1}

        job_id = enqueue(ledger, work)

        (step,) = tick(ledger)

        row = standing(ledger, job_id)
        assert before == [([], Status.RUNNING), (["mine"], Status.SUCCEEDED)]
        assert (row.status, row.result, step.refused) == (Status.SUCCEEDED, {"n": 1}, 0)
        with ledger.reading() as tx:
            (following,) = tx.jobs.find(key="next").rows
        assert following.payload == {"after": job_id}
        assert_replayed(ledger, job_id)

    def test_one_rollback(self, ledger: Ledger, clock: ManualClock) -> None:
        """If the block raises, nothing of it is kept and the attempt has failed."""

        @ledger.job("a", max_attempts=1)
        async def work(job: AsyncJob) -> None:
            async with job.transaction() as tx:
                await tx.run(_insert)
                await tx.jobs.enqueue("elsewhere", key="next")
                message = "too late"
                raise ValueError(message)

        job_id = enqueue(ledger, work)

        tick(ledger)

        row = standing(ledger, job_id)
        assert (row.status, row.last_error_message) == (Status.DEAD_LETTER, "too late")
        assert notes_kept(ledger) == []
        assert count(ledger, "job") == 1

    def test_one_that_is_ended_inside(self, ledger: Ledger, clock: ManualClock) -> None:
        """If the block ends its transaction, nothing is kept, and the attempt has failed of it."""

        @ledger.job("a", max_attempts=1)
        async def work(job: AsyncJob) -> None:
            async with job.transaction() as tx:
                await tx.run(_insert)
                await tx.jobs.enqueue("elsewhere", key="next")
                await tx.run(lambda tx: tx.connection.rollback())

        job_id = enqueue(ledger, work)

        tick(ledger)

        row = standing(ledger, job_id)
        assert (row.status, row.last_error_code) == (Status.DEAD_LETTER, "not_allowed_now")
        assert notes_kept(ledger) == []
        assert count(ledger, "job") == 1

    def test_a_job_ends_once(self, ledger: Ledger, clock: ManualClock) -> None:
        """A job is ended by one transaction: a second is refused, beside the first or after it."""
        refused: list[str] = []

        @ledger.job("a")
        async def work(job: AsyncJob) -> None:
            async with job.transaction():
                await _refusal(refused, job)
            await _refusal(refused, job)

        job_id = enqueue(ledger, work)

        tick(ledger)

        assert [words.partition(" (")[0] for words in refused] == [
            "a transaction that ends this job is open already",
            "the job has ended already",
        ]
        assert standing(ledger, job_id).status is Status.SUCCEEDED
        assert notes_kept(ledger) == []

    def test_a_transaction_after_its_block(self, ledger: Ledger, clock: ManualClock) -> None:
        """What is asked of the job's transaction after its block is refused, and not done."""
        refused: list[str] = []

        @ledger.job("a")
        async def work(job: AsyncJob) -> None:
            async with job.transaction() as tx:
                pass
            try:
                await tx.jobs.enqueue("elsewhere")
            except NotAllowedNow as error:
                refused.append(error.message)

        job_id = enqueue(ledger, work)

        tick(ledger)

        assert refused == ["the transaction of the job has ended"]
        assert standing(ledger, job_id).status is Status.SUCCEEDED
        assert count(ledger, "job") == 1

    def test_calls_that_never_begin(
        self, ledger: Ledger, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A call whose task was cancelled counts as awaited; others are bounded in number."""
        monkeypatch.setattr(jobs_awaited, "UNAWAITED_MAX", 3)
        made: list[int] = []

        @ledger.job("cancelled")
        async def cancelled(job: AsyncJob) -> None:
            for _ in range(5):
                task = asyncio.ensure_future(job.progress(0.5))
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

        @ledger.job("many", max_attempts=1)
        async def many(job: AsyncJob) -> None:
            for number in range(5):
                job.progress(0.5)  # type: ignore[unused-coroutine]
                made.append(number)

        ids = [enqueue(ledger, call) for call in (cancelled, many)]

        tick(ledger)

        rows = [standing(ledger, job_id) for job_id in ids]
        assert [row.status for row in rows] == [Status.SUCCEEDED, Status.DEAD_LETTER]
        assert made == [0, 1, 2]
        assert "3 calls of this job" in str(rows[1].last_error_message)

    def test_calls_that_were_not_awaited(self, ledger: Ledger, clock: ManualClock) -> None:
        """What an async handler does not await fails its attempt, and says what to write."""
        said: list[str] = []

        @ledger.job("progress", max_attempts=1)
        async def progress(job: AsyncJob) -> None:
            job.progress(0.5)  # type: ignore[unused-coroutine]

        @ledger.job("step", max_attempts=1)
        async def step(job: AsyncJob) -> Any:
            return job.step("a", dict)

        @ledger.job("canceled", max_attempts=1)
        async def canceled(job: AsyncJob) -> Any:
            return Cancel() if job.canceled else None  # type: ignore[truthy-bool]

        @ledger.job("transaction", max_attempts=1)
        async def transaction(job: AsyncJob) -> None:
            with job.transaction():  # type: ignore[attr-defined]
                pass

        for call in (progress, step, canceled, transaction):
            job_id = enqueue(ledger, call)
            tick(ledger)
            row = standing(ledger, job_id)
            assert (row.status, row.last_error_code) == (Status.DEAD_LETTER, "not_allowed_now")
            said.append(row.last_error_message or "")

        hints = ("await job.progress(", "await job.step(", "if await job.canceled", "async with")
        assert [hint in words for hint, words in zip(hints, said, strict=True)] == [True] * 4

    def test_a_task_that_is_left_behind(self, ledger: Ledger, clock: ManualClock) -> None:
        """When the handler has returned, what a task of it has open is undone, and stays so."""
        refused: list[type[BaseException]] = []
        left: list[asyncio.Task[None]] = []

        async def linger(job: AsyncJob, entered: asyncio.Event) -> None:
            try:
                async with job.transaction() as tx:
                    await tx.run(_insert)
                    entered.set()
                    with suppress(asyncio.CancelledError):
                        await asyncio.Event().wait()
            except NotAllowedNow as error:
                refused.append(type(error))

        @ledger.job("a")
        async def work(job: AsyncJob) -> str:
            entered = asyncio.Event()
            left.append(asyncio.create_task(linger(job, entered)))
            await entered.wait()
            return "done"

        job_id = enqueue(ledger, work)

        tick(ledger)

        row = standing(ledger, job_id)
        assert refused == [NotAllowedNow]
        assert (row.status, row.result) == (Status.SUCCEEDED, "done")
        assert notes_kept(ledger) == []

    def test_a_lost_claim(self, ledger: Ledger, clock: ManualClock) -> None:
        """Whoever lost the claim gets LeaseLost everywhere, changes nothing, and is on record."""
        refused: list[str] = []

        @ledger.job("a")
        async def work(job: AsyncJob) -> str:
            take_away(ledger, job.id)
            for name, act in ACTS.items():
                try:
                    await act(job)
                except LeaseLost:
                    refused.append(name)
            return "late"

        job_id = enqueue(ledger, work)

        (step,) = tick(ledger)

        row = standing(ledger, job_id)
        assert refused == list(ACTS)
        assert (row.status, row.attempt, row.worker) == (Status.RUNNING, 2, GRACE)
        assert (row.progress, row.stage, row.result) == (None, None, None)
        assert notes_kept(ledger) == []
        assert step.refused == 1
        assert "too late" in history_of(ledger, job_id)[-1].detail["refused"]
        assert_replayed(ledger, job_id)


@pytest.mark.filterwarnings("ignore:SQLite .* has the WAL-reset bug:RuntimeWarning")
class AwaitedSessionContract:
    """An async job that ends in the user's own AsyncSession. Fixtures: `home`."""

    @pytest.mark.parametrize("commits", [True, False])
    def test_completed_in_a_session_of_ones_own(self, home: Home, commits: bool) -> None:
        """`complete` ends the job with what the session commits; without a commit it has failed."""
        url = url_for("async-session", home)

        with Ledger(url, settings=Settings.load(url=url, environ={})) as ledger:
            ledger.migrate()
            tables.create_all(ledger.database.engine)

            @ledger.job("a", max_attempts=1)
            async def work(job: AsyncJob) -> None:
                engine = create_async_engine(async_url(home.url))
                async with AsyncSession(engine) as session:
                    await session.execute(insert(note).values(name="mine", count=1))
                    with pytest.raises(BadInput, match="AsyncTransaction"):
                        await job.complete(session)  # type: ignore[arg-type]
                    await job.complete(ledger.join(session), {"n": 2})
                    await (session.commit() if commits else session.rollback())
                await engine.dispose()

            job_id = enqueue(ledger, work)

            tick(ledger)

            row = standing(ledger, job_id)
            status = Status.SUCCEEDED if commits else Status.DEAD_LETTER
            assert (row.status, row.result) == (status, {"n": 2} if commits else None)
            assert notes_kept(ledger) == (["mine"] if commits else [])
            assert_replayed(ledger, job_id)


async def _leave(job: AsyncJob) -> None:
    async with job.transaction():
        pass


async def _asked(job: AsyncJob) -> bool:
    return await job.canceled


def _insert(tx: Transaction) -> None:
    tx.connection.execute(insert(note).values(name="mine", count=1))


async def _refusal(refused: list[str], job: AsyncJob) -> None:
    """What is said when the handler opens another transaction that ends the job."""
    try:
        async with job.transaction() as tx:
            await tx.run(_insert)
    except NotAllowedNow as error:
        refused.append(str(error))


def _facts(job: Job | AsyncJob) -> dict[str, Any]:
    return {name: value for name, value in vars(job).items() if not name.startswith("_")}


ACTS: dict[str, Callable[[AsyncJob], Coroutine[Any, Any, Any]]] = {
    "progress": lambda job: job.progress(0.5, "late"),
    "step": lambda job: job.step("late", dict),
    "transaction": _leave,
    "canceled": _asked,
}
