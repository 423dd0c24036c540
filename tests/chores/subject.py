"""Chores as a subject of the source contract."""

from __future__ import annotations

from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.source import Handler, OutcomeKind
from ledgerstone.ledger import Transaction
from ledgerstone.store.schema.tables import worker
from ledgerstone.testing.contracts.source_subject import plain_outcome
from tests.chores import Chores, ChoreSource, NewChore, Status
from tests.chores.chores import MAX_ATTEMPTS
from tests.chores.tables import chore, chore_event
from tests.chores.work import nothing

_STATES = {
    Status.QUEUED: "due",
    Status.RUNNING: "held",
    Status.DONE: "done",
    Status.DEAD: "dead",
    Status.CANCELED: "canceled",
}


class ChoreSubject:
    """Chores."""

    attempts_max = MAX_ATTEMPTS
    verdicts = frozenset(OutcomeKind)
    unanswered: frozenset[OutcomeKind] = frozenset()
    outcome = staticmethod(plain_outcome)

    def __init__(self) -> None:
        self._backoff = Backoff(jitter=0)
        self.source = ChoreSource(Handler(nothing), backoff=self._backoff)

    def retry_seconds(self, failures: int) -> float:
        return self._backoff.after(failures)

    def clear(self, tx: Transaction) -> None:
        clear_chores(tx)

    def add(self, tx: Transaction, count: int) -> list[str]:
        added = Chores(tx).enqueue_many([NewChore(body=number) for number in range(count)])
        return [enqueued.id for enqueued in added]

    def state(self, tx: Transaction, key: str) -> str:
        return _STATES[Chores(tx).get(key).status]

    def attempt(self, tx: Transaction, key: str) -> int:
        return Chores(tx).get(key).attempt

    def refusals(self, tx: Transaction, key: str) -> int:
        return sum((event.reason or "").startswith("refused") for event in Chores(tx).history(key))

    def moves(self, tx: Transaction, key: str) -> list[tuple[str | None, str]]:
        return [
            (event.prev_status, event.next_status)
            for event in Chores(tx).history(key)
            if not (event.reason or "").startswith("refused")
        ]


def clear_chores(tx: Transaction) -> None:
    """Remove every chore, and what workers have reported."""
    for table in (chore_event, chore, worker):
        tx.execute(table.delete())
