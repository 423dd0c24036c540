"""A table of leased items, declared once.

                       ┌───────────── due again: failed, snoozed, returned, more arrived ─────┐
                       ▼                                                                      │
    accepted ───────▶ due ──claim──▶ held ──settle──▶ done · dead · canceled · gone · idle    │
                       ▲   token up   │ │                                                     │
                       │  attempt up  │ └─────────────────────────────────────────────────────┘
                       └────rescue────┘ the lease ran out: token up, crashes up; dead at the last

An item is held by one claim at a time: the one that has its token. Every claim and every rescue
raises the token to `greatest(token + 1, now_ms)`, so it never goes back, also after the row was
deleted and inserted again. A write of a claim compares the token, and that the item is held, in the
statement that changes it, and nothing else: the token alone tells one claim from the next.

Names are mapped: a table that another program knows keeps its own. What is special to a room stays
there: it claims by a statement of its own (`claim.taken` is what it sets), or settles by moves of
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
    """The states of an item, and the only moves between them.

    - `ended` are the states that no claim leads out of.
    - `dead` is where an item goes that is given up; None: it is idle from then on.
    - `canceled` is where an item goes that need not be done; None: where one goes that is done.
    """

    column: Column[Any]
    due: Enum
    held: Enum
    moves: frozenset[tuple[Any, Any]]
    ended: frozenset[Any]
    dead: Enum | None = None
    canceled: Enum | None = None

    def stands(self, state: Enum) -> ColumnElement[bool]:
        """An item stands here: spelled out in the statement, so that a partial index is found."""
        return self.column == literal_column(f"'{state.value}'")

    def still(self, state: Enum) -> ColumnElement[bool]:
        """An item that is found by its key stands here: no other index is tried for it."""
        return unindexed(self.column) == bindparam(None, state.value, type_=String())


class Begun(msgspec.Struct, frozen=True):
    """The attempts of an item are counted when they begin; one that does not count is refunded."""

    column: Column[Any]


class Failures(msgspec.Struct, frozen=True):
    """What is counted is how often an item has failed."""

    column: Column[Any]


class ToState(msgspec.Struct, frozen=True):
    """An item that is done stays, in this state."""

    state: Enum


class Delete(msgspec.Struct, frozen=True):
    """An item that is done is deleted."""


class Idle(msgspec.Struct, frozen=True):
    """An item that is done stays, and is not due; `sets` is what else is written, by column."""

    sets: Mapping[str, Any] = {}


class More(msgspec.Struct, frozen=True, kw_only=True):
    """When work arrived while an item was held: it is due again instead of done.

    `seen` are columns whose values the claim has read; `arrived` compares them with the row.
    """

    seen: tuple[Column[Any], ...]
    arrived: Callable[[Incoming], ColumnElement[bool]]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that was lost and tried to settle, to be put on record."""

    key: Row
    attempt: int
    state: str | None
    words: str
    worker: str | None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Where every move of an item is on record.

    - `moved` is told of each move, by the statement that makes it where the database can; its
      statements have the parameters `prev`, `next` and `worker`. `claimed` is told of each claim.
    - `told` makes what travels for `moved`: the attempt, and why the item moved.
    - `refuse` writes down the settlement of a claim that was lost.
    """

    moved: Journal
    claimed: Journal
    told: Callable[[int, str | None], Row]
    refuse: Callable[[Transaction, Refusal], None]


class Items(msgspec.Struct, frozen=True, kw_only=True):
    """A table of leased items.

    - `name` begins the names of its statements.
    - `key` has one to four columns. `due` is when an item is due, in ms; NULL is never. `order` is
      in which order due items are claimed.
    - `token` and `lease` are the fence; `worker` says who holds an item.
    - An item is held while its `state` says so; without a state, while it has a lease.
    - `ready` is what else has to hold for an item to be claimed.
    - `attempts_max` is a column or a number; None: an item may fail for ever.
    - `crashes` counts workers that died with an item; without it none is given up for that.
    - `body` is what the handler is given, `carries` what else a claim has read.
    - `index` is the index of what is due, where MySQL has to be told.
    """

    name: str
    table: Table
    key: tuple[Column[Any], ...]
    due: Column[Any]
    order: tuple[Any, ...]
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
    index: str | None = None

    @property
    def held(self) -> ColumnElement[bool]:
        """An item that is found by its key is held."""
        return self.lease.is_not(None) if self.state is None else self.state.still(self.state.held)

    def is_held_by(self, row: Incoming) -> ColumnElement[bool]:
        """The fence: the item is held, by the claim that travels."""
        return and_(self.token == getattr(row, self.token.name), self.held)

    @property
    def next_token(self) -> ColumnElement[int]:
        """The token of the next claim or rescue."""
        now, following = now_ms(), self.token + 1
        return case((following > now, following), else_=now)

    @property
    def touched(self) -> dict[str, Any]:
        """What every change writes."""
        if self.changed is None:
            return {}
        in_ms = isinstance(self.changed.type, BigInteger)
        return {self.changed.name: now_ms() if in_ms else now_after(self.changed)}
