"""The sources of Ledgerstone as subjects of the source contract."""

from __future__ import annotations

from ledgerstone.chores import ChoreSource, NewChore, Status
from ledgerstone.chores.chores import MAX_ATTEMPTS
from ledgerstone.chores.tables import chore, chore_event
from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.source import Handler
from ledgerstone.ledger import Transaction
from ledgerstone.testing.work import nothing

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

    def __init__(self) -> None:
        self._backoff = Backoff(jitter=0)
        self.source = ChoreSource(Handler(nothing), backoff=self._backoff)

    def retry_seconds(self, failures: int) -> float:
        return self._backoff.after(failures)

    def clear(self, tx: Transaction) -> None:
        tx.connection.execute(chore_event.delete())
        tx.connection.execute(chore.delete())

    def add(self, tx: Transaction, count: int) -> list[str]:
        added = tx.chores.enqueue_many([NewChore(body=number) for number in range(count)])
        return [enqueued.id for enqueued in added]

    def state(self, tx: Transaction, key: str) -> str:
        return _STATES[tx.chores.get(key).status]

    def attempt(self, tx: Transaction, key: str) -> int:
        return tx.chores.get(key).attempt

    def refusals(self, tx: Transaction, key: str) -> int:
        return sum((event.reason or "").startswith("refused") for event in tx.chores.history(key))

    def moves(self, tx: Transaction, key: str) -> list[tuple[str | None, str]]:
        return [
            (event.prev_status, event.next_status)
            for event in tx.chores.history(key)
            if not (event.reason or "").startswith("refused")
        ]
