"""Workers of a test: run, stopped, and heard of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from ledgerstone.engine.source import Source
from ledgerstone.engine.worker import Worker
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
