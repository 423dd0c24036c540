"""The page contract: every row once, in order, from a cursor that cannot be mistaken."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import BigInteger, Column, Index, MetaData, String, Table, bindparam, insert, select

from ledgerstone.errors import BadInput
from ledgerstone.ids import new_id
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.store.schema.columns import MYSQL_TABLE, NAMING, id_type
from ledgerstone.store.sql import pages
from ledgerstone.store.sql.pages import LIMIT_MAX, Keyset
from ledgerstone.testing.fixtures import Home
from tests.harness.ledgers import another, opened, undone

tables = MetaData(naming_convention=NAMING)
entry = Table(
    "entry",
    tables,
    Column("id", id_type(), primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("kind", String(255), nullable=False),
    Index("idx_entry_at_ms_id", "at_ms", "id"),
    Index("idx_entry_kind_at_ms_id", "kind", "at_ms", "id"),
    **MYSQL_TABLE,
)
Entry = tuple[str, int, str]

_columns = select(entry.c.id, entry.c.at_ms, entry.c.kind)
_order = (entry.c.at_ms, entry.c.id)


def _entry(row: tuple[Any, ...]) -> Entry:
    return (str(row[0]), row[1], row[2])


oldest_first = Keyset("entries.oldest", _columns, order=_order, make=_entry)
newest_first = Keyset("entries.newest", _columns, order=_order, descending=True, make=_entry)
of_kind = Keyset(
    "entries.kind",
    _columns.where(entry.c.kind == bindparam("kind", type_=entry.c.kind.type)),
    order=_order,
    make=_entry,
)
by_kind = Keyset(
    "entries.by_kind", _columns, order=(entry.c.kind, entry.c.at_ms, entry.c.id), make=_entry
)
crowded = Keyset(
    "entries.crowded", _columns, order=(entry.c.kind, *_order), crowded=True, make=_entry
)
crowded_backwards = Keyset(
    "entries.crowded_backwards",
    _columns,
    order=(entry.c.kind, *_order),
    descending=True,
    crowded=True,
    make=_entry,
)

# Few moments and kinds, so that many entries are at the same one.
MOMENTS = st.integers(0, 3)
KINDS = st.sampled_from(["a", "b", "ä", "🦊", "a'b", 'a"b', "a\\b", "100%"])


class PageContract:
    """What holds for keyset pages. Fixtures: `ledger`, `home`."""

    @pytest.fixture(autouse=True)
    def own_table(self, ledger: Ledger) -> None:
        """A table with many rows at the same moment."""
        tables.create_all(ledger.database.engine)

    def test_every_row_once_in_order(self, ledger: Ledger) -> None:
        """The pages together are the list, in order, forwards and backwards, whatever the ties."""
        rows = add(ledger, [(i % 3, "a") for i in range(25)])
        expected = sorted(rows, key=by_moment)

        with ledger.reading() as tx:
            assert gathered(tx, oldest_first, limit=4) == expected
            assert gathered(tx, newest_first, limit=4) == expected[::-1]

    def test_the_last_page_says_so(self, ledger: Ledger) -> None:
        """There is no cursor after the last row, also when it fills its page; nor on no rows."""
        with ledger.reading() as tx:
            empty = oldest_first.read(tx, limit=3)
        add(ledger, [(i, "a") for i in range(6)])

        with ledger.reading() as tx:
            first = oldest_first.read(tx, limit=3)
            last = oldest_first.read(tx, limit=3, cursor=first.next)

        assert (empty.rows, empty.next) == ([], None)
        assert first.next is not None
        assert (len(last.rows), last.next) == (3, None)

    def test_rows_added_meanwhile_move_nothing(self, ledger: Ledger) -> None:
        """Rows added between two pages make no row appear twice or go missing."""
        rows = add(ledger, [(i // 2, "a") for i in range(20)])
        expected = sorted(rows, key=by_moment)
        seen: list[Entry] = []
        cursor = None

        while True:
            with ledger.reading() as tx:
                page = oldest_first.read(tx, limit=3, cursor=cursor)
            seen += page.rows
            cursor = page.next
            if cursor is None:
                break
            # One before everything, one at the moment that is being read, one at the very end.
            add(ledger, [(-1, "new"), (seen[-1][1], "new"), (1000 + len(seen), "new")])
            assert len(seen) < 200

        assert [row for row in seen if row[2] == "a"] == expected
        assert len(set(seen)) == len(seen)
        assert seen == sorted(seen, key=by_moment)

    def test_rows_removed_meanwhile(self, ledger: Ledger) -> None:
        """Also when the row that a cursor ended on is gone, the next page begins behind it."""
        rows = sorted(add(ledger, [(i, "a") for i in range(6)]), key=by_moment)
        with ledger.reading() as tx:
            first = oldest_first.read(tx, limit=2)
        ledger.run(lambda tx: tx.connection.execute(entry.delete().where(entry.c.at_ms < 3)))

        with ledger.reading() as tx:
            second = oldest_first.read(tx, limit=2, cursor=first.next)

        assert second.rows == rows[3:5]

    def test_random_lists(self, ledger: Ledger) -> None:
        """Any rows, any page size, any order: the pages are the sorted list."""

        @settings(
            max_examples=25,
            deadline=None,
            suppress_health_check=[HealthCheck.function_scoped_fixture],
        )
        @given(rows=st.lists(st.tuples(MOMENTS, KINDS), max_size=20), limit=st.integers(1, 7))
        def page_through(rows: list[tuple[int, str]], limit: int) -> None:
            with undone(ledger) as tx:
                added = write(tx, rows)

                forwards = gathered(tx, oldest_first, limit=limit)
                backwards = gathered(tx, newest_first, limit=limit)
                three_deep = gathered(tx, by_kind, limit=limit)
                as_one = gathered(tx, crowded, limit=limit)
                from_the_end = gathered(tx, crowded_backwards, limit=limit)
                filtered = gathered(tx, of_kind, limit=limit, kind="a")

                expected = sorted(added, key=by_moment)
                assert forwards == expected
                assert backwards == expected[::-1]
                assert sorted(three_deep, key=by_moment) == expected
                assert filtered == [row for row in expected if row[2] == "a"]
                assert grouped(three_deep)
                assert as_one == three_deep
                assert from_the_end == three_deep[::-1]

        page_through()

    @pytest.mark.parametrize("limit", [1, 3, 10])
    def test_sifted(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, *, limit: int) -> None:
        """Pages of those that fit lead through all of them, each in a bounded number of steps."""
        monkeypatch.setattr(pages, "STEP_ROWS", 4)
        monkeypatch.setattr(pages, "STEPS_MAX", 2)
        rows = add(ledger, [(i // 3, "b" if i in {0, 1, 19, 20} else "a") for i in range(24)])
        expected = [row for row in sorted(rows, key=by_moment) if row[2] == "b"]

        seen = []
        cursor = None
        with ledger.reading() as tx:
            while True:
                page = oldest_first.sifted(
                    tx, lambda row: row[2] == "b", limit=limit, cursor=cursor
                )
                assert len(page.rows) <= limit
                seen += page.rows
                cursor = page.next
                if cursor is None:
                    break

        assert seen == expected

    def test_limits(self, ledger: Ledger) -> None:
        """A page has 1 to 1000 rows; any other limit is BadInput."""
        with ledger.reading() as tx:
            for limit in (0, -1, LIMIT_MAX + 1):
                with pytest.raises(BadInput):
                    oldest_first.read(tx, limit=limit)

            assert oldest_first.read(tx, limit=LIMIT_MAX).rows == []

    def test_altered_cursors_are_refused(self, ledger: Ledger) -> None:
        """A cursor that was cut, lengthened or changed in any character is BadInput."""
        cursor = self._cursor(ledger)
        altered = [
            "",
            "x",
            "=",
            "null",
            "🦊",
            "a" * 100_000,
            cursor + "=",
            cursor + "\n",
            f"!{cursor}",
        ]
        altered += [cursor[:length] for length in range(1, len(cursor))]
        altered += [cursor + char for char in "Aa_-0"]
        other = random.Random(1)  # noqa: S311 - a sample
        for place in range(len(cursor)):
            char = other.choice([c for c in "ABCDabcd0123-_" if c != cursor[place]])
            altered.append(cursor[:place] + char + cursor[place + 1 :])

        with ledger.reading() as tx:
            for spoiled in (*altered, 5, cursor.encode()):
                with pytest.raises(BadInput):
                    oldest_first.read(tx, limit=2, cursor=cast("str", spoiled))

            assert oldest_first.read(tx, limit=2, cursor=cursor).rows

    def test_every_last_character_is_checked(self, ledger: Ledger) -> None:
        """No other last character is taken for the right one, also if it ends in unused bits."""
        cursor = self._cursor(ledger)
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

        with ledger.reading() as tx:
            for char in alphabet:
                if char != cursor[-1]:
                    with pytest.raises(BadInput):
                        oldest_first.read(tx, limit=2, cursor=cursor[:-1] + char)

    def test_foreign_cursors_are_refused(self, ledger: Ledger, home: Home, tmp_path: Path) -> None:
        """A cursor of another list, another filter or another database is BadInput."""
        cursor = self._cursor(ledger)
        with ledger.reading() as tx:
            filtered = of_kind.read(tx, limit=2, kind="a").next

            for keyset, given_cursor, filters in (
                (newest_first, cursor, {}),
                (of_kind, cursor, {"kind": "a"}),
                (of_kind, filtered, {"kind": "b"}),
                (oldest_first, filtered, {}),
            ):
                with pytest.raises(BadInput):
                    keyset.read(tx, limit=2, cursor=given_cursor, **filters)

        with another(home, tmp_path) as other:
            tables.create_all(other.database.engine)
            with other.reading() as tx, pytest.raises(BadInput):
                oldest_first.read(tx, limit=2, cursor=cursor)

    def test_a_cursor_is_anyones(self, ledger: Ledger, home: Home) -> None:
        """A cursor works in another process and after a restart: it is of the database."""
        cursor = self._cursor(ledger)

        with opened(home.url) as same, same.reading() as tx:
            assert oldest_first.read(tx, limit=2, cursor=cursor).rows

    def test_a_cursor_of_long_text(self, ledger: Ledger) -> None:
        """Also the longest text of a column, of four bytes each, makes a cursor that works."""
        rows = add(ledger, [(i, "🦊" * 255) for i in range(3)])

        with ledger.reading() as tx:
            assert gathered(tx, by_kind, limit=1) == sorted(rows, key=by_moment)

    def test_one_connection_is_enough(self, home: Home) -> None:
        """A page can be read in a transaction that has the only connection."""
        store = {"pool_size_max": 1, "lock_timeout_seconds": 1}
        with opened(home.url, store=store) as ledger, ledger.transaction() as tx:
            assert oldest_first.read(tx, limit=1).rows == []

    def _cursor(self, ledger: Ledger) -> str:
        add(ledger, [(i, "a") for i in range(5)])
        with ledger.reading() as tx:
            cursor = oldest_first.read(tx, limit=2).next
        assert cursor is not None
        return cursor


def write(tx: Transaction, rows: list[tuple[int, str]]) -> list[Entry]:
    """Rows at these moments and of these kinds, in a random order of their ids."""
    ids = [new_id() for _ in rows]
    random.Random(len(rows)).shuffle(ids)  # noqa: S311 - a sample
    entries = [(key, moment, kind) for key, (moment, kind) in zip(ids, rows, strict=True)]
    if entries:
        values = [{"id": key, "at_ms": moment, "kind": kind} for key, moment, kind in entries]
        tx.connection.execute(insert(entry), values)
    return entries


def add(ledger: Ledger, rows: list[tuple[int, str]]) -> list[Entry]:
    """The same, committed."""
    return ledger.run(lambda tx: write(tx, rows))


def gathered(tx: Transaction, keyset: Keyset[Entry], *, limit: int, **filters: str) -> list[Entry]:
    """All pages, one after the other; each but the last is full."""
    rows: list[Entry] = []
    cursor: str | None = None
    for _ in range(1000):
        page = keyset.read(tx, limit=limit, cursor=cursor, **filters)
        rows += page.rows
        cursor = page.next
        if cursor is None:
            return rows
        assert len(page.rows) == limit
    pytest.fail("the pages do not end")


def by_moment(row: Entry) -> tuple[int, str]:
    """The order of the list."""
    return (row[1], row[0])


def grouped(rows: list[Entry]) -> bool:
    """Whether the kinds come one after the other, whatever order the database gives them."""
    kinds = [kind for i, (_, _, kind) in enumerate(rows) if i == 0 or rows[i - 1][2] != kind]
    return len(kinds) == len(set(kinds))
