"""The contract of ranges that a sequencer scans again: for how long, and how much at once."""

from __future__ import annotations

import msgspec
import pytest

from ledgerstone import Ledger
from ledgerstone.errors import BadInput
from ledgerstone.items import sequencer as module
from ledgerstone.items.positions import LIMIT_MAX, Tail
from ledgerstone.items.sequencer import (
    FRESH_MS,
    LOOKS_SECONDS,
    RANGES_MAX,
    SWEEP_SECONDS,
    TOGETHER_MS,
    _merged,
    _NumberRange,
    _Rechecks,
)
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.waiting import until
from tests.contract.items.sequenced import event_progress, order, positions, sequencer, tables
from tests.contract.items.sequencer import turn, write


class RangesContract:
    """Fixtures: `ledger` and its `clock`."""

    @pytest.fixture(autouse=True)
    def events(self, ledger: Ledger) -> None:
        """The table of events."""
        tables.create_all(ledger.database.engine)

    def test_a_range_stays_fresh(self, ledger: Ledger, clock: ManualClock) -> None:
        """For a second a range is scanned again: a session may have a number and not be listed."""
        write(ledger, "a")
        turn(ledger)
        ranges = [_kept(ledger).ranges]
        clock.advance((FRESH_MS - TOGETHER_MS) / 1000)
        turn(ledger)
        ranges.append(_kept(ledger).ranges)

        fresh = 0 if ledger.database.dialect.one_writer else 1
        assert [len(found) for found in ranges] == [fresh, fresh]
        assert all(each.fresh_ms is not None for found in ranges for each in found)

    def test_looks_by_age(self, ledger: Ledger, clock: ManualClock) -> None:
        """Each age has its own look at what was new then, which is not done earlier."""
        write(ledger, "a")
        turn(ledger)
        done = []
        for seconds in (0, *LOOKS_SECONDS):
            clock.advance(seconds)
            turn(ledger)
            looks = _kept(ledger).looks
            done.append([look.done >= look.following for look in looks])

        ages = [[False] * 3, [True, False, False], [True, True, False], [True] * 3]
        assert done == ([[]] * 4 if ledger.database.dialect.one_writer else ages)

    def test_a_sweep_a_day(
        self, ledger: Ledger, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All rows are scanned a page at a turn, and not again before another day is over."""
        write(ledger, *"abcdef")
        turn(ledger)
        _rest(ledger, clock)
        monkeypatch.setattr(module, "PAGE_ROWS", 2)
        clock.advance(SWEEP_SECONDS)
        needed = ledger.run(sequencer.needed)
        turn(ledger)
        begun = _kept(ledger).swept
        until(lambda: turn(ledger) == 0 and _kept(ledger).swept is None, what="the sweep's end")
        next_ms = _kept(ledger).sweep_at_ms

        assert (needed, begun is not None) == (True, True)
        assert next_ms == clock.now_ms() + SWEEP_SECONDS * 1000
        assert sorted(order(ledger)) == sorted("abcdef")

    def test_a_read_has_its_end(self, ledger: Ledger) -> None:
        """One read asks for a bounded number of rows."""
        with ledger.reading() as tx, pytest.raises(BadInput, match="a read has 1 to"):
            positions.after(tx, 0, limit=LIMIT_MAX + 1)

    def test_a_tail_of_several_rows(self, ledger: Ledger) -> None:
        """A tail that was answered several rows goes on behind the last one."""
        write(ledger, *"abc")
        turn(ledger)

        with Tail(ledger.database, positions) as tail:
            found = [tail.wait(seconds=0, limit=limit) for limit in (2, 2, 2)]

        assert [[row.position for row in part] for part in found] == [[1, 2], [3], []]


class MergedContract:
    """Ranges that are merged, so that there are not too many."""

    def test_neighbours(self) -> None:
        """Ranges that began together, or that wait for the same transactions, become one."""
        together = [_NumberRange(0, 5, 1000), _NumberRange(5, 9, 1000 + TOGETHER_MS - 1)]
        alike = [_NumberRange(9, 12, None, [7]), _NumberRange(12, 15, None, [7])]
        other = [_NumberRange(15, 16, None, [8]), _NumberRange(16, 17, 5000)]

        merged = _merged([*together, *alike, *other])

        assert merged == [_NumberRange(0, 9, 1000), _NumberRange(9, 15, None, [7]), *other]

    def test_too_many(self) -> None:
        """The oldest are merged: they wait for the transactions of both, and stay fresh longest."""
        many = [
            _NumberRange(n, n + 1, None if n % 2 else 1000 * (n + 1), [n] if n % 2 else [])
            for n in range(RANGES_MAX + 4)
        ]

        merged = _merged(many)

        assert len(merged) == RANGES_MAX
        assert merged[0] == _NumberRange(0, 5, 5000, [1, 3])
        assert merged[1:] == many[5:]


def _kept(ledger: Ledger) -> _Rechecks:
    """What the sequencer has kept."""
    with ledger.reading() as tx:
        ((text,),) = tx.connection.execute(
            event_progress.select().with_only_columns(event_progress.c.looks)
        )
    return msgspec.json.decode(text, type=_Rechecks)


def _rest(ledger: Ledger, clock: ManualClock) -> None:
    """Turns until nothing is to be scanned again; others of this server may be under way."""

    def rests() -> bool:
        clock.advance(LOOKS_SECONDS[-1])
        turn(ledger)
        return not ledger.run(sequencer.needed)

    until(rests)
