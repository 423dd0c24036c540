"""The job contract, operating: cancel, retry, pause, and looking at jobs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ledgerstone.engine.backoff import Backoff, BackoffPolicy
from ledgerstone.engine.source import OutcomeKind
from ledgerstone.errors import BadInput, NotAllowedNow, NotFound
from ledgerstone.ids import new_id
from ledgerstone.jobs import Cancel, Job, JobRow, JobSource, Limit, NewJob, Status, history
from ledgerstone.jobs.operating import RETRY_MAX
from ledgerstone.jobs.read import queues
from ledgerstone.ledger import Ledger
from ledgerstone.store.sql.pages import Page
from ledgerstone.testing.clock import ManualClock
from tests.contract.jobs.examples import (
    LEASE_SECONDS,
    assert_replayed,
    claim,
    count,
    dead_letter,
    drain,
    enqueue,
    history_of,
    moves_of,
    nothing,
    rescue,
    settle,
    standing,
    tick,
)
from tests.harness.ledgers import subscribed, undone

UNKNOWN = "01890a5d-ac96-774b-bcce-b302099a8057"
MALFORMED = ("", "7", "not an id", "01890a5d-ac96-774b-bcce", "\0", "é" * 36)


class OperatingContract:
    """What people do to jobs. Fixtures: `ledger`, `clock`."""

    @pytest.fixture
    def source(self, ledger: Ledger) -> JobSource:
        """Two types of jobs that do nothing, in the default queue."""
        ledger.kinds.add("a", nothing)
        ledger.kinds.add("dies", nothing)
        return ledger.job_source()

    def test_cancel_what_is_queued(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """A queued job, due or not, is canceled at once; who did it and why is on record."""
        ids = [enqueue(ledger, "a"), enqueue(ledger, "a", delay_seconds=60)]

        answers = [_cancel(ledger, job_id, by="ada", reason="a mistake") for job_id in ids]

        assert answers == [Status.CANCELED] * 2
        clock.advance(61)
        assert claim(ledger, source) == []
        for job_id in ids:
            row, event = standing(ledger, job_id), history_of(ledger, job_id)[-1]
            assert row.status is Status.CANCELED
            assert row.finished_at is not None
            assert event.detail == {"by": "ada", "reason": "a mistake"}
            assert_replayed(ledger, job_id)

    def test_cancel_what_runs(self, ledger: Ledger, clock: ManualClock) -> None:
        """A running job is asked: it sees it, cleans up, and ends canceled."""
        seen: list[Any] = []

        @ledger.job("a")
        def work(job: Job) -> Any:
            seen.append(job.canceled)
            seen.append(_cancel(ledger, job.id, by="ada"))
            seen.append(_cancel(ledger, job.id, by="ada"))
            clock.advance(1)
            seen.append(job.canceled)
            return Cancel("as asked")

        job_id = enqueue(ledger, work)

        tick(ledger)

        row = standing(ledger, job_id)
        assert seen == [False, Status.RUNNING, Status.RUNNING, True]
        assert (row.status, row.cancel_requested) == (Status.CANCELED, True)
        asked = [event for event in history_of(ledger, job_id) if "by" in event.detail]
        assert [(e.prev_status, e.next_status) for e in asked] == [("running", "running")]
        assert_replayed(ledger, job_id)

    def test_what_was_asked_to_stop_and_did_not(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """A job that was asked to cancel is not run again: it succeeds, or it is canceled."""
        for verdict in OutcomeKind:
            job_id = enqueue(ledger, "a")
            (taken,) = claim(ledger, source)
            _cancel(ledger, job_id)

            refused = settle(ledger, source, taken, verdict)

            wanted = Status.SUCCEEDED if verdict is OutcomeKind.DONE else Status.CANCELED
            row = standing(ledger, job_id)
            assert refused == []
            assert (row.status, row.attempt) == (wanted, 1)
            assert_replayed(ledger, job_id)

    def test_a_crash_of_what_was_asked_to_stop(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """Nor is it run again if its worker dies."""
        job_id = enqueue(ledger, "a")
        claim(ledger, source)
        _cancel(ledger, job_id)
        clock.advance(LEASE_SECONDS + 1)

        rescued = rescue(ledger, source)

        assert rescued == 1
        assert standing(ledger, job_id).status is Status.CANCELED
        assert claim(ledger, source) == []
        assert_replayed(ledger, job_id)

    def test_cancel_what_is_over(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """A job that has ended cannot be canceled; a canceled one is as it should be."""
        done, dead, canceled = (enqueue(ledger, "a") for _ in range(3))
        by_id = {taken.key: taken for taken in claim(ledger, source)}
        settle(ledger, source, by_id[done], OutcomeKind.DONE)
        settle(ledger, source, by_id[dead], OutcomeKind.DEAD)
        settle(ledger, source, by_id[canceled], OutcomeKind.CANCELED)
        before = {job_id: history_of(ledger, job_id) for job_id in (done, dead, canceled)}

        with pytest.raises(NotAllowedNow, match="succeeded"):
            _cancel(ledger, done)
        with pytest.raises(NotAllowedNow, match="dead_letter"):
            _cancel(ledger, dead)
        again = _cancel(ledger, canceled)

        assert again is Status.CANCELED
        assert {job_id: history_of(ledger, job_id) for job_id in before} == before

    def test_words_that_cannot_be_kept(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """Who and why are checked like everything else, before anything is written."""
        job_id = enqueue(ledger, "a")

        wrong: list[dict[str, Any]] = [
            *({"by": who} for who in ("a\0b", "w" * 256, 5)),
            *({"reason": why} for why in ("a\0b", "\ud83d", 5)),
        ]
        for words in wrong:
            with pytest.raises(BadInput):
                _cancel(ledger, job_id, **words)

        assert standing(ledger, job_id).status is Status.QUEUED

    def test_retry_a_dead_letter(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """A dead letter is queued again with all its attempts; what went wrong stays on record."""
        job_id = enqueue(ledger, "a", max_attempts=2)
        for _ in range(2):
            (taken,) = claim(ledger, source)
            settle(ledger, source, taken, OutcomeKind.FAILED)
            clock.advance(600)
        channel = source.channel

        with subscribed(ledger, channel) as wake_signal:
            ledger.run(lambda tx: tx.jobs.retry(job_id, by="ada"))
            woken = wake_signal.wait(0)

        row, event = standing(ledger, job_id), history_of(ledger, job_id)[-1]
        assert woken
        assert (row.status, row.attempt, row.finished_at) == (Status.QUEUED, 0, None)
        assert row.run_at.timestamp() == clock.now_ms() / 1000
        assert (row.last_error_code, row.crashes) == ("test", 0)
        assert (event.detail["by"], event.prev_status) == ("ada", "dead_letter")
        (taken,) = claim(ledger, source)
        assert (taken.key, taken.attempt) == (job_id, 1)
        assert_replayed(ledger, job_id)

    def test_a_new_life(self, ledger: Ledger, clock: ManualClock, source: JobSource) -> None:
        """A dead letter that is queued again is at no stage; how far it came stays on record."""

        @ledger.job("halfway", queue="halfway", max_attempts=1)
        def halfway(job: Job) -> None:
            job.progress(0.5, "there")
            raise ValueError

        job_id = enqueue(ledger, "halfway")
        tick(ledger, ledger.job_source("halfway"))
        dead = standing(ledger, job_id)

        ledger.run(lambda tx: tx.jobs.retry(job_id))

        row = standing(ledger, job_id)
        assert (dead.status, dead.stage, dead.progress) == (Status.DEAD_LETTER, "there", 0.5)
        assert (row.status, row.stage, row.progress) == (Status.QUEUED, None, None)
        assert_replayed(ledger, job_id)

    def test_what_nobody_can_mean(self, ledger: Ledger, clock: ManualClock) -> None:
        """What is of another type, or no text, is refused as such by every call."""
        five: Any = 5
        calls: list[Callable[[Any], Any]] = [
            lambda jobs: jobs.pause(five),
            lambda jobs: jobs.pause("q", by=five),
            lambda jobs: jobs.limit("q", 1.5),
            lambda jobs: jobs.limit("q", True),
            lambda jobs: jobs.limit("q", "many"),
            lambda jobs: jobs.limit("q", 2**31),
            lambda jobs: jobs.find(org=[]),
            lambda jobs: jobs.find(queue="\ud800"),
            lambda jobs: jobs.find(key="a\0"),
            lambda jobs: jobs.find(type=five),
            lambda jobs: jobs.find(limit="many"),
            lambda jobs: jobs.retry_all(type="\0"),
            lambda jobs: jobs.retry_all(queue=five),
            lambda jobs: jobs.retry_all(org="acme"),
            lambda jobs: jobs.retry_all(limit="many"),
        ]

        for call in calls:
            with pytest.raises(BadInput), ledger.transaction() as tx:
                call(tx.jobs)

        assert count(ledger, "job_queue") == 0

    def test_retry_what_is_no_dead_letter(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """Only dead letters are retried by hand."""
        done, canceled, running = (enqueue(ledger, "a") for _ in range(3))
        by_id = {taken.key: taken for taken in claim(ledger, source)}
        settle(ledger, source, by_id[done], OutcomeKind.DONE)
        settle(ledger, source, by_id[canceled], OutcomeKind.CANCELED)
        queued = enqueue(ledger, "a")

        for job_id in (queued, running, done, canceled):
            with pytest.raises(NotAllowedNow):
                ledger.run(lambda tx, key=job_id: tx.jobs.retry(key))  # type: ignore[misc]

        assert [moves_of(ledger, i)[-1][1] for i in (queued, running, done, canceled)] == [
            "queued",
            "running",
            "succeeded",
            "canceled",
        ]

    def test_retry_many(self, ledger: Ledger, clock: ManualClock, source: JobSource) -> None:
        """Filters choose, a dry run only answers, the oldest come first, at most so many."""
        ledger.kinds.add("other", nothing, queue="other")
        org = new_id()
        dead = []
        for job, queue in itertools.product(("a", "dies"), ("default", "other")):
            whose = {"org": org} if (job, queue) == ("dies", "default") else {}
            dead.append(dead_letter(ledger, job, queue=queue, **whose))
            clock.advance(1)
        queued = enqueue(ledger, "a", delay_seconds=60)

        def asked(**options: Any) -> list[str]:
            return ledger.run(lambda tx: tx.jobs.retry_all(**options)).ids

        trials = {
            "all": asked(dry_run=True),
            "type": asked(dry_run=True, type="a"),
            "queue": asked(dry_run=True, queue="other"),
            "both": asked(dry_run=True, type="dies", queue="other", error_code="test"),
            "code": asked(dry_run=True, error_code="timeout"),
            "two": asked(dry_run=True, limit=2),
            "org": asked(dry_run=True, org=org),
        }
        untouched = {standing(ledger, job_id).status for job_id in dead}
        two = asked(limit=2, by="ada")
        rest = asked()

        assert trials == {
            "all": dead,
            "type": dead[:2],
            "queue": [dead[1], dead[3]],
            "both": [dead[3]],
            "code": [],
            "two": dead[:2],
            "org": [dead[2]],
        }
        assert untouched == {Status.DEAD_LETTER}
        assert (two, rest) == (dead[:2], dead[2:])
        assert {standing(ledger, job_id).status for job_id in dead} == {Status.QUEUED}
        assert [history_of(ledger, i)[-1].detail["by"] for i in dead[:2]] == ["ada"] * 2
        for job_id in dead:
            assert_replayed(ledger, job_id)
        assert len(history_of(ledger, queued)) == 1
        for limit in (0, -1, RETRY_MAX + 1, None, "5", 1.5, True):
            with pytest.raises(BadInput):
                asked(limit=limit)

    def test_pause_and_resume(self, ledger: Ledger, clock: ManualClock, source: JobSource) -> None:
        """While a queue is paused nothing of it begins, what runs may end; resumed, it wakes."""
        ledger.kinds.add("elsewhere", nothing, queue="elsewhere")
        enqueue(ledger, "a")
        (taken,) = claim(ledger, source)
        waiting, other = enqueue(ledger, "a"), enqueue(ledger, "elsewhere")

        ledger.run(lambda tx: tx.jobs.pause("default", by="ada"))
        ledger.run(lambda tx: tx.jobs.pause("default"))
        ended = settle(ledger, source, taken, OutcomeKind.DONE)
        paused = [step.claimed for step in tick(ledger)]
        with subscribed(ledger, source.channel) as wake_signal:
            ledger.run(lambda tx: tx.jobs.resume("default"))
            woken = wake_signal.wait(0)
        tick(ledger)

        assert (ended, sum(paused), woken) == ([], 1, True)
        assert standing(ledger, other).status is Status.SUCCEEDED
        assert standing(ledger, waiting).status is Status.SUCCEEDED

    def test_one_queue_at_a_time(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """Pause, resume and limit concern the queue that is named; what each does is seen."""
        for queue in ("one", "two"):
            ledger.run(lambda tx, queue=queue: tx.jobs.pause(queue, by="ada"))  # type: ignore[misc]
            ledger.run(lambda tx, queue=queue: tx.jobs.limit(queue, 7))  # type: ignore[misc]
        clock.advance(2)
        ledger.run(lambda tx: tx.jobs.resume("one"))
        ledger.run(lambda tx: tx.jobs.limit("two", 5))
        ledger.run(lambda tx: tx.jobs.limit("three", None))

        with ledger.reading() as tx:
            found = {state.name: state for state in queues.look(tx).queues}

        told = {n: (s.paused_ms, s.paused_by, s.concurrency_max) for n, s in found.items()}
        assert told == {"one": (None, None, 7), "two": (2000, "ada", 5)}

    def test_queues_at_a_glance(
        self, ledger: Ledger, clock: ManualClock, source: JobSource
    ) -> None:
        """Of each queue it is told how many wait, for what and how long, run, and are dead."""
        ledger.kinds.add("served", nothing, queue="other", limit=Limit(key=lambda: "key"))
        other = ledger.job_source("other")
        dead_letter(ledger, "dies")
        enqueue(ledger, "a")
        claim(ledger, source)
        clock.advance(1)
        for delay in (0, 0, 2, 60):
            enqueue(ledger, "a", delay_seconds=delay)
        for _ in range(3):
            enqueue(ledger, "served")
        claim(ledger, other)
        clock.advance(3)

        with ledger.reading() as tx:
            whole, some = queues.look(tx), queues.look(tx, counted_max=2)

        told = {
            state.name: (
                *(state.queued, state.scheduled, state.blocked, state.running),
                *(state.dead_letters, state.oldest_due_ms),
            )
            for state in whole.queues
        }
        assert told == {"default": (3, 1, 0, 1, 1, 3000), "other": (0, 0, 2, 1, 0, None)}
        assert (whole.counted_all, some.counted_all) == (True, False)

    def test_an_undone_pause(self, ledger: Ledger, clock: ManualClock, source: JobSource) -> None:
        """A pause is part of its transaction; a queue that is none is refused."""
        job_id = enqueue(ledger, "a")

        with undone(ledger) as tx:
            tx.jobs.pause("default")
        with pytest.raises(BadInput):
            ledger.run(lambda tx: tx.jobs.pause(""))
        ledger.run(lambda tx: tx.jobs.resume("default"))

        assert [taken.key for taken in claim(ledger, source)] == [job_id]


class ReadingContract:
    """Looking at jobs. Fixtures: `ledger`, `clock`."""

    def test_what_is_not_there(self, ledger: Ledger, clock: ManualClock) -> None:
        """An unknown id is not found, and so is one that is no id, by whatever asks for it."""
        wrong: list[str] = []
        for job_id in (UNKNOWN, *MALFORMED):
            acts: dict[str, Callable[[], object]] = {
                "get": lambda key=job_id: standing(ledger, key),  # type: ignore[misc]
                "cancel": lambda key=job_id: _cancel(ledger, key),  # type: ignore[misc]
                "retry": lambda key=job_id: ledger.run(lambda tx: tx.jobs.retry(key)),  # type: ignore[misc]
            }
            for name, act in acts.items():
                try:
                    act()
                except NotFound:
                    continue
                except Exception as error:  # noqa: BLE001 - whatever it is, it is wrong
                    wrong.append(f"{name}({job_id!r}): {error!r}")

        assert wrong == []

    def test_an_id_in_capitals(self, ledger: Ledger, clock: ManualClock) -> None:
        """An id is found however it is written."""
        job_id = enqueue(ledger, "a")

        assert standing(ledger, job_id.upper()).id == job_id

    def test_filters(self, ledger: Ledger, clock: ManualClock) -> None:
        """Each filter chooses, together they all hold, and the newest come first."""
        ledger.kinds.add("a", nothing)
        org = new_id()
        first = enqueue(ledger, "a", org=org, key="k", correlation_id="c")
        clock.advance(1)
        second = enqueue(ledger, "b", org=org, queue="other", correlation_id="c")
        clock.advance(1)
        third = enqueue(ledger, "a", key="k")
        drain(ledger.worker(), clock)

        def found(**filters: Any) -> list[str]:
            with ledger.reading() as tx:
                return [row.id for row in tx.jobs.find(**filters).rows]

        assert found() == [third, second, first]
        assert found(org=org) == [second, first]
        assert found(org=org.upper()) == [second, first]
        assert found(type="a") == [third, first]
        assert found(queue="other") == [second]
        assert found(key="k") == [third, first]
        assert found(correlation_id="c") == [second, first]
        assert found(status=Status.SUCCEEDED) == [third, first]
        assert found(status=Status.QUEUED) == [second]
        assert found(org=org, type="a", key="k", status=Status.SUCCEEDED) == [first]
        assert found(org=org, type="a", queue="other") == []
        with pytest.raises(BadInput):
            found(org="acme")

    def test_pages_stand_still(self, ledger: Ledger, clock: ManualClock) -> None:
        """Pages show every job once, whatever is added or moves on meanwhile."""
        ids = []
        for number in range(25):
            ids.append(enqueue(ledger, "a", {"n": number}))
            if number % 3:
                clock.advance(0.001)
        seen: list[JobRow] = []
        cursor = None

        for _ in range(5):
            with ledger.reading() as tx:
                page: Page[JobRow] = tx.jobs.find(limit=6, cursor=cursor)
            seen += page.rows
            cursor = page.next
            enqueue(ledger, "a")
            _cancel(ledger, ids[0])

        assert cursor is None
        assert [row.id for row in seen] == ids[::-1]
        assert [row.payload["n"] for row in seen] == list(range(24, -1, -1))

    def test_counts(self, ledger: Ledger, clock: ManualClock) -> None:
        """How many stand where, by queue."""
        ledger.kinds.add("a", nothing)
        new = [NewJob(type="a"), NewJob(type="b"), NewJob(type="b"), NewJob(type="b", queue="q")]
        with ledger.transaction() as tx:
            empty = tx.jobs.counts()
            tx.jobs.enqueue_many(new)
        tick(ledger)

        with ledger.reading() as tx:
            counts = tx.jobs.counts()

        assert empty == {}
        assert counts == {
            "default": {Status.SUCCEEDED: 1, Status.QUEUED: 2},
            "q": {Status.QUEUED: 1},
        }

    def test_the_newest_events(self, ledger: Ledger, clock: ManualClock) -> None:
        """The newest events are in order, the others are counted, and the last error is found."""

        @ledger.job("a", max_attempts=2, backoff=Backoff(policy=BackoffPolicy.NONE))
        def told(job: Job) -> None:
            if job.attempt == 1:
                raise ValueError
            for number in range(5):
                job.progress(number / 5)

        job_id = enqueue(ledger, told)
        drain(ledger.worker(), clock)
        whole = history_of(ledger, job_id)

        with ledger.reading() as tx:
            some, all_ = (history.newest(tx, job_id, limit=limit) for limit in (3, 100))

        assert (some.events, some.earlier) == (whole[-3:], len(whole) - 3)
        assert (all_.events, all_.earlier) == (whole, 0)
        assert some.failed == all_.failed == whole[2]

    def test_pages_of_events(self, ledger: Ledger, clock: ManualClock) -> None:
        """The events of a job are read in pages, in the order in which they happened."""

        @ledger.job("a")
        def told(job: Job) -> None:
            for number in range(10):
                job.progress(number / 10)

        job_id = enqueue(ledger, told)
        enqueue(ledger, told)
        tick(ledger)
        whole = history_of(ledger, job_id)
        seen: list[Any] = []
        cursor = None

        for _ in range(5):
            with ledger.reading() as tx:
                page = tx.jobs.events(job_id, limit=3, cursor=cursor)
            assert len(page.rows) <= 3
            seen += page.rows
            cursor = page.next
            if cursor is None:
                break

        assert seen == whole
        assert [e.detail["progress"] for e in seen if "progress" in e.detail] == [
            number / 10 for number in range(10)
        ]
        # They happened in one moment, and are told apart all the same.
        assert seen[-1].ts - seen[0].ts < timedelta(seconds=1)


def _cancel(ledger: Ledger, job_id: str, **words: str) -> Status:
    return ledger.run(lambda tx: tx.jobs.cancel(job_id, **words))
