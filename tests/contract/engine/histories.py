"""Random histories: whatever happens in whatever order, a source agrees with a model of it.

Hypothesis draws histories of accepting, claiming, settling, extending, rescuing, cancelled
transactions and moves of the clock by several workers, and shrinks one that goes wrong to its core.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from ledgerstone.engine.source import Ask, Claim, Failure, Outcome, OutcomeKind
from ledgerstone.ledger import Ledger
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.contracts.source_subject import CRASHES_MAX, LEASE_SECONDS, CountedSubject

WORKERS = st.sampled_from(["ada", "grace", "edsger"])


class _Item:
    """What the model knows of an item."""

    def __init__(self) -> None:
        self.state = "due"
        self.attempt = 0
        self.crashes = 0
        self.due_at = 0.0
        self.lease_until = 0.0
        self.holder: Claim | None = None


class Histories(RuleBasedStateMachine):
    """A source beside its model; the test that runs it sets `ledger`, `clock` and `subject`."""

    ledger: Ledger
    clock: ManualClock
    subject: CountedSubject

    claims: Bundle[Claim] = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.items: dict[str, _Item] = {}
        self._drained()

    @property
    def now(self) -> float:
        return self.clock.now_ms() / 1000

    @rule(count=st.integers(1, 5))
    def accept(self, count: int) -> None:
        for key in self.ledger.run(lambda tx: self.subject.add(tx, count)):
            item = self.items[key] = _Item()
            item.due_at = self.now

    @rule(target=claims, worker=WORKERS, limit=st.integers(1, 6))
    def claim(self, worker: str, limit: int) -> Any:
        ask = Ask(limit, worker, LEASE_SECONDS)
        taken = self.ledger.run(lambda tx: list(self.subject.source.claim(tx, ask)))
        due = [k for k, i in self.items.items() if i.state == "due" and i.due_at <= self.now]
        assert len(taken) == min(limit, len(due))
        assert {claim.key for claim in taken} <= set(due)
        for claim in taken:
            item = self.items[claim.key]
            item.attempt += 1
            assert claim.attempt == item.attempt
            item.state, item.holder = "held", claim
            item.lease_until = self.now + LEASE_SECONDS
        return multiple(*taken)

    @rule(claim=consumes(claims), verdict=st.sampled_from(OutcomeKind))
    def settle(self, claim: Claim, verdict: OutcomeKind) -> None:
        refused = self._settle(claim, verdict)
        item = self.items[claim.key]
        assert refused == (item.holder is not claim)
        if not refused:
            self._apply(item, verdict)

    @rule(claim=claims)
    def extend(self, claim: Claim) -> None:
        lost = self.ledger.run(
            lambda tx: list(self.subject.source.extend(tx, [claim], LEASE_SECONDS).lost)
        )
        item = self.items[claim.key]
        assert bool(lost) == (item.holder is not claim)
        if not lost:
            item.lease_until = self.now + LEASE_SECONDS

    @rule()
    def rescue(self) -> None:
        rescued = self.ledger.run(
            lambda tx: self.subject.source.rescue(tx, limit=1000, crashes_max=CRASHES_MAX)
        )
        expired = [
            i for i in self.items.values() if i.state == "held" and i.lease_until <= self.now
        ]
        assert rescued == len(expired)
        for item in expired:
            item.crashes += 1
            item.state = "dead" if item.crashes >= CRASHES_MAX else "due"
            item.holder, item.due_at = None, self.now

    @rule(seconds=st.sampled_from([1, 10, 29, 31, 400]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-3600, -5, 5, 3600]))
    def clock_is_set(self, seconds: int) -> None:
        self.clock.jump(seconds)

    @invariant()
    def agrees(self) -> None:
        with self.ledger.reading() as tx:
            for key, item in self.items.items():
                assert self.subject.state(tx, key) == item.state
                assert self.subject.attempt(tx, key) == item.attempt

    def teardown(self) -> None:
        with self.ledger.reading() as tx:
            for key, item in self.items.items():
                moves = self.subject.moves(tx, key)
                assert [before for before, _ in moves] == [None, *(a for _, a in moves[:-1])]
                assert moves, item

    def _settle(self, claim: Claim, verdict: OutcomeKind) -> bool:
        failure = None if verdict is OutcomeKind.DONE else Failure("test", "drawn")
        delay = 20.0 if verdict in {OutcomeKind.SNOOZED, OutcomeKind.RETURNED} else None
        outcome = Outcome(claim, verdict, failure=failure, delay_seconds=delay)
        return bool(
            self.ledger.run(lambda tx: list(self.subject.source.settle(tx, [outcome]).lost))
        )

    def _apply(self, item: _Item, verdict: OutcomeKind) -> None:
        item.holder = None
        match verdict:
            case OutcomeKind.DONE | OutcomeKind.DEAD | OutcomeKind.CANCELED:
                item.state = verdict.value
            case OutcomeKind.SNOOZED | OutcomeKind.RETURNED:
                item.state = "due"
                item.attempt -= 1
                item.due_at = self.now + 20.0
            case OutcomeKind.FAILED:
                used = item.attempt >= self.subject.attempts_max
                item.state = "dead" if used else "due"
                item.due_at = self.now + self.subject.retry_seconds(item.attempt)

    def _drained(self) -> None:
        """What the run before left behind is not claimed by this one."""
        self.ledger.run(self.subject.clear)
