"""Limits of the engine that only much work reaches."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import pytest

from ledgerstone import Ledger
from ledgerstone.engine import heartbeat, locked_outcomes
from ledgerstone.engine.attempt import Attempt
from ledgerstone.engine.claim_size import PollSchedule
from ledgerstone.engine.executors.event_loop import LoopRunner
from ledgerstone.engine.locked_outcomes import AGAIN_SECONDS, AGAIN_SECONDS_MAX, LockedOutcomes
from ledgerstone.engine.pump_signals import PumpSignals
from ledgerstone.engine.source import (
    Claim,
    ExecutorKind,
    Handler,
    NotSettled,
    Outcome,
    OutcomeKind,
)
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.chores import ChoreSource, Status
from tests.chores.work import nothing
from tests.chores.workshop import chores, counts, enqueue
from tests.harness.workers import started


def test_pauses_before_a_locked_item(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again soon for so many times, and after the long pause from then on."""
    monkeypatch.setattr(locked_outcomes, "monotonic", clock.monotonic)
    monkeypatch.setattr(locked_outcomes, "SOON_TRIES_MAX", 2)
    waiting = LockedOutcomes()
    outcome = Outcome(Claim("1", 1, 1), OutcomeKind.DONE)
    pauses = []

    for _ in range(4):
        waiting.put_off([outcome])
        pauses.append(waiting.seconds())
        clock.advance(pauses[-1] / 2)
        assert waiting.due() == []
        clock.advance(pauses[-1] / 2 + 0.001)
        assert waiting.due() == [outcome]

    soon, late = AGAIN_SECONDS, AGAIN_SECONDS_MAX
    assert pauses == pytest.approx([soon, soon, late, late])
    assert (len(waiting), waiting.seconds()) == (0, float("inf"))


def test_tries_are_forgotten(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """How often claims were tried is kept for a bounded number of them, while none waits."""
    monkeypatch.setattr(locked_outcomes, "monotonic", clock.monotonic)
    monkeypatch.setattr(locked_outcomes, "SOON_TRIES_MAX", 1)
    monkeypatch.setattr(locked_outcomes, "TRIES_MAX", 3)
    waiting = LockedOutcomes()
    first, *others = [Outcome(Claim(str(i), 1, 1), OutcomeKind.DONE) for i in range(4)]

    def pause_of(*outcomes: Outcome) -> float:
        waiting.put_off(outcomes)
        found = waiting.seconds()
        clock.advance(2 * AGAIN_SECONDS_MAX)
        assert len(waiting.due()) == len(outcomes)
        return found

    pauses = [pause_of(first), pause_of(first), pause_of(*others), pause_of(first)]

    soon, late = AGAIN_SECONDS, AGAIN_SECONDS_MAX
    assert pauses == pytest.approx([soon, late, soon, soon])


def test_a_worker_names_so_many_locked_claims(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row names a bounded number of the claims that it could not extend."""
    monkeypatch.setattr(heartbeat, "LOCKED_MAX", 2)
    named: list[int] = []

    class Locked(ChoreSource):
        def extend(
            self, tx: Any, claims: Sequence[Claim], lease_seconds: float
        ) -> NotSettled[Claim]:
            return NotSettled(lost=[], locked=list(claims))

    def look(_: Claim) -> None:
        worker.beat()
        worker.beat()
        named.append(len(worker._heartbeat.locked))

    worker = ledger.worker(Locked(Handler(look)))
    enqueue(ledger, 3)
    worker.tick()

    assert named[0] == 2


def test_the_time_of_threads_that_have_ended(ledger: Ledger) -> None:
    """The time that handlers took counts also after their threads have ended."""
    enqueue(ledger, 3)
    worker = ledger.worker(chores(nothing))
    worker.start()
    until(lambda: counts(ledger)[Status.DONE] == 3)
    worker.stop(grace_seconds=0)
    executor = worker.pumps[0]._executor
    until(lambda: not executor._threads._threads, what="the end of its threads")

    seconds, count = executor.busy_seconds

    assert (seconds > 0, count) == (True, 3)


def test_an_idle_thread_is_used_again(ledger: Ledger) -> None:
    """Items one after the other run in one thread, however many there are."""
    worker = ledger.worker(chores(nothing))
    threads = worker.pumps[0]._executor._threads
    seen: list[int] = []

    with started(worker):
        for count in range(1, 4):
            enqueue(ledger, 1)
            until(lambda count=count: counts(ledger)[Status.DONE] == count)  # type: ignore[misc]
            until(lambda: threads._idle == 1, what="an idle thread")
            seen.append(len(threads._threads))

    assert seen == [1, 1, 1]


@pytest.mark.parametrize(
    ("local", "waiting", "woken"),
    [(False, 9, True), (True, 4, True), (True, 5, False), (True, 0, True)],
)
def test_when_a_free_place_wakes_the_claims(
    ledger: Ledger, local: bool, waiting: int, woken: bool
) -> None:
    """Not while each place has another claim of this process waiting for it."""
    schedule = PollSchedule(ledger.settings.engine, lambda: True)
    signals = PumpSignals(schedule, one_writer=False, places=4, local=local)

    signals.place_free(waiting)

    assert signals.claim.wait(0) is woken


def test_a_task_counts_among_the_handlers() -> None:
    """The time of tasks is that of handlers, and each is one of them."""
    ended = SimpleQueue[Attempt]()

    class Ending:
        def task_ended(self, attempt: Attempt) -> None:
            ended.put(attempt)

    async def quick(_: Claim) -> None:
        """Nothing."""

    runner = LoopRunner(Ending())
    for number in range(3):
        claim = Claim(str(number), 1, 1)
        runner.start(Attempt(claim, Handler(quick, where=ExecutorKind.LOOP)))
        ended.get(timeout=WAIT_SECONDS_MAX)
    runner.stop()

    assert runner.spent[1] == 3
