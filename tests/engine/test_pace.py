"""How far claiming runs ahead: read off the handlers that ended and those that run."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ledgerstone.engine.crew import Crew
from ledgerstone.engine.outcomes import of_value
from ledgerstone.engine.pace import Ahead
from ledgerstone.engine.source import Claim, Handler
from ledgerstone.settings import EngineSettings
from ledgerstone.testing.waiting import until

PROMPTLY = 30.0


class Work:
    """A crew of two whose handlers are quick, or wait until they may go."""

    def __init__(self) -> None:
        self.done = 0
        self.go = threading.Event()
        self.crew = Crew(
            2,
            handler=lambda _: Handler(self._call),
            atomic=lambda _, __: None,
            came_out=lambda claim, value: of_value(claim, value, bytes_max=1000),
            done=lambda _, __: self._count(),
        )

    def start(self, *bodies: str) -> None:
        """Run one for each of these."""
        self.crew.start([Claim(f"{n}", 1, 1, body) for n, body in enumerate(bodies)])

    def _call(self, claim: Claim) -> None:
        if claim.body == "slow":
            self.go.wait(PROMPTLY)

    def _count(self) -> None:
        self.done += 1


@pytest.fixture
def work() -> Iterator[Work]:
    """Handlers, let go at the end."""
    made = Work()
    yield made
    made.go.set()
    made.crew.wait_idle(PROMPTLY)
    made.crew.stop()


def test_none_while_nothing_is_known(work: Work) -> None:
    """Before a handler has ended nothing is claimed ahead, however long that takes."""
    ahead = Ahead(EngineSettings(claim_ahead_ms=10_000), work.crew)

    before = ahead.claims()
    work.start("slow")

    assert (before, ahead.claims()) == (0, 0)


def test_as_many_as_will_have_a_place(work: Work) -> None:
    """When handlers are quick, many; when claiming may not run ahead, none."""
    ahead = Ahead(EngineSettings(claim_ahead_ms=10_000), work.crew)
    never = Ahead(EngineSettings(claim_ahead_ms=0), work.crew)

    work.start("quick", "quick")
    until(lambda: work.crew.busy_seconds[1] == 2)

    assert ahead.claims() > 100
    assert never.claims() == 0


def test_places_that_are_stuck(work: Work) -> None:
    """A place whose handler runs for long is not counted on; if all do, nothing is claimed."""
    ahead = Ahead(EngineSettings(claim_ahead_ms=1), work.crew)
    work.start("quick")
    until(lambda: work.crew.busy_seconds[1] == 1)

    work.start("slow")
    until(lambda: work.crew.longer_than(0.001) == 1)
    one = until(ahead.claims)
    work.start("slow")
    until(lambda: work.crew.longer_than(0.001) == 2)
    until(lambda: ahead.claims() == 0)

    assert one > 0


def test_who_waits_for_long_is_dropped(work: Work) -> None:
    """Claims that wait longer than they may are taken back, the others stay."""
    work.start("slow", "slow", "quick", "quick")
    until(lambda: work.crew.running == 2)

    early = work.crew.drop_late(PROMPTLY)
    late = until(lambda: work.crew.drop_late(0.001))

    assert early == []
    assert [claim.key for claim in late] == ["2", "3"]
    assert work.crew.running == 2
