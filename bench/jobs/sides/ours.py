"""Ours: a ledger with default settings and one job, a sync function without arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic_ns, perf_counter, process_time

from bench.jobs.side import JOB, Note, Sent
from bench.ledgers import opened
from bench.measure import Timing, settle_memory
from bench.side import Looked, expect, lots
from ledgerstone.jobs import NewJob
from ledgerstone.ledger import Ledger

UNFINISHED = "SELECT 1 FROM job WHERE status IN ('queued', 'running') LIMIT 1"
STANDING = "SELECT status, COUNT(*) FROM job GROUP BY status"
MOVES = (
    "SELECT COALESCE(prev_status, ''), next_status, COUNT(*) FROM job_event"
    " GROUP BY prev_status, next_status"
)


class Ours:
    """The job ledger."""

    name = "ours"
    setting = ""
    reads_when_idle = False

    def prepare(self, url: str) -> None:
        with opened(url) as ledger:
            ledger.migrate()

    def fill(self, url: str, count: int) -> Timing:
        with opened(url) as ledger:
            declare(ledger, _nothing)
            _send(ledger, 1)
            settle_memory()
            began, cpu_began = perf_counter(), process_time()
            for lot in lots(count - 1):
                _send(ledger, lot)
            ended, cpu_ended = perf_counter(), process_time()
        return Timing(count=count - 1, seconds=ended - began, cpu_seconds=cpu_ended - cpu_began)

    def work(self, url: str, note: Note) -> None:
        with opened(url) as ledger:
            declare(ledger, note)
            ledger.worker().run()

    @contextmanager
    def looking(self, url: str) -> Iterator[Looked]:
        with opened(url) as ledger:
            yield lambda: _unfinished(ledger)

    def recorded(self, url: str, total: int) -> None:
        with opened(url) as ledger, ledger.reading() as tx:
            rows = tx.connection.exec_driver_sql(STANDING)
            standing = {str(status): int(number) for status, number in rows}
            rows = tx.connection.exec_driver_sql(MOVES)
            moves = {f"{prev}>{after}": int(number) for prev, after, number in rows}
        expected = (">queued", "queued>running", "running>succeeded", "succeeded")
        expect(standing | moves, dict.fromkeys(expected, total), self.name)

    def sending(self, url: str) -> AbstractContextManager[Callable[[], Sent]]:
        return _sending(url)


def declare(ledger: Ledger, note: Note) -> None:
    """The one job."""

    @ledger.job(JOB)
    def noop() -> None:
        note()


def _unfinished(ledger: Ledger) -> bool:
    with ledger.reading() as tx:
        return tx.connection.exec_driver_sql(UNFINISHED).first() is not None


def _nothing() -> None:
    """For a process that only sends."""


def _send(ledger: Ledger, count: int) -> None:
    with ledger.transaction() as tx:
        tx.jobs.enqueue_many([NewJob(type=JOB) for _ in range(count)])


@contextmanager
def _sending(url: str) -> Iterator[Callable[[], Sent]]:
    with opened(url) as ledger:
        declare(ledger, _nothing)

        def send() -> Sent:
            called = monotonic_ns()
            with ledger.transaction() as tx:
                tx.jobs.enqueue(JOB)
            return called, monotonic_ns()

        yield send
