"""The room of reminders keeps the contract of a room, and its source that of a source."""

from collections.abc import Iterator
from typing import Any

import pytest
from reminders import REMINDERS, reminder
from sqlalchemy import delete, select

from ledgerstone import Ledger, Transaction
from ledgerstone.engine.source import OutcomeKind
from ledgerstone.room import Room
from ledgerstone.settings import Settings
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.contracts.room import RoomContract
from ledgerstone.testing.contracts.source import ClaimingContract, FencedContract, RescueContract
from ledgerstone.testing.contracts.source_locks import LockedContract
from ledgerstone.testing.contracts.source_subject import plain_outcome
from ledgerstone.testing.fixtures import Home


class TestReminders(RoomContract):
    """The room."""

    @pytest.fixture
    def room(self) -> Room[Any, Any]:
        return REMINDERS

    def fill(self, ledger: Ledger) -> None:
        ledger.run(lambda tx: tx.room(REMINDERS).remind("now"))


class ReminderSubject:
    """Its source, and how the contract adds reminders and looks at them."""

    verdicts = frozenset(OutcomeKind)
    unanswered: frozenset[OutcomeKind] = frozenset()
    outcome = staticmethod(plain_outcome)

    def __init__(self, ledger: Ledger) -> None:
        (self.source,) = REMINDERS.sources(ledger.rooms.opened(REMINDERS, ledger.database))

    def clear(self, tx: Transaction) -> None:
        tx.execute(delete(reminder))

    def add(self, tx: Transaction, count: int) -> list[str]:
        before = set(tx.execute(select(reminder.c.id)).scalars())
        for _ in range(count):
            tx.room(REMINDERS).remind("now")
        return sorted(set(tx.execute(select(reminder.c.id)).scalars()) - before)

    def state(self, tx: Transaction, key: str) -> str:
        row = tx.execute(select(reminder).where(reminder.c.id == key)).one()
        if row.lease_until_ms is not None:
            return "held"
        return "done" if row.due_ms is None else "due"

    def attempt(self, tx: Transaction, key: str) -> int:
        return 0  # They are not counted.

    def refusals(self, tx: Transaction, key: str) -> None:
        """No history: a refused settlement leaves no record."""


class TestReminderSource(ClaimingContract, LockedContract, FencedContract, RescueContract):
    """Its source: no attempts, no crashes, no history."""

    @pytest.fixture
    def ledger(self, home: Home, clock: ManualClock) -> Iterator[Ledger]:
        settings = Settings.load(url=home.url, environ={})
        with Ledger(settings=settings, rooms=[REMINDERS], clock=clock) as ledger:
            ledger.migrate()
            yield ledger

    @pytest.fixture
    def subject(self, ledger: Ledger) -> ReminderSubject:
        return ReminderSubject(ledger)
