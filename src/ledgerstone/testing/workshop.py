"""Workers of a test: run, stopped, and heard of."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from ledgerstone.engine.source import Source
from ledgerstone.engine.worker import Worker
from ledgerstone.engine.workers import WorkerReport, sign_in
from ledgerstone.ledger import Ledger
from ledgerstone.settings import EngineSettings
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until


class Gauge:
    """How many are inside, and how many were at most."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


def reported(
    ledger: Ledger,
    worker: str,
    *,
    begun: Sequence[str] = (),
    crashes_max: int | None = None,
    types: dict[str, list[str]] | None = None,
    locked: Sequence[str] = (),
) -> None:
    """The last word of a worker of this id, which serves the sources that it knows types of."""
    known = types or {}
    report = WorkerReport(
        sources={source: {} for source in known},
        running=0,
        waiting=0,
        prompt=True,
        duties={},
        types=known,
        crashes_max=crashes_max,
        begun=begun,
        locked=locked,
    )
    ledger.run(lambda tx: sign_in(tx, worker, report))


@contextmanager
def running(ledger: Ledger, source: Source, **options: Any) -> Iterator[Worker]:
    """A worker that runs, and is stopped at the end."""
    settings: EngineSettings = msgspec.structs.replace(ledger.settings.engine, **options)
    worker = Worker(ledger.database, [source], settings)
    with started(worker):
        yield worker


@contextmanager
def started(worker: Worker) -> Iterator[None]:
    """It runs, and is stopped at the end."""
    worker.start()
    try:
        yield
    finally:
        worker.stop(grace_seconds=WAIT_SECONDS_MAX)


def call_until_told(ledger: Ledger) -> None:
    """In a handler: read from the database again and again, until a call raises."""

    def read() -> bool:
        with ledger.reading():
            return False

    until(read, what="an error that tells the handler to stop")
