"""Order at commit: the places of the rows of a stream follow the order of the commits.

The auto-increment number of a row is its place in its stream. The database generates it at the
insert, so a row that was inserted first may be committed last. Therefore each stream has a head: a
row with the highest committed place. The last step before a commit locks the heads of the streams
that the transaction wrote to, in key order, and compares:

    head.last < our first place    the usual case: our last place is written to the head
    head.last > our first place    a later transaction committed first: our rows get new places

No transaction waits for another one before its commit, and heads are locked in key order, so two
transactions cannot deadlock on them. The commit of a transaction that was joined through a driver's
connection is not visible: there the head is locked when rows are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import BigInteger, Column, bindparam, column, delete, select, update

from ledgerstone.errors import StoreBusy
from ledgerstone.store.sql.batch import AddEach, Incoming, InsertEach, UpdateEach, WithRows
from ledgerstone.store.sql.statement import Row, Statement

if TYPE_CHECKING:
    from sqlalchemy.sql.elements import ColumnClause

    from ledgerstone.store.transaction import Transaction


class Stream(NamedTuple):
    """A stream that rows are added to: the key of its head, and values for the head.

    - `named` are the values of a new head; `told` are written to the head at each commit.
    """

    key: str
    named: Row = ()
    told: Row = ()


class _Placed(msgspec.Struct):
    """The places that a transaction took in one stream."""

    stream: Stream
    places: list[int]
    returned: int | None = None
    """The highest old place that a row was written back to; the head is then checked at once."""

    @property
    def last(self) -> int:
        """The highest place."""
        return max([*self.places, self.returned or 0])


class OrderedRows:
    """A table whose rows have places.

    - `add` inserts the rows; the database generates `add.number`.
    - `named` are the columns that identify the stream of a row.
    """

    def __init__(self, name: str, add: AddEach, *, named: Sequence[Column[Any]]) -> None:
        self.add = add
        rows, number = add.table, add.number
        kept = [c for c in rows.c if c is not number and c not in set(named)]
        place = column("place", BigInteger())
        self.copy = AddEach(
            f"{name}.move",
            rows,
            incoming=(*named, place),
            values=lambda row: {
                c.name: select(c).where(number == row.place).scalar_subquery() for c in kept
            },
        )
        self.remove = WithRows(
            f"{name}.remove",
            incoming=(place,),
            build=lambda row: delete(rows).where(number.in_(select(row.place))),
        )
        self.there = WithRows(
            f"{name}.there",
            incoming=(place,),
            build=lambda row: select(number).where(number.in_(select(row.place))).order_by(number),
        )


class CommitOrder:
    """The heads of streams, and the placing of rows at the commit.

    - `key` and `last` are columns of the table of heads.
    - `named` and `told` are the columns for the values of a `Stream`.
    - `opened` makes further values of a new head, `followed` further values of a head when rows
      were added, `again` values of a head when a row was written back to an old place.
    """

    def __init__(
        self,
        name: str,
        *,
        key: Column[Any],
        last: Column[Any],
        named: Sequence[Column[Any]] = (),
        told: Sequence[ColumnClause[Any]] = (),
        opened: Callable[[Incoming], Mapping[str, Any]],
        followed: Callable[[Incoming], Mapping[str, Any]],
        again: Mapping[str, Any],
    ) -> None:
        self.name = name
        heads = key.table
        mine = key == bindparam("key_", type_=key.type)
        self._known = WithRows(
            f"{name}.known_heads",
            incoming=(key,),
            build=lambda row: select(key).where(key.in_(select(getattr(row, key.name)))),
        )
        first, highest = column("first", BigInteger()), column("last", BigInteger())
        self._follow = UpdateEach(
            f"{name}.follow",
            key=key,
            incoming=(key, first, highest, *told),
            build=lambda row: (
                update(heads)
                .where(key == getattr(row, key.name), last < row.first)
                .values({last.name: row.last, **followed(row)})
            ),
        )
        self._open = InsertEach(
            f"{name}.open_head",
            heads,
            incoming=(key, last, *named, *told),
            values=opened,
            locks=True,
        )
        self._lock = Statement(f"{name}.lock_head", select(last).where(mine).with_for_update())
        self._again = Statement(f"{name}.again", update(heads).where(mine).values(again))

    def add(
        self, tx: Transaction, rows: OrderedRows, new: Sequence[tuple[Stream | None, Row]]
    ) -> list[int]:
        """Insert rows, each into its stream if it has one; returns their places so far."""
        places = rows.add.run(tx, [row for _, row in new])
        for (stream, _), place in zip(new, places, strict=True):
            if stream is not None:
                self._noted(tx, stream).places.append(place)
        self._at_commit(tx, rows)
        return places

    def came_back(self, tx: Transaction, rows: OrderedRows, stream: Stream, place: int) -> None:
        """Note that a row was written back to its old place: the head must be read again there."""
        placed = self._noted(tx, stream)
        placed.returned = max(placed.returned or 0, place)
        self._at_commit(tx, rows)

    def open(self, tx: Transaction, streams: Sequence[Stream]) -> None:
        """Create the missing heads of streams that another program wrote to."""
        if streams:
            self._open.run(tx, sorted((s.key, 0, *s.named, *s.told) for s in streams))

    @contextmanager
    def all_or_nothing(self, tx: Transaction) -> Iterator[None]:
        """Roll back a block that raises, by a savepoint, in a joined transaction.

        The caller may catch the error and commit: on MySQL a lock timeout rolls back only its own
        statement.
        """
        if not tx.joined:
            yield
            return
        placed = self._placed(tx)
        before = {
            key: msgspec.structs.replace(each, places=[*each.places])
            for key, each in placed.items()
        }
        try:
            with tx.savepoint():
                yield
        except BaseException:
            placed = self._placed(tx)
            placed.clear()
            placed.update(before)
            raise

    def _placed(self, tx: Transaction) -> dict[str, _Placed]:
        placed: dict[str, _Placed] = tx.notes.setdefault(f"{self.name}.placed", {})
        return placed

    def _noted(self, tx: Transaction, stream: Stream) -> _Placed:
        return self._placed(tx).setdefault(stream.key, _Placed(stream, []))

    def _at_commit(self, tx: Transaction, rows: OrderedRows) -> None:
        if self._placed(tx):
            tx.at_commit(f"{self.name}.order", lambda: self._follow_commits(tx, rows))

    def _follow_commits(self, tx: Transaction, rows: OrderedRows) -> None:
        """Make the places of this transaction the highest ones of their streams."""
        streams = dict(sorted(self._placed(tx).items()))
        self._placed(tx).clear()
        # Not in a joined transaction: at REPEATABLE READ, MySQL gap-locks a missing head.
        if (len(streams) == 1 and not tx.joined) or tx.database.dialect.one_writer:
            behind = [
                _following(placed)
                for placed in streams.values()
                if placed.places and placed.returned is None
            ]
            left = {behind[i][0] for i in self._follow.run(tx, behind)} if behind else set()
            done = {row[0] for row in behind} - left
            streams = {key: placed for key, placed in streams.items() if key not in done}
        if streams:
            self._take_places(tx, rows, streams)

    def _take_places(
        self, tx: Transaction, rows: OrderedRows, streams: Mapping[str, _Placed]
    ) -> None:
        """The same for streams that may be new, or to which another transaction has committed.

        New heads are inserted before any head is locked, both in key order: so a transaction that
        waits for a head holds no head that another one waits for.
        """
        known = {str(row[0]) for row in self._known.rows(tx, [(key,) for key in streams])}
        new = [
            (key, placed.last, *placed.stream.named, *placed.stream.told)
            for key, placed in streams.items()
            if key not in known
        ]
        if new:
            self._open.run(tx, new)
        locked = [(key, self._lock.later(tx, key_=key)) for key in streams]
        behind = []
        for key, answer in locked:
            found = answer()
            if not found:
                message = f"the head of a stream of {self.name} was removed at this very moment"
                raise StoreBusy(message, hint="run the transaction again")
            last, placed = found[0][0], streams[key]
            if placed.returned is not None:
                self._again.run(tx, key_=key)
            if not placed.places or last == max(placed.places):
                # This transaction inserted the head: no other one has a place of this stream.
                continue
            if last > min(placed.places):
                placed.places = _moved(tx, rows, placed)
            behind.append(_following(placed))
        if behind:
            self._follow.run(tx, behind)


def _following(placed: _Placed) -> Row:
    return placed.stream.key, min(placed.places), max(placed.places), *placed.stream.told


def _moved(tx: Transaction, rows: OrderedRows, placed: _Placed) -> list[int]:
    """Give the rows new places; rows that a savepoint rolled back are left out."""
    there = rows.there.rows(tx, [(place,) for place in placed.places])
    if not there:
        return placed.places
    moved = rows.copy.run(tx, [(*placed.stream.named, row[0]) for row in there])
    rows.remove.run(tx, [(row[0],) for row in there])
    return moved
