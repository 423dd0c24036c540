"""The source contract, where another transaction has locked an item of a claim."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ledgerstone.engine.source import Claim, Outcome, OutcomeKind
from ledgerstone.engine.worker_rows import ALIVE_SECONDS
from ledgerstone.ledger import Ledger
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.contracts.source_subject import (
    LEASE_SECONDS,
    WORKER,
    Subject,
    SubjectContract,
    added,
    claim,
    rescue,
    state,
)
from ledgerstone.testing.worker_reports import reported


class LockedContract(SubjectContract):
    """No batch waits for one row: what another transaction has locked is left for later."""

    def test_locked_items_are_passed_over(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """An item that is locked is answered and waited for by nobody; the others are settled."""
        added(ledger, subject, 3)
        taken = claim(ledger, subject)
        stuck, *others = taken
        outcomes = [_done(subject, each) for each in taken]

        with locking(ledger, subject, stuck) as locked:
            settled = outcomes if locked else outcomes[1:]
            left = ledger.run(lambda tx: subject.source.settle(tx, settled))
        (late,) = outcomes[:1]
        after = ledger.run(lambda tx: subject.source.settle(tx, [late]))

        assert list(left.locked) == ([late] if locked else [])
        assert (list(left.lost), list(after.lost), list(after.locked)) == ([], [], [])
        assert {state(ledger, subject, each.key) for each in taken} == {"done"}
        with ledger.reading() as tx:
            assert not any(subject.refusals(tx, each.key) for each in taken)
        assert len(others) == 2

    def test_locked_items_are_not_extended(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """The lease of an item that is locked stays as it is, and the others are extended."""
        added(ledger, subject, 2)
        stuck, other = claim(ledger, subject)

        with locking(ledger, subject, stuck) as locked:
            clock.advance(LEASE_SECONDS - 1)
            left = ledger.run(lambda tx: subject.source.extend(tx, [stuck, other], LEASE_SECONDS))

        assert (list(left.lost), list(left.locked)) == ([], [stuck] if locked else [])
        clock.advance(2)
        assert rescue(ledger, subject) == (1 if locked else 0)

    def test_items_that_are_gone_are_not_locked(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A claim whose item is not there any more is lost: nothing holds it up."""
        added(ledger, subject, 1)
        (taken,) = claim(ledger, subject)
        ledger.run(subject.clear)

        left = ledger.run(lambda tx: subject.source.extend(tx, [taken], LEASE_SECONDS))

        assert (list(left.lost), list(left.locked)) == ([taken], [])

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
        assert not subject.source.extend(tx, [claim], LEASE_SECONDS).lost
        yield True


def _done(subject: Subject, taken: Claim) -> Outcome:
    return subject.outcome(taken, OutcomeKind.DONE)
