"""The contract of leased items: what the protocol promises beyond what every source does.

Each class is asked of every declared table and, where it applies, of jobs and lanes.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, select, update

from ledgerstone.engine.source import NotSettled, Outcome, OutcomeKind
from ledgerstone.items import Items
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.contracts.source_subject import (
    LEASE_SECONDS,
    Subject,
    SubjectContract,
    added,
    claim,
    extend,
    rescue,
    settle,
    sorted_verdicts,
    state,
)
from tests.contract.engine.item_subjects import ItemSubject

BATCH = 20


class ItemContract(SubjectContract):
    """What holds for every table. Fixtures: `ledger`, `clock`, `subject`, `items`."""

    def test_a_row_that_was_inserted_again(
        self, ledger: Ledger, clock: ManualClock, subject: Subject, items: Items
    ) -> None:
        """The token never goes back, also when the row was deleted and inserted again."""
        (key,) = added(ledger, subject, 1)
        (late,) = claim(ledger, subject)
        row = _row(ledger, items)
        clock.advance(1)
        ledger.run(lambda tx: self.remove(tx, subject, items))
        again = {**row, items.token.name: 0, items.lease.name: None}
        if items.state is not None:
            again[items.state.column.name] = items.state.due.value
        ledger.run(lambda tx: tx.execute(insert(items.table).values(again)))
        (current,) = claim(ledger, subject)

        refused = settle(ledger, subject, subject.outcome(late, OutcomeKind.DONE))

        assert current.key == key
        assert current.token > late.token
        assert [each.claim.mark for each in refused] == [late.mark]
        assert extend(ledger, subject, [current]) == []

    def test_the_attempt_is_no_part_of_the_fence(
        self, ledger: Ledger, clock: ManualClock, subject: Subject, items: Items
    ) -> None:
        """A claim whose attempt was changed by hand still holds: the token alone decides."""
        if items.attempt is None:
            return
        (key,) = added(ledger, subject, 1)
        (taken,) = claim(ledger, subject)
        name = items.attempt.column.name
        ledger.run(
            lambda tx: tx.execute(
                update(items.table).values({name: items.attempt.column + 1})  # type: ignore[union-attr]
            )
        )

        refused = settle(ledger, subject, subject.outcome(taken, OutcomeKind.DONE))

        assert (refused, state(ledger, subject, key)) == ([], "done")

    def test_what_was_given_back_is_lost(
        self, ledger: Ledger, clock: ManualClock, subject: Subject, items: Items
    ) -> None:
        """A claim that was returned and then says that it is done: another claim will do it."""
        if items.state is None:
            return
        (key,) = added(ledger, subject, 1)
        (taken,) = claim(ledger, subject)
        settle(ledger, subject, subject.outcome(taken, OutcomeKind.RETURNED))

        refused = settle(ledger, subject, subject.outcome(taken, OutcomeKind.DONE))

        assert [each.claim.mark for each in refused] == [taken.mark]
        assert state(ledger, subject, key) == "due"
        with ledger.reading() as tx:
            assert subject.refusals(tx, key) == 1

    def test_a_claim_that_waits(self, ledger: Ledger, clock: ManualClock, subject: Subject) -> None:
        """A settlement in its handler's own transaction is told at once whether the claim holds."""
        first, second = added(ledger, subject, 2)
        kept, lost = claim(ledger, subject)
        clock.advance(LEASE_SECONDS - 1)
        extend(ledger, subject, [kept])
        clock.advance(2)
        rescue(ledger, subject)

        now = _waiting(ledger, subject, subject.outcome(kept, OutcomeKind.DONE))
        late = _waiting(ledger, subject, subject.outcome(lost, OutcomeKind.DONE))
        again = _waiting(ledger, subject, subject.outcome(kept, OutcomeKind.DONE))

        assert (list(now.lost), list(now.locked)) == ([], [])
        assert [each.claim.mark for each in late.lost] == [lost.mark]
        assert list(again.lost) == []
        assert (state(ledger, subject, kept.key), state(ledger, subject, lost.key)) == (
            "done",
            "due",
        )
        assert {first, second} == {kept.key, lost.key}

    def test_a_mixed_batch(self, ledger: Ledger, clock: ManualClock, subject: Subject) -> None:
        """Each item of a batch goes its own way, whatever the others do, and what is lost stays."""
        verdicts = sorted_verdicts(subject)
        added(ledger, subject, len(verdicts) + 1)
        (lost,) = claim(ledger, subject, limit=1)
        clock.advance(LEASE_SECONDS + 1)
        rescue(ledger, subject)
        claims = claim(ledger, subject)
        late = subject.outcome(lost, OutcomeKind.DONE)
        outcomes = [late]
        outcomes += [
            subject.outcome(taken, verdict)
            for taken, verdict in zip(claims, verdicts, strict=False)
        ]
        current = claims[len(verdicts)]

        refused = settle(ledger, subject, *outcomes)

        assert refused == [late]
        assert state(ledger, subject, current.key) == "held"
        assert settle(ledger, subject, *outcomes[1:]) == []

    def test_statements_of_a_batch(
        self, ledger: Ledger, clock: ManualClock, subject: Subject
    ) -> None:
        """A settlement with its history is one statement where the database can, three at most."""
        if isinstance(subject, ItemSubject) and subject.items.history is None:
            return
        added(ledger, subject, 2 * BATCH)
        claims = claim(ledger, subject, limit=2 * BATCH)
        settle(ledger, subject, *[subject.outcome(c, OutcomeKind.DONE) for c in claims[:BATCH]])
        outcomes = [subject.outcome(c, OutcomeKind.DONE) for c in claims[BATCH:]]
        before = _calls(ledger)

        refused = settle(ledger, subject, *outcomes)

        made = _calls(ledger) - before
        assert refused == []
        assert made <= self.statements_max(ledger)

    def remove(self, tx: Transaction, subject: Subject, items: Items) -> None:
        """Delete the row of the only item."""
        subject.clear(tx)

    def statements_max(self, ledger: Ledger) -> int:
        """Statements of a settlement of one batch, its history included."""
        return 1 if ledger.database.dialect.tells else 3


