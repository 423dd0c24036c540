"""procrastinate, with async jobs and the concurrency that its documents describe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from time import perf_counter, process_time
from typing import Any

from bench.jobs.side import JOB, Note
from bench.measure import Timing
from bench.side import Looked, expect, looking_by, lots, plain_engine

CONCURRENCY = 50
CONNECTIONS_MAX = 20
UNFINISHED = "SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing') LIMIT 1"
SUCCEEDED = "SELECT COUNT(*) FROM procrastinate_jobs WHERE status = 'succeeded'"


class Procrastinate:
    """procrastinate with its own tables."""

    name = "procrastinate"
    setting = f"{CONCURRENCY} at a time"
    reads_when_idle = False

    def prepare(self, url: str) -> None:
        asyncio.run(_prepare(url))

    def fill(self, url: str, count: int) -> Timing:
        return asyncio.run(_fill(url, count))

    def work(self, url: str, note: Note) -> None:
        asyncio.run(_work(url, note))

    def looking(self, url: str) -> AbstractContextManager[Looked]:
        return looking_by(plain_engine(url), UNFINISHED)

    def recorded(self, url: str, total: int) -> None:
        with plain_engine(url).connect() as connection:
            expect(connection.exec_driver_sql(SUCCEEDED).scalar(), total, self.name)


def _nothing() -> None:
    """For a process that only sends."""


def _declared(url: str, note: Callable[[], None] = _nothing) -> Any:
    """An app with the one job, and the job."""
    peer = import_module("procrastinate")
    app = peer.App(connector=peer.PsycopgConnector(conninfo=url, max_size=CONNECTIONS_MAX))

    @app.task(name=JOB)  # type: ignore[untyped-decorator] # no types without the peer
    async def noop() -> None:
        note()

    return app, noop


async def _prepare(url: str) -> None:
    app, _ = _declared(url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def _fill(url: str, count: int) -> Timing:
    app, noop = _declared(url)
    async with app.open_async():
        await noop.defer_async()
        began, cpu_began = perf_counter(), process_time()
        for lot in lots(count - 1):
            await noop.batch_defer_async(*({} for _ in range(lot)))
        ended, cpu_ended = perf_counter(), process_time()
    return Timing(count=count - 1, seconds=ended - began, cpu_seconds=cpu_ended - cpu_began)


async def _work(url: str, note: Note) -> None:
    app, _ = _declared(url, note)
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)
