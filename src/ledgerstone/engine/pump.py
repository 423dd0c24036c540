"""The pump: moves the work of one source.

    source ──claim──▶ executor (threads, tasks, processes) ──outcomes──▶ settle ──▶ source
       ▲                                                                   │
       └────────────────── expired claims become due again ◀── rescue ─────┘

Claims and settlements happen in batches, one transaction each. A database with one writer (SQLite)
settles and claims in one transaction and one thread. Other databases use two connections in two
threads: one waits for the disk while the other works.

The pump holds each claim until it is settled, and keeps and retries outcomes during an outage.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from ledgerstone.engine import outcomes as outcome_of
from ledgerstone.engine.atomic import Committed, run_atomic
from ledgerstone.engine.breaker import Breakers
from ledgerstone.engine.claim_size import ClaimAhead, PollSchedule
from ledgerstone.engine.counters import Counters, Tick
from ledgerstone.engine.executor import Executor
from ledgerstone.engine.quarantine import WAIT_SECONDS_MAX, Quarantine, QuarantineQueue
from ledgerstone.engine.settlements import Settlements
from ledgerstone.engine.source import (
    LONG_CALL_SECONDS,
    Ask,
    Batch,
    Batches,
    Claim,
    NotSettled,
    Outcome,
    OutcomeKind,
    Settled,
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
from ledgerstone.store.wakeup import WakeSignal

if TYPE_CHECKING:
    from ledgerstone.engine.attempt import Attempt
    from ledgerstone.settings import EngineSettings
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

WAITING_SECONDS_MIN = 0.2
WAITING_AHEADS_MAX = 4
"""A claim waits for a place so many times as long as claiming may run ahead, then it goes back."""
STOP_SECONDS = 2.0
"""What the pump's own threads get to end."""
RESCUE_MAX = 500
ABANDONED = (
    "claims nothing: {} handlers were told to stop and still run; let them call job.check(), give"
    " them process=True, or restart the worker"
)

_log = logging.getLogger("ledgerstone.engine")


