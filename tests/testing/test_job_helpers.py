"""What users test their own jobs with does what it says, on real databases."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.source import Ask
from ledgerstone.errors import BadInput, Hopeless, NotAllowedNow, StoreBusy, TargetDown
from ledgerstone.jobs import AsyncJob, Cancel, Job, JobRow, Limit, Snooze, Status, history
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.testing import jobs as helpers
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.jobs import (
    RunResult,
    assert_enqueued,
    assert_not_enqueued,
    drain,
    enqueued,
    inline,
    moved,
    run_job,
)
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

ROOT = Path(__file__).parents[2]
ERRORS = {"hopeless": Hopeless("never"), "down": TargetDown("post office"), "busy": StoreBusy()}
ANSWERS = {"snooze": Snooze(60), "cancel": Cancel("not wanted"), "unkeepable": object()}


@pytest.fixture
def clock() -> ManualClock:
    """The clock of `shop`."""
    return ManualClock()


@pytest.fixture
def shop(tmp_path: Path, clock: ManualClock) -> Iterator[Ledger]:
    """A shop on SQLite, by a clock that the test moves."""
    with Ledger(f"sqlite:///{tmp_path}/shop.db", clock=clock) as ledger:
        yield declared(ledger)


def declared(ledger: Ledger) -> Ledger:
    """A ledger with the jobs of a shop."""

    @ledger.job("receipt", max_attempts=3, backoff=Backoff(jitter=0))
    def receipt(job: Job, order: int, *, note: str = "") -> dict[str, Any]:
        if order < 0:
            message = f"there is no order {order}"
            raise ValueError(message)
        return {"order": order, "attempt": job.attempt, "note": note}

    @ledger.job("order")
    def order(job: Job, number: int) -> None:
        with job.transaction() as tx:
            tx.jobs.enqueue("receipt", {"order": number})
            tx.jobs.enqueue("ship", {"order": number}, queue="lorry")

    @ledger.job("ship", queue="shipping")
    async def ship(order: int) -> int:
        await asyncio.sleep(0)
        return order

    @ledger.job("end")
    def end(how: str) -> Any:
        if how == "stop":
            pytest.fail("the test is over")
        if how in ERRORS:
            raise ERRORS[how]
        return ANSWERS.get(how, how)

    return ledger


def put(ledger: Ledger, *jobs: tuple[str, dict[str, Any]]) -> list[str]:
    """Enqueue these in one transaction; their ids."""
    with ledger.transaction() as tx:
        return [tx.jobs.enqueue(name, payload).id for name, payload in jobs]


def standing(ledger: Ledger, job_id: str) -> JobRow:
    with ledger.reading() as tx:
        return tx.jobs.get(job_id)


def kinds_run(ran: helpers.Drained) -> list[str]:
    return [run.type for run in ran.runs]


class TestRunJob:
    """One job, through everything."""

    def test_it_runs_to_its_end(self, ledger: Ledger) -> None:
        """A job is enqueued, run through the pump, and answered as it stands then."""
        declared(ledger)

        row = run_job(ledger, "receipt", {"order": 7})

        assert row.status is Status.SUCCEEDED
        assert row.result == {"order": 7, "attempt": 1, "note": ""}
        assert row.worker is not None
        with ledger.reading() as tx:
            events = tx.jobs.events(row.id).rows
        assert [event.next_status for event in events] == ["queued", "running", "succeeded"]

    def test_it_runs_no_other(self, ledger: Ledger) -> None:
        """Jobs that are due before it are left as they are, also scheduled ones."""
        declared(ledger)
        waiting = put(ledger, ("receipt", {"order": 1}), ("receipt", {"order": 2}))
        with ledger.transaction() as tx:
            waiting += [tx.jobs.enqueue("receipt", {"order": 3}, delay_seconds=60).id]
            waiting += [tx.jobs.enqueue("receipt", {"order": 4}, priority=9).id]
        before = [standing(ledger, job_id) for job_id in waiting]

        row = run_job(ledger, "receipt", {"order": 5})

        assert row.result == {"order": 5, "attempt": 1, "note": ""}
        assert [standing(ledger, job_id) for job_id in waiting] == before

    def test_an_error_is_answered(self, ledger: Ledger) -> None:
        """What a job raises is in its row, and it waits for its next attempt."""
        declared(ledger)

        row = run_job(ledger, "receipt", {"order": -1})

        assert row.status is Status.QUEUED
        assert (row.attempt, row.last_error_code) == (1, "ValueError")
        assert row.last_error_message == "there is no order -1"

    def test_an_error_is_raised_on_demand(self, shop: Ledger) -> None:
        """With `raises` the error itself is raised, after it was written."""
        with pytest.raises(ValueError, match="there is no order -1"):
            run_job(shop, "receipt", {"order": -1}, raises=True)

        (row,) = enqueued(shop, "receipt")
        assert row.last_error_code == "ValueError"

    def test_a_result_that_cannot_be_kept_is_an_error(self, shop: Ledger) -> None:
        """With `raises` a job that failed without raising fails the test, too."""
        with pytest.raises(AssertionError, match="end failed: the body cannot be written as JSON"):
            run_job(shop, "end", {"how": "unkeepable"}, raises=True)

    def test_the_last_attempt(self, ledger: Ledger) -> None:
        """With `attempt` it runs as that attempt; the last that fails leaves a dead letter."""
        declared(ledger)

        row = run_job(ledger, "receipt", {"order": -1}, attempt=3)

        assert (row.status, row.attempt) == (Status.DEAD_LETTER, 3)
        with ledger.reading() as tx:
            events = tx.jobs.events(row.id).rows
        assert [event.detail.get("attempt") for event in events[:3]] == [None, 2, 3]
        assert history.replayed(events).attempt == 3

    @pytest.mark.parametrize("attempt", [0, 4])
    def test_an_attempt_that_cannot_be(self, shop: Ledger, attempt: int) -> None:
        """An attempt below 1 or above max_attempts is refused, and nothing is enqueued."""
        with pytest.raises(BadInput, match="the attempt is 1 to 3"):
            run_job(shop, "receipt", {"order": 1}, attempt=attempt)

        assert_not_enqueued(shop)

    def test_async_jobs(self, shop: Ledger) -> None:
        """An async job runs, also where the test has an event loop running."""

        async def test() -> JobRow:
            return run_job(shop, "ship", {"order": 2})

        rows = [run_job(shop, "ship", {"order": 1}), asyncio.run(test())]

        assert [row.result for row in rows] == [1, 2]

    def test_snoozed_and_canceled(self, shop: Ledger) -> None:
        """What a job returns is what it means: snoozed with its attempt refunded, or canceled."""
        snoozed = run_job(shop, "end", {"how": "snooze"})
        canceled = run_job(shop, "end", {"how": "cancel"})

        assert (snoozed.status, snoozed.attempt) == (Status.QUEUED, 0)
        assert canceled.status is Status.CANCELED

    def test_the_job_has_what_it_was_given(self, shop: Ledger) -> None:
        """Organisation, queue, key and the rest reach the row."""
        org = "11111111-1111-1111-1111-111111111111"

        row = run_job(
            shop, "receipt", {"order": 1}, org=org, queue="fast", key="k", correlation_id="c"
        )

        assert (row.org_id, row.queue, row.key, row.correlation_id) == (org, "fast", "k", "c")
        assert row.status is Status.SUCCEEDED

    def test_by_its_function(self, shop: Ledger) -> None:
        """A job can be named by its function."""

        @shop.job("double")
        def double(number: int) -> int:
            return 2 * number

        assert run_job(shop, double, {"number": 4}).result == 8

    def test_an_unknown_job_is_refused(self, shop: Ledger) -> None:
        """A job that the ledger does not know is refused with those that it knows."""
        with pytest.raises(BadInput, match=r"no job 'recipe'.*end, order, receipt, ship"):
            run_job(shop, "recipe")

        assert_not_enqueued(shop)

    def test_a_used_key_is_refused(self, shop: Ledger) -> None:
        """A key that gives the job there was is refused: it would run nothing."""
        run_job(shop, "receipt", {"order": 1}, key="one")

        with pytest.raises(NotAllowedNow, match="'one' was used before"):
            run_job(shop, "receipt", {"order": 1}, key="one")

    def test_a_paused_queue_holds(self, shop: Ledger) -> None:
        """A job whose queue is paused is not run, and the error says why it may be."""
        with shop.transaction() as tx:
            tx.jobs.pause("default")

        with pytest.raises(NotAllowedNow, match=r"queued, open .its queue 'default' was paused"):
            run_job(shop, "receipt", {"order": 1})

    def test_what_keeps_a_job_is_said(self, shop: Ledger) -> None:
        """Of a queue that is full it is said how full, and nothing of what is not so."""
        told: list[str] = []

        @shop.job("full")
        def full() -> None:
            try:
                run_job(shop, "receipt", {"order": 1})
            except NotAllowedNow as error:
                told.append(error.hint or "")

        with shop.transaction() as tx:
            tx.jobs.limit("default", 1)
        run_job(shop, "full", raises=True)

        assert told == ["its queue 'default' runs 1 of at most 1 jobs"]

    @pytest.mark.parametrize(
        "how", [drain, lambda ledger: run_job(ledger, "receipt", {"order": 1})]
    )
    def test_an_open_transaction_is_told(self, shop: Ledger, how: Callable[[Ledger], Any]) -> None:
        """Inside a transaction on SQLite nothing can run: that is an error and no empty report."""
        with (
            pytest.raises(NotAllowedNow, match="end it first: jobs see what is committed"),
            shop.transaction() as tx,
        ):
            tx.jobs.enqueue("receipt", {"order": 1})
            how(shop)

    def test_the_end_of_a_test_is_no_error_of_a_job(self, shop: Ledger) -> None:
        """`pytest.fail` inside a job fails the test, without being asked to."""
        with pytest.raises(pytest.fail.Exception, match="the test is over"):
            run_job(shop, "end", {"how": "stop"})

    def test_it_leaves_no_claim(self, ledger: Ledger) -> None:
        """A limit key that a run used is free again, also for those that waited for it."""

        @ledger.job("one", limit=Limit(key=lambda number: "same"))  # noqa: ARG005 - all alike
        def one(number: int) -> int:
            return number

        (waiting,) = put(ledger, ("one", {"number": 1}))

        row = run_job(ledger, "one", {"number": 2})
        ran = drain(ledger)

        assert row.result == 2
        assert [run.id for run in ran.runs] == [waiting]


class TestDrain:
    """All that is due."""

    def test_follow_ups_run_too(self, ledger: Ledger) -> None:
        """What jobs enqueue is run in the same call, in whatever queue it is."""
        declared(ledger)
        put(ledger, ("order", {"number": 7}), ("receipt", {"order": 1}))

        ran = drain(ledger)

        assert sorted(kinds_run(ran)) == ["order", "receipt", "receipt", "ship"]
        assert (ran.succeeded, ran.failed, ran.dead) == (4, 0, 0)
        assert ran.by_type["receipt"] == {RunResult.SUCCEEDED: 2}
        assert drain(ledger).runs == []

    def test_one_queue(self, shop: Ledger) -> None:
        """With `queue` the jobs of others stay queued."""
        put(shop, ("order", {"number": 7}))

        ran = drain(shop, queue="default")

        assert kinds_run(ran) == ["order", "receipt"]
        assert_enqueued(shop, "ship", queue="lorry", status=Status.QUEUED)

    def test_the_more_urgent_first(self, shop: Ledger) -> None:
        """Jobs run in the order in which a worker takes them."""
        with shop.transaction() as tx:
            tx.jobs.enqueue("receipt", {"order": 1})
            tx.jobs.enqueue("end", {"how": "now"}, priority=5)

        assert kinds_run(drain(shop)) == ["end", "receipt"]

    def test_each_way_out_is_counted(self, shop: Ledger) -> None:
        """The report counts how each run came out."""
        ways = ["snooze", "cancel", "hopeless", "down", "well"]
        put(shop, *[("end", {"how": way}) for way in ways], ("receipt", {"order": -1}))

        ran = drain(shop)

        assert ran.by_type == {
            "end": {
                RunResult.SNOOZED: 1,
                RunResult.CANCELED: 1,
                RunResult.DEAD: 1,
                RunResult.RETURNED: 1,
                RunResult.SUCCEEDED: 1,
            },
            "receipt": {RunResult.FAILED: 1},
        }
        assert (ran.snoozed, ran.canceled, ran.dead, ran.succeeded, ran.failed) == (1, 1, 1, 1, 1)

    def test_what_is_not_due_stays(self, shop: Ledger, clock: ManualClock) -> None:
        """A delayed job runs once its time has come, however the clock was moved."""
        with shop.transaction() as tx:
            tx.jobs.enqueue("receipt", {"order": 1}, delay_seconds=60)

        early = drain(shop)
        clock.jump(60)
        late = drain(shop)

        assert (early.runs, late.succeeded) == ([], 1)

    def test_a_job_may_move_the_clock(self, shop: Ledger, clock: ManualClock) -> None:
        """What becomes due while jobs run is run, too."""

        @shop.job("wait")
        def wait(seconds: float) -> None:
            clock.jump(seconds)

        with shop.transaction() as tx:
            tx.jobs.enqueue("receipt", {"order": 1}, delay_seconds=0.05)
            tx.jobs.enqueue("wait", {"seconds": 0.05})

        assert kinds_run(drain(shop)) == ["wait", "receipt"]

    def test_time_passes_on_demand(self, ledger: Ledger, clock: ManualClock) -> None:
        """With `advance_to_due` delays and back-offs pass until nothing is scheduled any more."""
        declared(ledger)
        started_at = clock.now_ms()
        (failing,) = put(ledger, ("receipt", {"order": -1}))
        with ledger.transaction() as tx:
            tx.jobs.enqueue("ship", {"order": 1}, delay_seconds=3600)

        ran = drain(ledger, advance_to_due=True)

        assert kinds_run(ran) == ["receipt"] * 3 + ["ship"]
        assert (ran.failed, ran.dead, ran.succeeded) == (2, 1, 1)
        assert standing(ledger, failing).status is Status.DEAD_LETTER
        assert clock.now_ms() == started_at + 3_600_000

    def test_time_needs_a_clock(self, tmp_path: Path) -> None:
        """`advance_to_due` without a clock that can be moved is refused."""
        with (
            Ledger(f"sqlite:///{tmp_path}/a.db") as ledger,
            pytest.raises(BadInput, match="ManualClock"),
        ):
            drain(ledger, advance_to_due=True)

    def test_it_is_bounded(self, shop: Ledger) -> None:
        """A job that enqueues itself for ever ends the test and is named."""

        @shop.job("again")
        def again(job: Job) -> None:
            with job.transaction() as tx:
                tx.jobs.enqueue("again")

        put(shop, ("again", {}))

        with pytest.raises(AssertionError, match=r"after 3 jobs.*again, again, again"):
            drain(shop, jobs_max=3)

        assert_enqueued(shop, "again", status=Status.SUCCEEDED, count=3)
        assert_enqueued(shop, "again", status=Status.QUEUED)

    def test_the_bound_may_be_met(self, shop: Ledger) -> None:
        """As many jobs as allowed are fine."""
        put(shop, *[("receipt", {"order": number}) for number in range(3)])

        assert drain(shop, jobs_max=3).succeeded == 3

    def test_a_bound_of_none_is_refused(self, shop: Ledger) -> None:
        """At least one job must be allowed."""
        with pytest.raises(BadInput, match="at least 1, not 0"):
            drain(shop, jobs_max=0)

    def test_unknown_types_and_paused_queues_stay(self, shop: Ledger, clock: ManualClock) -> None:
        """What a worker would not take is not run, and does not make time pass."""
        started_at = clock.now_ms()
        with shop.transaction() as tx:
            tx.jobs.enqueue("mystery")
            tx.jobs.enqueue("mystery", delay_seconds=5)
            tx.jobs.enqueue("receipt", {"order": 1}, queue="closed")
            tx.jobs.pause("closed")

        ran = drain(shop, advance_to_due=True)

        assert (ran.runs, clock.now_ms()) == ([], started_at)
        assert len(enqueued(shop, status=Status.QUEUED)) == 3

    def test_errors_on_demand(self, shop: Ledger) -> None:
        """With `raises` the first error ends it; what is behind stays queued."""
        put(shop, ("receipt", {"order": -1}), ("receipt", {"order": 1}))

        with pytest.raises(ValueError, match="there is no order"):
            drain(shop, raises=True)

        assert_enqueued(shop, "receipt", payload={"order": 1}, status=Status.QUEUED)

    def test_a_claim_of_a_dead_worker_is_rescued(self, shop: Ledger, clock: ManualClock) -> None:
        """A job whose worker ended without a word is run when its lease is over."""
        (job_id,) = put(shop, ("receipt", {"order": 1}))
        source = shop.job_source()
        with shop.transaction() as tx:
            source.claim(tx, Ask(1, "a worker that dies", 30))
        clock.advance(3600)

        ran = drain(shop)

        assert [(run.id, run.attempt) for run in ran.runs] == [(job_id, 2)]


class TestEnqueued:
    """Saying what must have been enqueued."""

    def test_it_is_found(self, ledger: Ledger) -> None:
        """A job is found by type, by part of its payload, by queue, key, and status."""
        declared(ledger)
        with ledger.transaction() as tx:
            tx.jobs.enqueue("receipt", {"order": 7, "note": "gift"}, key="seven")
            tx.jobs.enqueue("receipt", {"order": 8}, queue="slow")

        (seven,) = assert_enqueued(ledger, "receipt", payload={"order": 7})

        assert seven.payload == {"order": 7, "note": "gift"}
        assert_enqueued(ledger, "receipt", key="seven")
        assert_enqueued(ledger, "receipt", queue="slow", status=Status.QUEUED)
        assert_enqueued(ledger, "receipt", count=2)
        assert_enqueued(ledger, "receipt", count=None)
        assert_not_enqueued(ledger, "ship")
        assert_not_enqueued(ledger, "receipt", payload={"order": 9})
        assert [row.payload["order"] for row in enqueued(ledger, "receipt")] == [7, 8]

    def test_a_transaction_sees_its_own(self, ledger: Ledger) -> None:
        """Inside a transaction what it enqueued counts, outside only what was committed."""
        declared(ledger)
        with pytest.raises(KeyError), ledger.transaction() as tx:
            tx.jobs.enqueue("receipt", {"order": 7})

            assert_enqueued(tx, "receipt", payload={"order": 7})
            assert_not_enqueued(ledger)
            raise KeyError

        assert_not_enqueued(ledger)

    def test_what_was_run_was_enqueued(self, shop: Ledger) -> None:
        """A job counts whatever became of it."""
        run_job(shop, "receipt", {"order": 1})

        assert_enqueued(shop, "receipt", status=Status.SUCCEEDED)

    def test_documents_are_compared_in_part(self, shop: Ledger) -> None:
        """What is left out does not matter at any depth; values may be as they were given."""
        with shop.transaction() as tx:
            day, moment = date(2026, 1, 2), datetime(2026, 1, 2, 3, tzinfo=UTC)
            lines = [{"sku": "a", "count": 1}, {"sku": "b", "count": 2}]
            document = {"lines": lines, "day": day, "at": moment, "paid": True, "ratio": 0.1 + 0.2}
            tx.jobs.enqueue("free", document)

        assert_enqueued(shop, payload={"lines": [{"sku": "a"}, {"count": 2}], "day": day})
        assert_enqueued(shop, payload={"at": moment, "paid": True})
        assert_enqueued(shop, payload={"ratio": pytest.approx(0.3)})
        assert_not_enqueued(shop, payload={"paid": 1})
        assert_not_enqueued(shop, payload={"lines": [{"sku": "a"}]})
        assert_not_enqueued(shop, payload={"day": {"year": 2026}})
        assert_not_enqueued(shop, payload={"missing": None})

    def test_a_failure_shows_the_nearest(self, shop: Ledger) -> None:
        """A message says what was expected and shows what is there, and where it differs."""
        put(shop, ("ship", {"order": 8}), ("receipt", {"order": 7, "note": "x" * 100}))

        with pytest.raises(AssertionError) as failure:
            assert_enqueued(shop, "receipt", payload={"order": 8}, queue="slow")

        first, second, head, nearest, other = str(failure.value).splitlines()
        assert first == "expected 1 of receipt with queue 'slow', payload {'order': 8}, found 0"
        assert second == "what is there instead, the nearest first:"
        assert head.split() == ["type", "queue", "status", "key", "payload", "differs", "in"]
        assert nearest.startswith('  receipt  default   queued  -    {"note":"xxx')
        assert nearest.endswith("…  queue, payload.order: 7")
        assert other.endswith("type, queue")

    @pytest.mark.parametrize(
        ("payload", "told"),
        [
            ({"lines": [{"sku": "b"}]}, r'payload\.lines\[0\]\.sku: "a"'),
            ({"lines": [{}, {}]}, r"payload\.lines: 1 items"),
            ({"lines": {"sku": "a"}}, r'payload\.lines: \[\{"sku":"a"\}\]'),
            ({"lines": None}, r'payload\.lines: \[\{"sku":"a"\}\]'),
            ({"note": ""}, r"payload\.note: missing"),
        ],
    )
    def test_a_failure_says_where(self, shop: Ledger, payload: dict[str, Any], told: str) -> None:
        """A message names each place of the payload that is not as expected."""
        put(shop, ("free", {"lines": [{"sku": "a"}]}))

        with pytest.raises(AssertionError, match=told):
            assert_enqueued(shop, payload=payload)

    def test_a_failure_shows_few(self, shop: Ledger) -> None:
        """A message stays short however many jobs there are."""
        put(shop, *[("receipt", {"order": number}) for number in range(9)])

        with pytest.raises(AssertionError, match=r"none of receipt, found 9(.*\n)+  and 4 more$"):
            assert_not_enqueued(shop, "receipt")

    def test_a_failure_in_an_empty_ledger(self, shop: Ledger) -> None:
        """A message says when there is nothing at all."""
        with pytest.raises(AssertionError, match="there is no job at all"):
            assert_enqueued(shop, "receipt")

    def test_what_is_no_ledger_is_refused(self) -> None:
        """Anything but a ledger or a transaction is refused."""
        where: Any = "sqlite://"

        with pytest.raises(BadInput, match="in a ledger or a transaction"):
            enqueued(where)

    def test_a_word_that_is_not_known_is_refused(self, shop: Ledger) -> None:
        """A misspelled condition does not pass for one that holds."""
        misspelled: Any = {"que": "slow"}

        with pytest.raises(TypeError, match="que"):
            assert_not_enqueued(shop, "receipt", **misspelled)

    def test_a_status_may_be_text(self, shop: Ledger) -> None:
        """A status by its word is that status, for what must be there and for what must not."""
        with shop.transaction() as tx:
            tx.jobs.enqueue("receipt", {"order": 1})

        assert len(assert_enqueued(shop, "receipt", status="queued")) == 1
        assert_not_enqueued(shop, "receipt", status="succeeded")
        with pytest.raises(AssertionError, match="none of receipt with status 'queued', found 1"):
            assert_not_enqueued(shop, "receipt", status="queued")
        with pytest.raises(AssertionError, match="expected 1 of receipt with status 'running'"):
            assert_enqueued(shop, "receipt", status="running")

    @pytest.mark.parametrize("look", [enqueued, assert_enqueued, assert_not_enqueued])
    def test_what_no_job_can_be_is_refused(self, shop: Ledger, look: Callable[..., Any]) -> None:
        """A status that is none and a payload without names would never be found: BadInput."""
        with pytest.raises(BadInput, match=r"cannot stand at 'done' .use one of queued, running"):
            look(shop, "receipt", status="done")
        with pytest.raises(BadInput, match=r"arguments by name, not \[7\]"):
            look(shop, "receipt", payload=[7])


class TestInline:
    """Right after the commit."""

    def test_it_runs_after_the_commit(self, ledger: Ledger) -> None:
        """Nothing runs inside the transaction; all of it has run after its block, in order."""
        ran: list[int] = []

        @ledger.job("note")
        def note(number: int) -> None:
            ran.append(number)

        with inline(ledger):
            with ledger.transaction() as tx:
                tx.jobs.enqueue("note", {"number": 1})
                tx.jobs.enqueue("note", {"number": 2}, priority=5)
                tx.jobs.enqueue("note", {"number": 3}, queue="another")
                inside = list(ran)

            assert inside == []
            assert ran == [1, 2, 3]

    def test_nothing_of_a_rollback(self, ledger: Ledger) -> None:
        """What was rolled back is not run."""
        declared(ledger)

        with inline(ledger):
            with pytest.raises(KeyError), ledger.transaction() as tx:
                tx.jobs.enqueue("receipt", {"order": 1})
                raise KeyError
            put(ledger, ("end", {"how": "well"}))

        assert [row.type for row in enqueued(ledger)] == ["end"]

    def test_follow_ups(self, ledger: Ledger) -> None:
        """What jobs enqueue is run after them, before the block goes on."""
        declared(ledger)

        with inline(ledger):
            put(ledger, ("order", {"number": 7}))

            assert_enqueued(ledger, "ship", status=Status.SUCCEEDED)
            assert_enqueued(ledger, "receipt", status=Status.SUCCEEDED)

    def test_async_jobs_that_enqueue(self, shop: Ledger) -> None:
        """Also what an async job enqueues is run, where the test has an event loop running."""

        @shop.job("later")
        async def later(order: int) -> None:
            put(shop, ("ship", {"order": order}))

        async def test() -> None:
            put(shop, ("later", {"order": 1}))

        with inline(shop):
            asyncio.run(test())

        assert_enqueued(shop, "ship", status=Status.SUCCEEDED)

    def test_async_jobs_that_write(self, shop: Ledger) -> None:
        """What an async job enqueues in its own transaction is run after it."""

        @shop.job("later")
        async def later(job: AsyncJob, order: int) -> None:
            await job.progress(0.5)
            async with job.transaction() as tx:
                await tx.jobs.enqueue("ship", {"order": order})

        with inline(shop):
            put(shop, ("later", {"order": 1}))

        assert_enqueued(shop, "later", status=Status.SUCCEEDED)
        assert_enqueued(shop, "ship", status=Status.SUCCEEDED)

    def test_errors_are_raised_where_it_was_enqueued(self, ledger: Ledger) -> None:
        """The error ends the transaction's block, what was behind it stays queued for good."""
        declared(ledger)
        jobs = [("receipt", {"order": -1}), ("receipt", {"order": 1})]

        with inline(ledger):
            with pytest.raises(ValueError, match="there is no order -1"):
                put(ledger, *jobs)
            put(ledger, ("end", {"how": "well"}))

        statuses = {row.payload.get("order"): row.status for row in enqueued(ledger)}
        assert statuses == {-1: Status.QUEUED, 1: Status.QUEUED, None: Status.SUCCEEDED}

    def test_what_a_failing_job_enqueued_stays(self, shop: Ledger) -> None:
        """What is committed on the way to an error is not run by a later transaction."""

        @shop.job("half")
        def half() -> None:
            put(shop, ("receipt", {"order": 1}))
            raise KeyError

        with inline(shop):
            with pytest.raises(KeyError):
                put(shop, ("half", {}))
            put(shop, ("end", {"how": "well"}))

        assert_enqueued(shop, "receipt", status=Status.QUEUED)
        assert_enqueued(shop, "end", status=Status.SUCCEEDED)

    def test_what_was_there_before_stays(self, shop: Ledger) -> None:
        """Only what is enqueued inside the block is run, and only what is due."""
        put(shop, ("receipt", {"order": 1}))

        with inline(shop), shop.transaction() as tx:
            tx.jobs.enqueue("receipt", {"order": 2}, delay_seconds=60)
            tx.jobs.enqueue("receipt", {"order": 3})

        statuses = {row.payload["order"]: row.status for row in enqueued(shop)}
        assert statuses == {1: Status.QUEUED, 2: Status.QUEUED, 3: Status.SUCCEEDED}

    def test_it_ends_with_the_block(self, shop: Ledger) -> None:
        """Behind the block jobs wait for a worker again, also if it raised."""
        with pytest.raises(KeyError), inline(shop):
            raise KeyError

        put(shop, ("receipt", {"order": 1}))

        assert_enqueued(shop, "receipt", status=Status.QUEUED)

    def test_a_transaction_is_not_done_twice(self, shop: Ledger) -> None:
        """A job that asks for another try does not repeat the work that enqueued it."""
        calls: list[Transaction] = []

        def work(tx: Transaction) -> None:
            calls.append(tx)
            tx.jobs.enqueue("end", {"how": "busy"})

        with inline(shop), pytest.raises(AssertionError, match="met another transaction"):
            shop.run(work)

        assert len(calls) == 1

    def test_joined_transactions_at_the_end(self, shop: Ledger) -> None:
        """What a joined transaction enqueued is run at the end of the block at the latest."""
        with inline(shop):
            with Session(shop.database.engine) as session, session.begin():
                session.execute(text("CREATE TABLE orders (id INTEGER)"))
                shop.join(session).jobs.enqueue("receipt", {"order": 1})
            assert_enqueued(shop, "receipt", status=Status.QUEUED)

        assert_enqueued(shop, "receipt", status=Status.SUCCEEDED)

    def test_an_end_is_demanded(self, shop: Ledger) -> None:
        """A job that enqueues itself for ever is stopped."""

        @shop.job("again")
        def again(job: Job) -> None:
            with job.transaction() as tx:
                tx.jobs.enqueue("again")

        with inline(shop, jobs_max=3):
            with pytest.raises(AssertionError, match="more to run inline than 3 jobs"):
                put(shop, ("again", {}))
            put(shop, ("end", {"how": "well"}))

        assert_enqueued(shop, "again", status=Status.SUCCEEDED, count=3)
        assert_enqueued(shop, "again", status=Status.QUEUED)

    def test_once_is_enough(self, shop: Ledger) -> None:
        """A block inside a block is refused."""
        with inline(shop), pytest.raises(NotAllowedNow, match="already"), inline(shop):
            pass

    def test_a_job_run_by_name_runs_once(self, shop: Ledger) -> None:
        """Inside the block `run_job` still runs its job itself."""
        with inline(shop):
            row = run_job(shop, "receipt", {"order": 1}, attempt=2)

        assert row.result == {"order": 1, "attempt": 2, "note": ""}


