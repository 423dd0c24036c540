"""The source contract: what every kind of work keeps, whoever claims it.

A source takes part by a `subject` fixture that answers a `Subject`; everything below is asked of it
through the ledger's transactions and a clock that is moved by hand.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pytest

from ledgerstone.engine.source import Ask, Claim, Failure, Outcome, Source, Verdict
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.workshop import reported

LEASE_SECONDS = 30.0
CRASHES_MAX = 3
WORKER = "0190a000-0000-7000-8000-00000000ada0"


class Subject(Protocol):
    """A source under test, and how to look at its items.

    - `add` accepts so many items that are due now and answers their keys.
    - `state` answers due, held, done, dead or canceled; `attempt` how many attempts were begun.
    - `refusals` counts the late settlements of an item that are on record, `moves` its transitions.
    - `attempts_max` is how many attempts an item has, `retry_seconds` the wait after the nth.
    - `clear` removes every item.
    """

    @property
    def source(self) -> Source: ...

    @property
    def attempts_max(self) -> int: ...

    def retry_seconds(self, failures: int) -> float: ...

    def clear(self, tx: Transaction) -> None: ...

    def add(self, tx: Transaction, count: int) -> list[str]: ...

    def state(self, tx: Transaction, key: str) -> str: ...

    def attempt(self, tx: Transaction, key: str) -> int: ...

    def refusals(self, tx: Transaction, key: str) -> int: ...

    def moves(self, tx: Transaction, key: str) -> list[tuple[str | None, str]]: ...


class SourceContract:
    """Claimed once, fenced, refunded, rescued, and on record."""

    def test_due_items_are_claimed(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A claim takes at most its limit, each item once, and counts an attempt."""
        keys = _added(ledger, subject, 5)

        first = claim(ledger, subject, limit=3)
        second = claim(ledger, subject, limit=3)

        assert len(first) == 3
        assert sorted(c.key for c in [*first, *second]) == sorted(keys)
        assert {c.attempt for c in first} == {1}
        assert claim(ledger, subject) == []

    def test_many_claim_at_once(self, ledger: Ledger, clock: ManualClock, subject: Subject) -> None:
        """However many claim at the same time, an item goes to one of them."""
        keys = _added(ledger, subject, 200)
        barrier = threading.Barrier(4)

        def take(number: int) -> list[Claim]:
            barrier.wait()
            taken: list[Claim] = []
            while more := claim(ledger, subject, limit=7, worker=f"worker {number}"):
                taken += more
            return taken

        with ThreadPoolExecutor(4) as pool:
            taken = [c for part in pool.map(take, range(4)) for c in part]

        assert sorted(c.key for c in taken) == sorted(keys)

    @pytest.mark.parametrize(
        ("verdict", "state", "attempt"),
        [
            (Verdict.DONE, "done", 1),
            (Verdict.DEAD, "dead", 1),
            (Verdict.CANCELED, "canceled", 1),
            (Verdict.FAILED, "due", 1),
            (Verdict.SNOOZED, "due", 0),
            (Verdict.RETURNED, "due", 0),
        ],
    )
    def test_settled(  # noqa: PLR0917 - the parameters of a case
        self,
        ledger: Ledger,
        clock: ManualClock,
        subject: Subject,
        verdict: Verdict,
        state: str,
        attempt: int,
    ) -> None:
        """Each verdict leads to its state; snoozed and returned items get their attempt back."""
        (key,) = _added(ledger, subject, 1)
        (taken,) = claim(ledger, subject)

        refused = settle(ledger, subject, taken, verdict)

        assert refused == []
        with ledger.reading() as tx:
            assert subject.state(tx, key) == state
            assert subject.attempt(tx, key) == attempt

    def test_a_delay_is_kept(self, ledger: Ledger, clock: ManualClock, subject: Subject) -> None:
        """A snoozed item is not due before its time."""
        _added(ledger, subject, 1)
        (taken,) = claim(ledger, subject)
        settle(ledger, subject, taken, Verdict.SNOOZED, delay=60.0)

        clock.advance(59)
        early = claim(ledger, subject)
        clock.advance(2)
        late = claim(ledger, subject)

        assert early == []
        assert [c.key for c in late] == [taken.key]

    def test_as_many_attempts_as_promised(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """An item that always fails is executed exactly as often as it may be, then dead."""
        (key,) = _added(ledger, subject, 1)
        executions = 0

        while taken := claim(ledger, subject):
            executions += 1
            settle(ledger, subject, taken[0], Verdict.FAILED)
            clock.advance(3600)

        assert executions == subject.attempts_max
        with ledger.reading() as tx:
            assert subject.state(tx, key) == "dead"

    def test_a_lost_claim_is_refused(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """Whoever lost the claim changes nothing, is told so, and that it tried is on record."""
        (key,) = _added(ledger, subject, 1)
        (late,) = claim(ledger, subject)
        clock.advance(LEASE_SECONDS + 1)
        assert rescue(ledger, subject) == 1
        (current,) = claim(ledger, subject, worker="another")

        refused = settle(ledger, subject, late, Verdict.DONE)

        assert [outcome.claim for outcome in refused] == [late]
        with ledger.reading() as tx:
            assert subject.state(tx, key) == "held"
            assert subject.refusals(tx, key) == 1
        assert settle(ledger, subject, current, Verdict.DONE) == []

    @pytest.mark.parametrize("verdict", list(Verdict))
    def test_a_lost_claim_is_refused_before_anyone_took_it(
        self, ledger: Ledger, clock: ManualClock, subject: Subject, verdict: Verdict
    ) -> None:
        """A rescued item cannot be settled by its former holder, also while nobody has it."""
        (key,) = _added(ledger, subject, 1)
        (late,) = claim(ledger, subject)
        clock.advance(LEASE_SECONDS + 1)
        rescue(ledger, subject)

        refused = settle(ledger, subject, late, verdict)

        assert len(refused) == 1
        with ledger.reading() as tx:
            assert subject.state(tx, key) == "due"

    def test_a_returned_claim_is_not_the_next_one(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A claim that was returned and refunded cannot settle the claim that followed it."""
        (key,) = _added(ledger, subject, 1)
        (first,) = claim(ledger, subject)
        settle(ledger, subject, first, Verdict.RETURNED)
        (second,) = claim(ledger, subject)

        refused = {verdict: settle(ledger, subject, first, verdict) for verdict in Verdict}

        assert first.attempt == second.attempt
        assert all(refused.values())
        with ledger.reading() as tx:
            assert subject.state(tx, key) == "held"
        assert extend(ledger, subject, [first]) == [first]
        assert settle(ledger, subject, second, Verdict.DONE) == []

    def test_only_the_lost_ones_of_a_batch_are_refused(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """In a batch, the claims still held are settled and the lost ones answered back."""
        _added(ledger, subject, 10)
        old = claim(ledger, subject, limit=4)
        clock.advance(LEASE_SECONDS + 1)
        rescue(ledger, subject)
        new = claim(ledger, subject)

        outcomes = [Outcome(c, Verdict.DONE) for c in [*old, *new]]
        refused = ledger.run(lambda tx: list(subject.source.settle(tx, outcomes)))

        assert {outcome.claim.key for outcome in refused} == {c.key for c in old}
        assert all(outcome.claim in old for outcome in refused)
        with ledger.reading() as tx:
            assert {subject.state(tx, c.key) for c in new} == {"done"}

    def test_settling_again_is_no_refusal(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """When the answer to a commit was lost, settling the same claim again is harmless."""
        for verdict in (Verdict.DONE, Verdict.FAILED, Verdict.RETURNED):
            (key,) = _added(ledger, subject, 1)
            (taken,) = claim(ledger, subject)
            settle(ledger, subject, taken, verdict)
            with ledger.reading() as tx:
                before = subject.moves(tx, key)

            refused = settle(ledger, subject, taken, verdict)

            assert refused == []
            with ledger.reading() as tx:
                assert subject.refusals(tx, key) == 0
                assert subject.moves(tx, key) == before
            clock.advance(3600)
            for rest in claim(ledger, subject):
                settle(ledger, subject, rest, Verdict.DONE)

    def test_extended_claims_hold(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A heartbeat keeps a claim; what was lost is answered, and stays lost."""
        _added(ledger, subject, 2)
        kept, lost = claim(ledger, subject)
        clock.advance(LEASE_SECONDS - 1)
        assert extend(ledger, subject, [kept]) == []
        clock.advance(2)

        rescued = rescue(ledger, subject)

        assert rescued == 1
        assert extend(ledger, subject, [kept, lost]) == [lost]
        assert settle(ledger, subject, kept, Verdict.DONE) == []

    def test_items_that_kill_their_worker(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """An item whose workers keep dying is dead after so many, with its reason."""
        (key,) = _added(ledger, subject, 1)
        deaths = 0

        while claim(ledger, subject):
            deaths += 1
            clock.advance(LEASE_SECONDS + 1)
            rescue(ledger, subject)
            clock.advance(3600)

        assert deaths == CRASHES_MAX
        with ledger.reading() as tx:
            assert subject.state(tx, key) == "dead"

    def test_what_only_waited_in_a_dead_worker(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """Of suspects the one on record as begun is given up; who waited gets its attempt back."""
        _suspected(ledger, clock, subject, 3)
        begun, *waited = claim(ledger, subject, worker=WORKER)
        reported(ledger, WORKER, begun=[begun.mark], crashes_max=CRASHES_MAX)
        clock.advance(LEASE_SECONDS + 1)

        rescued = rescue(ledger, subject)

        assert rescued == 3
        with ledger.reading() as tx:
            assert subject.state(tx, begun.key) == "dead"
            assert {subject.state(tx, each.key) for each in waited} == {"due"}
            assert {subject.attempt(tx, each.key) for each in waited} == {CRASHES_MAX - 1}
        again = claim(ledger, subject)
        assert {each.key for each in again} == {each.key for each in waited}
        assert {each.crashes for each in again} == {CRASHES_MAX - 1}

    @pytest.mark.parametrize("crashes_max", [None, CRASHES_MAX + 1])
    def test_what_no_record_clears(
        self, ledger: Ledger, clock: ManualClock, subject: Subject, crashes_max: int | None
    ) -> None:
        """A worker that puts none on record, or not yet, clears none of them."""
        _suspected(ledger, clock, subject, 1)
        (taken,) = claim(ledger, subject, worker=WORKER)
        reported(ledger, WORKER, begun=["another"], crashes_max=crashes_max)
        clock.advance(LEASE_SECONDS + 1)

        rescue(ledger, subject)

        with ledger.reading() as tx:
            assert subject.state(tx, taken.key) == "dead"

    def test_a_live_claim_is_not_rescued(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """Rescue leaves claims alone whose lease runs, also when the clock jumps back."""
        _added(ledger, subject, 1)
        claim(ledger, subject)

        clock.advance(LEASE_SECONDS - 1)
        now = rescue(ledger, subject)
        clock.jump(-86_400)
        after_jump = rescue(ledger, subject)

        assert (now, after_jump) == (0, 0)

    def test_rescue_is_bounded(self, ledger: Ledger, clock: ManualClock, subject: Subject) -> None:
        """Rescue takes so many at a time."""
        _added(ledger, subject, 5)
        claim(ledger, subject)
        clock.advance(LEASE_SECONDS + 1)

        assert rescue(ledger, subject, limit=3) == 3
        assert rescue(ledger, subject, limit=3) == 2

    def test_rolled_back_settlements_leave_nothing(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A settlement belongs to its transaction: undone with it, and possible again."""
        (key,) = _added(ledger, subject, 1)
        (taken,) = claim(ledger, subject)

        def settle_and_fail(tx: Transaction) -> None:
            subject.source.settle(tx, [Outcome(taken, Verdict.DONE)])
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            ledger.run(settle_and_fail)

        with ledger.reading() as tx:
            assert subject.state(tx, key) == "held"
        assert settle(ledger, subject, taken, Verdict.DONE) == []

    def test_every_move_is_on_record(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """The history of an item leads from its acceptance to where it stands, step by step."""
        (key,) = _added(ledger, subject, 1)
        (first,) = claim(ledger, subject)
        settle(ledger, subject, first, Verdict.RETURNED)
        claim(ledger, subject)
        clock.advance(LEASE_SECONDS + 1)
        rescue(ledger, subject)
        (last,) = claim(ledger, subject)
        settle(ledger, subject, last, Verdict.DONE)

        with ledger.reading() as tx:
            moves = subject.moves(tx, key)

        befores = [before for before, _ in moves]
        afters = [after for _, after in moves]
        assert befores == [None, *afters[:-1]]
        assert len(moves) == 7


def claim(
    ledger: Ledger, subject: Subject, *, limit: int = 100, worker: str = "a worker"
) -> list[Claim]:
    """Claim in a transaction."""
    ask = Ask(limit, worker, LEASE_SECONDS)
    return ledger.run(lambda tx: list(subject.source.claim(tx, ask)))


def settle(
    ledger: Ledger, subject: Subject, taken: Claim, verdict: Verdict, *, delay: float | None = None
) -> list[Outcome]:
    """Settle one claim in a transaction; the refused."""
    failure = Failure("test", "as the test wished") if verdict is not Verdict.DONE else None
    outcome = Outcome(taken, verdict, failure=failure, delay_seconds=delay)
    return ledger.run(lambda tx: list(subject.source.settle(tx, [outcome])))


def extend(ledger: Ledger, subject: Subject, claims: list[Claim]) -> list[Claim]:
    """Extend claims in a transaction; the lost."""
    return ledger.run(lambda tx: list(subject.source.extend(tx, claims, LEASE_SECONDS)))


def rescue(ledger: Ledger, subject: Subject, *, limit: int = 100) -> int:
    """Rescue in a transaction."""
    return ledger.run(lambda tx: subject.source.rescue(tx, limit=limit, crashes_max=CRASHES_MAX))


def _suspected(ledger: Ledger, clock: ManualClock, subject: Subject, count: int) -> None:
    """So many items of which one more death is the end."""
    _added(ledger, subject, count)
    for _ in range(CRASHES_MAX - 1):
        claim(ledger, subject)
        clock.advance(LEASE_SECONDS + 1)
        rescue(ledger, subject)


def _added(ledger: Ledger, subject: Subject, count: int) -> list[str]:
    return ledger.run(lambda tx: subject.add(tx, count))
