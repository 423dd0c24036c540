"""The job contract, inside a handler: progress, steps, one commit, and a claim that was lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.orm import Session

from ledgerstone.engine.source import Cancel, OutcomeKind, Snooze
from ledgerstone.errors import BadInput, LeaseLost, NotAllowedNow
from ledgerstone.jobs import Job, Status
from ledgerstone.ledger import Ledger
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.contract.jobs.examples import (
    GRACE,
    assert_replayed,
    claim,
    drain,
    enqueue,
    history_of,
    nothing,
    settle,
    standing,
    take_away,
    tick,
)
from tests.harness.ledgers import Undone
from tests.harness.own_table import OwnTable, note, notes_kept


class InsideContract(OwnTable):
    """What a handler can do with its job. Fixtures: `ledger`, `clock`."""

    def test_progress_is_seen_at_once(self, ledger: Ledger, clock: ManualClock) -> None:
        """Stage and progress are seen by others while the handler still runs."""
        seen: list[Any] = []

        @ledger.job("a")
        def work(job: Job) -> None:
            for fraction, stage in ((0, "reading"), (0.5, None), (1, "writing")):
                job.progress(fraction, stage)
                row = standing(ledger, job.id)
                seen.append((row.status, row.progress, row.stage))

        job_id = enqueue(ledger, work)

        tick(ledger)

        running = Status.RUNNING
        assert seen == [(running, 0, "reading"), (running, 0.5, "reading"), (running, 1, "writing")]
        assert_replayed(ledger, job_id)

    @pytest.mark.parametrize("half", [Decimal("0.5"), Fraction(1, 2)], ids=repr)
    def test_progress_is_a_number(self, ledger: Ledger, clock: ManualClock, half: Any) -> None:
        """A number of any kind is the same number in the row and in the history."""

        @ledger.job("a")
        def work(job: Job) -> None:
            job.progress(half)

        job_id = enqueue(ledger, work)

        tick(ledger)

        assert standing(ledger, job_id).progress == 0.5
        assert_replayed(ledger, job_id)

    def test_progress_has_bounds(self, ledger: Ledger, clock: ManualClock) -> None:
        """Progress is 0 to 1, a stage has a name of its length; else nothing is written."""
        refused: list[Any] = []

        @ledger.job("a")
        def work(job: Job) -> None:
            odd: list[Any] = [-0.1, 1.1, float("nan"), Decimal("sNaN"), 10**400, True, "0.5", None]
            stages = ["", "s" * 101, "a\0"]
            for fraction, stage in [*((n, None) for n in odd), *((0.5, name) for name in stages)]:
                try:
                    job.progress(fraction, stage)
                except BadInput:
                    refused.append((fraction, stage))

        job_id = enqueue(ledger, work)

        tick(ledger)

        assert len(refused) == 11
        row = standing(ledger, job_id)
        assert (row.status, row.progress, row.stage) == (Status.SUCCEEDED, None, None)

    def test_steps_are_remembered(self, ledger: Ledger, clock: ManualClock) -> None:
        """A finished step is not done again, in this attempt or another; one that raised is."""
        done: list[str] = []
        alike: list[bool] = []

        @ledger.job("a", max_attempts=3)
        def work(job: Job) -> list[Any]:
            first = job.step("charge", _noted, done, "charge", amount=5)
            again = job.step("charge", _noted, done, "charge", amount=6)
            # The first answer, too, is as it will be in another attempt.
            alike.append(first == again)
            second = job.step("ship", _at_last, done, job.attempt)
            return [first, again, second]

        job_id = enqueue(ledger, work)

        drain(ledger.worker(), clock)

        row = standing(ledger, job_id)
        assert done == ["charge", "ship", "ship", "ship"]
        assert alike == [True] * 3
        assert (row.status, row.attempt) == (Status.SUCCEEDED, 3)
        assert row.result == [{"amount": 5, "pair": [1, 2]}, {"amount": 5, "pair": [1, 2]}, None]

    def test_steps_belong_to_their_job(self, ledger: Ledger, clock: ManualClock) -> None:
        """The same step of two jobs is two steps, also after a retry by hand each has its own."""
        done: list[str] = []

        @ledger.job("a", max_attempts=1)
        def work(job: Job) -> None:
            job.step("once", done.append, job.id)
            if done.count(job.id) + len(history_of(ledger, job.id)) < 5:
                raise ValueError

        ids = [enqueue(ledger, work) for _ in range(2)]
        worker = ledger.worker()
        worker.tick()
        for job_id in ids:
            ledger.run(lambda tx, key=job_id: tx.jobs.retry(key))  # type: ignore[misc]
        worker.tick()

        assert sorted(done) == sorted(ids)
        assert {standing(ledger, job_id).status for job_id in ids} == {Status.SUCCEEDED}

    def test_a_step_that_two_threads_do(self, ledger: Ledger, clock: ManualClock) -> None:
        """If the same step is finished twice at once, one answer counts and both are given it."""
        both = threading.Barrier(2, timeout=WAIT_SECONDS_MAX)

        def meet(number: int) -> int:
            both.wait()
            return number

        @ledger.job("a")
        def work(job: Job) -> list[int]:
            with ThreadPoolExecutor(2) as threads:
                return list(threads.map(lambda number: job.step("meet", meet, number), (1, 2)))

        job_id = enqueue(ledger, work)

        tick(ledger)

        row = standing(ledger, job_id)
        assert row.status is Status.SUCCEEDED
        assert row.result in ([1, 1], [2, 2])

    def test_a_step_decides_nothing(self, ledger: Ledger, clock: ManualClock) -> None:
        """What a handler returns to put its job off or end it is no answer of a step."""
        for number, answer in enumerate((Snooze(5), Cancel())):
            ledger.kinds.add(f"a{number}", _answering(answer), max_attempts=1)
        ids = [enqueue(ledger, f"a{number}") for number in range(2)]

        tick(ledger)

        rows = [standing(ledger, job_id) for job_id in ids]
        assert {row.status for row in rows} == {Status.DEAD_LETTER}
        assert all("for the handler to return" in (row.last_error_message or "") for row in rows)

    def test_one_commit(self, ledger: Ledger, clock: ManualClock) -> None:
        """The handler's rows, the job that follows and the success are one commit."""
        before: list[Any] = []

        @ledger.job("a")
        def work(job: Job) -> dict[str, int]:
            with job.transaction(result={"n": 1}) as tx:
                tx.connection.execute(insert(note).values(name="mine", count=1))
                tx.jobs.enqueue("elsewhere", {"after": job.id}, key="next")
                before.append((notes_kept(ledger), standing(ledger, job.id).status))
            before.append((notes_kept(ledger), standing(ledger, job.id).status))
            return {"n": 1}

        job_id = enqueue(ledger, work)

        (step,) = tick(ledger)

        row = standing(ledger, job_id)
        assert before == [([], Status.RUNNING), (["mine"], Status.SUCCEEDED)]
        assert (row.status, row.result, step.refused) == (Status.SUCCEEDED, {"n": 1}, 0)
        with ledger.reading() as tx:
            (following,) = tx.jobs.find(key="next").rows
        assert following.payload == {"after": job_id}
        ended = history_of(ledger, job_id)[-1]
        assert ended.next_status == "succeeded"
        assert ended.detail.get("worker") != "None"
        assert_replayed(ledger, job_id)

    def test_one_rollback(self, ledger: Ledger, clock: ManualClock) -> None:
        """If the block raises, nothing of it is kept and the attempt has failed."""

        @ledger.job("a", max_attempts=1)
        def work(job: Job) -> None:
            with job.transaction() as tx:
                tx.connection.execute(insert(note).values(name="mine", count=1))
                tx.jobs.enqueue("elsewhere", key="next")
                message = "too late"
                raise ValueError(message)

        job_id = enqueue(ledger, work)

        tick(ledger)

        assert notes_kept(ledger) == []
        with ledger.reading() as tx:
            assert tx.jobs.find(key="next").rows == []
        row = standing(ledger, job_id)
        assert (row.status, row.last_error_message) == (Status.DEAD_LETTER, "too late")

    @pytest.mark.parametrize("ending", ["commit", "rollback"])
    def test_one_that_is_ended_inside(
        self, ledger: Ledger, clock: ManualClock, ending: str
    ) -> None:
        """If the block ends its transaction, nothing is kept, and the attempt has failed of it."""

        @ledger.job("a", max_attempts=1)
        def work(job: Job) -> None:
            with job.transaction(result="billed") as tx:
                tx.jobs.enqueue("elsewhere", key="next")
                with Session(tx.connection, join_transaction_mode="control_fully") as session:
                    session.execute(insert(note).values(name="mine", count=1))
                    (session.commit if ending == "commit" else session.rollback)()

        job_id = enqueue(ledger, work)

        tick(ledger)

        row = standing(ledger, job_id)
        assert notes_kept(ledger) == []
        with ledger.reading() as tx:
            assert tx.jobs.find(key="next").rows == []
        assert (row.status, row.result) == (Status.DEAD_LETTER, None)
        assert row.last_error_code == "not_allowed_now"
        assert "savepoint" in str(row.last_error_message)
        assert_replayed(ledger, job_id)

    def test_a_job_ends_once(self, ledger: Ledger, clock: ManualClock) -> None:
        """A job that has ended cannot be ended again: that is refused before anything is done."""
        begun: list[str] = []

        @ledger.job("a")
        def work(job: Job) -> None:
            with job.transaction():
                pass
            with pytest.raises(NotAllowedNow), job.transaction() as tx:
                begun.append(job.id)
                tx.connection.execute(insert(note).values(name="second", count=1))

        job_id = enqueue(ledger, work)

        tick(ledger)

        assert standing(ledger, job_id).status is Status.SUCCEEDED
        assert notes_kept(ledger) == []
        assert begun == []

    def test_an_end_that_was_undone(self, ledger: Ledger, clock: ManualClock) -> None:
        """After a transaction that raised, and so did not end the job, another one may."""

        @ledger.job("a")
        def work(job: Job) -> None:
            with suppress(Undone), job.transaction() as tx:
                tx.connection.execute(insert(note).values(name="first", count=1))
                raise Undone
            with job.transaction(result=2) as tx:
                tx.connection.execute(insert(note).values(name="second", count=1))

        job_id = enqueue(ledger, work)

        tick(ledger)

        row = standing(ledger, job_id)
        assert (row.status, row.result) == (Status.SUCCEEDED, 2)
        assert notes_kept(ledger) == ["second"]

    def test_no_end_within_the_end(self, ledger: Ledger, clock: ManualClock) -> None:
        """A second transaction that ends a job is refused inside the first, which goes on."""

        @ledger.job("a")
        def work(job: Job) -> None:
            with job.transaction() as tx:
                with pytest.raises(NotAllowedNow, match="open already"), job.transaction():
                    pass
                tx.connection.execute(insert(note).values(name="outer", count=1))

        job_id = enqueue(ledger, work)

        tick(ledger)

        assert standing(ledger, job_id).status is Status.SUCCEEDED
        assert notes_kept(ledger) == ["outer"]

    def test_a_failure_after_the_end(self, ledger: Ledger, clock: ManualClock) -> None:
        """A job that was ended stays so; what its handler raised after that is on record."""

        @ledger.job("a")
        def work(job: Job) -> None:
            with job.transaction():
                pass
            message = "too late"
            raise ValueError(message)

        job_id = enqueue(ledger, work)

        tick(ledger)

        last = history_of(ledger, job_id)[-1]
        assert standing(ledger, job_id).status is Status.SUCCEEDED
        assert (last.prev_status, last.next_status) == ("succeeded", "succeeded")
        assert last.detail["error"]["message"] == "too late"
        assert "raise ValueError" in last.detail["error"]["traceback"]
        assert_replayed(ledger, job_id)

    def test_completed_in_a_session_of_ones_own(self, ledger: Ledger, clock: ManualClock) -> None:
        """`complete` ends the job in the caller's own session, with what that one commits."""
        engine = ledger.database.engine

        @ledger.job("a")
        def work(job: Job) -> None:
            with Session(engine) as session:
                session.execute(insert(note).values(name="mine", count=1))
                job.complete(ledger.join(session), {"n": 2})
                session.commit()

        job_id = enqueue(ledger, work)

        (step,) = tick(ledger)

        row = standing(ledger, job_id)
        assert (row.status, row.result, step.refused) == (Status.SUCCEEDED, {"n": 2}, 0)
        assert notes_kept(ledger) == ["mine"]
        assert_replayed(ledger, job_id)

    def test_completed_and_not_committed(self, ledger: Ledger, clock: ManualClock) -> None:
        """A handler that returns without committing its `complete` has failed, and says why."""
        engine = ledger.database.engine

        @ledger.job("a", max_attempts=1)
        def work(job: Job) -> None:
            with Session(engine) as session:
                session.execute(insert(note).values(name="mine", count=1))
                job.complete(ledger.join(session))

        job_id = enqueue(ledger, work)

        tick(ledger)

        row = standing(ledger, job_id)
        assert (row.status, row.last_error_code) == (Status.DEAD_LETTER, "not_allowed_now")
        assert "did not commit" in str(row.last_error_message)
        assert notes_kept(ledger) == []
        assert_replayed(ledger, job_id)

    @pytest.mark.parametrize("committed", [False, True])
    def test_completed_twice(self, ledger: Ledger, clock: ManualClock, committed: bool) -> None:
        """After a rollback a job is completed in another transaction; after a commit in none."""
        engine = ledger.database.engine

        def complete(job: Job, name: str, *, commit: bool) -> None:
            with Session(engine) as session:
                session.execute(insert(note).values(name=name, count=1))
                job.complete(ledger.join(session), name)
                if commit:
                    session.commit()

        @ledger.job("a")
        def work(job: Job) -> None:
            complete(job, "first", commit=committed)
            with pytest.raises(NotAllowedNow) if committed else nullcontext():
                complete(job, "second", commit=True)

        job_id = enqueue(ledger, work)

        tick(ledger)

        row = standing(ledger, job_id)
        kept = "first" if committed else "second"
        assert (row.status, row.result) == (Status.SUCCEEDED, kept)
        assert notes_kept(ledger) == [kept]
        assert_replayed(ledger, job_id)

    @pytest.mark.parametrize("attempt", [2, 1], ids=["next-attempt", "same-attempt"])
    def test_a_lost_claim(self, ledger: Ledger, clock: ManualClock, attempt: int) -> None:
        """Whoever lost the claim gets LeaseLost everywhere, changes nothing, and is on record."""
        refused: list[str] = []

        @ledger.job("a")
        def work(job: Job) -> str:
            if attempt == job.attempt:
                # The worker gave the job back, which refunds the attempt.
                settle(ledger, source, worker.pumps[0].held()[job.id], OutcomeKind.RETURNED)
                claim(ledger, source, worker=GRACE)
            else:
                take_away(ledger, job.id)
            acts: dict[str, Callable[[], object]] = {
                "progress": lambda: job.progress(0.5, "late"),
                "step": lambda: job.step("late", nothing),
                "transaction": lambda: _leave(job),
                "canceled": lambda: job.canceled,
            }
            for name, act in acts.items():
                try:
                    act()
                except LeaseLost:
                    refused.append(name)
            return "late"

        source = ledger.job_source()
        worker = ledger.worker(source)
        job_id = enqueue(ledger, work)

        (step,) = worker.tick()

        worker.stop(grace_seconds=0)
        row = standing(ledger, job_id)
        assert refused == ["progress", "step", "transaction", "canceled"]
        assert (row.status, row.attempt, row.worker) == (Status.RUNNING, attempt, GRACE)
        assert (row.progress, row.stage, row.result) == (None, None, None)
        assert notes_kept(ledger) == []
        assert step.refused == 1
        assert "too late" in history_of(ledger, job_id)[-1].detail["refused"]
        assert_replayed(ledger, job_id)

    def test_a_claim_that_was_given_back(self, ledger: Ledger, clock: ManualClock) -> None:
        """A handler whose job was returned behind its back cannot end it, nor commit with it."""
        refused: list[type[BaseException]] = []

        @ledger.job("a")
        def work(job: Job) -> str:
            settle(ledger, source, worker.pumps[0].held()[job.id], OutcomeKind.RETURNED)
            try:
                _leave(job)
            except LeaseLost as error:
                refused.append(type(error))
            return "late"

        source = ledger.job_source()
        worker = ledger.worker(source)
        job_id = enqueue(ledger, work)

        (step,) = worker.tick()

        row = standing(ledger, job_id)
        assert refused == [LeaseLost]
        assert notes_kept(ledger) == []
        assert (row.status, row.attempt, row.result) == (Status.QUEUED, 0, None)
        assert step.refused == 1
        assert "too late" in history_of(ledger, job_id)[-1].detail["refused"]
        assert_replayed(ledger, job_id)
        worker.stop(grace_seconds=0)


def _noted(done: list[str], name: str, *, amount: int) -> dict[str, Any]:
    done.append(name)
    return {"amount": amount, "pair": (1, 2)}


def _at_last(done: list[str], attempt: int) -> None:
    done.append("ship")
    if attempt < 3:
        raise ValueError(attempt)


def _leave(job: Job) -> None:
    with job.transaction() as tx:
        tx.connection.execute(insert(note).values(name="late", count=1))


def _answering(answer: Any) -> Callable[[Job], Any]:
    def work(job: Job) -> Any:
        return job.step("decide", lambda: answer)

    return work