class TestMoved:
    """A program's own ledger, elsewhere."""

    def test_it_is_elsewhere_for_a_while(self, shop: Ledger, tmp_path: Path) -> None:
        """Its jobs are known there and written there; at home nothing has changed."""
        other = ManualClock(0)

        with moved(shop, f"sqlite:///{tmp_path}/test.db", clock=other) as there:
            row = run_job(there, "order", {"number": 7})
            drain(shop)
            away = len(enqueued(shop))

        assert (row.status, row.created_at.year, away) == (Status.SUCCEEDED, 1970, 3)
        assert_not_enqueued(shop)
        assert run_job(shop, "receipt", {"order": 1}).created_at.year == 2023

    def test_joined_there(self, shop: Ledger, tmp_path: Path) -> None:
        """A connection to the other database can be joined there."""
        with moved(shop, f"sqlite:///{tmp_path}/test.db"):
            with Session(shop.database.engine) as session, session.begin():
                shop.join(session).jobs.enqueue("receipt", {"order": 1})
            found = enqueued(shop)

        assert [row.type for row in found] == ["receipt"]


CONFTEST = """
import pytest

import shop
from ledgerstone.testing.jobs import moved


@pytest.fixture
def ledgerstone_ledger(ledgerstone_ledger_url, ledgerstone_clock):
    with moved(shop.ledger, ledgerstone_ledger_url, clock=ledgerstone_clock) as ledger:
        yield ledger
"""
SHOP = """
from ledgerstone import Ledger

ledger = Ledger("sqlite:///shop.db")


@ledger.job("receipt")
def receipt(order: int) -> int:
    return order


def buy(order: int) -> None:
    with ledger.transaction() as tx:
        tx.jobs.enqueue(receipt, {"order": order}, delay_seconds=60)
"""
TESTS = """
import shop
from ledgerstone.testing.jobs import assert_enqueued, drain


def test_buying(ledgerstone_ledger, ledgerstone_clock):
    shop.buy(7)
    assert_enqueued(ledgerstone_ledger, "receipt", payload={"order": 7})
    assert drain(ledgerstone_ledger).succeeded == 0
    ledgerstone_clock.advance(60)
    assert drain(ledgerstone_ledger).succeeded == 1


def test_each_test_has_its_own(ledgerstone_ledger, tmp_path):
    assert_enqueued(ledgerstone_ledger, count=0)
    assert list(tmp_path.iterdir()) == []


def test_that_fails(ledgerstone_ledger):
    shop.buy(7)
    assert_enqueued(ledgerstone_ledger, "receipt", payload={"order": 8})
"""
PLAIN = """
from ledgerstone.testing.jobs import run_job


def test_without_a_conftest(ledgerstone_ledger):
    @ledgerstone_ledger.job("double")
    def double(number: int) -> int:
        return 2 * number

    assert run_job(ledgerstone_ledger, double, {"number": 4}).result == 8


def test_both_kinds_of_fixtures(ledgerstone_ledger, ledgerstone_clock, tmp_path):
    assert ledgerstone_ledger.database.clock is ledgerstone_clock
"""


