"""The job contract, the handlers: what they are given, what they answer, how they fail."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ledgerstone.engine.backoff import Backoff, BackoffPolicy
from ledgerstone.engine.outcomes import TRACEBACK_CHARS_MAX
from ledgerstone.errors import BadInput, HandlerTimeout, Hopeless
from ledgerstone.jobs import AsyncJob, Cancel, Job, NewJob, Snooze, Status
from ledgerstone.jobs.handlers.kinds import ATTEMPTS_LIMIT
from ledgerstone.ledger import Ledger
from ledgerstone.store.sql.json_body import NESTING_MAX
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.contract.jobs.examples import (
    assert_replayed,
    drain,
    enqueue,
    history_of,
    moves_of,
    nothing,
    standing,
    statement,
    tick,
)
from tests.harness import children
from tests.harness.workers import started


class RunningJobsContract:
    """What a handler is given and what its answer means. Fixtures: `ledger`, `clock`."""

    def test_functions_sync_and_async(self, ledger: Ledger, clock: ManualClock) -> None:
        """A function is called with its arguments, sync or async, with the job or without."""
        seen: list[Any] = []

        @ledger.job("plain")
        def plain(a: int, b: str = "b", *, c: float = 0.5) -> None:
            seen.append(("plain", a, b, c))

        @ledger.job("given")
        def given(job: Job, a: int) -> None:
            seen.append(("given", job.type, job.attempt, job.payload, a))

        @ledger.job("awaited")
        async def awaited(tags: list[str]) -> None:
            await asyncio.sleep(0)
            seen.append(("awaited", tags))

        @ledger.job("both")
        async def both(job: AsyncJob, tags: list[str] = []) -> None:  # noqa: B006 - that is the case
            await asyncio.sleep(0)
            tags.append(job.id)
            seen.append(("both", len(tags)))

        for job, payload in [
            (plain, {"a": 1}),
            (given, {"a": 2}),
            (awaited, {"tags": ["x"]}),
            (both, {}),
            (both, {}),
        ]:
            enqueue(ledger, job, payload)

        tick(ledger)

        assert sorted(seen, key=str) == [
            ("awaited", ["x"]),
            ("both", 1),
            ("both", 1),
            ("given", "given", 1, {"a": 2}, 2),
            ("plain", 1, "b", 0.5),
        ]

    def test_the_job_knows_where_it_comes_from(self, ledger: Ledger, clock: ManualClock) -> None:
        """A handler sees id, organisation, who asked for it, correlation, trace and attempts."""
        seen: dict[str, Any] = {}
        given = {"requested_by": "ada", "correlation_id": "c-1", "trace_context": "00-ab-cd-01"}

        @ledger.job("a")
        def look(job: Job) -> None:
            for name in (*given, "id", "org_id", "attempt", "max_attempts"):
                seen[name] = getattr(job, name)

        job_id = enqueue(ledger, look, max_attempts=3, **given)

        tick(ledger)

        row = standing(ledger, job_id)
        assert seen == {
            **given,
            "id": job_id,
            "org_id": row.org_id,
            "attempt": 1,
            "max_attempts": 3,
        }

    def test_a_result_is_kept(self, ledger: Ledger, clock: ManualClock) -> None:
        """What a function returns is kept as JSON, however long; nothing is nothing."""
        long = "ü" * 100_000

        @ledger.job("a")
        def answer(what: str) -> Any:
            return {"long": {"words": long}, "false": False, "none": None, "list": [1]}[what]

        ids = {
            what: enqueue(ledger, answer, {"what": what})
            for what in ("long", "false", "none", "list")
        }

        tick(ledger)

        rows = {what: standing(ledger, job_id) for what, job_id in ids.items()}
        assert {row.status for row in rows.values()} == {Status.SUCCEEDED}
        assert rows["long"].result == {"words": long}
        assert [rows[what].result for what in ("false", "none", "list")] == [False, None, [1]]

    def test_five_attempts(self, ledger: Ledger, clock: ManualClock) -> None:
        """A job that always fails is executed exactly `max_attempts` times, then a dead letter."""
        executed: list[int] = []

        @ledger.job("a", max_attempts=5)
        def fail(job: Job) -> None:
            executed.append(job.attempt)
            message = f"attempt {job.attempt}"
            raise ValueError(message)

        job_id = enqueue(ledger, fail)

        drain(ledger.worker(), clock)

        row = standing(ledger, job_id)
        assert executed == [1, 2, 3, 4, 5]
        assert (row.status, row.attempt) == (Status.DEAD_LETTER, 5)
        assert (row.last_error_code, row.last_error_message) == ("ValueError", "attempt 5")
        again = [("queued", "running"), ("running", "failed"), ("failed", "queued")] * 5
        assert moves_of(ledger, job_id) == [
            (None, "queued"),
            *again[:-1],
            ("failed", "dead_letter"),
        ]
        assert_replayed(ledger, job_id)

    def test_waits_between_attempts(self, ledger: Ledger, clock: ManualClock) -> None:
        """The policy of a job says when its next attempt is due: at once, always, ever later."""
        waits: dict[BackoffPolicy, list[float]] = {}
        for policy in BackoffPolicy:
            backoff = Backoff(policy=policy, seconds=10, multiplier=3, seconds_max=80, jitter=0)
            ledger.kinds.add(policy.value, _fails, backoff=backoff, max_attempts=4)
        jobs = {policy: enqueue(ledger, policy.value) for policy in BackoffPolicy}
        worker = ledger.worker()

        for _ in range(3):
            worker.tick()
            for policy, job_id in jobs.items():
                wait = standing(ledger, job_id).run_at.timestamp() - clock.now_ms() / 1000
                waits.setdefault(policy, []).append(wait)
            clock.advance(100)

        assert waits == {
            BackoffPolicy.NONE: [0, 0, 0],
            BackoffPolicy.FIXED: [10, 10, 10],
            BackoffPolicy.EXP: [10, 30, 80],
        }

    def test_the_policy_it_was_accepted_with(self, ledger: Ledger, clock: ManualClock) -> None:
        """The policy that a job was accepted with holds for it, whatever its kind says by now."""
        backoff = Backoff(policy=BackoffPolicy.FIXED, seconds=10, jitter=0)
        ledger.kinds.add("a", _fails, backoff=backoff)
        job_id = enqueue(ledger, "a")
        statement(ledger, "UPDATE job SET backoff_policy = 'none'")

        tick(ledger)

        row = standing(ledger, job_id)
        assert (row.attempt, row.run_at.timestamp()) == (1, clock.now_ms() / 1000)

    def test_nothing_begins_before_its_time(self, ledger: Ledger, clock: ManualClock) -> None:
        """A delayed job and a second attempt begin when they are due and not a moment earlier."""
        ran: list[str] = []

        @ledger.job("a", backoff=Backoff(policy=BackoffPolicy.FIXED, seconds=30, jitter=0))
        def run(name: str) -> None:
            ran.append(name)
            if ran.count(name) == 1:
                raise ValueError

        enqueue(ledger, run, {"name": "now"})
        enqueue(ledger, run, {"name": "later"}, delay_seconds=10)
        worker = ledger.worker()
        steps = []
        for seconds in (0, 9.999, 0.001, 19.999, 0.001, 10):
            clock.advance(seconds)
            # Scheduled jobs are looked for now and then: the watch goes on, the clock does not.
            clock.advance(1)
            clock.jump(-1)
            worker.tick()
            steps.append(list(ran))

        assert steps == [
            ["now"],
            ["now"],
            ["now", "later"],
            ["now", "later"],
            ["now", "later", "now"],
            ["now", "later", "now", "later"],
        ]

    def test_snooze(self, ledger: Ledger, clock: ManualClock) -> None:
        """Snooze puts a job off and gives its attempt back, as often as it likes."""
        attempts: list[int] = []

        @ledger.job("a", max_attempts=1)
        def wait(job: Job) -> Any:
            attempts.append(job.attempt)
            return Snooze(60) if len(attempts) < 4 else "done"

        job_id = enqueue(ledger, wait)
        worker = ledger.worker()
        worker.tick()
        snoozed, at = standing(ledger, job_id), clock.now_ms() / 1000
        clock.advance(60)

        drain(worker, clock)

        assert (snoozed.status, snoozed.attempt) == (Status.QUEUED, 0)
        assert snoozed.run_at.timestamp() - at == 60
        assert attempts == [1, 1, 1, 1]
        assert standing(ledger, job_id).status is Status.SUCCEEDED
        assert_replayed(ledger, job_id)

    def test_cancel(self, ledger: Ledger, clock: ManualClock) -> None:
        """Cancel ends a job that need not be done, and why is on record."""

        @ledger.job("a")
        def cancel() -> Cancel:
            return Cancel("not needed")

        job_id = enqueue(ledger, cancel)

        tick(ledger)

        row = standing(ledger, job_id)
        assert row.status is Status.CANCELED
        assert row.finished_at is not None
        assert history_of(ledger, job_id)[-1].detail["error"]["message"] == "not needed"
        assert_replayed(ledger, job_id)

    def test_hopeless(self, ledger: Ledger, clock: ManualClock) -> None:
        """Hopeless is the last attempt, however many are left."""

        @ledger.job("a")
        def give_up() -> None:
            message = "the account is closed"
            raise Hopeless(message)

        job_id = enqueue(ledger, give_up)

        tick(ledger)

        row = standing(ledger, job_id)
        assert (row.status, row.attempt) == (Status.DEAD_LETTER, 1)
        assert (row.last_error_code, row.last_error_message) == (
            "hopeless",
            "the account is closed",
        )

    def test_a_payload_that_no_longer_fits(self, ledger: Ledger, clock: ManualClock) -> None:
        """If the code has changed since, the job is a dead letter and says what does not fit."""
        job_id = enqueue(ledger, "a", {"old": 1})

        @ledger.job("a")
        def changed(new: int) -> None:
            raise AssertionError(new)

        tick(ledger)

        row = standing(ledger, job_id)
        assert (row.status, row.attempt, row.last_error_code) == (
            Status.DEAD_LETTER,
            1,
            "hopeless",
        )
        assert row.last_error_message is not None
        assert "old" in row.last_error_message
        assert "new: int" in row.last_error_message

    def test_unknown_types_stay(self, ledger: Ledger, clock: ManualClock) -> None:
        """What a worker does not know it leaves for one that does, also if it knows nothing."""
        strange = enqueue(ledger, "strange")
        ignorant = tick(ledger, ledger.job_source())
        ledger.kinds.add("known", nothing)
        known = enqueue(ledger, "known")

        tick(ledger)

        assert [step.claimed for step in ignorant] == [0]
        assert standing(ledger, known).status is Status.SUCCEEDED
        row = standing(ledger, strange)
        assert (row.status, row.attempt) == (Status.QUEUED, 0)
        assert len(history_of(ledger, strange)) == 1

    def test_types_that_become_known(self, ledger: Ledger, clock: ManualClock) -> None:
        """A type that becomes known later is claimed from then on, also where a limit holds."""
        worker = ledger.worker(ledger.job_source())
        jobs = {name: enqueue(ledger, name) for name in ("late", "later", "strange")}
        claimed = []

        for name in ("late", "later"):
            claimed.append(sum(step.claimed for step in worker.tick()))
            ledger.kinds.add(name, nothing)
            claimed.append(sum(step.claimed for step in worker.tick()))
            ledger.run(lambda tx: tx.jobs.limit("default", 1))

        assert claimed == [0, 1, 0, 1]
        assert worker.report().types == {"jobs:default": ["late", "later"]}
        statuses = {name: standing(ledger, job_id).status for name, job_id in jobs.items()}
        done = Status.SUCCEEDED
        assert statuses == {"late": done, "later": done, "strange": Status.QUEUED}
        worker.stop(grace_seconds=0)

    def test_long_errors(self, ledger: Ledger, clock: ManualClock) -> None:
        """Code and message are cut to their columns; the traceback is in the event."""
        kind = type("Ü" * 100, (Exception,), {})

        @ledger.job("a", max_attempts=1)
        def fail() -> None:
            raise kind("🪨\0" * 20_000)

        job_id = enqueue(ledger, fail)

        tick(ledger)

        row = standing(ledger, job_id)
        error = history_of(ledger, job_id)[2].detail["error"]
        assert row.status is Status.DEAD_LETTER
        assert (row.last_error_code, len(row.last_error_message or "")) == ("Ü" * 64, 2048)
        assert (error["code"], error["message"]) == (row.last_error_code, row.last_error_message)
        assert "🪨" * 1 in error["traceback"]

    def test_a_traceback_is_whole(self, ledger: Ledger, clock: ManualClock) -> None:
        """The event of a failure says where it happened."""
        ledger.kinds.add("a", _fails)
        job_id = enqueue(ledger, "a")

        tick(ledger)

        traceback = history_of(ledger, job_id)[2].detail["error"]["traceback"]
        assert traceback.startswith("Traceback (most recent call last):")
        assert traceback.rstrip().endswith("ValueError: as wished")
        assert "in _fails" in traceback

    def test_a_traceback_beside_a_long_message(self, ledger: Ledger, clock: ManualClock) -> None:
        """However long messages are, a traceback is bounded and keeps its frames and its end."""
        lines = "\n".join(f"line {n}" for n in range(20_000))
        messages = ["x" * 100_000 + " the end", f"{lines} the end"]

        @ledger.job("a", max_attempts=1)
        def fail(number: int) -> None:
            try:
                _fails()
            except ValueError as error:
                raise LookupError(messages[number]) from error

        ids = [enqueue(ledger, fail, {"number": n}) for n in range(len(messages))]

        tick(ledger)

        for job_id in ids:
            traceback = history_of(ledger, job_id)[2].detail["error"]["traceback"]
            assert len(traceback) <= TRACEBACK_CHARS_MAX
            assert traceback.startswith("Traceback (most recent call last):")
            assert "in _fails" in traceback
            assert "in fail\n" in traceback
            assert "characters left out" in traceback
            assert traceback.endswith(" the end\n")

    def test_nesting(self, ledger: Ledger, clock: ManualClock) -> None:
        """Arguments and results are as deep as every database takes them, and not deeper."""

        @ledger.job("a", max_attempts=1)
        def answer(value: Any, more: int) -> Any:
            return _nested(value, more)

        # One level is the arguments themselves.
        given = _nested("[{", NESTING_MAX - 1)
        ids = [enqueue(ledger, answer, {"value": given, "more": more}) for more in (1, 2)]

        tick(ledger)

        kept, refused = (standing(ledger, job_id) for job_id in ids)
        assert (kept.payload["value"], kept.result) == (given, _nested(given, 1))
        assert (refused.status, refused.last_error_code) == (Status.DEAD_LETTER, "bad_input")
        assert str(NESTING_MAX) in (refused.last_error_message or "")
        with pytest.raises(BadInput, match=str(NESTING_MAX)):
            enqueue(ledger, answer, {"value": _nested(given, 1), "more": 0})

    def test_large_numbers(self, ledger: Ledger, clock: ManualClock) -> None:
        """A number comes back equal and of its type, to a handler and to a reader."""
        numbers = [1e16, -1.5e300, 1.7976931348623157e308, 5e-324, 0.1, 1.0, 2**64 - 1, -(2**63)]
        seen: list[Any] = []

        @ledger.job("echo")
        def echo(values: list[Any]) -> list[Any]:
            seen.extend(values)
            return values

        job_id = enqueue(ledger, echo, {"values": numbers})

        tick(ledger)

        row = standing(ledger, job_id)
        for values in (seen, row.payload["values"], row.result):
            assert isinstance(values, list)
            assert [(value, type(value)) for value in values] == [(n, type(n)) for n in numbers]

    @pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
    def test_too_large_an_integer(self, ledger: Ledger, clock: ManualClock, number: int) -> None:
        """What not every database keeps exactly is refused at the door, or fails the attempt."""

        @ledger.job("large", max_attempts=1)
        def large(text: str) -> int:
            return int(text)

        job_id = enqueue(ledger, large, {"text": str(number)})

        tick(ledger)

        row = standing(ledger, job_id)
        assert (row.status, row.last_error_code) == (Status.DEAD_LETTER, "bad_input")
        with pytest.raises(BadInput, match="64 bits"):
            enqueue(ledger, large, {"text": [number]})

    def test_odd_answers(self, ledger: Ledger, clock: ManualClock) -> None:
        """An answer that cannot be kept is that job's failure, never its worker's."""
        answers: list[Any] = [Snooze(float("nan")), Snooze(float("inf")), Snooze(1e300)]
        answers += [object(), float("nan"), "\ud83d"]

        @ledger.job("odd", max_attempts=1)
        def odd(number: int) -> Any:
            return answers[number]

        ids = [enqueue(ledger, odd, {"number": n}) for n in range(len(answers))]
        ledger.kinds.add("good", nothing)
        good = enqueue(ledger, "good")

        tick(ledger)

        assert standing(ledger, good).status is Status.SUCCEEDED
        rows = [standing(ledger, job_id) for job_id in ids]
        assert {row.status for row in rows} == {Status.DEAD_LETTER}
        assert {row.last_error_code for row in rows} == {"bad_input"}


class ThreadedJobsContract:
    """What needs a worker that runs. Fixtures: `ledger`."""

    def test_timeouts(self, ledger: Ledger) -> None:
        """A handler that runs past its limit is told, and that is its failure."""
        heard: list[str] = []
        # On a busy machine the time may be up before the first line: that attempt heard nothing.
        again: dict[str, Any] = {
            "timeout_seconds": 0.3,
            "max_attempts": ATTEMPTS_LIMIT,
            "backoff": Backoff(policy=BackoffPolicy.NONE),
        }

        @ledger.job("sync", **again)
        def sync(job: Job) -> None:
            try:
                while "sync" not in heard:
                    job.check()
            except HandlerTimeout:
                heard.append("sync")
                raise

        @ledger.job("awaited", **again)
        async def awaited() -> None:
            try:
                if "awaited" not in heard:
                    await asyncio.Event().wait()
            except asyncio.CancelledError:
                heard.append("awaited")
                raise

        ids = [enqueue(ledger, job) for job in (sync, awaited)]

        with started(ledger.worker()):
            until(lambda: all(standing(ledger, i).status is Status.SUCCEEDED for i in ids))

        rows = [standing(ledger, job_id) for job_id in ids]
        assert set(heard) == {"awaited", "sync"}
        assert {row.last_error_code for row in rows} == {"timeout"}
        assert all(row.attempt > 1 for row in rows)

    def test_many_at_once(self, ledger: Ledger) -> None:
        """Hundreds of jobs by several workers are each done once, and all moves are on record."""
        lock, done = threading.Lock(), list[int]()

        @ledger.job("a")
        def work(number: int) -> int:
            with lock:
                done.append(number)
            return number

        with ledger.transaction() as tx:
            new = [NewJob(type=work, payload={"number": n}) for n in range(300)]
            ids = [enqueued.id for enqueued in tx.jobs.enqueue_many(new)]
        with started(ledger.worker()), started(ledger.worker()):
            until(lambda: len(done) >= 300 and not _open(ledger))

        assert sorted(done) == list(range(300))
        assert standing(ledger, ids[7]).result == 7
        for job_id in ids[::50]:
            assert_replayed(ledger, job_id)

    def test_a_job_that_makes_another_known(self, ledger: Ledger) -> None:
        """What a handler makes known, as a late import does, is run by the worker it runs in."""

        @ledger.job("first")
        def first() -> None:
            ledger.kinds.add("second", nothing)

        waiting = enqueue(ledger, "second")

        with started(ledger.worker()):
            enqueue(ledger, first)
            until(lambda: standing(ledger, waiting).status is Status.SUCCEEDED)

        assert standing(ledger, waiting).attempt == 1

    def test_work_committed_elsewhere_is_found(self, ledger: Ledger) -> None:
        """A worker that is idle begins at once what is committed, in whichever queue it works."""
        ran = threading.Semaphore(0)

        @ledger.job("a", queue="one")
        def one() -> None:
            ran.release()

        @ledger.job("b", queue="two")
        def two() -> None:
            ran.release()

        with started(ledger.worker()):
            for job in (one, two, one, two):
                enqueue(ledger, job)
                assert ran.acquire(timeout=WAIT_SECONDS_MAX)

    @pytest.mark.slow
    def test_errors_of_a_process(self, ledger: Ledger) -> None:
        """An error from a process of its own keeps its name, its words and where it was raised."""
        expected = {
            children.failed_inside: ("ValueError", "inside", "in failed_inside"),
            children.refused_inside: ("Unsendable", "not today", "in _refuse"),
            children.ended_inside: ("SystemExit", "enough", "in ended_inside"),
        }
        for call in expected:
            ledger.kinds.add(call.__name__, call, process=True, max_attempts=1)
        ids = {call: enqueue(ledger, call.__name__) for call in expected}

        with started(ledger.worker()):
            until(lambda: not _open(ledger))

        for call, job_id in ids.items():
            row = standing(ledger, job_id)
            traceback = history_of(ledger, job_id)[2].detail["error"]["traceback"]
            code, message, frame = expected[call]
            assert (row.last_error_code, row.last_error_message) == (code, message)
            assert frame in traceback
            assert row.status is Status.DEAD_LETTER


def _open(ledger: Ledger) -> int:
    with ledger.reading() as tx:
        standing_ = tx.jobs.counts()["default"]
    return standing_.get(Status.QUEUED, 0) + standing_.get(Status.RUNNING, 0)


def _nested(value: Any, depth: int) -> Any:
    """The value in so many lists and dicts."""
    for level in range(depth):
        value = [value] if level % 2 else {"in": value}
    return value


def _fails() -> None:
    message = "as wished"
    raise ValueError(message)
