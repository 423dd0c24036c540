"""The pump: moves the work of one source.

    source ──claim──▶ held ──▶ executor (threads, tasks, processes) ──▶ settlements ──▶ source
       ▲                                                                                  │
       └───────────── expired claims become due again ◀── rescue by any worker ───────────┘

Claims and settlements happen in batches, one transaction each. A database with one writer (SQLite)
settles and claims in one transaction and one thread. Other databases use two connections in two
threads: one waits for the disk while the other works.

The pump decides when to claim and how much, holds each claim until it is settled, and keeps and
retries outcomes during an outage. `engine/attempt_steps.py` has the steps of one attempt.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from ledgerstone.engine import outcomes as outcome_of
from ledgerstone.engine.attempt_steps import AttemptSteps
from ledgerstone.engine.breaker import Breakers
from ledgerstone.engine.capacity import Capacity
from ledgerstone.engine.claim_size import PollSchedule
from ledgerstone.engine.counters import Counters, Tick
from ledgerstone.engine.executor import Executor
from ledgerstone.engine.held_claims import HeldClaims
from ledgerstone.engine.pump_signals import PumpSignals
from ledgerstone.engine.quarantine import WAIT_SECONDS_MAX, Quarantine, QuarantineQueue
from ledgerstone.engine.settlements import Settlements
from ledgerstone.engine.source import (
    Ask,
    Batch,
    Claim,
    NotSettled,
    Outcome,
    Source,
    Work,
    batches_of,
)
from ledgerstone.engine.transactional import TransactionalWork
from ledgerstone.engine.unanswered_claims import UnansweredClaims
from ledgerstone.errors import (
    Interrupted,
    LeaseLost,
    LedgerstoneError,
    StoreUnavailable,
    TargetDown,
)
from ledgerstone.failpoints import hit

if TYPE_CHECKING:
    from ledgerstone.engine.atomic import Committed
    from ledgerstone.engine.attempt import Attempt
    from ledgerstone.settings import EngineSettings
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

WAITING_SECONDS_MIN = 0.2
WAITING_AHEADS_MAX = 4
"""A claim waits for a place for so many times `engine.claim_ahead_ms`; then it is returned."""
STOP_SECONDS = 2.0
"""How long the pump waits for its own threads to end."""
RESCUE_MAX = 500
ABANDONED = (
    "claims nothing: {} handlers were told to stop and still run; let them call job.check(), give"
    " them process=True, or restart the worker"
)

_log = logging.getLogger("ledgerstone.engine")


class Pump:
    """Claims, runs and settles the work of one source.

    - `start`, then `stop`: the pump runs in threads of its own.
    - `tick` does one bounded step in the calling thread instead: settle, claim, run, settle.
    - An error that another try cannot help ends the pump: see `failure`.
    - An outcome that the database refuses is a failure of its item, and ends nothing.
    """

    def __init__(
        self,
        source: Source | Work,
        database: Database[Any],
        settings: EngineSettings,
        *,
        worker: str,
        quarantine: Quarantine,
        handlers_database: Database[Any] | None = None,
        prompt: Callable[[], bool] = lambda: False,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self.source = source
        self.counters = Counters()
        self.failure: BaseException | None = None
        self._database = database
        self._settings = settings
        self._worker = worker
        self._on_failure = on_failure
        self._work = source if isinstance(source, Work) else TransactionalWork(source, database)
        self._batches = batches = batches_of(source)
        places = batches.places if batches else self._work.places or settings.concurrency
        self._held = HeldClaims()
        self._unanswered = UnansweredClaims(source, database, worker)
        self._schedule = PollSchedule(settings, prompt)
        self._signals = PumpSignals(
            self._schedule,
            one_writer=self._work.one_writer,
            places=places,
            local=self._work.local,
        )
        self._breakers = Breakers(
            failures=settings.breaker_failures,
            cooldown_seconds=settings.breaker_cooldown_seconds,
            monotonic=database.clock.monotonic,
        )
        self._settlements = Settlements(
            self._work,
            self._held,
            quarantine,
            self.counters,
            self._signals,
            batch_max=settings.batch_max,
        )
        self._steps = AttemptSteps(
            self._work,
            source,
            database=handlers_database or database,
            settlements=self._settlements,
            breakers=self._breakers,
            counters=self.counters,
        )
        self._executor = Executor(places, self._steps)
        self._capacity = Capacity(
            settings,
            self._work,
            batches=batches,
            executor=self._executor,
            held=self._held,
            settlements=self._settlements,
        )
        self._suspects = QuarantineQueue(
            quarantine,
            crashes_max=settings.crashes_max,
            wake_signal=self._signals.claim,
            monotonic=database.clock.monotonic,
        )
        self._stopping = threading.Event()
        self._halted = threading.Event()
        self._threads: list[threading.Thread] = []

    def tick(self, limit: int | None = None) -> Tick:
        """One bounded step in this thread: settle what is open, claim, run, settle."""
        refused = self.counters.refused
        settled = self._settle_some()
        most = self._batches.call_items_max if self._batches else self._settings.batch_max
        claims = self._claim_some(min(limit or most, most))
        runnable = self._accepted(claims)
        for i, claim in enumerate(runnable):
            if self._suspects.are(claim):
                try:
                    settled += self._settle_some()
                    self._suspects.quarantine.enter(claim)
                except BaseException:
                    self._return(runnable[i:])
                    raise
            self._record(claim, self._steps.run_here(claim))
        settled += self._settle_some()
        return Tick(len(claims), settled, self.counters.refused - refused)

    def extend(self, claims: Sequence[Claim]) -> NotSettled[Claim]:
        """Renew the leases of these."""
        return self._work.extend(claims, self._settings.lease_seconds)

    def rescue(self, tx: Transaction) -> int:
        """Make the items of expired claims due again, a bounded number."""
        if isinstance(self.source, Work):
            return 0
        crashes_max = self._settings.crashes_max
        rescued = self.source.rescue(tx, limit=RESCUE_MAX, crashes_max=crashes_max)
        self.counters.rescued += rescued
        hit("rescue.rescued")
        return rescued

    def start(self) -> None:
        """Start the threads of the pump."""
        self._database.wake_signals.subscribe(self.source.channel, self._signals.claim)
        self._work.start()
        loops = [self._turn_both] if self._work.one_writer else [self._claims, self._settles]
        for loop in loops:
            thread = threading.Thread(
                target=self._guarded,
                args=(loop,),
                name=f"ledgerstone-pump-{self.source.name}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()

    def stop_claiming(self) -> None:
        """Claim no more; return what has not begun, with its attempt refunded."""
        self._stopping.set()
        self._return(self._unbegun())
        self._work.stop()
        self._signals.notify_all()

    def finish(self, seconds: float) -> bool:
        """Wait for the running handlers; False if the time was not enough for all."""
        return self._executor.wait_idle(seconds)

    def interrupt(self) -> None:
        """Tell the running handlers to stop."""
        stopping = Interrupted("the worker is stopping")
        for claim in self._held:
            if self._executor.cancel(claim, stopping):
                self._return([claim])

    def await_notice(self) -> None:
        """Wait for handlers that were told to stop, and abandon those that take no notice."""
        if not self._executor.wait_idle(self._settings.notice_seconds):
            self._executor.abandon_all()

    def stop(self) -> None:
        """Settle every outcome, and end the threads."""
        self.stop_claiming()
        self._halted.set()
        self._signals.notify_all()
        for thread in self._threads:
            thread.join(STOP_SECONDS)
        self._return(self._unbegun())
        self._database.wake_signals.unsubscribe(self.source.channel, self._signals.claim)
        why: object = "their items are locked"
        try:
            until = monotonic() + STOP_SECONDS
            self._return(self._accepted(self._unanswered.claims(self.held())))
            while self._settle_some() or self._is_put_off(until):
                pass
        except Exception as error:  # noqa: BLE001 - the pump stops all the same
            why = error
        if left := len(self._held):
            # Their leases will run out and they are rescued.
            _log.warning("%s: %d claims could not be returned: %s", self.source.name, left, why)
        self._executor.stop()

    def close(self) -> None:
        """Release what the source holds outside the database."""
        self._work.close()

    def _is_put_off(self, until: float) -> bool:
        """Whether an item is locked that may be free soon; waits a moment for it."""
        if not self._settlements.locked or monotonic() >= until:
            return False
        self._signals.settle.wait(self._settlements.seconds())
        return True

    def held(self) -> dict[str, Claim]:
        """The claims that are not settled now, by the key of their item."""
        return self._held.by_key()

    def lose(self, claim: Claim) -> None:
        """The lease is lost: tell the handler; a later settlement is refused and on record."""
        if not self._held.remove(claim):
            return
        self.counters.lost += 1
        _log.warning("%s: lost the lease of %s", self.source.name, claim.title)
        if self._batches is not None:
            # The handler goes on with the other items; its source tells it of this one.
            return
        error = LeaseLost(f"the lease of attempt {claim.attempt} ran out")
        if self._suspects.remove(claim) or self._executor.cancel(claim, error):
            self._record(claim, outcome_of.told(claim, error))

    def expire_overdue(self) -> None:
        """Tell handlers that ran past their limit to stop; abandon those that take no notice."""
        self._executor.cancel_overdue()
        self._executor.abandon_late(self._settings.notice_seconds)
        abandoned, most = self._executor.abandoned, self._settings.abandoned_handlers_max
        self.counters.abandoned = abandoned
        before = self.counters.stalled
        self.counters.stalled = ABANDONED.format(abandoned) if abandoned >= most else None
        if before is None and self.counters.stalled is not None:
            _log.error("%s: %s", self.source.name, self.counters.stalled)
        elif before is not None and self.counters.stalled is None:
            self._signals.claim.notify()

    @property
    def attempts(self) -> list[Attempt]:
        """The running attempts, abandoned handlers included."""
        return self._executor.attempts

    @property
    def locked(self) -> int:
        """Outcomes that wait because another transaction has locked their item."""
        return self._settlements.locked

    @property
    def abandoned(self) -> int:
        """How many abandoned handlers still run."""
        return self._executor.abandoned

    def return_late(self) -> None:
        """Return claims that waited too long for a place, so that another worker may run them."""
        seconds = WAITING_AHEADS_MAX * self._settings.claim_ahead_ms / 1000
        late = Interrupted(f"no place was free for it within {seconds:g} s")
        waited = (
            [] if self._work.local else self._executor.drop_late(max(seconds, WAITING_SECONDS_MIN))
        )
        for claim in waited:
            self._record(claim, outcome_of.returned(claim, late))
        late = Interrupted("other crash suspects were queued ahead of it for too long")
        for claim in self._suspects.drop_late():
            self._record(claim, outcome_of.returned(claim, late))

    @property
    def running(self) -> int:
        return self._executor.running

    @property
    def waiting(self) -> int:
        return len(self._executor.waiting) + len(self._suspects)

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:  # noqa: BLE001 - reported by the worker, which stops
            self.failure = error
            self._halted.set()
            self._on_failure()

    def _turn_both(self) -> None:
        while not self._halted.is_set():
            self._signals.claim.wait(self._wait_seconds())
            if self._suspects:
                self._begin_suspect()
            room = self._room()
            if room <= 0:
                self._schedule.no_room()
                self._linger()
            finished = self._settlements.take()
            if not finished and room <= 0:
                continue
            try:
                claims = self._exchange(finished, room)
            except LedgerstoneError as error:
                self._trouble(error)
                continue
            if claims is not None:
                self._schedule.found(len(claims), room)
                self._dispatch(claims)
            del claims, finished

    def _claims(self) -> None:
        while not self._halted.is_set():
            self._signals.claim.wait(self._wait_seconds())
            if self._suspects:
                self._begin_suspect()
            room = self._room()
            if room <= 0:
                self._schedule.no_room()
                continue
            try:
                claims = self._claim_some(room)
            except LedgerstoneError as error:
                self._trouble(error)
                continue
            self._schedule.found(len(claims), room)
            self._dispatch(claims)
            # Keep no reference to the claims while waiting for the next ones.
            del claims

    def _settles(self) -> None:
        while not self._halted.is_set():
            self._signals.settle.wait(
                min(self._settings.poll_seconds_max, self._settlements.seconds())
            )
            self._linger()
            try:
                while self._settle_some():
                    pass
            except LedgerstoneError as error:
                self._trouble(error)

    def _exchange(self, finished: Sequence[Outcome], room: int) -> Sequence[Claim] | None:
        """Settle and claim at once; the claims, None if nothing was claimed."""
        return self._settlements.exchange(finished, self._ask(room) if room > 0 else None)

    def _claim_some(self, room: int) -> Sequence[Claim]:
        late = self._unanswered.claims(self.held())
        return late or self._unanswered.watched(partial(self._work.exchange, (), self._ask(room)))

    def _ask(self, room: int) -> Ask:
        lease, avoid = self._settings.lease_seconds, self._breakers.open_targets()
        return Ask(room, self._worker, lease, avoid)

    def _wait_seconds(self) -> float:
        """How long to wait for a wake-up."""
        seconds = self._schedule.seconds(self._room)
        return min(seconds, self._work.due_seconds()) if self._room() > 0 else seconds

    def _dispatch(self, claims: Sequence[Claim]) -> None:
        self.counters.trouble = None
        if not claims:
            return
        hit("pump.claimed")
        runnable = self._suspects.kept_back(self._accepted(claims))
        surplus = Interrupted("too many other crash suspects are queued ahead of it")
        for claim in self._suspects.drop_beyond(self._settings.batch_max):
            self._record(claim, outcome_of.returned(claim, surplus, delay_seconds=WAIT_SECONDS_MAX))
        self._start(runnable)

    def _begin_suspect(self) -> None:
        """Begin the next crash suspect, unless another one runs here."""
        try:
            claim = self._suspects.admitted()
        except LedgerstoneError as error:
            self._trouble(error)
            return
        if claim is not None and not self._held.has(claim):
            # It was lost meanwhile, when it neither waited nor ran.
            self._record(claim, outcome_of.told(claim, LeaseLost("the lease ran out")))
        else:
            self._start([claim] if claim is not None else [], first=True)

    def _start(self, claims: Sequence[Claim], *, first: bool = False) -> None:
        if self._stopping.is_set():
            self._return([*claims, *self._unbegun()])
        elif claims:
            self._executor.start(claims, first=first)
            if self._stopping.is_set():
                # Stopping began after the first check: nothing else drops these.
                self._return(self._unbegun())

    def _unbegun(self) -> list[Claim]:
        return [*self._executor.drop_waiting(), *self._suspects.drop()]

    def _return(self, unbegun: Sequence[Claim]) -> None:
        stopping = Interrupted("the worker is stopping")
        for claim in unbegun:
            self._record(claim, outcome_of.returned(claim, stopping))

    def _accepted(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Hold the claims; return those whose target is down, and answer the others."""
        self.counters.claimed += len(claims)
        self._held.add(claims)
        if self._batches is not None and claims:
            claims = [Batch.of(claims, report=lambda outcome: self._record(outcome.claim, outcome))]
        if not self._breakers:
            return claims
        runnable = []
        for claim in claims:
            if claim.target is None or self._breakers.allow(claim.target):
                runnable.append(claim)
            else:
                wait = self._breakers.wait_seconds(claim.target)
                down = TargetDown(claim.target)
                # Nothing was sent: this says nothing about the target, and decides no probe.
                held_back = outcome_of.returned(claim, down, delay_seconds=wait)
                self._settlements.add(held_back, len(self._executor.waiting))
        return runnable

    def _settle_some(self) -> int:
        return self._settlements.settle(self._settlements.take())

    def _record(self, claim: Claim, outcome: Outcome | Committed) -> None:
        self._steps.record(claim, outcome, len(self._executor.waiting))

    def _room(self) -> int:
        """How many items to claim now; 0 or less if none."""
        if self._stopping.is_set() or self.counters.stalled is not None:
            return 0
        return self._capacity.free()

    def _linger(self) -> None:
        """Wait a moment for other outcomes, if handlers are about to end."""
        some = 0 < self._settlements.waiting < self._settings.batch_max
        if some and self._executor.waiting and not self._halted.is_set():
            self._signals.settle.wait(self._settings.flush_ms / 1000)

    def _trouble(self, error: LedgerstoneError) -> None:
        """Wait before the next try, if another try can help; raise the error otherwise."""
        if not error.retryable:
            raise error
        if self.counters.trouble is None and not isinstance(error, StoreUnavailable):
            _log.warning("%s: %s: %s", self.source.name, error.code, error)
        self.counters.trouble = f"{error.code}: {error.message}"
        self._halted.wait(self._schedule.trouble())
