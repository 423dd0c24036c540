"""The sequencer: gives committed rows of a table contiguous positions, after their commit.

    insert, commit ──▶ source: numbers with gaps, in the order of the inserts
                          │  one sequencer, some milliseconds later
                          ▼
    positions after N ◀── log: 1, 2, 3 … without gaps, in the order in which commits became visible

An auto-increment number is not a cursor: the row with number 17 may commit after the row with
number 18, when a reader is past both, and a rolled back number stays a gap. The sequencer gives a
position only to a committed row. A position never changes, and no position below it is missing. So
a reader that has seen position N reads the rows after N and misses nothing. The insert costs
nothing extra.

One run, in one transaction:

    1. `upto`: read the highest visible number
    2. `under_way`: read which transactions are writing
    3. scan the number ranges again in which such a transaction has ended since the last run
    4. give positions to new rows up to `upto`; store their range with the writing transactions

A row up to `upto` got its number before step 2. So either it is visible in step 4, or its
transaction is in `under_way`, and step 3 of a later run finds the row. A row that was inserted
after another row was committed never gets a lower position: in step 4 its number is above `upto`.

This order holds between transactions. Rows of one transaction can get positions that are apart and
in another order than their numbers, if the transaction commits during a run.

A session has its number shortly before the database lists its transaction as writing. So each run
scans a range again for one second, and after that waits for the transactions in `under_way`.

If the writing transactions are not visible (MySQL without the privilege PROCESS), a range is
scanned again when it is 2, 60 and 600 seconds old, or up to twice that. These scans run on every
database with several writers. Once a day all rows are scanned. A late row is not lost: it gets the
next position when a scan finds it.

Delete a row of the log only after its source row, or the source row gets a second position. The
source never reuses a number (`sqlite_autoincrement`); a sequence of PostgreSQL has `CACHE 1`.
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
"""The interval of the runs."""
PAGE_ROWS = 10_000
"""Rows that one statement scans."""
PAGES_MAX = 20
"""Pages of each step of a run, which is one transaction."""
LOOKS_SECONDS = (2, 60, 600)
"""The ages at which a number range is scanned again, on a database with several writers."""
SWEEP_SECONDS = 86_400
"""The interval of the scan of all rows."""
FRESH_MS = 1000
"""The time for which a session may have a number before its transaction is listed as writing."""
TOGETHER_MS = 100
"""Ranges that begin within this time are merged."""
RANGES_MAX = 100
_LOWEST = -(2**63)


class _NumberRange(msgspec.Struct, array_like=True):
    """Numbers above `low`, up to `high`, some of which may belong to rows that are not visible yet.

    `fresh_ms` is the time of the first scan. One second later it becomes None: from then on only
    the transactions in `waits` can make rows of the range visible.
    """

    low: int
    high: int
    fresh_ms: int | None
    waits: list[int] = []


class _Recheck(msgspec.Struct, array_like=True):
    """Numbers up to `done` were scanned again; those up to `following` are next."""

    done: int = _LOWEST
    following: int = _LOWEST
    at_ms: int = 0


class _Rechecks(msgspec.Struct):
    """The ranges to be scanned again, as the progress table stores them."""

    ranges: list[_NumberRange] = msgspec.field(default_factory=list, name="stretches")
    looks: list[_Recheck] = []
    swept: int | None = None
    """The progress of the scan of all rows; None while none runs."""
    sweep_at_ms: int = 0


class Sequencer:
    """Gives the committed rows of a sequence their positions.

    - Several processes may call `append` at once: each run locks its row of the progress table.
    - A run is one transaction: a process that dies in it has given no position.
    """

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self._statements = _Statements(sequence)

    def duty(self, *, every_seconds: float = EVERY_SECONDS) -> Duty:
        """The runs as a duty of workers: one worker at a time, under a fenced lease."""
        name = f"sequence:{self.sequence.name}"
        return Duty(name, every_seconds, self.append, needed=self.needed)

    def needed(self, tx: Transaction) -> bool:
        """Whether a run would find something to do; reads only."""
        row = self._statements.look.one(tx, **self._statements.one_name)
        if row is None:
            return True
        _, head, text, now = row
        highest = self._statements.highest.rows(tx)[0][0]
        return (highest is not None and highest > head) or _due(text, now)

    def append(self, tx: Transaction) -> int:
        """One run; returns how many rows got a position."""
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
        # The bounds are repeated for the log, so that only this part of its index is read.
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
    """One run."""

    def __init__(self, statements: _Statements, tx: Transaction) -> None:
        self._statements = statements
        self._tx = tx
        self._pages = PAGES_MAX
        row = self._progress()
        self._position, self._head, text, self._now_ms = row
        self._before = row
        self._looks = msgspec.json.decode(text, type=_Rechecks)

    def run(self) -> int:
        """The steps, in order; returns how many rows got a position."""
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
        """Step 3; returns whether every range was scanned completely."""
        complete = True
        left: list[_NumberRange] = []
        for numbers in self._looks.ranges:
            after = self._after(numbers, under_way)
            known = under_way is not NotVisible.NOW
            if after == numbers and numbers.fresh_ms is None and known:
                left.append(numbers)
                continue
            reached = self._scan(numbers.low, numbers.high)
            if reached > numbers.low and (after.waits or after.fresh_ms is not None):
                left.append(msgspec.structs.replace(after, high=reached))
            if reached < numbers.high:
                complete = False
                left.append(msgspec.structs.replace(numbers, low=reached))
        self._looks.ranges = _merged(left)
        return complete

    def _after(self, numbers: _NumberRange, under_way: frozenset[int] | NotVisible) -> _NumberRange:
        """The range as it is stored after this scan."""
        if numbers.fresh_ms is None:
            if isinstance(under_way, NotVisible):
                return numbers
            waits = under_way.intersection(numbers.waits)
        elif (
            self._now_ms < numbers.fresh_ms + FRESH_MS + TOGETHER_MS or under_way is NotVisible.NOW
        ):
            return numbers
        else:
            waits = frozenset[int]() if isinstance(under_way, NotVisible) else under_way
        return _NumberRange(numbers.low, numbers.high, None, sorted(waits))

    def _new(self, upto: int) -> None:
        """Step 4: positions for rows that were not scanned yet."""
        if upto <= self._head:
            return
        self._pages = PAGES_MAX
        reached = self._scan(self._head, upto)
        if not self._tx.database.dialect.one_writer:
            numbers = _NumberRange(self._head, reached, self._now_ms)
            self._looks.ranges = _merged([*self._looks.ranges, numbers])
        self._head = reached

    def _late(self, under_way: frozenset[int] | NotVisible) -> None:
        """Scan again by age."""
        self._pages = PAGES_MAX
        looks = self._looks.looks
        looks += [_Recheck(at_ms=self._now_ms) for _ in LOOKS_SECONDS[len(looks) :]]
        for look, seconds in zip(looks, LOOKS_SECONDS, strict=True):
            if look.following > look.done and self._now_ms >= look.at_ms + seconds * 1000:
                look.done = self._scan(look.done, look.following)
            if look.following <= look.done and self._head > look.done:
                look.following, look.at_ms = self._head, self._now_ms
        if under_way is NotVisible.ALWAYS:
            # The ends of these transactions are not visible: the scans by age must be enough.
            done = looks[-1].done
            kept = [s for s in self._looks.ranges if s.fresh_ms is not None or s.high > done]
            self._looks.ranges = kept

    def _sweep(self) -> None:
        """Scan all rows once a day, one page in each run."""
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
        """Give positions to rows of this range without one; returns the last number scanned."""
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
    """Whether a range is to be scanned again now."""
    looks = msgspec.json.decode(text, type=_Rechecks)
    aged = any(
        look.following > look.done and now >= look.at_ms + seconds * 1000
        for look, seconds in zip(looks.looks, LOOKS_SECONDS, strict=False)
    )
    return aged or bool(looks.ranges) or looks.swept is not None or now >= looks.sweep_at_ms


def _merged(ranges: list[_NumberRange]) -> list[_NumberRange]:
    """The ranges with similar neighbours merged; at most `RANGES_MAX`."""
    merged: list[_NumberRange] = []
    for numbers in ranges:
        if merged and _alike(merged[-1], numbers):
            merged[-1] = msgspec.structs.replace(merged[-1], high=numbers.high)
        else:
            merged.append(numbers)
    while len(merged) > RANGES_MAX:
        first, second = merged[:2]
        fresh = [s.fresh_ms for s in (first, second) if s.fresh_ms is not None]
        waits = sorted({*first.waits, *second.waits})
        merged[:2] = [_NumberRange(first.low, second.high, max(fresh, default=None), waits)]
    return merged


def _alike(first: _NumberRange, second: _NumberRange) -> bool:
    """Whether two neighbouring ranges wait for the same transactions or the same age."""
    if first.fresh_ms is None or second.fresh_ms is None:
        return first.fresh_ms is second.fresh_ms and first.waits == second.waits
    return 0 <= second.fresh_ms - first.fresh_ms < TOGETHER_MS
