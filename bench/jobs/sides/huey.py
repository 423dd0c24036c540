"""huey on SQLite in its fastest setting: no fsync at all, no results kept, hardly a pause.

It deletes a job before it runs it, so a job is finished when its function has been called.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from time import perf_counter, process_time
from typing import Any

from sqlalchemy import make_url

from bench.jobs.side import Note
from bench.measure import Timing
from bench.side import Looked, looking_by, plain_engine

THREADS = 4
"""Those of the side that is not the fastest."""
DELAY_SECONDS = 0.01
UNFINISHED = "SELECT 1 FROM task LIMIT 1"


class Huey:
    """huey with a file of its own."""

    reads_when_idle = True

    def __init__(self, name: str = "huey", threads: int = 1) -> None:
        self.name = name
        self._threads = threads

    @classmethod
    def with_threads(cls) -> Huey:
        """As it is run for jobs that take time; slower for those that do nothing."""
        return cls("huey with threads", THREADS)

    @property
    def setting(self) -> str:
        return f"{self._threads} threads" if self._threads > 1 else "1 thread"

    def prepare(self, url: str) -> None:
        _declared(url, _nothing)

    def fill(self, url: str, count: int) -> Timing:
        _, noop = _declared(url, _nothing)
        noop()
        began, cpu_began = perf_counter(), process_time()
        for _ in range(count - 1):
            noop()
        ended, cpu_ended = perf_counter(), process_time()
        return Timing(count=count - 1, seconds=ended - began, cpu_seconds=cpu_ended - cpu_began)

    def work(self, url: str, note: Note) -> None:
        huey, _ = _declared(url, note)
        consumer = huey.create_consumer(
            workers=self._threads,
            periodic=False,
            initial_delay=DELAY_SECONDS,
            max_delay=DELAY_SECONDS,
        )
        consumer.run()

    def looking(self, url: str) -> AbstractContextManager[Looked]:
        return looking_by(plain_engine(url), UNFINISHED)

    def recorded(self, url: str, total: int) -> None:
        """Nothing: it keeps no record."""


def _nothing() -> None:
    """For a process that only sends."""


def _declared(url: str, note: Note) -> Any:
    """A huey with the one job, and the job."""
    huey = import_module("huey").SqliteHuey(
        filename=make_url(url).database, fsync=False, results=False
    )

    @huey.task()  # type: ignore[untyped-decorator] # no types without the peer
    def noop() -> None:
        note()

    return huey, noop
