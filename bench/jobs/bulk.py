"""Bulk enqueue of jobs that carry something: arguments, and arguments and a key."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from time import perf_counter, process_time

from bench.jobs.side import JOB
from bench.jobs.sides.pgqueuer import PgQueuer
from bench.ledgers import opened
from bench.measure import Timing, settle_memory
from bench.side import lots
from ledgerstone.jobs import NewJob

ARGUMENTS = {"order": 12_345, "to": "ann@example.org", "note": "leave it at the door" * 3}


def ours(url: str, count: int, *, keys: bool) -> Timing:
    """So many jobs with arguments."""
    with opened(url) as ledger:

        @ledger.job(JOB)
        def noop(order: int, to: str, note: str) -> None: ...

        def send(numbers: Sequence[int]) -> None:
            with ledger.transaction() as tx:
                tx.jobs.enqueue_many(
                    [
                        NewJob(type=JOB, payload=ARGUMENTS, key=str(number) if keys else None)
                        for number in numbers
                    ]
                )

        return _timed(send, count)


def pgqueuer(url: str, count: int, *, keys: bool) -> Timing:
    """The same by the peer: bytes that nobody checks, and keys of jobs that are not done."""
    return PgQueuer().fill_with(url, count, json.dumps(ARGUMENTS).encode(), keys=keys)


def _timed(send: Callable[[Sequence[int]], None], count: int) -> Timing:
    """One job, and then the others in lots, of which the time is taken."""
    send([0])
    settle_memory()
    began, cpu_began, sent = perf_counter(), process_time(), 1
    for lot in lots(count - 1):
        send(range(sent, sent + lot))
        sent += lot
    ended, cpu_ended = perf_counter(), process_time()
    return Timing(count=count - 1, seconds=ended - began, cpu_seconds=cpu_ended - cpu_began)
