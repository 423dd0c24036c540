"""One job in a transaction of its own: ours beside the two inserts of a bare driver.

The driver's connection is opened by the ledger, so its session settings are the ledger's own. It
is given the finished values, as text; on PostgreSQL it begins, inserts twice and commits.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from time import perf_counter, process_time
from typing import Any

from uuid_utils import uuid7

from bench.jobs.side import JOB
from bench.jobs.sides.ours import declare
from bench.ledgers import opened
from bench.measure import Timing, settle_memory

WARM_UP = 100
JOB_COLUMNS = (
    "id, org_id, type, status, max_attempts, backoff_policy, priority, created_at, updated_at,"
    " queue, payload, run_at_ms, gate"
)
EVENT_COLUMNS = "id, job_id, ts, prev_status, next_status, detail_json"
NO_ORG = "00000000-0000-0000-0000-000000000000"
SQLITE = ("BEGIN IMMEDIATE", "?")
SERVER = (None, "%s")


def ours(url: str, count: int) -> Timing:
    """So many jobs, each enqueued in a transaction of its own."""
    with opened(url) as ledger:
        declare(ledger, lambda: None)

        def send() -> None:
            with ledger.transaction() as tx:
                tx.jobs.enqueue(JOB)

        return _timed(send, count)


def driver(url: str, count: int) -> Timing:
    """So many jobs and their first events by the driver alone."""
    with opened(url) as ledger:
        taken = ledger.database.engine.raw_connection()
        connection: Any = taken.driver_connection
        begin, mark = SQLITE if ledger.database.dialect.embedded else SERVER
        job, event = _insert("job", JOB_COLUMNS, mark), _insert("job_event", EVENT_COLUMNS, mark)
        cursor = connection.cursor()

        def send() -> None:
            job_id, now = str(uuid7()), datetime.now(UTC)
            moment = now.strftime("%Y-%m-%d %H:%M:%S.%f")
            due = int(now.timestamp() * 1000)
            if begin:
                cursor.execute(begin)
            row = (job_id, NO_ORG, JOB, "queued", 5, "exp", 0, moment, moment, "default", "{}")
            cursor.execute(job, (*row, due, 1))
            cursor.execute(event, (str(uuid7()), job_id, moment, None, "queued", None))
            connection.commit()

        timing = _timed(send, count)
        taken.close()
    return timing


def _timed(send: Callable[[], None], count: int) -> Timing:
    for _ in range(WARM_UP):
        send()
    settle_memory()
    began, cpu_began = perf_counter(), process_time()
    for _ in range(count):
        send()
    ended, cpu_ended = perf_counter(), process_time()
    return Timing(count=count, seconds=ended - began, cpu_seconds=cpu_ended - cpu_began)


def _insert(table: str, columns: str, mark: str) -> str:
    marks = ", ".join(mark for _ in columns.split(","))
    return f"INSERT INTO {table} ({columns}) VALUES ({marks})"  # noqa: S608 - our own words
