"""The tick: pauses, long ticks, and a process that lost its lease meanwhile."""

from __future__ import annotations

import pytest

from ledgerstone import Ledger
from ledgerstone.protocols import Reading, Result
from ledgerstone.protocols.commands import Transactions
from ledgerstone.protocols.incoming import ERROR_CHARS_MAX
from ledgerstone.protocols.ticking import AGAIN_SECONDS_MAX
from ledgerstone.testing.clock import ManualClock
from tests.protocols.letters import letters, rows
from tests.protocols.test_queues import letters_with_job

KEPT = "SELECT name, runs, failures FROM protocol_job ORDER BY name"


@pytest.mark.parametrize(
    ("again_seconds", "pause_ms"),
    [
        (0.0, 1),
        (-5.0, 1),
        (0.5, 500),
        (None, 10_000),
        (2 * AGAIN_SECONDS_MAX, round(AGAIN_SECONDS_MAX * 1000)),
    ],
)
def test_pauses_of_a_job(
    ledger: Ledger, clock: ManualClock, again_seconds: float | None, pause_ms: int
) -> None:
    """A job comes again when it says, after a pause that is neither none nor endless."""
    protocol = letters()
    protocol.job("asks", every_seconds=10)(lambda _: Result(again_seconds=again_seconds))
    running = ledger.protocol(protocol)

    first, second = running.tick(), running.tick()

    assert (len(first.ran), second.ran) == (1, [])
    ((next_ms,),) = rows(running, "SELECT next_at_ms FROM protocol_job")
    assert next_ms - clock.now_ms() == pause_ms


def test_a_tick_that_takes_longer_than_its_lease(ledger: Ledger, clock: ManualClock) -> None:
    """The lease is renewed after each job: only a single job must end within it."""
    protocol = letters()
    seconds = ledger.settings.protocols.tick_lease_seconds * 2 / 3
    for name in ("first", "second", "third"):

        @protocol.job(name, every_seconds=3600, manages_transactions=True)
        def long(at: Transactions) -> Result:
            clock.advance(seconds)
            at.run(lambda db: db.insert("seat", name=str(clock.now_ms()), after=""))
            return Result()

    running = ledger.protocol(protocol)

    ticked = running.tick()

    assert (ticked.held, [each.error for each in ticked.ran]) == (False, [None] * 3)
    assert [row[1:] for row in rows(running, KEPT)] == [(1, 0)] * 3


def test_a_job_that_ends_without_its_lease(ledger: Ledger, clock: ManualClock) -> None:
    """A process whose lease another took does not record the end of its job."""
    protocol = letters()

    @protocol.job("slow", every_seconds=10, manages_transactions=True)
    def slow(_: Transactions) -> Result:
        clock.advance(ledger.settings.protocols.tick_lease_seconds + 1)
        with Ledger(str(ledger.settings.url), clock=clock) as other:
            assert not other.protocol(letters_with_job()).tick().held
        return Result()

    running = ledger.protocol(protocol)

    ticked = running.tick()

    assert (ticked.held, ticked.ran) == (True, [])
    assert rows(running, KEPT) == [("slow", 1, 0)]


@pytest.mark.usefixtures("clock")
def test_a_long_error_of_a_job(ledger: Ledger) -> None:
    """What is kept of the error of a job has a bounded length."""
    protocol = letters()

    @protocol.job("broken", every_seconds=10)
    def broken(_db: Reading) -> Result:
        raise LookupError("x" * 2 * ERROR_CHARS_MAX)

    running = ledger.protocol(protocol)

    (ran,) = running.tick().ran

    assert len(ran.error or "") == ERROR_CHARS_MAX
    assert rows(running, "SELECT LENGTH(last_error) FROM protocol_job") == [(ERROR_CHARS_MAX,)]
