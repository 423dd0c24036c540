"""Jobs to do, and how to look at them, for the clauses of the job ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import text

from ledgerstone.engine.counters import Tick
from ledgerstone.engine.source import Ask, Claim, Failure, Outcome, OutcomeKind
from ledgerstone.engine.worker import Worker
from ledgerstone.jobs import JobEvent, JobRow, JobSource, Status
from ledgerstone.jobs.history import replayed
from ledgerstone.ledger import Ledger
from ledgerstone.testing.clock import ManualClock

ADA = "0190a000-0000-7000-8000-00000000ada0"
GRACE = "0190a000-0000-7000-8000-0000000097ce"
"""The ids of two workers."""
LEASE_SECONDS = 30.0
CRASHES_MAX = 3
TICKS_MAX = 200
PAGES_MAX = 100
LONG_SECONDS = 3600.0
"""As long as the longest wait between two attempts."""


def nothing() -> None:
    """The job that does nothing."""


def enqueue(ledger: Ledger, job: Any, payload: Any = None, **options: Any) -> str:
    """Accept one, in a transaction of its own; its id."""
    return ledger.run(lambda tx: tx.jobs.enqueue(job, payload, **options)).id


def standing(ledger: Ledger, job_id: str) -> JobRow:
    """The job as it stands."""
    with ledger.reading() as tx:
        return tx.jobs.get(job_id)


def history_of(ledger: Ledger, job_id: str) -> list[JobEvent]:
    """All that happened to a job."""
    found: list[JobEvent] = []
    cursor: str | None = None
    for _ in range(PAGES_MAX):
        with ledger.reading() as tx:
            page = tx.jobs.events(job_id, cursor=cursor)
        found += page.rows
        cursor = page.next
        if cursor is None:
            break
    return found


def moves_of(ledger: Ledger, job_id: str) -> list[tuple[str | None, str]]:
    """The moves that a job has made, by its events."""
    pairs = [(event.prev_status, event.next_status) for event in history_of(ledger, job_id)]
    return [(before, after) for before, after in pairs if before != after]


def count(ledger: Ledger, table: str) -> int:
    """How many rows a table has."""
    with ledger.reading() as tx:
        found = tx.connection.execute(text(f"SELECT COUNT(*) FROM {table}"))  # noqa: S608 - our own
        return int(found.scalar_one())


def kept(ledger: Ledger) -> tuple[int, int, int]:
    """How many jobs, events and keys are kept."""
    return count(ledger, "job"), count(ledger, "job_event"), count(ledger, "job_key")


def statement(ledger: Ledger, sql: str, **values: Any) -> int:
    """A statement of anybody's, past the ledger; how many rows it changed."""
    with ledger.transaction() as tx:
        return int(tx.connection.execute(text(sql), values).rowcount)


def claim(
    ledger: Ledger,
    source: JobSource,
    *,
    limit: int = 10,
    worker: str = ADA,
    lease_seconds: float = LEASE_SECONDS,
) -> list[Claim]:
    """Take what is due."""
    ask = Ask(limit, worker, lease_seconds)
    return ledger.run(lambda tx: list(source.claim(tx, ask)))


def settle(
    ledger: Ledger,
    source: JobSource,
    taken: Claim,
    verdict: OutcomeKind,
    *,
    result: str | None = None,
    crashed: bool = False,
    delay_seconds: float | None = None,
) -> Sequence[Outcome]:
    """Write how one came out; answers it back if it was refused."""
    failure = None
    if verdict is not OutcomeKind.DONE:
        failure = Failure("test", "as wished", traceback="line 1", crashed=crashed)
    outcome = Outcome(taken, verdict, result=result, failure=failure, delay_seconds=delay_seconds)
    return ledger.run(lambda tx: list(source.settle(tx, [outcome]).lost))


def rescue(ledger: Ledger, source: JobSource) -> int:
    """Make the jobs of expired claims due again."""
    return ledger.run(lambda tx: source.rescue(tx, limit=1000, crashes_max=CRASHES_MAX))


def take_away(ledger: Ledger, job_id: str) -> None:
    """As if its lease had run out, and another had claimed it since."""
    statement(ledger, "UPDATE job SET lease_until_ms = 0 WHERE id = :id", id=job_id)
    source = ledger.job_source(standing(ledger, job_id).queue)
    rescue(ledger, source)
    taken = claim(ledger, source, limit=1000, worker=GRACE)
    assert job_id in {c.key for c in taken}


def tick(ledger: Ledger, *sources: JobSource) -> list[Tick]:
    """One step of a worker that is let go afterwards."""
    worker = ledger.worker(*sources)
    try:
        return worker.tick()
    finally:
        worker.stop(grace_seconds=0)


def drain(worker: Worker, clock: ManualClock) -> int:
    """Tick until nothing is due any more, and let it go; how many were claimed."""
    claimed = 0
    for _ in range(TICKS_MAX):
        found = sum(step.claimed for step in worker.tick())
        clock.advance(LONG_SECONDS)
        claimed += found
        if not found:
            worker.stop(grace_seconds=0)
            return claimed
    message = f"after {TICKS_MAX} steps there is still something due"
    raise AssertionError(message)


def assert_replayed(ledger: Ledger, job_id: str) -> None:
    """The events of a job follow on each other and lead to its row."""
    row, events = standing(ledger, job_id), history_of(ledger, job_id)
    assert [event.prev_status for event in events] == [
        None,
        *(event.next_status for event in events[:-1]),
    ]
    told = replayed(events)
    assert told.status == row.status.value
    for name in (
        "attempt",
        "crashes",
        "last_error_code",
        "last_error_message",
        "stage",
        "progress",
        "cancel_requested",
    ):
        assert (name, getattr(told, name)) == (name, getattr(row, name))


def dead_letter(ledger: Ledger, job: Any = "dies", payload: Any = None, **options: Any) -> str:
    """A job that has gone to the dead letters, by way of a claim and a failure."""
    job_id = enqueue(ledger, job, payload, **options)
    source = ledger.job_source(standing(ledger, job_id).queue)
    for taken in claim(ledger, source, limit=1000):
        settle(ledger, source, taken, OutcomeKind.DEAD)
    assert standing(ledger, job_id).status is Status.DEAD_LETTER
    return job_id
