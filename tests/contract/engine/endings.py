"""The contract of endings: however a handler ends, and whatever its outcome, its claim is settled.

What one item brings with it harms no other item, and never the worker.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.settlements import UNWRITTEN_MAX
from ledgerstone.engine.source import Claim, ExecutorKind, Handler, Outcome, OutcomeKind
from ledgerstone.errors import (
    HandlerTimeout,
    Interrupted,
    LedgerstoneError,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.chores import ChoreSource, Status
from tests.chores.work import nothing
from tests.chores.workshop import chores, counts, enqueue, standing
from tests.harness import children
from tests.harness.workers import call_until_told, running

Refusal = Callable[[Outcome], BaseException | None]


class EndingsContract:
    """Step by step, by a clock that is moved by hand. Fixtures: `ledger`, `clock`."""

    def test_an_outcome_that_is_refused(self, ledger: Ledger, clock: ManualClock) -> None:
        """What the database does not take is its own item's failure and says so."""
        ids = enqueue(ledger, 5, attempts=1)
        seen: list[str] = []
        source = _Picky(lambda o: _refused(o, verdict=OutcomeKind.DONE), seen=seen)

        (step,) = ledger.worker(source).tick()

        bad, *good = (standing(ledger, key) for key in ids)
        assert step.settled == 5
        assert sorted(seen) == ["0", "1", "2", "3", "4"]
        assert {chore.status for chore in good} == {Status.DONE}
        assert bad.status is Status.DEAD
        assert bad.error == "store: its outcome (done) cannot be written: it is the number 0"

    def test_an_outcome_that_is_refused_in_any_words(
        self, ledger: Ledger, clock: ManualClock
    ) -> None:
        """Then its lease runs out, it is rescued, and meanwhile the others go on."""
        ids = enqueue(ledger, 4)
        source = _Picky(_refused)
        worker = ledger.worker(source)
        worker.tick()
        held = worker.pumps[0].held()
        clock.advance(3600)

        worker.tick()

        bad, *good = (standing(ledger, key) for key in ids)
        assert held == {}
        assert {chore.status for chore in good} == {Status.DONE}
        assert (bad.crashes, worker.pumps[0].counters.rescued) == (1, 1)

    @pytest.mark.parametrize("count", [1, UNWRITTEN_MAX - 1])
    def test_few_that_are_refused_end_no_worker(
        self, ledger: Ledger, clock: ManualClock, count: int
    ) -> None:
        """Nor do several in one batch, whatever was raised."""
        enqueue(ledger, count)
        source = _Picky(lambda _: ZeroDivisionError())

        worker = ledger.worker(source)
        worker.tick()
        source.refusal = lambda _: None
        (step,) = worker.tick()

        assert (step.claimed, worker.failure) == (0, None)

    def test_a_fault_that_hits_all(self, ledger: Ledger, clock: ManualClock) -> None:
        """What no outcome can be written for is no item's doing: it is raised, not swallowed."""
        enqueue(ledger, UNWRITTEN_MAX + 1)
        worker = ledger.worker(_Picky(lambda _: ZeroDivisionError()))

        with pytest.raises(ZeroDivisionError):
            worker.tick()

    @pytest.mark.parametrize("error", [StoreBusy, StoreUnavailable, Interrupted])
    def test_errors_that_a_handler_raises_itself(
        self, ledger: Ledger, clock: ManualClock, error: type[LedgerstoneError]
    ) -> None:
        """Also an error of the database counts as an attempt, if the handler raised it."""
        (key,) = enqueue(ledger, 1, attempts=2)

        def fail(_: Claim) -> None:
            raise error("always")

        worker = ledger.worker(chores(fail, backoff=Backoff(seconds=1)))
        for _ in range(2):
            worker.tick()
            clock.advance(10)

        chore = standing(ledger, key)
        assert (chore.status, chore.attempt) == (Status.DEAD, 2)
        assert chore.error == f"{error.code}: always"

    def test_an_outage_costs_no_attempt(self, ledger: Ledger, clock: ManualClock) -> None:
        """If the engine cannot reach the database either, what failed of that was not its doing."""
        (key,) = enqueue(ledger, 1, attempts=1)

        def fail(_: Claim) -> None:
            raise StoreUnavailable("gone")

        source = _Picky(lambda _: StoreUnavailable("gone"), call=fail)
        worker = ledger.worker(source)
        with pytest.raises(StoreUnavailable):
            worker.tick()
        source.refusal = lambda _: None
        worker.tick()

        chore = standing(ledger, key)
        assert (chore.status, chore.attempt) == (Status.QUEUED, 0)

    def test_atomic_handlers_whose_transaction_fails(
        self, ledger: Ledger, clock: ManualClock
    ) -> None:
        """What an atomic handler raised counts; what its transaction met at its end does not."""
        ids = enqueue(ledger, 2, attempts=1)

        def fail(_: Transaction, claim: Claim) -> None:
            if claim.body == "1":
                raise StoreUnavailable("its own")

        source = _Picky(
            lambda o: _refused(o, StoreUnavailable, OutcomeKind.DONE), call=fail, atomic=True
        )
        ledger.worker(source).tick()

        met, raised = (standing(ledger, key) for key in ids)
        assert (met.status, met.attempt) == (Status.QUEUED, 0)
        assert (raised.status, raised.error) == (Status.DEAD, "store_unavailable: its own")


