"""The sequencer: committed rows of a table get contiguous positions, after their commit.

    insert, commit ──▶ source: numbers, with gaps, in the order of the inserts
                          │  one sequencer of all, some milliseconds later
                          ▼
    positions after N ◀── log: 1, 2, 3 … without a gap, in the order in which commits became visible

A number that the database counts is no cursor for a reader: the row with number 17 may be committed
after the row with number 18, when the reader has passed by, and a number that was rolled back is
missing for ever. A position is given once the row is committed, never changes, and has no gap below
it: a reader that has seen position N asks for what comes after N and misses nothing. The insert
pays nothing for it.

One turn, in one transaction:

    1. `upto`: the highest number that is visible
    2. `under_way`: the transactions that are writing now
    3. look again at stretches of numbers in which a transaction has ended that was under way before
    4. give positions to the new rows up to `upto`; remember this stretch of numbers

A row up to `upto` had its number before step 2. So it is visible in step 4, or its transaction is
one of those under way, and then step 3 of a later turn finds it. A row that was inserted after
another one was committed is never before it: in step 4 its number would be above `upto`.

That holds between transactions. Rows of one transaction can be apart, and one of them that was
written later can be first, if it was committed in the middle of a turn.

A session has a number for a moment before the database counts its transaction among those that
write. So a stretch is looked at again at each turn for a second, and waits after that for those
that are under way then.

Where the transactions under way cannot be known (MySQL without the privilege PROCESS), a stretch is
looked at again when it is 2, 60 and 600 seconds old, or twice that at the most. These looks happen
wherever there are several writers. Once a day all rows are looked at. Late is not lost: a row gets
the next position when it is found.

A row of the log is removed only after the row of the source that it is for, or this gets a second
position. The numbers of the source are never used twice (`sqlite_autoincrement`), and a sequence of
PostgreSQL that counts them has `CACHE 1`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import BigInteger, bindparam, exists, func, insert, select, update

from ledgerstone.engine.duties import Duty
from ledgerstone.failpoints import hit
from ledgerstone.store.dialect import NotVisible
from ledgerstone.store.sql.batch import InsertEach
from ledgerstone.store.sql.expressions import now_ms
from ledgerstone.store.sql.statement import Statement

if TYPE_CHECKING:
    from ledgerstone.items.sequence import Sequence
    from ledgerstone.store.transaction import Transaction

EVERY_SECONDS = 0.25
"""How often a worker looks for new rows."""
PAGE_ROWS = 10_000
"""Rows that one statement looks at."""
PAGES_MAX = 20
"""Pages of one step of a turn, which is one transaction."""
LOOKS_SECONDS = (2, 60, 600)
"""When a stretch of numbers is looked at again, where there are several writers."""
SWEEP_SECONDS = 86_400
"""How often all rows are looked at."""
FRESH_MS = 1000
"""How long a session may have a number before its transaction is counted among those under way."""
TOGETHER_MS = 100
"""Stretches of so long are one."""
STRETCHES_MAX = 100
_LOWEST = -(2**63)


class _NumberRange(msgspec.Struct, array_like=True):
    """Numbers above `low`, up to `high`, of which some may belong to rows that nobody sees yet.

    `fresh_ms` is when it was looked at first; from a second later on it is None, and the rows can
    only be of the transactions that it waits for.
    """

    low: int
    high: int
    fresh_ms: int | None
    waits: list[int] = []


class _Recheck(msgspec.Struct, array_like=True):
    """Rows up to `done` were looked at again; those up to `following` are next."""

    done: int = _LOWEST
    following: int = _LOWEST
    at_ms: int = 0


class _Rechecks(msgspec.Struct):
    """What is still to be looked at again."""

    stretches: list[_NumberRange] = []
    looks: list[_Recheck] = []
    swept: int | None = None
    """How far the sweep under way has come."""
    sweep_at_ms: int = 0


class Sequencer:
    """Gives the committed rows of a sequence their positions.

    - Any number of processes may do it at once: a row of the progress table is locked for a turn.
    - A turn is one transaction: a process that dies in it has given no position.
    """

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self._statements = _Statements(sequence)

    def duty(self, *, every_seconds: float = EVERY_SECONDS) -> Duty:
        """The turns as a duty of workers: one worker of all at a time, under a fenced lease."""
        name = f"sequence:{self.sequence.name}"
        return Duty(name, every_seconds, self.append, needed=self.needed)

    def needed(self, tx: Transaction) -> bool:
        """Whether a turn would find something to do; reads only."""
        row = self._statements.look.one(tx, **self._statements.one_name)
        if row is None:
            return True
        _, head, text, now = row
        highest = self._statements.highest.rows(tx)[0][0]
        return (highest is not None and highest > head) or _due(text, now)

    def append(self, tx: Transaction) -> int:
        """One turn; how many rows got a position."""
        return _SequencerRun(self._statements, tx).run()


class _Statements:
    def __init__(self, sequence: Sequence) -> None:
        number, position, numbered = sequence.number, sequence.position, sequence.numbered
        source, log, progress = number.table, position.table, sequence.progress
        self.sequence = sequence
        self.one_name = {"name_": sequence.name}
        mine = progress.c.name == bindparam("name_", type_=progress.c.name.type)
        low, high = (bindparam(name, type_=BigInteger()) for name in ("low", "high"))
        within = (number > low, number <= high)
        self.create = InsertEach(
            "sequence.create",
            progress,
            incoming=(progress.c.name, progress.c.last_position, progress.c.head, progress.c.looks),
        )
        self.last = Statement(
            "sequence.last",
            select(func.coalesce(func.max(position), 0)).select_from(log),
        )
        looking = select(
            progress.c.last_position, progress.c.head, progress.c.looks, now_ms()
        ).where(mine)
        self.look = Statement("sequence.look", looking)
        self.progress = Statement("sequence.progress", looking.with_for_update())
        self.save = Statement(
            "sequence.save",
            update(progress)
            .where(mine)
            .values(
                last_position=bindparam("position_", type_=BigInteger()),
                head=bindparam("head_", type_=BigInteger()),
                looks=bindparam("looks_", type_=progress.c.looks.type),
            ),
        )
        self.highest = Statement("sequence.highest", select(func.max(number)).select_from(source))
        page = (
            select(number.label("number"))
            .where(*within)
            .order_by(number)
            .limit(bindparam("rows_max", type_=BigInteger()))
            .subquery("page")
        )
        self.page_end = Statement("sequence.page_end", select(func.max(page.c.number)))
        # Its bounds are said twice, so that no more of the log is read than this part of it.
        there = exists().where(numbered == number, numbered > low, numbered <= high)
        missing = select(number.label("number")).where(*within, ~there).subquery("missing")
        following = func.row_number().over(order_by=missing.c.number)
        self.append = Statement(
            "sequence.append",
            insert(log).from_select(
                [position.name, numbered.name],
                select(bindparam("last", type_=BigInteger()) + following, missing.c.number),
                include_defaults=False,
            ),
        )


class _SequencerRun:
    """One turn, as far as its pages go."""

    def __init__(self, statements: _Statements, tx: Transaction) -> None:
        self._statements = statements
        self._tx = tx
        self._pages = PAGES_MAX
        row = self._progress()
        self._position, self._head, text, self._now_ms = row
        self._before = row
        self._looks = msgspec.json.decode(text, type=_Rechecks)

    def run(self) -> int:
        """The steps, in their order."""
        upto = self._statements.highest.rows(self._tx)[0][0]
        under_way = self._tx.database.dialect.under_way(self._tx)
        if self._ended(under_way) and upto is not None:
            self._new(upto)
        if not self._tx.database.dialect.one_writer:
            self._late(under_way)
        self._sweep()
        appended: int = self._position - self._before[0]
        if appended:
            hit("sequencer.appended")
            self._tx.wake(self._statements.sequence.channel)
        self._save()
        return appended

    def _ended(self, under_way: frozenset[int] | NotVisible) -> bool:
        """Look again where a transaction may have ended; whether that was all of it."""
        complete = True
        left: list[_NumberRange] = []
        for stretch in self._looks.stretches:
            after = self._after(stretch, under_way)
            known = under_way is not NotVisible.NOW
            if after == stretch and stretch.fresh_ms is None and known:
                left.append(stretch)
                continue
            reached = self._scan(stretch.low, stretch.high)
            if reached > stretch.low and (after.waits or after.fresh_ms is not None):
                left.append(msgspec.structs.replace(after, high=reached))
            if reached < stretch.high:
                complete = False
                left.append(msgspec.structs.replace(stretch, low=reached))
        self._looks.stretches = _merged(left)
        return complete

    def _after(self, stretch: _NumberRange, under_way: frozenset[int] | NotVisible) -> _NumberRange:
        """The stretch as it is once it was looked at."""
        if stretch.fresh_ms is None:
            if isinstance(under_way, NotVisible):
                return stretch
            waits = under_way.intersection(stretch.waits)
        elif (
            self._now_ms < stretch.fresh_ms + FRESH_MS + TOGETHER_MS or under_way is NotVisible.NOW
        ):
            return stretch
        else:
            waits = frozenset[int]() if isinstance(under_way, NotVisible) else under_way
        return _NumberRange(stretch.low, stretch.high, None, sorted(waits))

    def _new(self, upto: int) -> None:
        """Positions for rows that nobody has looked at yet."""
        if upto <= self._head:
            return
        self._pages = PAGES_MAX
        reached = self._scan(self._head, upto)
        if not self._tx.database.dialect.one_writer:
            stretch = _NumberRange(self._head, reached, self._now_ms)
            self._looks.stretches = _merged([*self._looks.stretches, stretch])
        self._head = reached

    def _late(self, under_way: frozenset[int] | NotVisible) -> None:
        """Look again by age."""
        self._pages = PAGES_MAX
        looks = self._looks.looks
        looks += [_Recheck(at_ms=self._now_ms) for _ in LOOKS_SECONDS[len(looks) :]]
        for look, seconds in zip(looks, LOOKS_SECONDS, strict=True):
            if look.following > look.done and self._now_ms >= look.at_ms + seconds * 1000:
                look.done = self._scan(look.done, look.following)
            if look.following <= look.done and self._head > look.done:
                look.following, look.at_ms = self._head, self._now_ms
        if under_way is NotVisible.ALWAYS:
            # Nothing tells when the transactions of these end: the looks were all that can be done.
            done = looks[-1].done
            kept = [s for s in self._looks.stretches if s.fresh_ms is not None or s.high > done]
            self._looks.stretches = kept

    def _sweep(self) -> None:
        """Look at all rows, a part each turn, once in a while."""
        looks = self._looks
        if looks.sweep_at_ms == 0:
            looks.sweep_at_ms = self._now_ms + SWEEP_SECONDS * 1000
        if looks.swept is None and self._now_ms >= looks.sweep_at_ms:
            looks.swept = _LOWEST
        if looks.swept is None:
            return
        self._pages = 1
        looks.swept = self._scan(looks.swept, self._head)
        if looks.swept >= self._head:
            looks.swept = None
            looks.sweep_at_ms = self._now_ms + SWEEP_SECONDS * 1000

    def _scan(self, low: int, high: int) -> int:
        """Give positions to rows of these numbers that have none; how far that came."""
        while low < high and self._pages:
            self._pages -= 1
            within = {"low": low, "high": high}
            end = self._statements.page_end.rows(self._tx, **within, rows_max=PAGE_ROWS)[0][0]
            if end is None:
                return high
            self._position += self._statements.append.run(
                self._tx, low=low, high=end, last=self._position
            )
            low = end
        return low

    def _progress(self) -> Any:
        statements, tx = self._statements, self._tx
        row = statements.progress.one(tx, **statements.one_name)
        if row is None:
            last = statements.last.rows(tx)[0][0]
            looks = msgspec.json.encode(_Rechecks()).decode()
            statements.create.run(tx, [(statements.sequence.name, last, _LOWEST, looks)])
            row = statements.progress.one(tx, **statements.one_name)
        return row

    def _save(self) -> None:
        text = msgspec.json.encode(self._looks).decode()
        if (self._position, self._head, text) == tuple(self._before[:3]):
            return
        saved = {"position_": self._position, "head_": self._head, "looks_": text}
        self._statements.save.run(self._tx, **saved, **self._statements.one_name)
        hit("sequencer.saved")


def _due(text: str, now: int) -> bool:
    """Whether something is to be looked at again by now."""
    looks = msgspec.json.decode(text, type=_Rechecks)
    aged = any(
        look.following > look.done and now >= look.at_ms + seconds * 1000
        for look, seconds in zip(looks.looks, LOOKS_SECONDS, strict=False)
    )
    return aged or bool(looks.stretches) or looks.swept is not None or now >= looks.sweep_at_ms


def _merged(stretches: list[_NumberRange]) -> list[_NumberRange]:
    """Neighbours of one kind as one; not more than so many in all."""
    merged: list[_NumberRange] = []
    for stretch in stretches:
        if merged and _alike(merged[-1], stretch):
            merged[-1] = msgspec.structs.replace(merged[-1], high=stretch.high)
        else:
            merged.append(stretch)
    while len(merged) > STRETCHES_MAX:
        first, second = merged[:2]
        fresh = [s.fresh_ms for s in (first, second) if s.fresh_ms is not None]
        waits = sorted({*first.waits, *second.waits})
        merged[:2] = [_NumberRange(first.low, second.high, max(fresh, default=None), waits)]
    return merged


def _alike(first: _NumberRange, second: _NumberRange) -> bool:
    """Whether two stretches are looked at again for the same reasons."""
    if first.fresh_ms is None or second.fresh_ms is None:
        return first.fresh_ms is second.fresh_ms and first.waits == second.waits
    return 0 <= second.fresh_ms - first.fresh_ms < TOGETHER_MS
