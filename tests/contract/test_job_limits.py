"""Limits, explanations and retention of jobs, on every database."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from ledgerstone import Ledger
from ledgerstone.engine.source import Outcome, Verdict
from ledgerstone.jobs import NewJob, Status, limits, retention
from ledgerstone.settings import JobSettings
from ledgerstone.store.batch import WithRows
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.contract.jobs.limits import (
    LEASE_SECONDS,
    LimitContract,
    claimed,
    ended,
    enqueue,
    limited_source,
    settled,
)
from tests.contract.jobs.retention import RetentionContract
from tests.contract.jobs.rivals import RivalContract
from tests.harness.ledgers import hung
from tests.harness.threads import aside, signaled

WAITING = {
    "postgres": "SELECT COUNT(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "mysql": "SELECT COUNT(*) FROM information_schema.innodb_trx "
    "JOIN information_schema.processlist ON id = trx_mysql_thread_id "
    "WHERE trx_state = 'LOCK WAIT' AND db = DATABASE()",
}
"""How many transactions of this database wait for a lock."""
REFRESHED_SECONDS = 0.3
"""MariaDB shows the same transactions again to those who look more often than every 0.1 s."""
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
    """A claim that holds keys does not wait for one before them: it leaves it to the next."""
    source = limited_source(ledger)
    before, behind = sorted(("ada", "bob"), key=limits._slot)
    crowd = [NewJob(type="work", payload={"customer": behind}, priority=9) for _ in range(11)]
    ledger.run(lambda tx: tx.jobs.enqueue_many(crowd))
    ledger.run(enqueue({"customer": before}))
    ledger.run(lambda tx: limits.lock(tx, (before, behind)))

    with ledger.transaction() as other, hung(ledger, source.channel) as bell:
        limits.lock(other, [before])
        first = claimed(ledger, source)
        rung = bell.wait(0)
    second = claimed(ledger, source)

    assert limits._slot(before) < limits._slot(behind)
    assert rung
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
    job_id = ended(ledger, Verdict.DEAD)
    source, remove = ledger.job_source(), WithRows.run
    clock.advance(2 * 86_400)

    def die_again(*given: Any, **named: Any) -> Any:
        ledger.run(lambda tx: tx.jobs.retry(job_id))
        settled(ledger, source, claimed(ledger, source), Verdict.DEAD)
        return remove(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(WithRows, "run", die_again)
        removed = ledger.run(lambda tx: retention.retire(tx, settings))

    with ledger.reading() as tx:
        status = tx.jobs.get(job_id).status
    assert (removed, status) == (0, Status.DEAD_LETTER)


@ON_SERVERS
@pytest.mark.parametrize("act", ["rescue", "settle", "claim"])
def test_keys_are_held_in_order(ledger: Ledger, clock: ManualClock, home: Home, act: str) -> None:
    """Whoever waits for the first of several keys holds none of the others meanwhile."""
    source = limited_source(ledger)
    first, *others = sorted(("ada", "bob", "cyd"), key=limits._slot)
    jobs = [NewJob(type="work", payload={"customer": key}) for key in (*others, first)]
    ledger.run(lambda tx: limits.lock(tx, (first, *others)))
    ledger.run(lambda tx: tx.jobs.enqueue_many(jobs))
    held, slots = threading.Event(), {limits._slot(key) for key in (first, *others)}
    taken = [] if act == "claim" else list(claimed(ledger, source))
    outcomes = [Outcome(each, Verdict.DONE) for each in taken]
    clock.advance(LEASE_SECONDS + 1)

    def perform() -> None:
        signaled(held)
        match act:
            case "rescue":
                ledger.run(lambda tx: source.rescue(tx, limit=10, crashes_max=1))
            case "settle":
                ledger.run(lambda tx: source.settle(tx, outcomes))
            case _:
                claimed(ledger, source)

    with aside(perform), ledger.transaction() as other:
        limits.lock(other, [first])
        held.set()
        until(
            lambda: _waiting(ledger, home),
            what="the lock to be waited for",
            every_seconds=REFRESHED_SECONDS,
        )
        free = [limits._is_free(other, limits._slot(key)) for key in others]

    assert len(slots) == 3
    assert free == [True, True]


def _waiting(ledger: Ledger, home: Home) -> int:
    """How many transactions wait for a lock."""
    with ledger.reading() as tx:
        return int(tx.connection.execute(text(WAITING[home.kind])).scalar_one())