class MoreContract(SubjectContract):
    """Items to which work may arrive while they are held."""

    def test_work_that_arrived_meanwhile(
        self, ledger: Ledger, clock: ManualClock, subject: ItemSubject
    ) -> None:
        """An item to which work came is due again at once, the others are done."""
        raised, other = added(ledger, subject, 2)
        claims = claim(ledger, subject)
        table = subject.items.table
        with ledger.transaction() as tx:
            more = update(table).where(subject.is_row(raised))
            tx.execute(more.values(generation=table.c.generation + 1))

        refused = settle(
            ledger, subject, *[subject.outcome(taken, OutcomeKind.DONE) for taken in claims]
        )

        assert refused == []
        assert (state(ledger, subject, raised), state(ledger, subject, other)) == ("due", "done")
        (again,) = claim(ledger, subject)
        assert settle(ledger, subject, subject.outcome(again, OutcomeKind.DONE)) == []
        with ledger.reading() as tx:
            assert subject.count(tx) == 0


class CountedContract(SubjectContract):
    """Attempts and crashes as the declaration says."""

    @pytest.mark.parametrize(
        ("verdict", "begun", "failures"),
        [
            (OutcomeKind.FAILED, 1, 1),
            (OutcomeKind.SNOOZED, 0, 0),
            (OutcomeKind.RETURNED, 0, 0),
        ],
    )
    def test_what_counts(  # noqa: PLR0917 - the parameters of a case
        self,
        ledger: Ledger,
        clock: ManualClock,
        subject: ItemSubject,
        verdict: OutcomeKind,
        begun: int,
        failures: int,
    ) -> None:
        """An attempt counts when it begins, or when it fails: what was refunded counts as none."""
        (key,) = added(ledger, subject, 1)
        (taken,) = claim(ledger, subject)

        settle(ledger, subject, subject.outcome(taken, verdict))

        with ledger.reading() as tx:
            assert subject.attempt(tx, key) == (failures if subject.counts_failures else begun)
        assert taken.attempt == 1

    def test_attempts_on_record(
        self, ledger: Ledger, clock: ManualClock, subject: ItemSubject
    ) -> None:
        """A claim is on record with the number of the attempt that it begins."""
        added(ledger, subject, 1)
        for _ in range(2):
            (taken,) = claim(ledger, subject)
            settle(ledger, subject, subject.outcome(taken, OutcomeKind.FAILED))
            clock.advance(3600)
        claim(ledger, subject)

        history = subject.history
        held = select(history.c.attempt).where(history.c.worker.is_not(None))
        with ledger.reading() as tx:
            attempts = [row[0] for row in tx.execute(held.order_by(history.c.id))]
        assert attempts == [1, 1, 2, 2, 3]


def _row(ledger: Ledger, items: Items) -> dict[str, Any]:
    """The only row of the table, without what the database computes."""
    computed = {c.name for c in items.table.c if c.computed is not None}
    with ledger.reading() as tx:
        (row,) = tx.execute(select(items.table)).mappings()
    return {name: value for name, value in row.items() if name not in computed}


def _waiting(ledger: Ledger, subject: Subject, outcome: Outcome) -> NotSettled[Outcome]:
    return ledger.run(lambda tx: subject.source.settle(tx, [outcome], waits=True))


def _calls(ledger: Ledger) -> int:
    return ledger.database.measure.total().calls