class TestPlugin:
    """The fixtures, in a real run of pytest."""

    @pytest.mark.slow
    def test_a_small_project(self, tmp_path: Path) -> None:
        """A program with a ledger of its own tests it on a fresh database for each test."""
        write(tmp_path, {"conftest.py": CONFTEST, "shop.py": SHOP, "test_shop.py": TESTS})

        ran = pytest_in(tmp_path)

        assert "1 failed, 2 passed" in ran.stdout, ran.stdout + ran.stderr
        assert "expected 1 of receipt with payload {'order': 8}, found 0" in ran.stdout
        assert "payload.order: 7" in ran.stdout

    @pytest.mark.slow
    def test_without_a_conftest(self, tmp_path: Path) -> None:
        """The fixtures work as they are, beside those of the contracts."""
        write(tmp_path, {"test_plain.py": PLAIN})

        alone = pytest_in(tmp_path)
        beside = pytest_in(tmp_path, "-p", "ledgerstone.testing.fixtures")

        assert "2 passed" in alone.stdout, alone.stdout + alone.stderr
        assert "2 passed" in beside.stdout, beside.stdout + beside.stderr

    def test_it_is_announced(self) -> None:
        """The package announces a plugin that is there and has the fixtures."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

        plugin = import_module(project["entry-points"]["pytest11"]["ledgerstone"])

        assert {"ledgerstone_ledger_url", "ledgerstone_ledger", "ledgerstone_clock"} <= set(
            vars(plugin)
        )

    def test_it_is_light(self) -> None:
        """To load the plugin loads no part of Ledgerstone that the package does not load itself."""
        look = (
            "import sys, pytest, ledgerstone; before = set(sys.modules);"
            "import ledgerstone.testing.plugin; print(*sorted(set(sys.modules) - before))"
        )

        ran = subprocess.run(
            [sys.executable, "-c", look],
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS_MAX,
            check=True,
        )

        assert ran.stdout.split() == ["ledgerstone.testing", "ledgerstone.testing.plugin"]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")


def pytest_in(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A run of pytest there, with the plugin and no other."""
    command = ["-m", "pytest", "-q", "-p", "ledgerstone.testing.plugin", *options, str(folder)]
    return subprocess.run(
        [sys.executable, *command, f"--rootdir={folder}"],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
