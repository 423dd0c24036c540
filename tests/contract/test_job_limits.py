"""Limits, explanations and retention of jobs, on every database."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from ledgerstone import Ledger
from ledgerstone.engine.source import Outcome, OutcomeKind
from ledgerstone.engine.transactional import TransactionalWork
from ledgerstone.jobs import NewJob, Status, limits, retention
from ledgerstone.jobs.settling import JobClaim
from ledgerstone.jobs.source import JobSource
from ledgerstone.jobs.states import Gate
from ledgerstone.settings import JobSettings
from ledgerstone.store.sql.batch import WithRows
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.contract.jobs.limits import (
    LEASE_SECONDS,
    LimitContract,
    claimed,
    ended,
    enqueue,
    execute,
    limited_source,
    settled,
)
from tests.contract.jobs.retention import RetentionContract
from tests.contract.jobs.rivals import RivalContract
from tests.harness.ledgers import subscribed
from tests.harness.lock_waits import REFRESHED_SECONDS, WAITING
from tests.harness.threads import aside, signaled

ON_SERVERS = pytest.mark.parametrize(
    "home",
    [
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ],
    indirect=True,
)


class TestLimits(LimitContract):
    """How many, and why not."""


class TestRetention(RetentionContract):
    """How long."""


class TestRivals(RivalContract):
    """Who gets into whose way."""


@ON_SERVERS
def test_a_key_that_another_holds(ledger: Ledger) -> None:
    """A claim does not wait for a key: it leaves it to the next, which comes soon."""
    source = limited_source(ledger)
    before, behind = sorted(("ada", "bob"), key=limits._slot)
    crowd = [NewJob(type="work", payload={"customer": behind}, priority=9) for _ in range(11)]
    ledger.run(lambda tx: tx.jobs.enqueue_many(crowd))
    ledger.run(enqueue({"customer": before}))
    ledger.run(lambda tx: limits.lock(tx, (before, behind)))

    with ledger.transaction() as other, subscribed(ledger, source.channel) as wake_signal:
        limits.lock(other, [before])
        first = claimed(ledger, source)
        woken, again = wake_signal.wait(0), TransactionalWork(source, ledger.database).due_seconds()
    second = claimed(ledger, source)

    # A wake-up would repeat until the key is free.
    assert not woken
    assert again <= limits.AGAIN_SECONDS
    assert [claim.limit_key for claim in first] == [behind]
    assert [claim.limit_key for claim in second] == [before]


@ON_SERVERS
def test_a_rescue_waits_for_nobody(ledger: Ledger, clock: ManualClock) -> None:
    """A rescue passes over a job that somebody holds, and over those of other queues."""
    ledger.kinds.add("plain", lambda: None)
    source, elsewhere = ledger.job_source(), ledger.job_source("elsewhere")
    jobs = [NewJob(type="plain"), NewJob(type="plain"), NewJob(type="plain", queue="elsewhere")]
    held, left, far = (job.id for job in ledger.run(lambda tx: tx.jobs.enqueue_many(jobs)))
    taken = [*claimed(ledger, source), *claimed(ledger, elsewhere)]
    clock.advance(LEASE_SECONDS + 1)

    with ThreadPoolExecutor(1) as threads, ledger.transaction() as other:
        other.jobs.cancel(held)
        rescuing = threads.submit(
            lambda: ledger.run(lambda tx: source.rescue(tx, limit=10, crashes_max=9))
        )
        rescued = rescuing.result(WAIT_SECONDS_MAX)

    with ledger.reading() as tx:
        found = {job_id: tx.jobs.get(job_id).status for job_id in (held, left, far)}
    assert len(taken) == 3
    assert rescued == 1
    assert found == {held: Status.RUNNING, left: Status.QUEUED, far: Status.RUNNING}


@ON_SERVERS
def test_a_claim_waits_for_nobody(ledger: Ledger) -> None:
    """A claim from a limited queue passes over a job that somebody is about to cancel."""
    ledger.kinds.add("plain", lambda: None)
    source = ledger.job_source()
    ledger.run(lambda tx: tx.jobs.limit("default", 5))
    jobs = [NewJob(type="plain"), NewJob(type="plain")]
    canceled, left = (job.id for job in ledger.run(lambda tx: tx.jobs.enqueue_many(jobs)))

    with ThreadPoolExecutor(1) as threads, ledger.transaction() as other:
        other.jobs.cancel(canceled)
        taken = threads.submit(claimed, ledger, source).result(WAIT_SECONDS_MAX)

    assert [claim.key for claim in taken] == [left]


@ON_SERVERS
def test_retention_spares_what_died_again(
    ledger: Ledger, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead letter that was retried, and died again while retention looked, is young."""
    settings = JobSettings(keep_days=1, keep_dead_letters_days=1, keep_keys_days=1)
    job_id = ended(ledger, OutcomeKind.DEAD)
    source, remove = ledger.job_source(), WithRows.run
    clock.advance(2 * 86_400)

    def die_again(*given: Any, **named: Any) -> Any:
        ledger.run(lambda tx: tx.jobs.retry(job_id))
        settled(ledger, source, claimed(ledger, source), OutcomeKind.DEAD)
        return remove(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(WithRows, "run", die_again)
        removed = ledger.run(lambda tx: retention.retire(tx, settings))

    with ledger.reading() as tx:
        status = tx.jobs.get(job_id).status
    assert (removed, status) == (0, Status.DEAD_LETTER)


@ON_SERVERS
def test_an_open_settlement_stops_no_claim(ledger: Ledger, clock: ManualClock) -> None:
    """A job that is settled in an open transaction keeps nobody but those of its key waiting."""
    source = limited_source(ledger)
    ledger.run(enqueue({"customer": "ada"}))
    held = claimed(ledger, source)
    crowd = [NewJob(type="work", payload={"customer": "ada"}, priority=9) for _ in range(30)]

    with ledger.transaction() as other:
        source.settle(other, [Outcome(each, OutcomeKind.DONE) for each in held], waits=True)
        ledger.run(lambda tx: tx.jobs.enqueue_many(crowd))
        ledger.run(enqueue({"customer": "bob"}))
        meanwhile = asked(ledger, source, clock)
    after = asked(ledger, source, clock)

    assert [claim.limit_key for claim in meanwhile] == ["bob"]
    assert [claim.limit_key for claim in after] == ["ada"]
    assert source.due_seconds() == limits.INFINITY


@ON_SERVERS
@pytest.mark.parametrize("act", ["settle", "rescue"])
def test_an_open_settlement_stops_no_settlement(
    ledger: Ledger, clock: ManualClock, act: str
) -> None:
    """Who ends a job while its key is held waits for nobody; the next of the key follows soon."""
    source = limited_source(ledger)
    kin = [NewJob(type="work", payload={"customer": "ada"}, max_attempts=1) for _ in range(2)]
    first, following = (job.id for job in ledger.run(lambda tx: tx.jobs.enqueue_many(kin)))
    (taken,) = claimed(ledger, source)
    clock.advance(LEASE_SECONDS + 1)

    with ledger.transaction() as other:
        limits.lock(other, ["ada"])
        if act == "settle":
            assert settled(ledger, source, [taken], OutcomeKind.DEAD) == []
        else:
            ledger.run(lambda tx: source.rescue(tx, limit=10, crashes_max=1))
        with ledger.reading() as tx:
            fate = tx.jobs.get(first).status
        execute(ledger, f"UPDATE job SET gate = {Gate.BLOCKED.value} WHERE status = 'queued'")  # noqa: S608 - our own
        meanwhile = asked(ledger, source, clock)
    after = asked(ledger, source, clock)

    assert fate is Status.DEAD_LETTER
    assert meanwhile == []
    assert [claim.key for claim in after] == [following]


@ON_SERVERS
@pytest.mark.parametrize("most", [None, 5])
def test_an_open_limit_stops_no_claim(ledger: Ledger, most: int | None) -> None:
    """While somebody changes the limit of a queue, claims go by the one that is committed."""
    ledger.kinds.add("plain", lambda: None)
    source = ledger.job_source()
    ledger.run(lambda tx: tx.jobs.limit("default", most))
    ledger.run(lambda tx: tx.jobs.enqueue_many([NewJob(type="plain") for _ in range(8)]))

    with ThreadPoolExecutor(1) as threads, ledger.transaction() as other:
        other.jobs.limit("default", 1)
        taken = threads.submit(claimed, ledger, source).result(WAIT_SECONDS_MAX)

    assert len(taken) == (most or 8)
    assert claimed(ledger, source) == []


@ON_SERVERS
def test_keys_are_held_in_order(ledger: Ledger, home: Home) -> None:
    """Who waits for the first of several keys holds none of the others meanwhile."""
    source = limited_source(ledger)
    first, *others = sorted(("ada", "bob", "cyd"), key=limits._slot)
    jobs = [NewJob(type="work", payload={"customer": key}) for key in (*others, first)]
    ledger.run(lambda tx: limits.lock(tx, (first, *others)))
    ledger.run(lambda tx: tx.jobs.enqueue_many(jobs))
    held, slots = threading.Event(), {limits._slot(key) for key in (first, *others)}
    outcomes = [Outcome(each, OutcomeKind.DONE) for each in claimed(ledger, source)]

    def settle() -> None:
        signaled(held)
        # As in a transaction of its handler.
        ledger.run(lambda tx: source.settle(tx, outcomes, waits=True))

    with aside(settle), ledger.transaction() as other:
        limits.lock(other, [first])
        held.set()
        until(
            lambda: _waiting(ledger, home),
            what="the lock to be waited for",
            every_seconds=REFRESHED_SECONDS,
        )
        free = limits._hold_free(other, slots)

    assert len(slots) == 3
    assert free == slots


def asked(ledger: Ledger, source: JobSource, clock: ManualClock) -> list[JobClaim]:
    """What a worker gets that asks whenever a busy key is to be tried again."""
    claims: list[JobClaim] = []
    for _ in range(limits.STUCK_TRIES + 1):
        claims += claimed(ledger, source)
        clock.advance(limits.AGAIN_SECONDS_MAX)
    return claims


def _waiting(ledger: Ledger, home: Home) -> int:
    """How many transactions wait for a lock."""
    with ledger.reading() as tx:
        return int(tx.connection.execute(text(WAITING[home.kind])).scalar_one())
