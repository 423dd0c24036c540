"""How far claiming runs ahead: read off the handlers that ended and those that run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from ledgerstone.engine.atomic import Committed
from ledgerstone.engine.attempt import Attempt
from ledgerstone.engine.attempt_steps import AttemptSteps
from ledgerstone.engine.claim_size import (
    HANDLER_SECONDS_MIN,
    TROUBLE_SECONDS,
    TROUBLE_SECONDS_MAX,
    ClaimAhead,
    PollSchedule,
)
from ledgerstone.engine.executor import Executor
from ledgerstone.engine.source import Claim, Handler, Outcome
from ledgerstone.settings import EngineSettings
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until


class Steps(AttemptSteps):
    """The steps of attempts, whose outcomes are only counted."""

    def __init__(self, call: Callable[[Claim], None]) -> None:
        self.done = 0
        self._bytes_max = 1000
        self._handler = Handler(call)

    def begin(self, claim: Claim) -> Attempt:
        return Attempt(claim, self._handler)

    def record(self, claim: Claim, outcome: Outcome | Committed, waiting: int) -> None:
        self.done += 1


class Work:
    """An executor with two places whose handlers are quick, or wait until they may go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self._steps = Steps(self._call)
        self.executor = Executor(2, self._steps)

    @property
    def done(self) -> int:
        return self._steps.done

    def start(self, *bodies: str) -> None:
        """Run one for each of these."""
        self.executor.start([Claim(f"{n}", 1, 1, body) for n, body in enumerate(bodies)])

    def _call(self, claim: Claim) -> None:
        if claim.body == "slow":
            self.go.wait(WAIT_SECONDS_MAX)


@pytest.fixture
def work() -> Iterator[Work]:
    """Handlers, let go at the end."""
    made = Work()
    yield made
    made.go.set()
    made.executor.wait_idle(WAIT_SECONDS_MAX)
    made.executor.stop()


def test_none_while_nothing_is_known(work: Work) -> None:
    """Before a handler has ended nothing is claimed ahead, however long that takes."""
    ahead = ClaimAhead(EngineSettings(claim_ahead_ms=10_000), work.executor)

    before = ahead.claims()
    work.start("slow")

    assert (before, ahead.claims()) == (0, 0)


def test_as_many_as_will_have_a_place(work: Work) -> None:
    """When handlers are quick, many; when claiming may not run ahead, none."""
    ahead = ClaimAhead(EngineSettings(claim_ahead_ms=10_000), work.executor)
    never = ClaimAhead(EngineSettings(claim_ahead_ms=0), work.executor)

    work.start("quick", "quick")
    until(lambda: work.executor.busy_seconds[1] == 2)

    seconds, count = work.executor.busy_seconds
    average = max(seconds / count, HANDLER_SECONDS_MIN)
    assert ahead.claims() == int(2 * 10 / average)
    assert never.claims() == 0


def test_places_that_are_stuck(work: Work) -> None:
    """A place whose handler runs for long is not counted on; if all do, nothing is claimed."""
    ahead = ClaimAhead(EngineSettings(claim_ahead_ms=1), work.executor)

    def learned() -> bool:
        """Whether handlers are known to be quick; on a busy machine that takes some of them."""
        ended = work.executor.busy_seconds[1]
        work.start("quick")
        until(lambda: work.executor.busy_seconds[1] > ended)
        return ahead.claims() >= work.executor.places

    until(learned)
    work.start("slow")
    until(lambda: work.executor.longer_than(0.001) == 1)
    one = until(ahead.claims)
    work.start("slow")
    until(lambda: work.executor.longer_than(0.001) == 2)
    until(lambda: ahead.claims() == 0)

    assert one > 0
    # Because they run, and not because they ended at last.
    assert work.executor.running == 2


def test_who_waits_for_long_is_dropped(work: Work) -> None:
    """Claims that wait longer than they may are taken back, the others stay."""
    work.start("slow", "slow", "quick", "quick")
    until(lambda: work.executor.running == 2)

    early = work.executor.drop_late(WAIT_SECONDS_MAX)
    late = until(lambda: work.executor.drop_late(0.001))

    assert early == []
    assert [claim.key for claim in late] == ["2", "3"]
    assert work.executor.running == 2


def test_pauses_of_the_idle() -> None:
    """The pause doubles while nothing is found, up to its maximum; what is found ends that."""
    pace = PollSchedule(EngineSettings(poll_seconds_min=0.5, poll_seconds_max=3), lambda: False)
    pauses = []

    for found in (0, 0, 0, 0, 0, 1, 0):
        pace.found(found, 10)
        pauses.append(pace.seconds(lambda: 10))

    assert pauses == [0.5, 1, 2, 3, 3, 0.5, 1]


def test_no_pause_while_there_is_more() -> None:
    """A claim that got all that it asked for is followed by another, as soon as there is room."""
    pace = PollSchedule(EngineSettings(poll_seconds_min=0.5, poll_seconds_max=3), lambda: False)

    pace.found(10, 10)
    at_once, full = pace.seconds(lambda: 1), pace.seconds(lambda: 0)
    pace.found(9, 10)

    assert (at_once, full) == (0, 3)
    assert not pace.more
    assert pace.seconds(lambda: 1) == 0.5


def test_pauses_of_the_prompt() -> None:
    """Where commits of other processes are noticed, the pump polls no more often than it must."""
    pace = PollSchedule(EngineSettings(poll_seconds_min=0.5, poll_seconds_max=3), lambda: True)

    pace.found(0, 10)

    assert pace.seconds(lambda: 10) == 3


def test_pauses_of_the_troubled() -> None:
    """While the database is away the pauses grow up to their maximum; an answer ends that."""
    pace = PollSchedule(EngineSettings(), lambda: True)

    pauses = [pace.trouble() for _ in range(20)]
    pace.found(0, 10)
    after = pace.trouble()

    assert max(pauses) <= TROUBLE_SECONDS_MAX
    assert min(pauses[10:]) >= TROUBLE_SECONDS_MAX / 2
    assert max(pauses[0], after) <= 2 * TROUBLE_SECONDS