class Pump:
    """Claims, runs and settles the work of one source.

    - `start`, then `stop`: it runs in threads of its own.
    - `tick` does one bounded step in the calling thread instead: settle, claim, run, settle.
    - What cannot be helped by waiting ends it: see `failure`.
    - An outcome that the database refuses ends nothing: that is its item's failure.
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
        self._bytes_max = database.settings.body_bytes_max
        self._worker = worker
        self._prompt = prompt
        self._on_failure = on_failure
        self._monotonic = database.clock.monotonic
        self._breakers = Breakers(
            failures=settings.breaker_failures,
            cooldown_seconds=settings.breaker_cooldown_seconds,
            monotonic=self._monotonic,
        )
        self._work = source if isinstance(source, Work) else TransactionalWork(source, database)
        self._batches = batches_of(source)
        places = self._work.places or settings.concurrency
        self._executor = Executor(
            self._batches.places if self._batches is not None else places,
            handler=self._work.handler,
            atomic=partial(
                run_atomic,
                database=handlers_database or database,
                source=source,
                bytes_max=self._bytes_max,
            ),
            came_out=self._came_out,
            done=self._done,
        )
        self._held: dict[str, Claim] = {}
        self._unanswered = UnansweredClaims(source, database, worker)
        self._settlements = Settlements(
            self._work,
            batch_max=settings.batch_max,
            settled=self._settled,
            # Not held any more, so that its lease runs out and it is rescued.
            let_go=lambda outcome: self._release([outcome]),
        )
        self._ahead = ClaimAhead(settings, self._executor)
        self._claim_signal = WakeSignal()
        self._suspects = QuarantineQueue(
            quarantine,
            crashes_max=settings.crashes_max,
            wake_signal=self._claim_signal,
            monotonic=self._monotonic,
        )
        # With one writer a single thread does both, and waits for one signal.
        self._settle_signal = self._claim_signal if self._work.one_writer else WakeSignal()
        self._pace = PollSchedule(settings, prompt)
        self._stopping = threading.Event()
        self._halted = threading.Event()
        self._threads: list[threading.Thread] = []

    def tick(self, limit: int | None = None) -> Tick:
        """One bounded step in this thread: settle what is open, claim, run, settle."""
        refused = self.counters.refused
        settled = self._settle_some()
        most = self._batches.call_items_max if self._batches else self._settings.batch_max
        room = min(limit or most, most)
        claims = self._claim_some(room)
        runnable = self._accepted(claims)
        for i, claim in enumerate(runnable):
            if self._suspects.are(claim):
                try:
                    settled += self._settle_some()
                    self._suspects.quarantine.enter(claim)
                except BaseException:
                    self._return(runnable[i:])
                    raise
            self._done(claim, self._executor.run_here(claim))
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
        """Begin to move work, in threads of its own."""
        self._database.wake_signals.subscribe(self.source.channel, self._claim_signal)
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
        """Claim no more; what has not begun goes back first, its attempt refunded."""
        self._stopping.set()
        self._return(self._unbegun())
        self._work.stop()
        self._claim_signal.notify()
        self._settle_signal.notify()

    def finish(self, seconds: float) -> bool:
        """Wait for the running handlers; False if the time was not enough for all."""
        return self._executor.wait_idle(seconds)

    def interrupt(self) -> None:
        """Tell what still runs to stop."""
        stopping = Interrupted("the worker is stopping")
        for claim in list(self._held.values()):
            if self._executor.cancel(claim, stopping):
                self._return([claim])

    def await_notice(self) -> None:
        """Wait for handlers that were told, and give up those that take no notice."""
        if not self._executor.wait_idle(self._settings.notice_seconds):
            self._executor.abandon_all()

    def stop(self) -> None:
        """Settle everything, end the threads."""
        self.stop_claiming()
        self._halted.set()
        self._claim_signal.notify()
        self._settle_signal.notify()
        for thread in self._threads:
            thread.join(STOP_SECONDS)
        self._return(self._unbegun())
        self._database.wake_signals.unsubscribe(self.source.channel, self._claim_signal)
        why: object = "their items are locked"
        try:
            until = monotonic() + STOP_SECONDS
            self._return(self._accepted(self._unanswered.claims(self.held())))
            while self._settle_some() or self._is_put_off(until):
                pass
        except Exception as error:  # noqa: BLE001 - what could not be settled ends it no other way
            why = error
        if left := len(self._held):
            # Their leases will run out and they are rescued.
            _log.warning("%s: %d claims could not be returned: %s", self.source.name, left, why)
        self._executor.stop()

    def close(self) -> None:
        """Let go of what is held outside the database."""
        self._work.close()

    def _is_put_off(self, until: float) -> bool:
        """Whether something is locked that may be free soon; waits a moment for it."""
        if not self._settlements.locked or monotonic() >= until:
            return False
        self._settle_signal.wait(self._settlements.seconds())
        return True

    def held(self) -> dict[str, Claim]:
        """What is claimed and not settled, now."""
        return dict(self._held)

    def lose(self, claim: Claim) -> None:
        """The claim is another's: its handler is told, a settlement is refused and recorded."""
        if self._held.get(claim.key) is not claim:
            return
        del self._held[claim.key]
        self.counters.lost += 1
        _log.warning("%s: lost the lease of %s", self.source.name, claim.title)
        if self._batches is not None:
            # The handler goes on with the other items; it learns of this one from its source.
            return
        error = LeaseLost(f"the lease of attempt {claim.attempt} ran out")
        if self._suspects.remove(claim) or self._executor.cancel(claim, error):
            self._done(claim, outcome_of.told(claim, error))

    def expire_overdue(self) -> None:
        """Tell handlers that ran past their limit, and give up those that take no notice."""
        self._executor.cancel_overdue()
        self._executor.abandon_late(self._settings.notice_seconds)
        abandoned, most = self._executor.abandoned, self._settings.abandoned_handlers_max
        self.counters.abandoned = abandoned
        before = self.counters.stalled
        self.counters.stalled = ABANDONED.format(abandoned) if abandoned >= most else None
        if before is None and self.counters.stalled is not None:
            _log.error("%s: %s", self.source.name, self.counters.stalled)
        elif before is not None and self.counters.stalled is None:
            self._claim_signal.notify()

    @property
    def attempts(self) -> list[Attempt]:
        """What runs now, abandoned handlers included."""
        return self._executor.attempts

    @property
    def locked(self) -> int:
        """Outcomes that wait because another transaction has locked their item."""
        return self._settlements.locked

    @property
    def abandoned(self) -> int:
        """Handlers that run on though they were given up."""
        return self._executor.abandoned

    def return_late(self) -> None:
        """What has waited here too long goes back, its attempt refunded: for one with a place."""
        seconds = WAITING_AHEADS_MAX * self._settings.claim_ahead_ms / 1000
        late = Interrupted(f"no place was free for it within {seconds:g} s")
        waited = (
            [] if self._work.local else self._executor.drop_late(max(seconds, WAITING_SECONDS_MIN))
        )
        for claim in waited:
            self._done(claim, outcome_of.returned(claim, late))
        late = Interrupted("others with which workers died took too long before it")
        for claim in self._suspects.drop_late():
            self._done(claim, outcome_of.returned(claim, late))

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
            self._claim_signal.wait(self._wait_seconds())
            if self._suspects:
                self._begin_suspect()
            room = self._room()
            if room <= 0:
                self._pace.no_room()
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
                self._pace.found(len(claims), room)
                self._dispatch(claims)
            del claims, finished

    def _claims(self) -> None:
        while not self._halted.is_set():
            self._claim_signal.wait(self._wait_seconds())
            if self._suspects:
                self._begin_suspect()
            room = self._room()
            if room <= 0:
                self._pace.no_room()
                continue
            try:
                claims = self._claim_some(room)
            except LedgerstoneError as error:
                self._trouble(error)
                continue
            self._pace.found(len(claims), room)
            self._dispatch(claims)
            # What a claim holds is not kept while this waits for the next.
            del claims

    def _settles(self) -> None:
        while not self._halted.is_set():
            self._settle_signal.wait(
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
        seconds = self._pace.seconds(self._room)
        return min(seconds, self._work.due_seconds()) if self._room() > 0 else seconds

    def _dispatch(self, claims: Sequence[Claim]) -> None:
        self.counters.trouble = None
        if not claims:
            return
        hit("pump.claimed")
        runnable = self._suspects.kept_back(self._accepted(claims))
        surplus = Interrupted("too many others with which workers died are before it")
        for claim in self._suspects.drop_beyond(self._settings.batch_max):
            self._done(claim, outcome_of.returned(claim, surplus, delay_seconds=WAIT_SECONDS_MAX))
        self._start(runnable)

    def _begin_suspect(self) -> None:
        """The next one that workers died with, unless another one is at work here."""
        try:
            claim = self._suspects.admitted()
        except LedgerstoneError as error:
            self._trouble(error)
            return
        if claim is not None and self._held.get(claim.key) is not claim:
            # It was lost meanwhile, when it neither waited nor ran.
            self._done(claim, outcome_of.told(claim, LeaseLost("the lease ran out")))
        else:
            self._start([claim] if claim is not None else [], first=True)

    def _start(self, claims: Sequence[Claim], *, first: bool = False) -> None:
        if self._stopping.is_set():
            self._return([*claims, *self._unbegun()])
        elif claims:
            self._executor.start(claims, first=first)
            if self._stopping.is_set():
                # That began after the look: nobody has dropped these.
                self._return(self._unbegun())

    def _unbegun(self) -> list[Claim]:
        return [*self._executor.drop_waiting(), *self._suspects.drop()]

    def _return(self, unbegun: Sequence[Claim]) -> None:
        stopping = Interrupted("the worker is stopping")
        for claim in unbegun:
            self._done(claim, outcome_of.returned(claim, stopping))

    def _accepted(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Hold the claims; those for a target that is down go straight back."""
        self.counters.claimed += len(claims)
        self._held.update({claim.key: claim for claim in claims})
        if self._batches is not None and claims:
            claims = [Batch.of(claims, report=lambda outcome: self._done(outcome.claim, outcome))]
        if not self._breakers:
            return claims
        runnable = []
        for claim in claims:
            if claim.target is None or self._breakers.allow(claim.target):
                runnable.append(claim)
            else:
                wait = self._breakers.wait_seconds(claim.target)
                down = TargetDown(claim.target)
                # Nothing was sent: that says nothing of the target, and decides no probe.
                self._add_outcome(outcome_of.returned(claim, down, delay_seconds=wait))
        return runnable

    def _settle_some(self) -> int:
        return self._settlements.settle(self._settlements.take())

    def _settled(self, finished: Sequence[Outcome], refused: Sequence[Outcome]) -> None:
        hit("pump.settled")
        self._release(finished)
        self._count(finished, 1)
        self._count(refused, -1)
        if self._pace.more:
            # Claiming may have stopped because too much was unsettled.
            self._claim_signal.notify()
        self.counters.refused += len(refused)
        self.counters.trouble = None
        for outcome in refused:
            _log.warning(
                "%s: refused the late settlement of %s: the claim was lost",
                self.source.name,
                outcome.claim.title,
            )

    def _release(self, settled: Sequence[Outcome]) -> None:
        held = self._held
        for outcome in settled:
            claim = outcome.claim
            # It may have been returned and claimed anew meanwhile: that is another claim.
            if held.get(claim.key) is claim:
                del held[claim.key]
            if claim.crashes:
                self._suspects.quarantine.leave(claim)

    def _count(self, settled: Sequence[Outcome], by: int) -> None:
        verdicts = [outcome.verdict for outcome in settled]
        done = verdicts.count(OutcomeKind.DONE)
        returned = verdicts.count(OutcomeKind.RETURNED) + verdicts.count(OutcomeKind.SNOOZED)
        self.counters.done += by * done
        self.counters.returned += by * returned
        self.counters.failed += by * (len(verdicts) - done - returned)

    def _done(self, claim: Claim, outcome: Outcome | None) -> None:
        """A handler ended. None: an atomic one that is settled already."""
        hit("pump.ran")
        if outcome is None:
            if self._breakers:
                self._breakers.succeeded(claim.target or self.source.name)
            if self._pace.more and (not self._work.local or self._room() > 0):
                self._claim_signal.notify()
            return
        if claim.target is not None or outcome.verdict is OutcomeKind.RETURNED or self._breakers:
            outcome = self._told_breaker(claim, outcome)
        if self.counters.trouble is not None:
            outcome = outcome_of.spared(outcome)
        self._add_outcome(outcome)

    def _add_outcome(self, outcome: Outcome) -> None:
        if isinstance(outcome.claim, Batch):
            for each in outcome.claim.rest(outcome):
                self._add_outcome(each)
            return
        count = self._settlements.add(outcome)
        if count == 1 or count >= self._settings.batch_max or not self._executor.waiting:
            self._settle_signal.notify()
            if self._pace.more:
                self._claim_signal.notify()

    def _came_out(self, claim: Claim, value: Any) -> Outcome | None:
        if isinstance(value, Settled):
            value = Committed(Outcome(claim, OutcomeKind.DONE))
        if isinstance(value, Committed):
            self._release([value.outcome])
            self._count([value.outcome], 1)
            return None
        if isinstance(value, outcome_of.ResultNotStorable):
            return value.outcome
        if isinstance(value, Outcome) and value.claim is claim:
            return value
        return outcome_of.of_value(claim, value, bytes_max=self._bytes_max)

    def _told_breaker(self, claim: Claim, outcome: Outcome) -> Outcome:
        target, failure = claim.target or self.source.name, outcome.failure
        if failure is None or failure.code != TargetDown.code:
            # What was returned for another reason may never have come to its target.
            returned = outcome.verdict is OutcomeKind.RETURNED
            (self._breakers.undecided if returned else self._breakers.succeeded)(target)
            return outcome
        wait = self._breakers.failed(target)
        return msgspec.structs.replace(outcome, delay_seconds=max(wait, outcome.delay_seconds or 0))

    def _room(self) -> int:
        """How many to claim now: what can run, and as far ahead as handlers are quick."""
        if self._stopping.is_set() or self.counters.stalled is not None:
            return 0
        if self._batches is not None:
            return self._room_in_batches(self._batches)
        if self._work.local:
            waiting = len(self._executor.waiting)
            # While every place has a next one there is no hurry: few large claims cost less.
            return self._settings.batch_max if waiting <= self._executor.places else 0
        # In this order: what ends in between is counted twice, not overlooked.
        taken = self._executor.running + len(self._executor.waiting)
        unsettled = len(self._settlements)
        if unsettled >= self._settings.unsettled_max:
            return 0
        places, batch, ahead = self._executor.places, self._settings.batch_max, self._ahead.claims()
        # Two batches, so that the next is claimed while handlers are at work on this one; but never
        # so many that their outcomes would not fit.
        capacity = places + min(ahead, 2 * batch, batch + self._settings.unsettled_max - unsettled)
        room = min(capacity - taken, batch)
        if self._executor.waiting and room * 2 < min(ahead, batch):
            # Every place is taken, so there is no hurry: few large claims cost less.
            return 0
        return room

    def _room_in_batches(self, batches: Batches) -> int:
        """The same where a call of a handler takes many: what counts are items."""
        calls = self._executor.running + len(self._executor.waiting)
        if calls >= batches.calls_max:
            long = min(self._executor.longer_than(LONG_CALL_SECONDS), batches.long_calls_max)
            if calls - long >= batches.calls_max:
                return 0
        return min(batches.items_max - len(self._held), batches.call_items_max)

    def _linger(self) -> None:
        """Give other outcomes a moment to come along, if any are on their way."""
        some = 0 < self._settlements.waiting < self._settings.batch_max
        if some and self._executor.waiting and not self._halted.is_set():
            self._settle_signal.wait(self._settings.flush_ms / 1000)

    def _trouble(self, error: LedgerstoneError) -> None:
        """Wait a little if waiting can help, otherwise give up."""
        if not error.retryable:
            raise error
        if self.counters.trouble is None and not isinstance(error, StoreUnavailable):
            _log.warning("%s: %s: %s", self.source.name, error.code, error)
        self.counters.trouble = f"{error.code}: {error.message}"
        self._halted.wait(self._pace.trouble())