class RunningEndingsContract:
    """In threads, by the database's own clock. Fixtures: `ledger`."""

    def test_an_outcome_that_is_refused(self, ledger: Ledger) -> None:
        """What the database does not take ends no worker, and nothing else is done twice."""
        ids = enqueue(ledger, 40, attempts=1)
        seen: list[str] = []

        with running(ledger, _Picky(_refused_done, seen=seen)) as worker:
            until(lambda: counts(ledger)[Status.DONE] == 39 and counts(ledger)[Status.DEAD] == 1)
            failure = worker.failure

        assert failure is None
        assert sorted(seen) == sorted(map(str, range(40)))
        assert standing(ledger, ids[0]).status is Status.DEAD

    def test_a_fault_that_hits_all(self, ledger: Ledger) -> None:
        """A worker that can settle nothing does not spin: it ends and says why."""
        enqueue(ledger, UNWRITTEN_MAX + 1)

        with running(ledger, _Picky(lambda _: ZeroDivisionError())) as worker:
            until(lambda: worker.failure is not None)

        assert isinstance(worker.failure, ZeroDivisionError)

    @pytest.mark.slow
    @pytest.mark.parametrize("where", list(ExecutorKind))
    def test_odd_endings(self, ledger: Ledger, where: ExecutorKind) -> None:
        """Errors without words and reasons that are no text end their item, wherever it runs."""
        ids = enqueue(ledger, 6, attempts=1)

        async def awaited(claim: Claim) -> object:
            return children.odd_ending(claim)

        call = awaited if where is ExecutorKind.LOOP else children.odd_ending
        with running(ledger, chores(call, where=where)):
            until(lambda: counts(ledger)[Status.QUEUED] + counts(ledger)[Status.RUNNING] == 0)

        wordless, number, none, target, odd, fine = (standing(ledger, key) for key in ids)
        assert wordless.error is not None
        assert wordless.error.startswith("Wordless: Wordless, whose words cannot be read")
        assert (number.status, number.error) == (Status.CANCELED, "canceled: 5")
        assert (none.status, none.error) == (Status.CANCELED, "canceled: ")
        assert (target.status, target.error) == (Status.DEAD, "hopeless: for good")
        assert (odd.status, (odd.error or "")[:9]) == (Status.DEAD, "bad_input")
        assert (fine.status, fine.result) == (Status.DONE, {"fine": True})

    @pytest.mark.slow
    @pytest.mark.parametrize("where", [ExecutorKind.THREAD, ExecutorKind.LOOP])
    def test_timeouts_that_are_swallowed(self, ledger: Ledger, where: ExecutorKind) -> None:
        """A handler that takes no notice of its timeout has timed out all the same."""
        (key,) = enqueue(ledger, 1, attempts=1)

        def sync(_: Claim) -> str:
            with suppress(HandlerTimeout):
                call_until_told(ledger)
            return "swallowed"

        async def awaited(_: Claim) -> str:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return "swallowed"

        handler = Handler(sync if where is ExecutorKind.THREAD else awaited, where=where)
        with running(ledger, _Timed(handler)):
            until(lambda: standing(ledger, key).status is Status.DEAD, what="the failure")

        chore = standing(ledger, key)
        assert (chore.result, (chore.error or "")[:7]) == (None, "timeout")

    @pytest.mark.parametrize("where", [ExecutorKind.THREAD, ExecutorKind.LOOP])
    def test_interruptions_that_are_swallowed(self, ledger: Ledger, where: ExecutorKind) -> None:
        """A handler that takes no notice of the end of its worker is returned all the same."""
        (key,) = enqueue(ledger, 1)
        begun = threading.Event()

        def sync(_: Claim) -> str:
            begun.set()
            with suppress(Interrupted):
                call_until_told(ledger)
            return "swallowed"

        async def awaited(_: Claim) -> str:
            begun.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return "swallowed"

        handler = Handler(sync if where is ExecutorKind.THREAD else awaited, where=where)
        with running(ledger, ChoreSource(handler)) as worker:
            assert begun.wait(WAIT_SECONDS_MAX)
            worker.stop(grace_seconds=0)

        chore = standing(ledger, key)
        assert (chore.status, chore.attempt, chore.result) == (Status.QUEUED, 0, None)


class _Picky(ChoreSource):
    """Chores of which some outcomes are refused, whenever they are to be settled."""

    def __init__(
        self,
        refusal: Refusal,
        *,
        call: Callable[..., Any] = nothing,
        atomic: bool = False,
        seen: list[str] | None = None,
    ) -> None:
        def watched(*arguments: Any) -> Any:
            if seen is not None:
                seen.append(arguments[-1].body)
            return call(*arguments)

        super().__init__(Handler(watched, atomic=atomic))
        self.refusal = refusal

    def settle(self, tx: Any, outcomes: Any, **how: Any) -> Any:
        settled = super().settle(tx, outcomes, **how)
        for outcome in outcomes:
            error = self.refusal(outcome)
            if error is not None:
                raise error
        return settled


def _refused(
    outcome: Outcome, kind: type[StoreError] = StoreError, verdict: OutcomeKind | None = None
) -> StoreError | None:
    """The refusal of the number 0."""
    if outcome.claim.body != "0" or (verdict is not None and outcome.verdict is not verdict):
        return None
    return kind("it is the number 0")


def _refused_done(outcome: Outcome) -> StoreError | None:
    return _refused(outcome, verdict=OutcomeKind.DONE)


class _Timed(ChoreSource):
    """Chores that may take a moment."""

    def claim(self, tx: Any, ask: Any) -> list[Claim]:
        claims = super().claim(tx, ask)
        return [msgspec.structs.replace(claim, timeout_seconds=0.2) for claim in claims]
