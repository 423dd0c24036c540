"""The contract of jobs that get into each other's way: in line, behind limits, and at their end."""

from __future__ import annotations

import threading

import pytest

from ledgerstone.engine.source import OutcomeKind
from ledgerstone.jobs import Limit, NewJob, Status, retention
from ledgerstone.jobs.limits import PASSES_MAX
from ledgerstone.jobs.read import explain as explaining
from ledgerstone.ledger import Ledger
from ledgerstone.settings import JobSettings
from ledgerstone.store.wakeup import WakeSignal
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.worker_reports import reported
from tests.contract.jobs.examples import (
    ADA,
    LEASE_SECONDS,
    claim,
    dead_letter,
    enqueue,
    nothing,
    rescue,
    settle,
    standing,
    statement,
)
from tests.harness.ledgers import opened, subscribed
from tests.harness.threads import aside, signaled, still_waits

BY_CUSTOMER = Limit(key=lambda customer: customer)
OTHER_ORG = "0190a000-0000-7000-8000-0000000000aa"


def served(customer: str) -> None:
    """The job of which one for each customer runs at once."""


class RivalContract:
    """Fixtures: `ledger`, `clock` and the `home` it is on."""

    def test_a_limited_job_is_not_passed_by(self, ledger: Ledger, clock: ManualClock) -> None:
        """One with a limit key has its place in line among those without, by urgency and turns."""
        ledger.kinds.add("plain", nothing)
        early = ledger.job_source()
        ledger.kinds.add("served", served, limit=BY_CUSTOMER)
        for _ in range(60):
            enqueue(ledger, "plain")

        for number, source in enumerate((early, ledger.job_source())):
            urgent = enqueue(ledger, "served", {"customer": f"ada {number}"}, priority=1000)
            other = enqueue(ledger, "served", {"customer": f"bob {number}"}, org=OTHER_ORG)
            taken = {each.key for _ in range(2) for each in claim(ledger, source)}

            assert {urgent, other} <= taken

    def test_a_paused_queue_with_keys(self, ledger: Ledger, clock: ManualClock) -> None:
        """While a queue is paused nothing of it begins, with a limit key, a limit or without."""
        ledger.kinds.add("plain", nothing)
        ledger.kinds.add("served", served, limit=BY_CUSTOMER)
        source = ledger.job_source()
        jobs = {enqueue(ledger, "plain"), enqueue(ledger, "served", {"customer": "ada"})}
        ledger.run(lambda tx: tx.jobs.pause("default"))
        paused = [claim(ledger, source)]
        ledger.run(lambda tx: tx.jobs.limit("default", 5))
        paused.append(claim(ledger, source))

        ledger.run(lambda tx: tx.jobs.resume("default"))

        assert paused == [[], []]
        assert {each.key for each in claim(ledger, source)} == jobs

    def test_who_waits_is_woken(self, ledger: Ledger, clock: ManualClock) -> None:
        """Whatever lets a job begin wakes the workers of its queue; what does not leaves them."""
        ledger.kinds.add("plain", nothing)
        source = ledger.job_source()
        woken: dict[str, bool] = {}
        with subscribed(ledger, source.channel) as wake_signal:

            def after(act: str) -> None:
                woken[act] = wake_signal.wait(0)

            job_id = enqueue(ledger, "plain", max_attempts=1)
            after("enqueue")
            (taken,) = claim(ledger, source)
            after("claim")
            settle(ledger, source, taken, OutcomeKind.RETURNED)
            after("return")
            claim(ledger, source)
            clock.advance(LEASE_SECONDS + 1)
            reported(ledger, ADA)
            statement(ledger, "UPDATE job SET max_attempts = 9")
            rescue(ledger, source)
            after("rescue")
            rescue(ledger, source)
            after("rescue of nothing")
            (taken,) = claim(ledger, source)
            settle(ledger, source, taken, OutcomeKind.DEAD)
            after("failure")
            ledger.run(lambda tx: tx.jobs.retry(job_id))
            after("retry")
            ledger.run(lambda tx: tx.jobs.pause("default"))
            after("pause")
            ledger.run(lambda tx: tx.jobs.resume("default"))
            after("resume")
            ledger.run(lambda tx: tx.jobs.limit("default", 1))
            after("limit")
            (taken,) = claim(ledger, source)
            settle(ledger, source, taken, OutcomeKind.DONE)
            after("a place")

        silent = {"claim", "rescue of nothing", "failure", "pause"}
        assert {act for act, found in woken.items() if not found} == silent

    def test_a_place_wakes_its_queue(self, ledger: Ledger, clock: ManualClock) -> None:
        """A place that is free wakes the workers of the queue whose job is let in for it."""
        ledger.kinds.add("a", served, queue="qa", limit=BY_CUSTOMER)
        ledger.kinds.add("b", served, queue="qb", limit=BY_CUSTOMER)
        theirs, ours = ledger.job_source("qa"), ledger.job_source("qb")
        enqueue(ledger, "a", {"customer": "ada"})
        (taken,) = claim(ledger, theirs)
        waiting = [enqueue(ledger, "b", {"customer": "ada"}) for _ in range(2)]
        assert claim(ledger, ours) == []

        with subscribed(ledger, ours.channel) as wake_signal:
            settle(ledger, theirs, taken, OutcomeKind.DONE)
            settled = wake_signal.wait(0)
            ledger.run(lambda tx: tx.jobs.cancel(waiting[0]))
            canceled = wake_signal.wait(0)

        assert (settled, canceled) == (True, True)
        assert [each.key for each in claim(ledger, ours)] == waiting[1:]

    def test_a_place_that_another_queue_cannot_use(
        self, ledger: Ledger, clock: ManualClock
    ) -> None:
        """Jobs of a paused queue keep nobody with the same key from running in another one."""
        ledger.kinds.add("a", served, queue="qa", limit=BY_CUSTOMER)
        ledger.kinds.add("b", served, queue="qb", limit=BY_CUSTOMER)
        for _ in range(5):
            enqueue(ledger, "a", {"customer": "ada"})
        theirs, ours = ledger.job_source("qa"), ledger.job_source("qb")
        (taken,) = claim(ledger, theirs)
        waiting = [enqueue(ledger, "b", {"customer": "ada"}) for _ in range(3)]
        assert claim(ledger, ours) == []
        ledger.run(lambda tx: tx.jobs.pause("qa"))
        settle(ledger, theirs, taken, OutcomeKind.DONE)

        rescue(ledger, ours)
        ran = []
        for _ in waiting:
            (mine,) = claim(ledger, ours)
            assert claim(ledger, ours) == []
            settle(ledger, ours, mine, OutcomeKind.DONE)
            ran.append(mine.key)

        assert ran == waiting

    def test_a_key_that_is_free_again(self, ledger: Ledger, clock: ManualClock) -> None:
        """Of a job whose key nobody uses any more it is said that it will be let in."""
        ledger.kinds.add("a", served, queue="qa", limit=BY_CUSTOMER)
        ledger.kinds.add("b", served, queue="qb", limit=BY_CUSTOMER)
        theirs, ours = ledger.job_source("qa"), ledger.job_source("qb")
        enqueue(ledger, "a", {"customer": "ada"})
        (taken,) = claim(ledger, theirs)
        enqueue(ledger, "a", {"customer": "ada"})
        assert claim(ledger, theirs) == []
        waiting = enqueue(ledger, "b", {"customer": "ada"})
        assert claim(ledger, ours) == []
        with ledger.reading() as tx:
            used = tx.jobs.explain(waiting).reasons
        ledger.run(lambda tx: tx.jobs.pause("qa"))
        settle(ledger, theirs, taken, OutcomeKind.DONE)

        with ledger.reading() as tx:
            free = tx.jobs.explain(waiting).reasons

        assert f"is used up by running jobs: {taken.key}" in used[0]
        assert "is free again" in free[0]

    def test_behind_many_used_up_keys(self, ledger: Ledger, clock: ManualClock) -> None:
        """However many keys in front are used up, claim after claim comes to what may run."""
        ledger.kinds.add("served", served, limit=BY_CUSTOMER)
        source = ledger.job_source()
        count = 3 * PASSES_MAX
        jobs = [NewJob(type="served", payload={"customer": f"{n}"}) for n in range(count)]
        ledger.run(lambda tx: tx.jobs.enqueue_many(jobs))
        assert len(claim(ledger, source, limit=count)) == count
        ledger.run(lambda tx: tx.jobs.enqueue_many(jobs))
        free = enqueue(ledger, "served", {"customer": "zoe"})
        wake_signal = WakeSignal()
        ledger.database.wake_signals.subscribe(source.channel, wake_signal)

        woken = []
        while not (taken := claim(ledger, source, limit=1)):
            woken.append(wake_signal.wait(0))

        assert [each.key for each in taken] == [free]
        assert woken == [True] * 3

    def test_equal_moments(self, ledger: Ledger, clock: ManualClock) -> None:
        """Of jobs that were enqueued together the last one is behind all others."""
        ledger.kinds.add("plain", nothing)
        jobs = ledger.run(lambda tx: tx.jobs.enqueue_many([NewJob(type="plain")] * 5))
        reported(ledger, ADA, types={"jobs:default": ["plain"]})

        with ledger.reading() as tx:
            first, *_, last = (tx.jobs.explain(job.id).reasons for job in jobs)

        assert first == ["it is next in line of its organisation"]
        assert last == ["4 jobs of its organisation are ahead of it in line"]

    def test_who_is_ahead(
        self, ledger: Ledger, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ahead are the more urgent and the earlier of the same queue and organisation."""
        monkeypatch.setattr(explaining, "AHEAD_MAX", 2)
        ledger.kinds.add("plain", nothing)
        reported(ledger, ADA, types={"jobs:default": ["plain"], "jobs:other": ["plain"]})
        enqueue(ledger, "plain")
        enqueue(ledger, "plain", queue="other")
        enqueue(ledger, "plain", org=OTHER_ORG)
        for _ in range(3):
            enqueue(ledger, "plain", priority=-1)
        clock.advance(1)
        second = enqueue(ledger, "plain")
        clock.advance(1)
        enqueue(ledger, "plain", priority=1)
        third = enqueue(ledger, "plain")

        with ledger.reading() as tx:
            reasons = [tx.jobs.explain(job_id).reasons for job_id in (second, third)]

        assert reasons == [
            ["2 jobs of its organisation are ahead of it in line"],
            ["more than 2 jobs of its organisation are ahead of it in line"],
        ]

    def test_retention_spares_what_is_retried(self, home: Home) -> None:
        """A dead letter that somebody is about to retry is not removed, however old it is."""
        clock = ManualClock()
        settings = JobSettings(keep_days=1, keep_dead_letters_days=1, keep_keys_days=1)
        begun, over = threading.Event(), threading.Event()
        with opened(home.url, clock=clock) as ledger:
            job_id = dead_letter(ledger, nothing_of(ledger))
            clock.advance(2 * 86_400)

            def retry() -> None:
                with ledger.transaction() as tx:
                    tx.jobs.retry_all()
                    begun.set()
                    signaled(over)

            def retire() -> int:
                return ledger.run(lambda tx: retention.retire(tx, settings))

            with aside(retry):
                signaled(begun)
                with aside(retire) as retiring:
                    waited = still_waits(retiring)
                    over.set()

            assert waited
            assert retiring.result() == 0
            assert standing(ledger, job_id).status is Status.QUEUED


def nothing_of(ledger: Ledger) -> str:
    """A job that does nothing, and is known."""
    ledger.kinds.add("plain", nothing)
    return "plain"
