"""The job contract, what a handler answers: not now, or after the commit that ended its job."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.orm import Session

from ledgerstone.engine.outcomes import SNOOZE_SECONDS_MIN
from ledgerstone.engine.source import OutcomeKind
from ledgerstone.errors import NotAllowedNow
from ledgerstone.jobs import AsyncJob, Cancel, Job, Snooze, Status
from ledgerstone.jobs.states import Gate
from ledgerstone.ledger import Ledger
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.jobs import run_job
from tests.contract.jobs.examples import (
    assert_replayed,
    claim,
    enqueue,
    history_of,
    nothing,
    settle,
    standing,
    tick,
)
from tests.harness.own_table import OwnTable, note, notes_kept

LOST = [Snooze(5), Cancel("not needed"), {"n": 2}, 0]
"""None of them is what the job was ended with."""


class AnswersContract(OwnTable):
    """What becomes of what a handler returns. Fixtures: `ledger`, `clock`, `caplog`."""

    @pytest.mark.parametrize("awaited", [False, True], ids=["sync", "async"])
    @pytest.mark.parametrize("answer", LOST, ids=repr)
    def test_an_answer_after_the_end(
        self,
        ledger: Ledger,
        clock: ManualClock,
        caplog: pytest.LogCaptureFixture,
        answer: Any,
        awaited: bool,
    ) -> None:
        """The job stays as its commit ended it; that an answer was lost is logged and on record."""

        def work(job: Job) -> Any:
            with job.transaction({"n": 1}) as tx:
                tx.connection.execute(insert(note).values(name="mine", count=1))
                return answer

        async def work_awaited(job: AsyncJob) -> Any:
            async with job.transaction({"n": 1}) as tx:
                await tx.run(
                    lambda tx: tx.connection.execute(insert(note).values(name="mine", count=1))
                )
                return answer

        ledger.kinds.add("a", work_awaited if awaited else work)
        job_id = enqueue(ledger, "a")

        with caplog.at_level(logging.WARNING, "ledgerstone.jobs"):
            (step,) = tick(ledger)

        row, last = standing(ledger, job_id), history_of(ledger, job_id)[-1]
        assert (row.status, row.attempt, row.result) == (Status.SUCCEEDED, 1, {"n": 1})
        assert (row.last_error_code, step.refused) == (None, 0)
        assert notes_kept(ledger) == ["mine"]
        assert (last.prev_status, last.next_status) == ("succeeded", "succeeded")
        assert repr(answer) in last.detail["error"]["message"]
        (told,) = [record.getMessage() for record in caplog.records if "is lost" in record.message]
        assert job_id in told
        assert_replayed(ledger, job_id)

    def test_a_result_that_was_not_given(self, ledger: Ledger, clock: ManualClock) -> None:
        """Returned out of the block it comes too late and is not kept; a test hears of it."""

        def work(job: Job) -> str:
            with job.transaction():
                return "too late"

        ledger.kinds.add("a", work)

        with pytest.raises(NotAllowedNow, match="'too late' after") as caught:
            run_job(ledger, "a", raises=True)

        assert "result=" in (caught.value.hint or "")

    @pytest.mark.parametrize("answer", [None, {"n": (1,)}], ids=["nothing", "the same"])
    def test_an_answer_that_says_the_same(
        self, ledger: Ledger, clock: ManualClock, answer: Any
    ) -> None:
        """Who returns nothing more, or the very result that is kept, has lost nothing."""

        def work(job: Job) -> Any:
            with job.transaction({"n": [1]}):
                return answer

        ledger.kinds.add("a", work)
        job_id = enqueue(ledger, "a")

        tick(ledger)

        assert standing(ledger, job_id).result == {"n": [1]}
        assert history_of(ledger, job_id)[-1].prev_status == "running"

    def test_an_answer_after_a_session_of_ones_own(
        self, ledger: Ledger, clock: ManualClock
    ) -> None:
        """It is the same after `complete` and a commit of the handler's own."""
        engine = ledger.database.engine

        def work(job: Job) -> Snooze:
            with Session(engine) as session:
                session.execute(insert(note).values(name="mine", count=1))
                job.complete(ledger.join(session))
                session.commit()
            return Snooze(5)

        ledger.kinds.add("a", work)
        job_id = enqueue(ledger, "a")

        tick(ledger)

        row, last = standing(ledger, job_id), history_of(ledger, job_id)[-1]
        assert (row.status, notes_kept(ledger)) == (Status.SUCCEEDED, ["mine"])
        assert "Snooze" in last.detail["error"]["message"]
        assert_replayed(ledger, job_id)

    @pytest.mark.parametrize("seconds", [0, -5, -0.0, float("-inf")])
    def test_a_snooze_until_now(self, ledger: Ledger, clock: ManualClock, seconds: float) -> None:
        """Who puts itself off until now or earlier rests a moment all the same."""
        runs: list[int] = []

        def poll(job: Job) -> Snooze:
            runs.append(job.attempt)
            return Snooze(seconds)

        ledger.kinds.add("poll", poll)
        job_id = enqueue(ledger, "poll")

        at = clock.now_ms() / 1000
        for _ in range(3):
            tick(ledger)
        row = standing(ledger, job_id)
        clock.advance(SNOOZE_SECONDS_MIN)
        tick(ledger)

        assert runs == [1, 1]
        assert (row.status, row.attempt, row.gate) == (Status.QUEUED, 0, Gate.SCHEDULED)
        assert row.run_at.timestamp() - at == SNOOZE_SECONDS_MIN
        assert_replayed(ledger, job_id)

    @pytest.mark.parametrize("seconds", [0, 0.0001, 0.001])
    def test_snoozes_starve_nobody(
        self, ledger: Ledger, clock: ManualClock, seconds: float
    ) -> None:
        """However short the snooze is, those that waited behind it come before it does again."""
        source = ledger.job_source()
        ledger.kinds.add("poll", lambda: Snooze(seconds))
        ledger.kinds.add("fine", nothing)
        enqueue(ledger, "poll")
        clock.advance(1)
        fine = enqueue(ledger, "fine")

        for _ in range(2):
            worker = ledger.worker(source)
            worker.tick(limit=1)
            worker.stop(grace_seconds=0)

        assert standing(ledger, fine).status is Status.SUCCEEDED

    def test_a_short_snooze_is_as_short_as_asked(self, ledger: Ledger, clock: ManualClock) -> None:
        """A delay that is less than the rest of those who ask for none is not made longer."""
        ledger.kinds.add("poll", lambda: Snooze(0.25))
        job_id, at = enqueue(ledger, "poll"), clock.now_ms() / 1000

        tick(ledger)

        assert standing(ledger, job_id).run_at.timestamp() - at == 0.25

    def test_what_is_returned_keeps_its_place(self, ledger: Ledger, clock: ManualClock) -> None:
        """What goes back without having asked for it is as early in line as it was."""
        ledger.kinds.add("a", nothing)
        source = ledger.job_source()
        job_id = enqueue(ledger, "a")
        before = standing(ledger, job_id).run_at
        clock.advance(60)
        (taken,) = claim(ledger, source)

        settle(ledger, source, taken, OutcomeKind.RETURNED)

        assert standing(ledger, job_id).run_at == before
