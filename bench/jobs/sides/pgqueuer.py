"""pgqueuer, as its documents make it fast: asyncpg, uvloop, async jobs, a larger batch.

Its tables are durable, which is its default: with unlogged ones it would promise less than ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from importlib import import_module
from time import monotonic_ns, perf_counter, process_time
from typing import Any

from bench.jobs.side import JOB, Note, Sent
from bench.measure import Timing, settle_memory
from bench.side import Looked, expect, looking_by, lots, plain_engine

BATCH_SIZE, LARGE_BATCH_SIZE = 100, 500
UNFINISHED = "SELECT 1 FROM pgqueuer LIMIT 1"
SUCCESSFUL = "SELECT COUNT(*) FROM pgqueuer_log WHERE status = 'successful'"


class PgQueuer:
    """pgqueuer with its own tables."""

    reads_when_idle = False

    def __init__(self, name: str = "pgqueuer", batch_size: int = BATCH_SIZE) -> None:
        self.name = name
        self._batch_size = batch_size

    @classmethod
    def with_large_batches(cls) -> PgQueuer:
        """Faster than its documents make it."""
        return cls("pgqueuer in large batches", LARGE_BATCH_SIZE)

    @property
    def setting(self) -> str:
        return f"batches of {self._batch_size}"

    def prepare(self, url: str) -> None:
        _run(_prepare(url))

    def fill(self, url: str, count: int) -> Timing:
        timing: Timing = _run(_fill(url, count))
        return timing

    def fill_with(self, url: str, count: int, body: bytes, *, keys: bool) -> Timing:
        """The same with a payload for each job, and a key of its own."""
        timing: Timing = _run(_fill(url, count, body, keys=keys))
        return timing

    def work(self, url: str, note: Note) -> None:
        _run(_work(url, note, self._batch_size))

    def looking(self, url: str) -> AbstractContextManager[Looked]:
        return looking_by(plain_engine(url), UNFINISHED)

    def recorded(self, url: str, total: int) -> None:
        with plain_engine(url).connect() as connection:
            expect(connection.exec_driver_sql(SUCCESSFUL).scalar(), total, self.name)

    def sending(self, url: str) -> AbstractContextManager[Callable[[], Sent]]:
        return _sending(url)


def _run(work: Any) -> Any:
    return import_module("uvloop").run(work)


@asynccontextmanager
async def _queries(url: str) -> Any:
    """Its queries, on one connection."""
    connection = await import_module("asyncpg").connect(url)
    driver = import_module("pgqueuer.db").AsyncpgDriver(connection)
    try:
        yield import_module("pgqueuer.queries").Queries(driver)
    finally:
        await connection.close()


async def _prepare(url: str) -> None:
    async with _queries(url) as queries:
        await queries.install()
        await queries.optimize_autovacuum()


async def _fill(url: str, count: int, body: bytes | None = None, *, keys: bool = False) -> Timing:
    async with _queries(url) as queries:
        await queries.enqueue(JOB, None)
        settle_memory()
        began, cpu_began = perf_counter(), process_time()
        for number, lot in enumerate(lots(count - 1)):
            named = [f"{number}-{each}" for each in range(lot)] if keys else None
            await queries.enqueue([JOB] * lot, [body] * lot, [0] * lot, dedupe_key=named)
        ended, cpu_ended = perf_counter(), process_time()
    return Timing(count=count - 1, seconds=ended - began, cpu_seconds=cpu_ended - cpu_began)


async def _work(url: str, note: Note, batch_size: int) -> None:
    async with _queries(url) as queries:
        manager = import_module("pgqueuer.qm").QueueManager(queries)

        @manager.entrypoint(JOB)  # type: ignore[untyped-decorator] # no types without the peer
        async def noop(_: Any) -> None:
            note()

        await manager.run(batch_size=batch_size)


@contextmanager
def _sending(url: str) -> Iterator[Callable[[], Sent]]:
    with asyncio.Runner(loop_factory=import_module("uvloop").new_event_loop) as runner:
        entered = _queries(url)
        queries = runner.run(entered.__aenter__())

        async def send() -> Sent:
            called = monotonic_ns()
            await queries.enqueue(JOB, None)
            return called, monotonic_ns()

        try:
            yield lambda: runner.run(send())
        finally:
            runner.run(entered.__aexit__(None, None, None))
