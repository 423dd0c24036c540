"""How soon an idle worker begins: from the commit of an enqueue to the handler's first line.

Both moments are read from the system's monotonic clock, which all processes of a machine share. The
first is read when the `with` block of the transaction has ended, so a commit is not part of it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from queue import SimpleQueue
from random import Random
from time import monotonic, monotonic_ns, sleep
from typing import Any

import msgspec

from bench.ledgers import opened
from bench.measure import END_SECONDS_MAX, settle_memory
from ledgerstone.engine.source import Claim, Handler
from ledgerstone.ledger import Ledger
from tests.chores import Chores, ChoreSource, Status

WAKE_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.002
NS_IN_MS = 1e6


class Rests(msgspec.Struct, frozen=True, kw_only=True):
    """How many wake-ups, and how long the worker is idle before each: evenly spread between."""

    count: int
    seconds_min: float
    seconds_max: float


WARM_UP = Rests(count=5, seconds_min=0.02, seconds_max=0.05)
"""Not counted: the first wake-ups open connections and compile statements."""


def in_process(url: str, *rests: Rests) -> list[list[float]]:
    """Milliseconds to wake a worker of this process, for each kind of rest."""
    arrived: SimpleQueue[int] = SimpleQueue()

    def note(_: Claim) -> None:
        arrived.put(monotonic_ns())

    with opened(url) as ledger:
        worker = ledger.worker(ChoreSource(Handler(note)))
        worker.start()
        try:
            return _all_latencies(ledger, rests, lambda: arrived.get(timeout=WAKE_SECONDS_MAX))
        finally:
            worker.stop()


def across(url: str, *rests: Rests) -> list[list[float]]:
    """Milliseconds to wake a worker of another process, for each kind of rest."""
    with _other_process(url) as pipe, opened(url) as ledger:

        def arrived() -> int:
            if not pipe.poll(WAKE_SECONDS_MAX):
                message = f"nothing was begun within {WAKE_SECONDS_MAX} s"
                raise TimeoutError(message)
            return int(pipe.recv())

        return _all_latencies(ledger, rests, arrived)


@contextmanager
def _other_process(url: str) -> Iterator[Connection[Any, Any]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(url, theirs))
    process.start()
    theirs.close()
    try:
        # The first message says that it works.
        ours.recv()
        yield ours
        ours.send(None)
    finally:
        ours.close()
        process.join(END_SECONDS_MAX)


def _work(url: str, pipe: Connection[Any, Any]) -> None:
    """A worker until the pipe says otherwise; each handler sends the moment it began."""

    def note(_: Claim) -> None:
        pipe.send(monotonic_ns())

    with opened(url) as ledger:
        worker = ledger.worker(ChoreSource(Handler(note)))
        worker.start()
        settle_memory()
        pipe.send(monotonic_ns())
        pipe.poll(None)
        worker.stop()


def _all_latencies(
    ledger: Ledger, rests: Sequence[Rests], arrived: Callable[[], int]
) -> list[list[float]]:
    settle_memory()
    _latencies(ledger, WARM_UP, arrived)
    return [_latencies(ledger, kind, arrived) for kind in rests]


def _latencies(ledger: Ledger, rests: Rests, arrived: Callable[[], int]) -> list[float]:
    """Enqueue, wait for the handler, let the worker fall idle; again and again."""
    # Seeded: each run rests for the same times. Spread, so that no phase of a poll is favoured.
    random = Random(rests.count)  # noqa: S311 - no secret
    found = []
    for _ in range(rests.count):
        sleep(random.uniform(rests.seconds_min, rests.seconds_max))
        with ledger.transaction() as tx:
            enqueued = Chores(tx).enqueue(None)
        committed = monotonic_ns()
        found.append((arrived() - committed) / NS_IN_MS)
        _await_done(ledger, enqueued.id)
    return found


def _await_done(ledger: Ledger, chore_id: str) -> None:
    """Until it is settled: then nothing is left for the worker to do."""
    deadline = monotonic() + WAKE_SECONDS_MAX
    while True:
        with ledger.reading() as tx:
            if Chores(tx).get(chore_id).status is Status.DONE:
                return
        if monotonic() > deadline:
            message = f"{chore_id} was not settled within {WAKE_SECONDS_MAX} s"
            raise TimeoutError(message)
        sleep(LOOK_SECONDS)
