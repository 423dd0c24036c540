"""The source contract: what every kind of work keeps, whoever claims it.

A source takes part by a `subject` fixture; everything below is asked of it through the ledger's
transactions and a clock that is moved by hand. Sources are not all of one shape, so the contract is
a class for each thing that a source may have:

    ClaimingContract   items are claimed and settled                  every source with claims
    FencedContract     a claim that was lost changes nothing          those with a token
    RescueContract     leases run out, heartbeats keep them           those with a lease
    FailingContract    an item that fails is dead in the end          those that count failures
    DeathsContract     an item that kills workers is dead in the end  those that run handlers
    AttemptsContract   attempts are counted by claim, all on record   those with a history of items

The promises of every source, also of one without claims, are in `contract/effects.py`.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ledgerstone.engine.source import Ask, Claim, OutcomeKind
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.contracts.source_locks import LockedContract
from ledgerstone.testing.contracts.source_subject import (
    CRASHES_MAX,
    LEASE_SECONDS,
    LONG_SECONDS,
    WORKER,
    CountedSubject,
    FailingSubject,
    Subject,
    SubjectContract,
    added,
    claim,
    extend,
    rescue,
    settle,
    sorted_verdicts,
    state,
    suspected,
)
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from ledgerstone.testing.worker_reports import reported


class ClaimingContract(SubjectContract):
    """Claimed once, and settled by its transaction."""

    def test_due_items_are_claimed(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A claim takes at most its limit, each item once, and counts an attempt."""
        keys = added(ledger, subject, 5)

        first = claim(ledger, subject, limit=3)
        second = claim(ledger, subject, limit=3)

        assert len(first) == 3
        assert sorted(c.key for c in [*first, *second]) == sorted(keys)
        assert {c.attempt for c in first} == {1}
        assert claim(ledger, subject) == []

    def test_many_claim_at_once(self, ledger: Ledger, clock: ManualClock, subject: Subject) -> None:
        """However many claim at the same time, an item goes to one of them."""
        keys = added(ledger, subject, 100)
        barrier = threading.Barrier(4)

        def take(number: int) -> list[Claim]:
            barrier.wait(WAIT_SECONDS_MAX)
            taken: list[Claim] = []
            while more := claim(ledger, subject, limit=7, worker=f"worker {number}"):
                taken += more
            return taken

        with ThreadPoolExecutor(4) as pool:
            taken = [c for part in pool.map(take, range(4)) for c in part]

        assert sorted(c.key for c in taken) == sorted(keys)

    def test_rolled_back_settlements_leave_nothing(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A settlement belongs to its transaction: undone with it, and possible again."""
        (key,) = added(ledger, subject, 1)
        (taken,) = claim(ledger, subject)
        outcome = subject.outcome(taken, OutcomeKind.DONE)

        def settle_and_fail(tx: Transaction) -> None:
            subject.source.settle(tx, [outcome])
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            ledger.run(settle_and_fail)

        assert state(ledger, subject, key) == "held"
        assert settle(ledger, subject, outcome) == []
        assert state(ledger, subject, key) == "done"

    def test_rolled_back_claims_leave_nothing(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A claim belongs to its transaction: undone with it, the item is there for the next."""
        (key,) = added(ledger, subject, 1)

        def claim_and_fail(tx: Transaction) -> None:
            assert subject.source.claim(tx, Ask(1, WORKER, LEASE_SECONDS))
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            ledger.run(claim_and_fail)

        assert state(ledger, subject, key) == "due"
        (taken,) = claim(ledger, subject)
        assert (taken.key, taken.attempt) == (key, 1)


class FencedContract(SubjectContract):
    """A claim that was lost changes nothing, and its holder is told."""

    def test_a_lost_claim_is_refused(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A worker that lost the claim changes nothing, is told so, and is on record."""
        (key,) = added(ledger, subject, 1)
        (late,) = claim(ledger, subject)
        outcome = subject.outcome(late, OutcomeKind.DONE)
        clock.advance(LEASE_SECONDS + 1)
        assert rescue(ledger, subject) == 1
        (current,) = claim(ledger, subject, worker="another")

        refused = settle(ledger, subject, outcome)

        assert refused == [outcome]
        with ledger.reading() as tx:
            assert subject.state(tx, key) == "held"
            assert subject.refusals(tx, key) in {1, None}
        assert settle(ledger, subject, subject.outcome(current, OutcomeKind.DONE)) == []
        assert state(ledger, subject, key) == "done"

    def test_a_lost_claim_is_refused_before_anyone_took_it(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A rescued item cannot be settled by its former holder, also while nobody has it."""
        added(ledger, subject, len(subject.verdicts))
        claims = claim(ledger, subject)
        outcomes = [
            subject.outcome(late, verdict)
            for late, verdict in zip(claims, sorted_verdicts(subject), strict=True)
        ]
        clock.advance(LEASE_SECONDS + 1)
        rescue(ledger, subject)

        refused = [each for outcome in outcomes for each in settle(ledger, subject, outcome)]

        assert refused == [each for each in outcomes if each.verdict not in subject.unanswered]
        with ledger.reading() as tx:
            for late in claims:
                assert subject.state(tx, late.key) == "due"
                assert subject.refusals(tx, late.key) in {1, None}

    def test_a_returned_claim_is_not_the_next_one(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A claim that was returned and refunded cannot settle the claim that followed it."""
        (key,) = added(ledger, subject, 1)
        (first,) = claim(ledger, subject)
        outcomes = [subject.outcome(first, verdict) for verdict in sorted_verdicts(subject)]
        settle(ledger, subject, subject.outcome(first, OutcomeKind.RETURNED))
        (second,) = claim(ledger, subject)

        refused = [each for outcome in outcomes for each in settle(ledger, subject, outcome)]

        assert first.attempt == second.attempt
        assert refused == [each for each in outcomes if each.verdict not in subject.unanswered]
        assert state(ledger, subject, key) == "held"
        assert extend(ledger, subject, [first]) == [first]
        assert settle(ledger, subject, subject.outcome(second, OutcomeKind.DONE)) == []

    def test_only_the_lost_ones_of_a_batch_are_refused(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """In a batch, the claims still held are settled and the lost ones answered back."""
        added(ledger, subject, 4)
        old = [subject.outcome(each, OutcomeKind.DONE) for each in claim(ledger, subject)]
        clock.advance(LEASE_SECONDS + 1)
        rescue(ledger, subject)
        added(ledger, subject, 6)
        new = [subject.outcome(each, OutcomeKind.DONE) for each in claim(ledger, subject)]

        refused = settle(ledger, subject, *old, *new)

        assert {outcome.claim.key for outcome in refused} == {each.claim.key for each in old}
        assert all(outcome in old for outcome in refused)
        with ledger.reading() as tx:
            assert {subject.state(tx, each.claim.key) for each in new} == {"done"}
        assert len(new) == 10

    def test_settling_again_is_no_refusal(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """When the answer to a commit was lost, settling the same claim again is harmless."""
        for verdict in (OutcomeKind.DONE, OutcomeKind.FAILED, OutcomeKind.RETURNED):
            (key,) = added(ledger, subject, 1)
            (taken,) = claim(ledger, subject)
            outcome = subject.outcome(taken, verdict)
            settle(ledger, subject, outcome)
            with ledger.reading() as tx:
                before = subject.state(tx, key), subject.attempt(tx, key)

            refused = settle(ledger, subject, outcome)

            assert refused == []
            with ledger.reading() as tx:
                assert subject.refusals(tx, key) in {0, None}
                assert (subject.state(tx, key), subject.attempt(tx, key)) == before
            clock.advance(LONG_SECONDS)
            for rest in claim(ledger, subject):
                settle(ledger, subject, subject.outcome(rest, OutcomeKind.DONE))


class RescueContract(SubjectContract):
    """Leases that run out, and those that are kept."""

    def test_extended_claims_hold(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A heartbeat keeps a claim; what was lost is answered, and stays lost."""
        added(ledger, subject, 2)
        kept, lost = claim(ledger, subject)
        clock.advance(LEASE_SECONDS - 1)
        assert extend(ledger, subject, [kept]) == []
        clock.advance(2)

        rescued = rescue(ledger, subject)

        assert rescued == 1
        assert extend(ledger, subject, [kept, lost]) == [lost]
        clock.advance(LEASE_SECONDS - 1)
        assert rescue(ledger, subject) == 0
        assert settle(ledger, subject, subject.outcome(kept, OutcomeKind.DONE)) == []

    def test_what_is_settled_is_extended_no_more(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A heartbeat that comes after the settlement changes nothing of the item."""
        (key,) = added(ledger, subject, 1)
        (taken,) = claim(ledger, subject)
        settle(ledger, subject, subject.outcome(taken, OutcomeKind.DONE))

        extend(ledger, subject, [taken])

        assert state(ledger, subject, key) == "done"
        clock.advance(LEASE_SECONDS + 1)
        assert rescue(ledger, subject) == 0

    def test_a_live_claim_is_not_rescued(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """Rescue leaves claims alone whose lease runs, also when the clock jumps back."""
        added(ledger, subject, 1)
        claim(ledger, subject)

        clock.advance(LEASE_SECONDS - 0.001)
        now = rescue(ledger, subject)
        clock.jump(-86_400)
        after_jump = rescue(ledger, subject)

        assert (now, after_jump) == (0, 0)

    def test_a_lease_ends_to_the_millisecond(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A claim is there for others from the moment at which its lease has run out."""
        (key,) = added(ledger, subject, 1)
        (first,) = claim(ledger, subject)

        clock.advance(LEASE_SECONDS)
        rescued = rescue(ledger, subject)

        assert rescued == 1
        assert state(ledger, subject, key) == "due"
        (second,) = claim(ledger, subject)
        assert second.token > first.token

    def test_rescue_is_bounded(self, ledger: Ledger, clock: ManualClock, subject: Subject) -> None:
        """Rescue takes so many at a time."""
        added(ledger, subject, 5)
        claim(ledger, subject)
        clock.advance(LEASE_SECONDS + 1)

        assert rescue(ledger, subject, limit=3) == 3
        assert rescue(ledger, subject, limit=3) == 2


class FailingContract(SubjectContract):
    """Items that fail."""

    def test_as_many_attempts_as_promised(
        self, ledger: Ledger, clock: ManualClock, subject: FailingSubject
    ) -> None:
        """An item that always fails is executed exactly as often as it may be, then dead."""
        (key,) = added(ledger, subject, 1)
        executions = 0

        while taken := claim(ledger, subject):
            executions += 1
            settle(ledger, subject, subject.outcome(taken[0], OutcomeKind.FAILED))
            clock.advance(LONG_SECONDS)

        assert executions == subject.attempts_max
        assert state(ledger, subject, key) == "dead"

    def test_what_is_returned_does_not_count(
        self, ledger: Ledger, clock: ManualClock, subject: FailingSubject
    ) -> None:
        """An item may be returned any number of times, and has all its attempts afterwards."""
        (key,) = added(ledger, subject, 1)

        for _ in range(subject.attempts_max + 1):
            (taken,) = claim(ledger, subject)
            settle(ledger, subject, subject.outcome(taken, OutcomeKind.RETURNED))
            clock.advance(LONG_SECONDS)

        with ledger.reading() as tx:
            assert (subject.state(tx, key), subject.attempt(tx, key)) == ("due", 0)

    def test_hopeless_items_have_no_second_attempt(
        self, ledger: Ledger, clock: ManualClock, subject: FailingSubject
    ) -> None:
        """An item that another attempt cannot help is dead at once."""
        (key,) = added(ledger, subject, 1)
        (taken,) = claim(ledger, subject)

        settle(ledger, subject, subject.outcome(taken, OutcomeKind.DEAD))
        clock.advance(LONG_SECONDS)

        assert state(ledger, subject, key) == "dead"
        assert claim(ledger, subject) == []


class DeathsContract(SubjectContract):
    """Items whose workers die."""

    def test_items_that_kill_their_worker(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """An item whose workers keep dying is dead after so many, with its reason."""
        (key,) = added(ledger, subject, 1)
        deaths = 0

        while claim(ledger, subject):
            deaths += 1
            clock.advance(LEASE_SECONDS + 1)
            rescue(ledger, subject)
            clock.advance(LONG_SECONDS)

        assert deaths == CRASHES_MAX
        assert state(ledger, subject, key) == "dead"

    def test_a_death_is_not_settled_afterwards(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A worker that only seemed dead cannot settle an item that was given up for it."""
        suspected(ledger, clock, subject, 1)
        (late,) = claim(ledger, subject)
        outcome = subject.outcome(late, OutcomeKind.DONE)
        clock.advance(LEASE_SECONDS + 1)
        rescue(ledger, subject)

        refused = settle(ledger, subject, outcome)

        assert refused == [outcome]
        with ledger.reading() as tx:
            assert subject.state(tx, late.key) == "dead"
            assert subject.refusals(tx, late.key) in {1, None}

    def test_what_only_waited_in_a_dead_worker(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """Of suspects the one on record as begun is given up; who waited gets its attempt back."""
        keys = suspected(ledger, clock, subject, 3)
        with ledger.reading() as tx:
            (before,) = {subject.attempt(tx, key) for key in keys}
        begun, *waited = claim(ledger, subject, worker=WORKER)
        reported(ledger, WORKER, begun=[begun.mark], crashes_max=CRASHES_MAX)
        clock.advance(LEASE_SECONDS + 1)

        rescued = rescue(ledger, subject)

        assert rescued == 3
        with ledger.reading() as tx:
            assert subject.state(tx, begun.key) == "dead"
            assert {subject.state(tx, each.key) for each in waited} == {"due"}
            assert {subject.attempt(tx, each.key) for each in waited} == {before}
        again = claim(ledger, subject)
        assert {each.key for each in again} == {each.key for each in waited}
        assert {each.crashes for each in again} == {CRASHES_MAX - 1}

    @pytest.mark.parametrize("crashes_max", [None, CRASHES_MAX + 1])
    def test_what_no_record_clears(
        self, ledger: Ledger, clock: ManualClock, subject: Subject, crashes_max: int | None
    ) -> None:
        """A worker that puts none on record, or not yet, clears none of them."""
        suspected(ledger, clock, subject, 1)
        (taken,) = claim(ledger, subject, worker=WORKER)
        reported(ledger, WORKER, begun=["another"], crashes_max=crashes_max)
        clock.advance(LEASE_SECONDS + 1)

        rescue(ledger, subject)

        assert state(ledger, subject, taken.key) == "dead"


class AttemptsContract(SubjectContract):
    """Each claim counts as an attempt, and every move is on record."""

    @pytest.mark.parametrize(
        ("verdict", "state", "attempt"),
        [
            (OutcomeKind.DONE, "done", 1),
            (OutcomeKind.DEAD, "dead", 1),
            (OutcomeKind.CANCELED, "canceled", 1),
            (OutcomeKind.FAILED, "due", 1),
            (OutcomeKind.SNOOZED, "due", 0),
            (OutcomeKind.RETURNED, "due", 0),
        ],
    )
    def test_settled(  # noqa: PLR0917 - the parameters of a case
        self,
        ledger: Ledger,
        clock: ManualClock,
        subject: CountedSubject,
        verdict: OutcomeKind,
        state: str,
        attempt: int,
    ) -> None:
        """Each verdict leads to its state; snoozed and returned items get their attempt back."""
        (key,) = added(ledger, subject, 1)
        (taken,) = claim(ledger, subject)

        refused = settle(ledger, subject, subject.outcome(taken, verdict))

        assert refused == []
        with ledger.reading() as tx:
            assert subject.state(tx, key) == state
            assert subject.attempt(tx, key) == attempt

    def test_a_delay_is_kept(
        self, ledger: Ledger, clock: ManualClock, subject: CountedSubject
    ) -> None:
        """A snoozed item is not due before its time."""
        added(ledger, subject, 1)
        (taken,) = claim(ledger, subject)
        settle(ledger, subject, subject.outcome(taken, OutcomeKind.SNOOZED, 60.0))

        clock.advance(59)
        early = claim(ledger, subject)
        clock.advance(2)
        late = claim(ledger, subject)

        assert early == []
        assert [c.key for c in late] == [taken.key]

    def test_the_wait_after_a_failure_is_kept(
        self, ledger: Ledger, clock: ManualClock, subject: CountedSubject
    ) -> None:
        """A failed item is not due before its back-off is over, and then it is."""
        added(ledger, subject, 1)

        for failures in (1, 2):
            (taken,) = claim(ledger, subject)
            settle(ledger, subject, subject.outcome(taken, OutcomeKind.FAILED))
            clock.advance(subject.retry_seconds(failures) - 0.5)
            assert claim(ledger, subject) == []
            clock.advance(0.5)

        assert [c.attempt for c in claim(ledger, subject)] == [3]

    def test_every_move_is_on_record(
        self, ledger: Ledger, clock: ManualClock, subject: CountedSubject
    ) -> None:
        """The history of an item leads from its acceptance to where it stands, step by step."""
        (key,) = added(ledger, subject, 1)
        (first,) = claim(ledger, subject)
        settle(ledger, subject, subject.outcome(first, OutcomeKind.RETURNED))
        claim(ledger, subject)
        clock.advance(LEASE_SECONDS + 1)
        rescue(ledger, subject)
        (last,) = claim(ledger, subject)
        settle(ledger, subject, subject.outcome(last, OutcomeKind.DONE))

        with ledger.reading() as tx:
            moves = subject.moves(tx, key)

        befores = [before for before, _ in moves]
        afters = [after for _, after in moves]
        assert befores == [None, *afters[:-1]]
        assert len(moves) == 7

    def test_settling_again_is_no_move(
        self, ledger: Ledger, clock: ManualClock, subject: CountedSubject
    ) -> None:
        """A claim that is settled again, because a commit's answer was lost, is on record once."""
        keys = added(ledger, subject, 3)
        verdicts = (OutcomeKind.DONE, OutcomeKind.FAILED, OutcomeKind.RETURNED)
        outcomes = [
            subject.outcome(taken, verdict)
            for taken, verdict in zip(claim(ledger, subject), verdicts, strict=True)
        ]
        settle(ledger, subject, *outcomes)
        with ledger.reading() as tx:
            before = [subject.moves(tx, key) for key in keys]

        settle(ledger, subject, *outcomes)

        with ledger.reading() as tx:
            assert [subject.moves(tx, key) for key in keys] == before


class SourceContract(
    ClaimingContract,
    LockedContract,
    FencedContract,
    RescueContract,
    FailingContract,
    DeathsContract,
    AttemptsContract,
):
    """All of it, for a source whose items are rows with a state, a token and a lease."""
