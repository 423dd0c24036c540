"""The pump: a worker with a handler that does nothing drains what is queued."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import perf_counter, process_time, sleep

from bench.ledgers import opened
from bench.measure import Timing, settle_memory
from ledgerstone.engine.source import Ask, Claim, Handler, NotSettled, Outcome
from ledgerstone.ledger import Ledger
from ledgerstone.store.transaction import Transaction
from tests.chores import ChoreSource
from tests.chores.work import nothing

DRAIN_SECONDS_MAX = 600.0
LOOK_SECONDS = 0.0002


class Watched:
    """The chores' source; notes when the warm-up was claimed and when the last is being settled."""

    def __init__(self, chores: ChoreSource, *, warm_up: int, total: int) -> None:
        self._chores = chores
        self._warm_up = warm_up
        self._unsettled = total
        self.claimed = 0
        self.began: tuple[int, float, float] | None = None
        self.nearly = threading.Event()
        self.name = chores.name
        self.channel = chores.channel
        self.handler = chores.handler
        self.extend = chores.extend
        self.rescue = chores.rescue

    def claim(self, tx: Transaction, ask: Ask) -> Sequence[Claim]:
        if self.began is None and self.claimed >= self._warm_up:
            self.began = (self.claimed, perf_counter(), process_time())
        claims = self._chores.claim(tx, ask)
        self.claimed += len(claims)
        return claims

    def settle(
        self, tx: Transaction, outcomes: Sequence[Outcome], *, waits: bool = False
    ) -> NotSettled[Outcome]:
        left = self._chores.settle(tx, outcomes, waits=waits)
        self._unsettled -= len(outcomes)
        if self._unsettled <= 0:
            self.nearly.set()
        return left


def drain(url: str, *, warm_up: int, count: int) -> Timing:
    """From the first claim after the warm-up to the last commit.

    What of the warm-up is claimed and not settled then is settled within the timed part, and not
    counted.
    """
    total = warm_up + count
    source = Watched(ChoreSource(Handler(nothing)), warm_up=warm_up, total=total)
    with opened(url) as ledger:
        return _drained(ledger, source, total)


def _drained(ledger: Ledger, source: Watched, total: int) -> Timing:
    worker = ledger.worker(source)
    pump = worker.pumps[0]
    settle_memory()
    worker.start()
    deadline = perf_counter() + DRAIN_SECONDS_MAX
    while not source.nearly.wait(1.0) and perf_counter() < deadline and pump.failure is None:
        pass
    # Settled, not yet committed: the pump counts what is.
    while pump.counters.done < total and perf_counter() < deadline and pump.failure is None:
        sleep(LOOK_SECONDS)
    ended, cpu_ended = perf_counter(), process_time()
    worker.stop()
    if worker.failure is not None or source.began is None:
        message = f"the worker did not drain: {pump.counters}"
        raise RuntimeError(message) from worker.failure
    claimed, began, cpu_began = source.began
    return Timing(count=total - claimed, seconds=ended - began, cpu_seconds=cpu_ended - cpu_began)
