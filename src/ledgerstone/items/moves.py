"""The moves of a held item, each of them one statement.

An outcome is a path of one move or two (running → failed → queued), in one transaction:

    Step(done) ──changed──▶ then: Step(…)
        │
        └─ diverted ──▶ otherwise: Step(again)

Every move changes one row and writes one row of history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnClause,
    Integer,
    and_,
    case,
    column,
    delete,
    false,
    not_,
    null,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from ledgerstone.items.declaration import Begun, Delete, Failures, Idle, Items, ToState
from ledgerstone.store.schema.columns import text_type
from ledgerstone.store.sql.batch import Incoming
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.locked_rows import ChangeEach
from ledgerstone.store.sql.statement import Row

DELAY = column("delay_ms", BigInteger())


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One move of an item.

    - `to` is the state after the move; `leaves` is the state before it, by default `held`.
    - `sets` makes the assignments beside the state and the lease; None: the item is deleted.
      `carries` are the columns that are sent for them.
    - `diverted` is a condition: an item that meets it is not changed and takes the step
      `otherwise`. `compares` are the columns that are sent for it, before `carries`.
    """

    name: str
    sets: Callable[[Incoming], Mapping[str, Any]] | None = lambda _: {}
    carries: Sequence[ColumnClause[Any]] = ()
    to: Enum | None = None
    leaves: Enum | None = None
    compares: Sequence[ColumnClause[Any]] = ()
    diverted: Callable[[Incoming], ColumnElement[bool]] | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A move of one item.

    - `row` are the values for the move, `told` the values for the history.
    - `then` is the step after it; `otherwise` replaces it if the item is diverted.
    """

    move: MoveStatement
    row: Row = ()
    told: Row = ()
    then: Step | None = None
    otherwise: Step | None = None

    def leads_to(self) -> set[str]:
        """Every state in which the path can end."""
        after = self.then.leads_to() if self.then is not None else {self.move.next or ""}
        return after | (self.otherwise.leads_to() if self.otherwise is not None else set())


class MoveStatement:
    """The statement of a move."""

    def __init__(self, items: Items, move: Move) -> None:
        state = items.state
        self.prev = _value(move.leaves or (state.held if state is not None else None))
        self.next = _value(move.to)
        self.deletes = move.sets is None
        if state is not None and move.to is not None:
            leaves = move.leaves or state.held
            assert (leaves, move.to) in state.moves, f"{leaves} → {move.to} is no move"

        def held(row: Incoming) -> ColumnElement[bool]:
            if move.leaves is None or state is None:
                return items.is_held_by(row)
            return and_(items.token == getattr(row, items.token.name), state.still(move.leaves))

        def diverted(row: Incoming) -> ColumnElement[bool]:
            return move.diverted(row) if move.diverted is not None else false()

        def guard(row: Incoming) -> ColumnElement[bool]:
            return held(row) if move.diverted is None else and_(held(row), not_(diverted(row)))

        def change(row: Incoming) -> Any:
            if move.sets is None:
                return delete(items.table)
            sets = {items.lease.name: null(), **items.touched}
            if move.to is not None and state is not None:
                sets[state.column.name] = move.to.value
            return update(items.table).values({**sets, **move.sets(row)})

        self.each = ChangeEach(
            f"{items.name}.{move.name}",
            items.table,
            key=items.key,
            fence=(items.token, *move.compares),
            guard=guard,
            change=change,
            carries=move.carries,
            looks=(
                items.token,
                state.column if state is not None else null(),
                case((items.held, 1), else_=0),
            ),
            journal=items.history.moved if items.history is not None else None,
        )


class Moves:
    """The moves of a table without moves of its own."""

    def __init__(self, items: Items) -> None:
        self._items = items
        self.done = MoveStatement(items, self._done())
        self.done_with = MoveStatement(items, self._done(items.result))
        self.again = MoveStatement(items, self._again())
        self.dead = MoveStatement(items, self._given_up("dead"))
        self.canceled = MoveStatement(items, self._given_up("canceled"))
        self.back = MoveStatement(items, self._back())

    def _done(self, result: Column[Any] | None = None) -> Move:
        items, done = self._items, self._items.done
        more = items.more
        seen = more.seen if more is not None else ()
        diverted = more.arrived if more is not None else None
        if isinstance(done, Delete):
            return Move(name="done", sets=None, compares=seen, diverted=diverted)
        written = dict(done.sets) if isinstance(done, Idle) else {}
        if isinstance(done, Idle):
            written[items.due.name] = null()
        if items.error is not None:
            written[items.error.name] = null()
        return Move(
            name="done" if result is None else "done_with",
            to=done.state if isinstance(done, ToState) else None,
            compares=seen,
            carries=() if result is None else (result,),
            sets=lambda row: (
                written if result is None else {**written, result.name: getattr(row, result.name)}
            ),
            diverted=diverted,
        )

    def _again(self) -> Move:
        """The item is due again: failed, snoozed, or returned unbegun."""
        items = self._items
        return Move(
            name="again",
            to=items.state.due if items.state is not None else None,
            carries=(*_COUNTED, DELAY, *self._words),
            sets=lambda row: {
                **self._counted(row),
                # A returned item keeps its due time, and with it its place in the order.
                items.due.name: case((row.delay_ms > 0, now_ms() + row.delay_ms), else_=items.due),
            },
        )

    def _given_up(self, name: str) -> Move:
        items, state = self._items, self._items.state
        to = (getattr(state, name) or state.dead or state.due) if state is not None else None
        # Without a state for such items, the due time is cleared.
        stays = state is None or to is state.due
        never = {items.due.name: null()} if stays else {}
        return Move(
            name=name,
            to=to,
            carries=(*_COUNTED, *self._words),
            sets=lambda row: {**self._counted(row), **never},
        )

    def _back(self) -> Move:
        """The item is due at once: its lease ran out."""
        items = self._items
        return Move(
            name="rescue",
            to=items.state.due if items.state is not None else None,
            carries=(*_COUNTED, *self._words),
            sets=lambda row: {**self._counted(row), items.due.name: now_ms()},
        )

    @property
    def _words(self) -> tuple[ColumnClause[Any], ...]:
        error = self._items.error
        return () if error is None else (column(error.name, text_type()),)

    def _counted(self, row: Incoming) -> dict[str, Any]:
        """The new counters of attempts, failures and crashes, and the error."""
        items, written = self._items, dict[str, Any]()
        match items.attempt:
            case Begun(counter):
                written[counter.name] = counter - row.refunded
            case Failures(counter):
                written[counter.name] = counter + row.failed
            case None:
                pass
        if items.crashes is not None:
            written[items.crashes.name] = items.crashes + row.crashed
        if items.error is not None:
            written[items.error.name] = getattr(row, items.error.name)
        return written


_COUNTED = (
    column("refunded", Integer()),
    column("failed", Integer()),
    column("crashed", Integer()),
)


def _value(state: Enum | None) -> str | None:
    return None if state is None else str(state.value)
