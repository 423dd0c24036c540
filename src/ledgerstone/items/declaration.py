"""A table of leased items, declared once.

                       ┌───────────── due again: failed, snoozed, returned, more arrived ─────┐
                       ▼                                                                      │
    accepted ───────▶ due ──claim──▶ held ──settle──▶ done · dead · canceled · gone · idle    │
                       ▲   token up   │ │                                                     │
                       │  attempt up  │ └─────────────────────────────────────────────────────┘
                       └────rescue────┘ the lease ran out: token up, crashes up; dead at the last

One claim holds an item at a time: the claim with the item's token. Every claim and every rescue
raises the token to `greatest(token + 1, now_ms)`, so the token never decreases, also after the row
was deleted and inserted again. Every write of a claim compares the token and checks that the item
is held, in the statement that changes the row. It compares nothing else: the token alone
distinguishes two claims.

Column names are mapped, so a table of another program keeps its names. A room with rules of its own
claims with a statement of its own (`claim.taken` gives the assignments), or settles with moves of
its own (`moves.Move`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Column, String, Table, and_, bindparam, case, literal_column
from sqlalchemy.sql.elements import ColumnElement

from ledgerstone.store.sql.batch import Incoming, Journal
from ledgerstone.store.sql.expressions import now_after, now_ms, unindexed
from ledgerstone.store.sql.statement import Row
from ledgerstone.store.transaction import Transaction


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The states of an item and the allowed moves between them.

    - `ended` are the states of items that are never claimed again.
    - `dead` is the state of an item without attempts left; None: the item becomes idle.
    - `canceled` is the state of a canceled item; None: the same state as `dead`.
    """

    column: Column[Any]
    due: Enum
    held: Enum
    moves: frozenset[tuple[Enum, Enum]]
    ended: frozenset[Enum]
    dead: Enum | None = None
    canceled: Enum | None = None

    def stands(self, state: Enum) -> ColumnElement[bool]:
        """The item is in this state, as a literal, so that the planner can use a partial index."""
        return self.column == literal_column(f"'{state.value}'")

    def still(self, state: Enum) -> ColumnElement[bool]:
        """The same for an item that is looked up by key, in a form that no other index matches."""
        return unindexed(self.column) == bindparam(None, state.value, type_=String())


class Begun(msgspec.Struct, frozen=True):
    """The column counts attempts when they begin; a snooze or a shutdown refunds the attempt."""

    column: Column[Any]


class Failures(msgspec.Struct, frozen=True):
    """The column counts failed attempts."""

    column: Column[Any]


class ToState(msgspec.Struct, frozen=True):
    """A done item stays in the table, in this state."""

    state: Enum


class Delete(msgspec.Struct, frozen=True):
    """A done item is deleted."""


class Idle(msgspec.Struct, frozen=True):
    """A done item stays in the table and is not due; `sets` are further assignments, by column."""

    sets: Mapping[str, object] = {}


class More(msgspec.Struct, frozen=True, kw_only=True):
    """A held item for which new work arrives becomes due again instead of done.

    `seen` are columns that the claim has read; `arrived` compares their values with the row.
    """

    seen: tuple[Column[Any], ...]
    arrived: Callable[[Incoming], ColumnElement[bool]]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A settlement that was refused because the claim was lost, for the item's history."""

    key: Row
    attempt: int
    state: str | None
    words: str
    worker: str | None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The history table of the items.

    - `moved` records each move, in the statement of the move where the database allows it.
      Parameters of its statements: `prev`, `next` and `worker`. `claimed` records each claim.
    - `told` makes the values that are sent for `moved`: the attempt and the reason.
    - `refuse` records the settlement of a lost claim.
    """

    moved: Journal
    claimed: Journal
    told: Callable[[int, str | None], Row]
    refuse: Callable[[Transaction, Refusal], None]


class Items(msgspec.Struct, frozen=True, kw_only=True):
    """A table of leased items.

    - `name` is the prefix of the names of its statements.
    - `key` has one to four columns. `due` is the due time in ms; NULL: the item is not due. `order`
      is the order in which due items are claimed.
    - `token` and `lease` are the fence; `worker` is the id of the worker that holds the item.
    - An item with a `state` is held in the state `held`; one without a state while it has a lease.
    - `ready` is a further condition for a claim.
    - `attempts_max` is a column or a number; None: attempts are not limited.
    - `crashes` counts attempts whose worker died; without it an item never dies of crashes.
    - `body` is passed to the handler; `carries` are further columns that a claim reads.
    - `refuse` records the settlement of a lost claim, for items without a `history`.
    - `index` is the index of due items, for MySQL, which is told to use it.
    """

    name: str
    table: Table
    key: tuple[Column[Any], ...]
    due: Column[Any]
    order: tuple[ColumnElement[Any], ...]
    token: Column[Any]
    lease: Column[Any]
    done: ToState | Delete | Idle
    state: State | None = None
    ready: ColumnElement[bool] | None = None
    attempt: Begun | Failures | None = None
    attempts_max: Column[Any] | int | None = None
    worker: Column[Any] | None = None
    crashes: Column[Any] | None = None
    error: Column[Any] | None = None
    changed: Column[Any] | None = None
    body: Column[Any] | None = None
    result: Column[Any] | None = None
    carries: tuple[Column[Any], ...] = ()
    more: More | None = None
    history: History | None = None
    refuse: Callable[[Transaction, Refusal], None] | None = None
    index: str | None = None

    @property
    def held(self) -> ColumnElement[bool]:
        """The item, looked up by key, is held."""
        return self.lease.is_not(None) if self.state is None else self.state.still(self.state.held)

    def is_held_by(self, row: Incoming) -> ColumnElement[bool]:
        """The fence: the claim in `row` holds the item."""
        return and_(self.token == getattr(row, self.token.name), self.held)

    @property
    def next_token(self) -> ColumnElement[int]:
        """The token of the next claim or rescue."""
        now, following = now_ms(), self.token + 1
        return case((following > now, following), else_=now)

    @property
    def touched(self) -> dict[str, object]:
        """The assignments of every change, by column."""
        if self.changed is None:
            return {}
        in_ms = isinstance(self.changed.type, BigInteger)
        return {self.changed.name: now_ms() if in_ms else now_after(self.changed)}
