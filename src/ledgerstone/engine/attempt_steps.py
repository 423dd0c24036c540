"""The steps of one attempt, in their order: begin, run, judge, record.

    claim ──begin──▶ Attempt ──run──▶ value or error ──judge──▶ outcome ──record──▶ settlements

The executor says in which thread, loop or process a step happens, and when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ledgerstone.engine import outcomes as outcome_of
from ledgerstone.engine.atomic import Committed, run_atomic, run_coroutine
from ledgerstone.engine.attempt import Attempt
from ledgerstone.engine.source import ExecutorKind, Outcome, OutcomeKind, Settled
from ledgerstone.errors import HandlerTimeout, TargetDown
from ledgerstone.failpoints import hit

if TYPE_CHECKING:
    from ledgerstone.engine.breaker import Breakers
    from ledgerstone.engine.counters import Counters
    from ledgerstone.engine.executors.processes import Child
    from ledgerstone.engine.settlements import Settlements
    from ledgerstone.engine.source import Claim, Source, Work
    from ledgerstone.store.database import Database


class AttemptSteps:
    """The steps of the attempts of one pump.

    - `source` settles a claim in the transaction of an atomic handler, on `database`.
    - `record` tells the circuit breaker of the target how the attempt came out, and queues the
      outcome for settlement.
    """

    def __init__(
        self,
        work: Work,
        source: Source | Work,
        *,
        database: Database[Any],
        settlements: Settlements,
        breakers: Breakers,
        counters: Counters,
    ) -> None:
        self._work = work
        self._source = source
        self._database = database
        self._bytes_max = database.settings.body_bytes_max
        self._settlements = settlements
        self._breakers = breakers
        self._counters = counters

    def begin(self, claim: Claim) -> Attempt:
        """The attempt, with its handler; raises what the source raises that knows none."""
        return Attempt(claim, self._work.handler(claim))

    def run(self, attempt: Attempt, child: Child | None = None) -> None:
        """Call the handler in this thread or in the child; the attempt keeps how that ended.

        A handler for a child process runs in this thread if there is no child.
        """
        try:
            attempt.value = self._called(attempt, child)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the item's outcome
            attempt.error = error

    def judge(self, attempt: Attempt) -> Outcome | Committed:
        """The outcome, by what the handler returned or raised and what it was told.

        - A handler that ran past its limit has timed out, whatever it returned.
        - A handler that learned of another reason to stop ends with that reason.
        - A handler that had finished before it could learn of the reason has finished.
        """
        error, attempt.error = attempt.error, None
        reason, heard = attempt.cancellation.reason, attempt.cancellation.heard
        if reason is not None and (heard or isinstance(reason, HandlerTimeout)):
            return attempt.told(reason)
        if error is not None:
            return attempt.failed(error)
        try:
            return self._outcome_of(attempt.claim, attempt.value)
        except Exception as unreadable:  # noqa: BLE001 - the value's own code may raise anything
            return outcome_of.of_error(attempt.claim, unreadable)

    def record(self, claim: Claim, outcome: Outcome | Committed, waiting: int) -> None:
        """Queue the outcome for settlement, unless the handler's transaction has settled the claim.

        `waiting` is how many claims wait for a place: if none, no other outcome will come along.
        """
        hit("pump.ran")
        if isinstance(outcome, Committed):
            if self._breakers:
                self._breakers.succeeded(claim.target or self._work.name)
            self._settlements.settled_by_handler(outcome.outcome, waiting)
            return
        if claim.target is not None or outcome.verdict is OutcomeKind.RETURNED or self._breakers:
            outcome = self._breaker_told(claim, outcome)
        if self._counters.trouble is not None:
            outcome = outcome_of.spared(outcome)
        self._settlements.add(outcome, waiting)

    def run_here(self, claim: Claim) -> Outcome | Committed:
        """All steps but the last one, in the calling thread."""
        try:
            attempt = self.begin(claim)
        except Exception as error:  # noqa: BLE001 - nothing can run it: that is its outcome
            return outcome_of.of_error(claim, error)
        self.run(attempt)
        return self.judge(attempt)

    def _called(self, attempt: Attempt, child: Child | None) -> Any:
        claim, handler = attempt.claim, attempt.handler
        if handler.atomic:
            return run_atomic(
                claim,
                handler,
                database=self._database,
                source=self._source,
                bytes_max=self._bytes_max,
            )
        if handler.where is ExecutorKind.PROCESS and child is not None:
            return child.call(handler.call, claim)
        if handler.where is ExecutorKind.LOOP:
            return run_coroutine(handler.call, claim)
        return handler.call(claim)

    def _outcome_of(self, claim: Claim, value: Any) -> Outcome | Committed:
        if isinstance(value, Settled):
            return Committed(Outcome(claim, OutcomeKind.DONE))
        if isinstance(value, Committed):
            return value
        if isinstance(value, outcome_of.ResultNotStorable):
            return value.outcome
        if isinstance(value, Outcome) and value.claim is claim:
            return value
        return outcome_of.of_value(claim, value, bytes_max=self._bytes_max)

    def _breaker_told(self, claim: Claim, outcome: Outcome) -> Outcome:
        """The outcome; if its target is down, it is due again when the target may be tried."""
        target, failure = claim.target or self._work.name, outcome.failure
        if failure is None or failure.code != TargetDown.code:
            # A claim that was returned for another reason may never have reached its target.
            returned = outcome.verdict is OutcomeKind.RETURNED
            (self._breakers.undecided if returned else self._breakers.succeeded)(target)
            return outcome
        wait = self._breakers.failed(target)
        return msgspec.structs.replace(outcome, delay_seconds=max(wait, outcome.delay_seconds or 0))
