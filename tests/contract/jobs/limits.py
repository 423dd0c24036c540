"""The limit contract: how many jobs run at once, and why one does not."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import text

from ledgerstone import errors
from ledgerstone.engine.source import Ask, Outcome, OutcomeKind
from ledgerstone.engine.worker import Worker
from ledgerstone.jobs import Limit, NewJob, Status, limits
from ledgerstone.jobs import claim_order as line
from ledgerstone.jobs.operating import CONCURRENCY_LIMIT
from ledgerstone.jobs.settling import JobClaim
from ledgerstone.jobs.source import JobSource
from ledgerstone.jobs.states import Gate
from ledgerstone.ledger import Ledger
from ledgerstone.store.wakeup import WakeSignal
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import until
from tests.harness.ledgers import opened
from tests.harness.threads import signaled

WORKERS = 3
MOST = 4
PLACES = 10
"""What a worker asks for."""
LEASE_SECONDS = 3600.0
"""So long that none runs out by itself, also on a busy machine: here most clocks are real."""
CUSTOMERS = ("ada", "bob", "cyd")
ORGS = tuple(f"{letter * 8}-0000-4000-8000-000000000000" for letter in "abc")


class Gauge:
    """Counts how many are inside at once, by name, and remembers the most there ever were.

    The first ones stay until there are `least` at once.
    """

    def __init__(self, least: int = 1) -> None:
        self._least = least
        self._enough = threading.Event()
        self._lock = threading.Lock()
        self._inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done = 0
        self._turn = WakeSignal()

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        with self._lock:
            self._inside[name] += 1
            self.most[name] = max(self.most[name], self._inside[name])
            if self.most[name] >= self._least:
                self._enough.set()
        try:
            signaled(self._enough)
            # Long enough that another one, if it were let in, would be seen here.
            self._turn.wait(0.002)
            yield
        finally:
            with self._lock:
                self._inside[name] -= 1
                self.done += 1


@contextmanager
def at_work(ledger: Ledger, count: int = WORKERS) -> Iterator[None]:
    """So many workers, each with connections of its own."""
    workers = [ledger.worker() for _ in range(count)]
    with running(*workers):
        yield
        assert [worker.failure for worker in workers] == [None] * count


class LimitContract:
    """What holds for limits and `explain`. Fixtures: `ledger` and its `home`."""

    def test_a_queue_never_runs_more(self, ledger: Ledger) -> None:
        """However many workers there are, a queue runs at most so many jobs at once."""
        gauge = Gauge(least=2)

        @ledger.job("work")
        def work() -> None:
            with gauge.inside("queue"):
                pass

        with ledger.transaction() as tx:
            tx.jobs.limit("default", MOST)
            tx.jobs.enqueue_many([NewJob(type="work") for _ in range(60)])
        with at_work(ledger):
            until(lambda: gauge.done >= 60, what="60 done")

        assert 1 < gauge.most["queue"] <= MOST

    def test_a_key_never_runs_more(self, ledger: Ledger) -> None:
        """Jobs with the same limit key run at most so many at once; other keys go on meanwhile."""
        gauge = Gauge()

        def customer_of(customer: str) -> str:
            return customer

        @ledger.job("work", limit=Limit(key=customer_of, most=1))
        def work(customer: str) -> None:
            with gauge.inside(customer):
                pass

        jobs = [NewJob(type="work", payload={"customer": CUSTOMERS[i % 3]}) for i in range(60)]
        ledger.run(lambda tx: tx.jobs.enqueue_many(jobs))
        with at_work(ledger):
            until(lambda: gauge.done >= 60, what="60 done")

        assert gauge.most == dict.fromkeys(CUSTOMERS, 1)

    def test_a_used_up_key_holds_up_nobody(self, ledger: Ledger) -> None:
        """Many jobs of a key that is used up do not keep another job from being claimed."""
        source = limited_source(ledger)
        crowd = [NewJob(type="work", payload={"customer": "ada"}, priority=9) for _ in range(300)]
        ledger.run(lambda tx: tx.jobs.enqueue_many(crowd))
        ledger.run(lambda tx: tx.jobs.enqueue("work", {"customer": "bob"}))

        claims = claimed(ledger, source)

        assert sorted(str(claim.limit_key) for claim in claims) == ["ada", "bob"]

    def test_the_next_of_a_key_follows(self, ledger: Ledger) -> None:
        """When a job with a key is settled, however it came out, the next one gets in line."""
        source = limited_source(ledger)
        for number in range(4):
            ledger.run(enqueue({"customer": "ada", "number": number}))
        order = []
        for verdict in (OutcomeKind.DONE, OutcomeKind.DEAD, OutcomeKind.CANCELED, OutcomeKind.DONE):
            claims = claimed(ledger, source)
            order += [claim.body for claim in claims]
            assert settled(ledger, source, claims, verdict) == []

        assert len(order) == len(set(order)) == 4

    def test_a_key_is_one_for_all_queues(self, ledger: Ledger) -> None:
        """A limit key holds across queues: who is blocked in one follows a job of another."""
        here, there = limited_source(ledger), ledger.job_source("elsewhere")
        ledger.run(enqueue({"customer": "ada"}))
        far = [ledger.run(enqueue({"customer": "ada"}, queue="elsewhere")) for _ in range(2)]

        first = claimed(ledger, here)
        held = claimed(ledger, there)
        settled(ledger, here, first, OutcomeKind.DONE)
        second = claimed(ledger, there)

        assert (len(first), len(held)) == (1, 0)
        assert [claim.key for claim in second] == [far[0].id]

    def test_a_key_never_runs_more_in_two_queues(self, ledger: Ledger) -> None:
        """However many workers serve several queues, a key runs at most so many at once."""
        gauge = Gauge()

        @ledger.job("work", limit=Limit(key=lambda customer: customer, most=2))
        def work(customer: str) -> None:
            with gauge.inside(customer):
                pass

        jobs = [
            NewJob(type="work", payload={"customer": CUSTOMERS[i % 3]}, queue=f"queue {i % 2}")
            for i in range(60)
        ]
        ledger.run(lambda tx: tx.jobs.enqueue_many(jobs))
        workers = [
            ledger.worker(ledger.job_source("queue 0"), ledger.job_source("queue 1"))
            for _ in range(WORKERS)
        ]
        with running(*workers):
            until(lambda: gauge.done >= 60, what="60 done")

        assert [worker.failure for worker in workers] == [None] * WORKERS
        assert max(gauge.most.values()) <= 2

    def test_keys_in_any_order(self, ledger: Ledger) -> None:
        """A claim that finds another key only when its first is used up takes both in one go."""
        source = limited_source(ledger)
        names = [f"customer {number}" for number in range(40)]
        for name in reversed(names):
            add(ledger, [NewJob(type="work", payload={"customer": name}) for _ in range(11)])

        claims = claimed(ledger, source)

        assert len({claim.limit_key for claim in claims}) == len(claims) == PLACES

    def test_organisations_take_turns_with_a_key(self, ledger: Ledger) -> None:
        """However many jobs one organisation has with a key, the place goes to the next one."""
        source = limited_source(ledger)
        for org, count in ((ORGS[0], 9), (ORGS[1], 2), (ORGS[2], 1)):
            add(ledger, [NewJob(type="work", payload={"customer": "ada"}, org=org)] * count)

        order = []
        for _ in range(6):
            claims = claimed(ledger, source)
            order += [ORGS.index(claim.org_id) for claim in claims]
            settled(ledger, source, claims, OutcomeKind.DONE)

        assert order == [0, 1, 2, 0, 1, 0]

    def test_organisations_take_turns_in_a_limited_queue(self, ledger: Ledger) -> None:
        """Also where a queue is limited the next organisation is next, and each job goes once."""
        ledger.kinds.add("plain", lambda: None)
        source = ledger.job_source()
        ledger.run(lambda tx: tx.jobs.limit("default", 100))
        for org in ORGS[:2]:
            add(ledger, [NewJob(type="plain", org=org)] * 2)

        turns = [claimed(ledger, source, places) for places in (1, PLACES)]

        whose = [[ORGS.index(claim.org_id) for claim in claims] for claims in turns]
        assert whose == [[0], [1, 1, 0]]
        assert len({claim.key for claims in turns for claim in claims}) == 4

    def test_a_place_outlives_a_cancel(self, ledger: Ledger) -> None:
        """When the one that was let in line is canceled, the next of its key gets its place."""
        source = limited_source(ledger)
        payloads = [{"customer": "ada", "number": number} for number in range(3)]
        _, second, third = (ledger.run(enqueue(payload)) for payload in payloads)
        settled(ledger, source, claimed(ledger, source), OutcomeKind.DONE)

        ledger.run(lambda tx: tx.jobs.cancel(second.id))

        assert [claim.key for claim in claimed(ledger, source)] == [third.id]

    def test_a_place_outlives_a_crash(self, home: Home) -> None:
        """When a worker dies with the last attempt of a job, the next of its key gets its place."""
        clock = ManualClock()
        with opened(home.url, clock=clock) as ledger:
            source = limited_source(ledger, most=2)
            jobs = [
                NewJob(type="work", payload={"customer": "ada"}, max_attempts=1) for _ in range(6)
            ]
            ledger.run(lambda tx: tx.jobs.enqueue_many(jobs))
            dead, alive = claimed(ledger, source)
            ledger.run(lambda tx: source.extend(tx, [alive], 2 * LEASE_SECONDS))
            clock.advance(LEASE_SECONDS + 1)

            ledger.run(lambda tx: source.rescue(tx, limit=10, crashes_max=3))
            claims = claimed(ledger, source)

            with ledger.reading() as tx:
                fate = tx.jobs.get(dead.key).status
        assert fate is Status.DEAD_LETTER
        assert len(claims) == 1

    @pytest.mark.parametrize("count", [0, 1])
    def test_a_forgotten_place_is_found_again(self, ledger: Ledger, count: int) -> None:
        """Jobs that are blocked though their key has places get back in line by rescue."""
        source = limited_source(ledger, most=3)
        for number in range(9):
            ledger.run(enqueue({"customer": "ada", "number": number}))
        claims = claimed(ledger, source)
        settled(ledger, source, claims[count:], OutcomeKind.DONE)
        # However it came about.
        execute(ledger, f"UPDATE job SET gate = {Gate.BLOCKED.value} WHERE status = 'queued'")  # noqa: S608 - our own
        assert claimed(ledger, source) == []

        ledger.run(lambda tx: source.rescue(tx, limit=10, crashes_max=3))

        assert len(claimed(ledger, source)) == 3 - count

    def test_every_key_is_looked_at(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rescue looks at some keys at a time, and comes to all of them."""
        monkeypatch.setattr(limits, "SWEPT_KEYS_MAX", 2)
        source = limited_source(ledger)
        *used, last = CUSTOMERS
        for name in (*used, *used):
            ledger.run(enqueue({"customer": name}))
        assert len(claimed(ledger, source)) == len(used)
        ledger.run(enqueue({"customer": last}))
        execute(ledger, f"UPDATE job SET gate = {Gate.BLOCKED.value} WHERE status = 'queued'")  # noqa: S608 - our own

        for _ in range(2):
            ledger.run(lambda tx: source.rescue(tx, limit=10, crashes_max=3))

        # The first two are used up and stay blocked: they are passed, and not looked at for ever.
        assert [claim.limit_key for claim in claimed(ledger, source)] == [last]

    def test_kinds_that_share_a_key(self, ledger: Ledger) -> None:
        """Of two kinds with one key, the one that lets it have more is not held up by the other."""
        ledger.kinds.add("narrow", lambda: None, limit=Limit(key=lambda: "api", most=1), priority=9)
        ledger.kinds.add("wide", lambda: None, limit=Limit(key=lambda: "api", most=3))
        source = ledger.job_source()
        names = ("narrow", "narrow", "wide", "wide", "wide")
        add(ledger, [NewJob(type=name) for name in names])

        # The second one finds the narrow kind alone in front, and takes it out of the line.
        turns = [claimed(ledger, source, places) for places in (1, 1, PLACES, PLACES)]

        types = [[claim.type for claim in claims] for claims in turns]
        assert types == [["narrow"], ["wide"], ["wide"], []]

    def test_a_holder_that_only_seemed_dead(self, home: Home) -> None:
        """A job that was given up with its worker is not settled by it later; that is on record."""
        clock = ManualClock()
        with opened(home.url, clock=clock) as ledger:
            ledger.kinds.add("work", lambda: None)
            source = ledger.job_source()
            job = ledger.run(lambda tx: tx.jobs.enqueue("work", max_attempts=1))
            claims = claimed(ledger, source)
            clock.advance(LEASE_SECONDS + 1)
            ledger.run(lambda tx: source.rescue(tx, limit=10, crashes_max=3))

            refused = settled(ledger, source, claims, OutcomeKind.DONE)

            with ledger.reading() as tx:
                row, last = tx.jobs.get(job.id), tx.jobs.events(job.id).rows[-1]
        assert [outcome.claim for outcome in refused] == list(claims)
        assert row.status is Status.DEAD_LETTER
        assert "too late" in last.detail["refused"]

    def test_a_limit_can_be_taken_back(self, ledger: Ledger) -> None:
        """Without its limit the queue runs as many as there are places."""
        ledger.kinds.add("plain", lambda: None)
        source = ledger.job_source()
        ledger.run(lambda tx: tx.jobs.enqueue_many([NewJob(type="plain") for _ in range(10)]))
        ledger.run(lambda tx: tx.jobs.limit("default", 2))
        limited = claimed(ledger, source)
        none = claimed(ledger, source)

        ledger.run(lambda tx: tx.jobs.limit("default", None))

        assert (len(limited), len(none)) == (2, 0)
        assert len(claimed(ledger, source)) == 8

    def test_limits_that_are_refused(self, ledger: Ledger) -> None:
        """A queue runs at least one job at once, and no more than a bound; none is a pause."""
        odd: list[Any] = [0, -1, CONCURRENCY_LIMIT + 1, 2**70, 1.5, True, "5"]

        for most in odd:
            with pytest.raises(errors.BadInput, match="pause"):
                ledger.run(lambda tx, most=most: tx.jobs.limit("default", most))  # type: ignore[misc]

        ledger.run(lambda tx: tx.jobs.limit("default", CONCURRENCY_LIMIT))

    def test_a_slow_line_is_resumed(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        """After a slow claim the next goes on where it ended; who is in front is found soon."""
        monkeypatch.setattr(line, "SLOW_SECONDS", 0.0)
        monkeypatch.setattr(line, "SLOW_ROW_SECONDS", 0.0)
        clock = ManualClock()
        with opened(home.url, clock=clock) as ledger:
            ledger.kinds.add("work", lambda: None)
            source = ledger.job_source()
            many = [NewJob(type="work") for _ in range(25)]
            ids = [job.id for job in ledger.run(lambda tx: tx.jobs.enqueue_many(many))]
            first = claimed(ledger, source)
            urgent = ledger.run(lambda tx: tx.jobs.enqueue("work", priority=9))

            second = claimed(ledger, source)
            clock.advance(line.RESUME_SECONDS)
            third = claimed(ledger, source)

        assert [claim.key for claim in (*first, *second)] == ids[:20]
        assert [claim.key for claim in third] == [urgent.id, *ids[20:]]

    def test_explain_tells_every_reason(self, ledger: Ledger) -> None:
        """A queued job says what it waits for; one that is over or runs says that."""
        source = limited_source(ledger)
        ada = [ledger.run(enqueue({"customer": "ada", "number": n})) for n in range(2)]
        later = ledger.run(enqueue({"customer": "bob"}, delay_seconds=3600))
        other = ledger.run(lambda tx: tx.jobs.enqueue("nobody.knows", queue="elsewhere"))
        claimed(ledger, source)
        ledger.run(lambda tx: tx.jobs.pause("elsewhere", by="olga"))

        with ledger.reading() as tx:
            running, blocked, due, paused = (
                tx.jobs.explain(job.id) for job in (*ada, later, other)
            )

        assert running.summary.startswith("the job is running, attempt 1, on w")
        assert any("'ada' is used up" in words and ada[0].id in words for words in blocked.reasons)
        assert any("it is due at" in words and "in 3" in words for words in due.reasons)
        assert any("paused by olga" in words for words in paused.reasons)
        assert any("no worker serves its queue 'elsewhere'" in words for words in paused.reasons)

    def test_explain_what_is_full(self, ledger: Ledger) -> None:
        """A full queue is told with its own numbers, a key with those who hold that key."""
        source = limited_source(ledger)
        ledger.kinds.add("far", lambda: None, queue="elsewhere")
        elsewhere = ledger.job_source("elsewhere")
        held = [ledger.run(enqueue({"customer": name})) for name in ("ada", "bob")]
        blocked = ledger.run(enqueue({"customer": "ada", "number": 2}))
        add(ledger, [NewJob(type="far")])
        assert len(claimed(ledger, source)) == 2
        assert len(claimed(ledger, elsewhere)) == 1
        ledger.run(lambda tx: tx.jobs.limit("default", 2))
        ledger.run(lambda tx: tx.jobs.limit("elsewhere", 2))
        waiting = ledger.run(lambda tx: tx.jobs.enqueue("far"))

        with ledger.reading() as tx:
            mine, theirs = (tx.jobs.explain(job.id).reasons for job in (blocked, waiting))

        assert mine[0].endswith(f"is used up by running jobs: {held[0].id}")
        assert mine[1] == "its queue 'default' runs 2 of at most 2 jobs"
        assert not any("at most" in words for words in theirs)

    def test_explain_what_is_overdue(self, home: Home) -> None:
        """A scheduled job whose time has come says since when, not in how many seconds."""
        clock = ManualClock()
        with opened(home.url, clock=clock) as ledger:
            job = ledger.run(lambda tx: tx.jobs.enqueue("work", delay_seconds=60))
            clock.advance(90)

            with ledger.reading() as tx:
                reason = tx.jobs.explain(job.id).reasons[0]

        assert reason.startswith("it has been due since 20")

    def test_explain_what_nobody_holds_any_more(self, home: Home) -> None:
        """A job whose worker is gone is still running; it says that its lease ran out, and when."""
        clock = ManualClock()
        with opened(home.url, clock=clock) as ledger:
            source = limited_source(ledger)
            job = ledger.run(enqueue({"customer": "ada"}))
            claimed(ledger, source)
            clock.advance(LEASE_SECONDS - 1)
            with ledger.reading() as tx:
                held = tx.jobs.explain(job.id).reasons
            clock.advance(11)

            with ledger.reading() as tx:
                gone = tx.jobs.explain(job.id).reasons

        assert held == []
        assert gone[0].startswith("its lease ran out 10 s ago")
        assert gone[1].startswith("no worker serves its queue")

    def test_explain_a_clock_that_was_set_back(self, home: Home) -> None:
        """What was scheduled, or leased, while the clock was ahead says that this makes it late."""
        clock = ManualClock()
        with opened(home.url, clock=clock) as ledger:
            source = limited_source(ledger)
            clock.jump(3600)
            held = ledger.run(enqueue({"customer": "ada"}))
            claimed(ledger, source)
            job = ledger.run(lambda tx: tx.jobs.enqueue("other", delay_seconds=60))
            with ledger.reading() as tx:
                before = [tx.jobs.explain(each.id).reasons for each in (job, held)]
            clock.jump(-3600)

            with ledger.reading() as tx:
                after = [tx.jobs.explain(each.id).reasons for each in (job, held)]

        assert not any("clock" in reason for reasons in before for reason in reasons)
        assert "in 3660 s" in after[0][0]
        assert "clock was set back: it was last changed 3600 s from now" in after[0][1]
        assert "clock was set back: it was last changed 3600 s from now" in after[1][0]

    def test_explain_knows_the_workers(self, ledger: Ledger) -> None:
        """With a worker on its queue a job is told whether that one knows its type."""
        ledger.kinds.add("known", lambda: None)
        worker = ledger.worker()
        ledger.run(lambda tx: tx.jobs.pause("default"))
        known = ledger.run(lambda tx: tx.jobs.enqueue("known"))
        unknown = ledger.run(lambda tx: tx.jobs.enqueue("nobody.knows"))
        with running(worker), ledger.reading() as tx:
            mine, theirs = tx.jobs.explain(known.id), tx.jobs.explain(unknown.id)

        assert len(mine.reasons) == 1
        assert "paused" in mine.reasons[0]
        assert any(
            "no worker of its queue knows the type 'nobody.knows'" in r for r in theirs.reasons
        )


def claimed(ledger: Ledger, source: JobSource, places: int = PLACES) -> Sequence[JobClaim]:
    """What a worker gets that asks for so many."""
    return ledger.run(lambda tx: source.claim(tx, Ask(places, "w", LEASE_SECONDS)))


def settled(
    ledger: Ledger, source: JobSource, claims: Sequence[JobClaim], verdict: OutcomeKind
) -> Sequence[Outcome]:
    """Settle them all like this; the refused ones."""
    outcomes = [Outcome(claim, verdict) for claim in claims]
    return ledger.run(lambda tx: list(source.settle(tx, outcomes).lost))


def execute(ledger: Ledger, statement: str) -> None:
    """Run a statement of the user's own."""
    with ledger.transaction() as tx:
        tx.connection.execute(text(statement))


def limited_source(ledger: Ledger, *, most: int = 1) -> JobSource:
    """A source that knows one job, of which so many for each customer run at once."""

    def customer_of(customer: str, number: int) -> str:  # noqa: ARG001 - a key gets all arguments
        return customer

    def work(customer: str, number: int = 0) -> None:
        """Nothing: these tests claim and settle by hand."""

    ledger.kinds.add("work", work, limit=Limit(key=customer_of, most=most))
    return ledger.job_source()


def add(ledger: Ledger, jobs: Sequence[NewJob]) -> None:
    """Enqueue them all."""
    ledger.run(lambda tx: tx.jobs.enqueue_many(jobs))


def enqueue(payload: dict[str, Any], **options: Any) -> Callable[[Any], Any]:
    """Enqueue it, in a transaction."""
    return lambda tx: tx.jobs.enqueue("work", payload, **options)


@contextmanager
def running(*workers: Worker) -> Iterator[None]:
    """The workers are there, and gone at the end of the block."""
    try:
        for worker in workers:
            worker.start()
        yield
    finally:
        for worker in workers:
            worker.stop()


def ended(ledger: Ledger, verdict: OutcomeKind) -> str:
    """A job that came out like this; its key is the name of its fate."""
    if ledger.kinds.get("work") is None:
        ledger.kinds.add("work", lambda: None)
    source = ledger.job_source()
    job = ledger.run(lambda tx: tx.jobs.enqueue("work", key=verdict.value))
    settled(ledger, source, claimed(ledger, source), verdict)
    return job.id
