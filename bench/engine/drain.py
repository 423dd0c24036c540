"""The pump: a worker with a handler that does nothing drains what is queued."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import perf_counter, process_time, sleep

from bench.engine.databases import opened
from bench.measure import Stopwatch, settle_memory
from ledgerstone.chores import ChoreSource
from ledgerstone.engine.source import Ask, Claim, Handler, Outcome
from ledgerstone.errors import LedgerstoneError
from ledgerstone.store.transaction import Transaction
from ledgerstone.testing.work import nothing

DRAIN_SECONDS_MAX = 600.0
LOOK_SECONDS = 0.0002


class Watched:
    """The chores' source; says when the first was asked for and the last came to be settled."""

    def __init__(self, chores: ChoreSource, *, count: int) -> None:
        self._chores = chores
        self._left = count
        self.began: tuple[float, float] | None = None
        self.nearly = threading.Event()
        self.name = chores.name
        self.channel = chores.channel
        self.handler = chores.handler
        self.extend = chores.extend
        self.rescue = chores.rescue

    def watch(self) -> None:
        """Take the next claim for the first."""
        self.began = None

    def claim(self, tx: Transaction, ask: Ask) -> Sequence[Claim]:
        if self.began is None:
            self.began = (perf_counter(), process_time())
        return self._chores.claim(tx, ask)

    def settle(self, tx: Transaction, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        refused = self._chores.settle(tx, outcomes)
        self._left -= len(outcomes)
        if self._left <= 0:
            self.nearly.set()
        return refused


def drain(url: str, *, warm_up: int, count: int) -> Stopwatch:
    """From the first claim to the last commit; the settling connection is opened within it."""
    with opened(url) as ledger:
        source = Watched(ChoreSource(Handler(nothing)), count=warm_up + count)
        worker = ledger.worker(source)
        pump = worker.pumps[0]
        while pump.tally.done < warm_up:
            worker.tick(warm_up - pump.tally.done)
        settle_memory()
        source.watch()
        worker.start()
        source.nearly.wait(DRAIN_SECONDS_MAX)
        # Settled, not yet committed: the pump counts what is.
        deadline = perf_counter() + DRAIN_SECONDS_MAX
        while pump.tally.done < warm_up + count and perf_counter() < deadline:
            sleep(LOOK_SECONDS)
        ended = (perf_counter(), process_time())
        worker.stop()
        if worker.failure is not None or source.began is None:
            message = f"the worker did not drain: {pump.tally}"
            raise LedgerstoneError(message) from worker.failure
        return Stopwatch(ended[0] - source.began[0], ended[1] - source.began[1])
