"""Reading a sequence by position: the rows after a position, and a tail that waits for new rows."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sqlalchemy import BigInteger, Column, bindparam, select

from ledgerstone.errors import BadInput
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.wakeup import WakeSignal

if TYPE_CHECKING:
    from ledgerstone.items.sequence import Sequence
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

LIMIT_MAX = 10_000
"""The most rows of one read."""
POLL_SECONDS = 0.5
"""A tail reads again after this time without a wake-up."""


class PositionedRow(NamedTuple):
    """A row with a position; its `values` are None if the row was deleted."""

    position: int
    number: int
    values: tuple[object, ...]


class Positions:
    """Reads a sequence by position, with `columns` of its source table."""

    def __init__(self, sequence: Sequence, columns: Collection[Column[Any]] = ()) -> None:
        self.sequence = sequence
        number, position, numbered = sequence.number, sequence.position, sequence.numbered
        of = position.table.outerjoin(number.table, number == numbered)
        self._after = Statement(
            "sequence.after",
            select(position, numbered, *columns)
            .select_from(of if columns else position.table)
            .where(position > bindparam("after", type_=BigInteger()))
            .order_by(position)
            .limit(bindparam("limit", type_=BigInteger())),
        )

    def after(self, tx: Transaction, position: int, *, limit: int = 1000) -> list[PositionedRow]:
        """At most `limit` rows after `position`, in order; 0 is before the first row."""
        if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
            raise BadInput(f"a read has 1 to {LIMIT_MAX} rows, not {limit!r}")
        rows = self._after.rows(tx, after=position, limit=limit)
        return [PositionedRow(row[0], row[1], tuple(row[2:])) for row in rows]


class Tail:
    """Follows a sequence: waits for rows after a position.

        with Tail(database, Positions(EVENTS, [event.c.body]), after=seen) as tail:
            for row in tail.wait(seconds=10):
                …

    - `after` is the last position that `wait` returned. A reader that stores it, best in the
      transaction in which it processes the rows, continues there after a restart.
    - A tail polls; a wake-up only shortens the wait (`store/wakeup.py`).
    """

    def __init__(self, database: Database[Any], positions: Positions, *, after: int = 0) -> None:
        self.after = after
        self._database = database
        self._positions = positions
        self._wake_signal = WakeSignal()
        self._watcher = database.watcher()

    def __enter__(self) -> Self:
        self._database.wake_signals.subscribe(self._positions.sequence.channel, self._wake_signal)
        if self._watcher is not None:
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        self._database.wake_signals.unsubscribe(self._positions.sequence.channel, self._wake_signal)

    def wait(self, *, seconds: float, limit: int = 1000) -> list[PositionedRow]:
        """The next rows, as soon as there are some; an empty list after `seconds`."""
        monotonic = self._database.clock.monotonic
        until = monotonic() + seconds
        while True:
            with self._database.reading() as tx:
                rows = self._positions.after(tx, self.after, limit=limit)
            left = until - monotonic()
            if rows or left <= 0:
                break
            self._wake_signal.wait(min(left, POLL_SECONDS))
        if rows:
            self.after = rows[-1].position
        return rows
