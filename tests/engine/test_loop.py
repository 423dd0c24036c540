"""The event loop that runs async handlers: whatever happens to a task, its claim is finished."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import pytest

from ledgerstone.engine.attempt import Attempt
from ledgerstone.engine.attempt_steps import AttemptSteps
from ledgerstone.engine.executors.event_loop import LoopRunner
from ledgerstone.engine.source import Claim, ExecutorKind, Handler, Outcome, OutcomeKind
from ledgerstone.errors import HandlerTimeout, Interrupted
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

Finished = SimpleQueue[tuple[str, Outcome]]


@pytest.fixture
def finished() -> Finished:
    """The claims that came out, with their outcomes."""
    return SimpleQueue()


class Steps(AttemptSteps):
    """The steps of attempts, for their judgement alone."""

    def __init__(self) -> None:
        self._bytes_max = 1000


class Ending:
    """Where tasks end: their outcomes are kept."""

    def __init__(self, finished: Finished) -> None:
        self._finished = finished
        self._steps = Steps()

    def task_ended(self, attempt: Attempt) -> None:
        outcome = self._steps.judge(attempt)
        assert isinstance(outcome, Outcome)
        self._finished.put((attempt.claim.key, outcome))


class Odd:
    """An answer that raises when its type is asked for."""

    @property
    def __class__(self) -> Any:
        raise LookupError("odd")

    @__class__.setter
    def __class__(self, _: Any) -> None: ...


@pytest.fixture
def loop(finished: Finished) -> Iterator[LoopRunner]:
    """A loop whose tasks are judged."""
    runner = LoopRunner(Ending(finished))
    yield runner
    runner.stop()


def test_interrupted_before_it_began(loop: LoopRunner, finished: Finished) -> None:
    """A claim that is interrupted before its first step does not begin, and is returned."""
    busy, go = threading.Event(), threading.Event()
    begun: list[str] = []
    claim = Claim("second", 1, 1)

    async def block(_: Claim) -> None:
        busy.set()
        go.wait(WAIT_SECONDS_MAX)

    async def work(claim: Claim) -> None:
        begun.append(claim.key)

    loop.start(Attempt(Claim("first", 1, 1), Handler(block, ExecutorKind.LOOP)))
    assert busy.wait(WAIT_SECONDS_MAX)
    loop.start(Attempt(claim, Handler(work, ExecutorKind.LOOP)))
    loop.cancel(_attempt(loop, claim), Interrupted("it stops"))
    go.set()
    outcomes = dict(finished.get(timeout=WAIT_SECONDS_MAX) for _ in range(2))

    assert begun == []
    assert outcomes["second"].verdict is OutcomeKind.RETURNED


def test_told_while_it_blocks_the_loop(loop: LoopRunner, finished: Finished) -> None:
    """A handler that lets nobody in until its end is told all the same, once, and that counts."""
    busy, go = threading.Event(), threading.Event()
    claim = Claim("a", 1, 1, timeout_seconds=0)

    async def block(_: Claim) -> str:
        busy.set()
        go.wait(WAIT_SECONDS_MAX)
        return "too late"

    loop.start(Attempt(claim, Handler(block, ExecutorKind.LOOP)))
    assert busy.wait(WAIT_SECONDS_MAX)
    attempt = _attempt(loop, claim)
    overdue = attempt.is_overdue(perf_counter())
    loop.cancel(attempt, HandlerTimeout("too long"))
    overdue_still = attempt.is_overdue(perf_counter())
    go.set()
    _, outcome = finished.get(timeout=WAIT_SECONDS_MAX)

    assert (overdue, overdue_still) == (True, False)
    assert outcome.failure is not None
    assert (outcome.verdict, outcome.failure.code) == (OutcomeKind.FAILED, "timeout")


@pytest.mark.parametrize("call", [lambda _: "no coroutine", lambda: None, lambda _: 1 / 0])
def test_what_is_no_async_function(loop: LoopRunner, finished: Finished, call: Any) -> None:
    """What cannot even be awaited has failed."""
    loop.start(Attempt(Claim("a", 1, 1), Handler(call, ExecutorKind.LOOP)))

    _, outcome = finished.get(timeout=WAIT_SECONDS_MAX)

    assert outcome.verdict is OutcomeKind.FAILED


def test_an_answer_that_nobody_understands(loop: LoopRunner, finished: Finished) -> None:
    """If no outcome can be made of an answer, that is the failure."""

    async def odd(_: Claim) -> Odd:
        return Odd()

    loop.start(Attempt(Claim("a", 1, 1), Handler(odd, ExecutorKind.LOOP)))

    _, outcome = finished.get(timeout=WAIT_SECONDS_MAX)

    assert outcome.failure is not None
    assert (outcome.verdict, outcome.failure.code) == (OutcomeKind.FAILED, "LookupError")


def test_one_that_takes_no_notice(loop: LoopRunner, caplog: pytest.LogCaptureFixture) -> None:
    """A handler that goes on when it is canceled is left behind without noise."""
    begun = threading.Event()

    async def go_on(_: Claim) -> None:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    claim = Claim("a", 1, 1)
    loop.start(Attempt(claim, Handler(go_on, ExecutorKind.LOOP)))
    assert begun.wait(WAIT_SECONDS_MAX)
    task = loop._tasks[_attempt(loop, claim)]
    assert task is not None
    forgotten = weakref.ref(task)
    del task
    loop.stop()
    gc.collect()

    assert forgotten() is None
    assert caplog.records == []


def _attempt(loop: LoopRunner, claim: Claim) -> Attempt:
    (attempt,) = [each for each in loop.attempts if each.claim is claim]
    return attempt
