"""Chores at work, as a subject of the effect contract."""

from __future__ import annotations

from sqlalchemy import select

from ledgerstone.engine.source import Claim, Handler, Source
from ledgerstone.ledger import Transaction
from tests.chores import Chores, ChoreSource, NewChore, Status
from tests.chores.chores import MAX_ATTEMPTS
from tests.chores.tables import chore
from tests.contract.engine.executors import SourceWork


class ChoreWork(SourceWork):
    """Chores."""

    tries_max = MAX_ATTEMPTS

    def source(self) -> Source:
        return ChoreSource(Handler(self._run))

    def add(self, count: int) -> list[str]:
        new = [NewChore(body=number) for number in range(count)]
        return self.ledger.run(lambda tx: [each.id for each in Chores(tx).enqueue_many(new)])

    def is_left(self, tx: Transaction) -> bool:
        open_ = {Status.QUEUED.value, Status.RUNNING.value}
        return tx.execute(select(chore).where(chore.c.status.in_(open_))).first() is not None

    def given_up(self) -> dict[str, str]:
        dead = select(chore.c.id, chore.c.error).where(chore.c.status == Status.DEAD.value)
        with self.ledger.reading() as tx:
            return {str(row[0]): str(row[1]) for row in tx.execute(dead)}

    def _run(self, claim: Claim) -> None:
        self.perform(claim.key)
