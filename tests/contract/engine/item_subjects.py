"""The example tables as subjects of the source contract."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import RowMapping, Table, and_, func, insert, select

from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.source import Batches, Handler, OutcomeKind
from ledgerstone.items import Failures, Items, ItemSource
from ledgerstone.items.events import REFUSED
from ledgerstone.items.key import key_words
from ledgerstone.ledger import Transaction
from ledgerstone.store.schema.tables import worker
from ledgerstone.store.sql.statement import Row
from ledgerstone.testing.contracts.source_subject import plain_outcome
from tests.chores.work import nothing
from tests.contract.engine.item_tables import (
    ANCHORS,
    ATTEMPTS_MAX,
    INCOMING,
    MARKERS,
    TX_REFS,
    anchor_event,
    incoming_event,
    marker_event,
    tx_ref,
    tx_ref_event,
)

NOW_MS = 1_600_000_000_000
CHAIN = "evm"


class ItemSubject:
    """Items of a declared table; a row that is gone counts as done."""

    attempts_max = ATTEMPTS_MAX
    verdicts = frozenset(OutcomeKind)
    unanswered: frozenset[OutcomeKind] = frozenset()
    outcome = staticmethod(plain_outcome)

    def __init__(
        self,
        items: Items,
        history: Table,
        new: Callable[[int], Mapping[str, Any]],
        *,
        where: Any = None,
        batches: Batches | None = None,
    ) -> None:
        self.items = items
        self.history = history
        self.source = ItemSource(
            items, Handler(nothing), backoff=Backoff(jitter=0), where=where, batches=batches
        )
        self._new = new
        self._numbers = itertools.count(1)
        self._keys: dict[str, Row] = {}

    def retry_seconds(self, failures: int) -> float:
        return Backoff(jitter=0).after(failures)

    def clear(self, tx: Transaction) -> None:
        for table in (self.items.table, self.history, worker):
            tx.execute(table.delete())

    def add(self, tx: Transaction, count: int) -> list[str]:
        added = []
        for _ in range(count):
            row = self._new(next(self._numbers))
            tx.execute(insert(self.items.table).values(row))
            key = tuple(row[c.name] for c in self.items.key)
            self._keys[key_words(key)] = key
            added.append(key_words(key))
        return added

    def row(self, tx: Transaction, key: str) -> RowMapping | None:
        """The row of an item, if it is there."""
        found = tx.execute(select(self.items.table).where(self.is_row(key)))
        return found.mappings().first()

    def is_row(self, key: str) -> Any:
        """The condition that finds the row of an item."""
        values = zip(self.items.key, self._keys[key], strict=True)
        return and_(*[c == value for c, value in values])

    def state(self, tx: Transaction, key: str) -> str:
        items, row = self.items, self.row(tx, key)
        if row is None:
            return "done"
        if (row[items.lease.name] is not None) != self._is_held(row):
            return "a lease and a state that do not agree"
        if self._is_held(row):
            return "held"
        if items.state is None:
            if row[items.due.name] is not None:
                return "due"
            return "done" if row.get("confirmed") == 1 else "dead"
        stands = row[items.state.column.name]
        words = {items.state.due.value: "due", "done": "done"}
        return words.get(stands, "dead")

    def _is_held(self, row: RowMapping) -> bool:
        state = self.items.state
        if state is None:
            return row[self.items.lease.name] is not None
        return bool(row[state.column.name] == state.held.value)

    def attempt(self, tx: Transaction, key: str) -> int:
        counted, row = self.items.attempt, self.row(tx, key)
        return 0 if counted is None or row is None else int(row[counted.column.name])

    def refusals(self, tx: Transaction, key: str) -> int:
        return sum(refused for refused, _ in self._told(tx, key))

    def moves(self, tx: Transaction, key: str) -> list[tuple[str | None, str]]:
        """The moves of an item; what it made before its first is taken as accepted."""
        return [move for refused, move in self._told(tx, key) if not refused]

    def _told(self, tx: Transaction, key: str) -> list[tuple[bool, tuple[str | None, str]]]:
        history = self.history
        of = [c for c in history.c if c.name.endswith("_id") or c.name.startswith("of_")]
        same = and_(*[c == part for c, part in zip(of, self._keys[key], strict=True)])
        rows = tx.execute(select(history).where(same).order_by(history.c.id)).mappings()
        return [
            (
                (row["reason"] or "").startswith(REFUSED),
                (row["prev_status"], row["next_status"]),
            )
            for row in rows
        ]

    @property
    def counts_failures(self) -> bool:
        """Whether an attempt counts when it has failed, and not when it begins."""
        return isinstance(self.items.attempt, Failures)

    def count(self, tx: Transaction) -> int:
        """How many rows there are."""
        counting = select(func.count()).select_from(self.items.table)
        return int(tx.execute(counting).scalar_one())


def anchors() -> ItemSubject:
    """A state, failures, a history."""
    return ItemSubject(
        ANCHORS,
        anchor_event,
        lambda n: {
            "id": f"anchor {n}",
            "status": "queued",
            "attempts": 0,
            "next_attempt_ms": NOW_MS + n,
            "created_ms": NOW_MS,
            "updated_ms": NOW_MS,
        },
    )


def tx_refs() -> ItemSubject:
    """A key of four columns, no state, many in one call."""
    return ItemSubject(
        TX_REFS,
        tx_ref_event,
        lambda n: {
            "job_id": f"job {n % 3}",
            "chain": CHAIN,
            "network": n % 2,
            "tx_hash": f"0x{n:08x}",
            "next_check_ms": NOW_MS + n,
        },
        where=tx_ref.c.chain == CHAIN,
        batches=Batches(2, 2, 100, 1000),
    )


def markers() -> ItemSubject:
    """No state, deleted when it is done, unless it was raised again."""
    return ItemSubject(
        MARKERS,
        marker_event,
        lambda n: {"identity": f"who {n}", "generation": 1, "available_at_ms": NOW_MS + n},
    )


def incoming() -> ItemSubject:
    """A state, deleted when it is done, parked when it is given up; a number for a key."""
    return ItemSubject(
        INCOMING, incoming_event, lambda n: {"id": n, "state": "waiting", "due_ms": NOW_MS + n}
    )
