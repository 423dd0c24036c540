"""The count of processes that died of a message, and the chances that it leaves."""

from __future__ import annotations

from threading import Lock

import pytest

from ledgerstone import Ledger
from ledgerstone.messaging.inbox import crashes
from ledgerstone.messaging.inbox.inbox import Handled, Result
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.registry import MessagingRegistry
from ledgerstone.testing.clock import ManualClock
from tests.contract.messaging.inbox import message_of, new_office

MAILER = "mailer"
HANDLED = Handled(Result.HANDLED)


@pytest.fixture
def registry(ledger: Ledger) -> MessagingRegistry:
    return new_office(ledger)


def begin(ledger: Ledger, came: Message, *, times: int) -> None:
    """So many processes began to handle it, and died."""
    for _ in range(times):
        ledger.run(lambda tx: crashes._noted(tx, MAILER, came))


def count_of(ledger: Ledger, came: Message) -> int:
    """How often it has begun and not ended."""
    return ledger.run(lambda tx: crashes._count(tx, MAILER, came))


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(("deaths", "alone"), [(0, False), (1, False), (2, True)])
def test_which_chance_is_the_last(ledger: Ledger, deaths: int, alone: bool) -> None:
    """Before the death that gives it up a message takes the lock, and not before that."""
    came, lock, seen = message_of(), Lock(), list[bool]()
    begin(ledger, came, times=deaths)

    def handle() -> Handled:
        seen.append(lock.locked())
        return HANDLED

    handled = crashes.guarded(
        ledger.database, MAILER, came, handle, crashes_max=3, last_chance=lock
    )

    assert (handled, seen, lock.locked()) == (HANDLED, [alone], False)
    assert count_of(ledger, came) == 0


@pytest.mark.usefixtures("registry")
def test_a_last_chance_waits_for_another(ledger: Ledger) -> None:
    """While another message has the lock it comes again later, and no death is counted."""
    came, lock = message_of(), Lock()
    begin(ledger, came, times=2)

    with lock:
        handled = crashes.guarded(
            ledger.database, MAILER, came, lambda: HANDLED, crashes_max=3, last_chance=lock
        )

    assert handled.result is Result.AGAIN
    assert count_of(ledger, came) == 2


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(("deaths", "result"), [(1, Result.HANDLED), (2, Result.DEAD)])
def test_given_up_after_so_many_deaths(ledger: Ledger, deaths: int, result: Result) -> None:
    """After `crashes_max` deaths it is dead without being handled; the reason says how many."""
    came, ran = message_of(), list[Result]()
    begin(ledger, came, times=deaths)

    def handle() -> Handled:
        ran.append(Result.HANDLED)
        return HANDLED

    handled = crashes.guarded(
        ledger.database, MAILER, came, handle, crashes_max=2, last_chance=Lock()
    )

    assert handled.result is result
    assert ran == [Result.HANDLED][: 2 - deaths]
    if handled.failure is not None:
        assert "2 processes died" in handled.failure.message


@pytest.mark.usefixtures("registry")
def test_old_counts_are_removed(ledger: Ledger, clock: ManualClock) -> None:
    """A count goes when no broker can redeliver its message any more, and not before."""
    old, new = message_of(), message_of()
    begin(ledger, old, times=1)
    clock.advance(100)
    begin(ledger, new, times=1)
    clock.advance(1)

    removed = [
        ledger.run(lambda tx, age=age: crashes.remove_old(tx, age_ms=age))  # type: ignore[misc]
        for age in (102_000, 100_000)
    ]

    assert removed == [0, 1]
    assert (count_of(ledger, old), count_of(ledger, new)) == (0, 1)
