"""The source contract, where another transaction has locked an item of a claim."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ledgerstone.engine.source import Claim, Outcome, Verdict
from ledgerstone.engine.workers import ALIVE_SECONDS
from ledgerstone.ledger import Ledger
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.contract.source_subject import (
    LEASE_SECONDS,
    WORKER,
    Subject,
    SubjectContract,
    added,
    claim,
    extend,
    rescue,
    settle,
    state,
)
from ledgerstone.testing.workshop import reported


class LockedContract(SubjectContract):
    """No batch waits for one row: what another transaction has locked is left for later."""

    def test_held_items_are_passed_over(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """An item that is locked is named and waited for by nobody; the others can be settled."""
        added(ledger, subject, 3)
        taken = claim(ledger, subject)
        stuck, *others = taken

        with locking(ledger, subject, stuck) as locked:
            held = ledger.run(lambda tx: list(subject.source.hold(tx, taken)))
            refused = settle(ledger, subject, *[_done(subject, each) for each in others])
            lost = extend(ledger, subject, [])
        free = ledger.run(lambda tx: list(subject.source.hold(tx, [stuck])))

        assert held == ([stuck] if locked else [])
        assert (refused, lost, free) == ([], [], [])
        assert [state(ledger, subject, each.key) for each in others] == ["done", "done"]
        assert state(ledger, subject, stuck.key) == "held"

    def test_items_that_are_gone_are_not_locked(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """An item that is not there any more is locked by nobody."""
        added(ledger, subject, 1)
        taken = claim(ledger, subject)
        ledger.run(subject.clear)

        assert ledger.run(lambda tx: list(subject.source.hold(tx, taken))) == []

    def test_a_named_claim_is_not_rescued(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A claim that its worker lives with, and could not extend for a lock, is left to it."""
        (key,) = added(ledger, subject, 1)
        (taken,) = claim(ledger, subject, worker=WORKER)
        clock.advance(LEASE_SECONDS + 1)
        reported(ledger, WORKER, locked=[taken.mark])

        kept = rescue(ledger, subject)
        reported(ledger, WORKER)
        rescued = rescue(ledger, subject)

        assert (kept, rescued) == (0, 1)
        assert state(ledger, subject, key) == "due"

    def test_a_named_claim_of_a_dead_worker(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """One whose worker has said nothing for a while is rescued all the same."""
        added(ledger, subject, 1)
        (taken,) = claim(ledger, subject, worker=WORKER)
        reported(ledger, WORKER, locked=[taken.mark])
        clock.advance(LEASE_SECONDS + ALIVE_SECONDS)

        assert rescue(ledger, subject) == 1


@contextmanager
def locking(ledger: Ledger, subject: Subject, claim: Claim) -> Iterator[bool]:
    """A transaction that holds the item and stays open; False where there is one writer."""
    if ledger.database.dialect.one_writer:
        yield False
        return
    with ledger.transaction() as tx:
        assert subject.source.hold(tx, [claim]) == []
        yield True


def _done(subject: Subject, taken: Claim) -> Outcome:
    return subject.outcome(taken, Verdict.DONE)
