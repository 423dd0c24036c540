"""The subject of the source contract, and the calls that every clause makes."""

from __future__ import annotations

from typing import Protocol

import pytest

from ledgerstone.engine.source import Ask, Claim, Failure, Outcome, OutcomeKind, Source
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.testing.clock import ManualClock

LEASE_SECONDS = 30.0
CRASHES_MAX = 3
LONG_SECONDS = 3600.0
"""Longer than any wait between two attempts."""
WORKER = "0190a000-0000-7000-8000-00000000ada0"


class Subject(Protocol):
    """A source under test, and how to look at its items.

    - `add` accepts so many items that are due now and answers their keys.
    - `state` answers due, held, done, dead or canceled; `attempt` how many attempts count.
    - `refusals` counts the late settlements of an item that are on record; None: no history.
    - `verdicts` are those that claims of this source can come out with. The refusal of one of
      `unanswered` is on record, and not answered back: it said that nothing had happened.
    - `outcome` lets a claim come out so, as a worker would have it before it settles.
    - `clear` removes every item.
    """

    @property
    def source(self) -> Source: ...

    @property
    def verdicts(self) -> frozenset[OutcomeKind]: ...

    @property
    def unanswered(self) -> frozenset[OutcomeKind]: ...

    def clear(self, tx: Transaction) -> None: ...

    def add(self, tx: Transaction, count: int) -> list[str]: ...

    def state(self, tx: Transaction, key: str) -> str: ...

    def attempt(self, tx: Transaction, key: str) -> int: ...

    def refusals(self, tx: Transaction, key: str) -> int | None: ...

    def outcome(
        self, taken: Claim, verdict: OutcomeKind, delay: float | None = None
    ) -> Outcome: ...


class FailingSubject(Subject, Protocol):
    """One whose items may fail so many times: `attempts_max`."""

    @property
    def attempts_max(self) -> int: ...


class CountedSubject(FailingSubject, Protocol):
    """One that counts each claim as an attempt, and has every move of an item on record.

    `retry_seconds` is the wait after the nth failure, `moves` are the transitions of an item.
    """

    def retry_seconds(self, failures: int) -> float: ...

    def moves(self, tx: Transaction, key: str) -> list[tuple[str | None, str]]: ...


def claim(
    ledger: Ledger, subject: Subject, *, limit: int = 100, worker: str = "a worker"
) -> list[Claim]:
    """Claim in a transaction."""
    ask = Ask(limit, worker, LEASE_SECONDS)
    return ledger.run(lambda tx: list(subject.source.claim(tx, ask)))


def settle(ledger: Ledger, subject: Subject, *outcomes: Outcome) -> list[Outcome]:
    """Settle in a transaction; the refused."""
    return ledger.run(lambda tx: list(subject.source.settle(tx, outcomes).lost))


def plain_outcome(taken: Claim, verdict: OutcomeKind, delay: float | None = None) -> Outcome:
    """The outcome of a claim where the verdict says it all."""
    failure = Failure("test", "as the test wished") if verdict is not OutcomeKind.DONE else None
    return Outcome(taken, verdict, failure=failure, delay_seconds=delay)


def extend(ledger: Ledger, subject: Subject, claims: list[Claim]) -> list[Claim]:
    """Extend claims in a transaction; the lost."""
    return ledger.run(lambda tx: list(subject.source.extend(tx, claims, LEASE_SECONDS).lost))


def rescue(ledger: Ledger, subject: Subject, *, limit: int = 100) -> int:
    """Rescue in a transaction."""
    return ledger.run(lambda tx: subject.source.rescue(tx, limit=limit, crashes_max=CRASHES_MAX))


def state(ledger: Ledger, subject: Subject, key: str) -> str:
    """Where an item stands."""
    with ledger.reading() as tx:
        return subject.state(tx, key)


def sorted_verdicts(subject: Subject) -> list[OutcomeKind]:
    """The verdicts of a source, in the order of their declaration."""
    return [verdict for verdict in OutcomeKind if verdict in subject.verdicts]


def suspected(ledger: Ledger, clock: ManualClock, subject: Subject, count: int) -> list[str]:
    """So many items of which one more death is the end."""
    keys = added(ledger, subject, count)
    for _ in range(CRASHES_MAX - 1):
        claim(ledger, subject)
        clock.advance(LEASE_SECONDS + 1)
        rescue(ledger, subject)
    return keys


def added(ledger: Ledger, subject: Subject, count: int) -> list[str]:
    """So many items that are due."""
    return ledger.run(lambda tx: subject.add(tx, count))


class SubjectContract:
    """A subject without items. Fixtures: `ledger`, `clock`, `subject`."""

    @pytest.fixture(autouse=True)
    def emptied(self, ledger: Ledger, subject: Subject) -> None:
        """Nothing of the clause before is left."""
        ledger.run(subject.clear)
