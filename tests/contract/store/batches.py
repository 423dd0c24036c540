"""The batch contract: many rows in one statement, each with its own answer, none altered."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    bindparam,
    select,
    update,
)

from ledgerstone import errors
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.store.schema.columns import MYSQL_TABLE, NAMING, serial_type, text_type
from ledgerstone.store.sql.batch import (
    CHARS_MAX,
    ROWS_MAX,
    AppendEach,
    ClaimEach,
    InsertEach,
    UpdateEach,
)
from tests.harness.ledgers import undone
from tests.harness.threads import aside, signaled, together

INT_MAX = 2**31 - 1
BIGINT_MAX = 2**63 - 1
MIB = 1_048_576
CLAIMERS = 4

tables = MetaData(naming_convention=NAMING)
item = Table(
    "item",
    tables,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("name", String(10)),
    Column("body", text_type()),
    Column("state", String(10), nullable=False),
    Column("version", Integer, nullable=False),
    Column("rank", BigInteger, nullable=False),
    Column("extra", String(10)),
    UniqueConstraint("name"),
    **MYSQL_TABLE,
)
Index("idx_item_due", item.c.state, item.c.rank.desc(), item.c.number)
entry = Table(
    "entry",
    tables,
    Column("id", serial_type(), primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("words", text_type()),
    **MYSQL_TABLE,
)
Row = tuple[Any, ...]

insert = InsertEach(
    "items.insert",
    item,
    incoming=(item.c.number, item.c.name, item.c.body),
    values=lambda row: {
        "state": "new",
        "version": 1,
        "rank": row.number + bindparam("raised", type_=BigInteger()),
        "extra": None,
    },
)
change = UpdateEach(
    "items.change",
    key=item.c.number,
    incoming=(item.c.number, item.c.version, item.c.body),
    build=lambda row: (
        update(item)
        .where(item.c.number == row.number, item.c.version == row.version)
        .values(
            version=item.c.version + 1,
            body=row.body,
            extra=bindparam("extra_", type_=item.c.extra.type),
        )
    ),
)
rename = UpdateEach(
    "items.rename",
    key=item.c.name,
    incoming=(item.c.name, item.c.state),
    build=lambda row: update(item).where(item.c.name == row.name).values(state=row.state),
)
note = AppendEach("entries.note", entry, incoming=(entry.c.number, entry.c.words))
take = ClaimEach(
    "items.take",
    item,
    key=item.c.number,
    due=(item.c.state == "new") & (item.c.rank <= bindparam("rank_max", type_=BigInteger())),
    order_by=(item.c.rank.desc(), item.c.number),
    set_={"state": "taken", "version": item.c.version + 1},
    returning=(item.c.number, item.c.state, item.c.version, item.c.body),
)

# All that text can hold, and what quoting has gone wrong with before.
TEXTS = st.one_of(
    st.none(),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
    st.sampled_from(["", "'", '"', "\\", "%", "%s", "%(a)s", ":a", "?", "$1", "{}", "🦊", "null"]),
)


class BatchContract:
    """What holds for AppendEach, InsertEach, UpdateEach and ClaimEach. Fixture: `ledger`."""

    @pytest.fixture(autouse=True)
    def own_table(self, ledger: Ledger) -> None:
        """A table with numbers, names, bodies and states."""
        tables.create_all(ledger.database.engine)

    def test_nothing_is_nothing(self, ledger: Ledger) -> None:
        """An empty batch writes nothing, and nothing is claimed of nothing."""
        with ledger.transaction() as tx:
            assert add(tx, []) == []
            assert change.run(tx, [], extra_=None) == []
            assert take.run(tx, limit=10, rank_max=BIGINT_MAX) == []

    def test_all_are_added(self, ledger: Ledger) -> None:
        """Every row is added with what travels, what is common to all, and what is fixed."""
        with ledger.transaction() as tx:
            left_out = insert.run(tx, [(1, "a", "one"), (2, None, None)], raised=100)

        assert left_out == []
        assert stored(ledger) == [
            (1, "a", "one", "new", 1, 101, None),
            (2, None, None, "new", 1, 102, None),
        ]

    def test_the_taken_are_left_out(self, ledger: Ledger) -> None:
        """Rows whose key or other unique value is taken are left out, told, and counted."""
        ledger.run(lambda tx: add(tx, [(1, "a", None), (2, "b", None)]))
        rows = [(1, "x", None), (3, "c", None), (4, "b", None), (5, "e", None), (2, "a", None)]

        left_out = ledger.run(lambda tx: add(tx, rows))

        assert left_out == [0, 2, 4]
        assert [row[:2] for row in stored(ledger)] == [(1, "a"), (2, "b"), (3, "c"), (5, "e")]
        assert ledger.database.measure.by_name()[insert.name].refused == 3

    def test_twins_in_one_batch(self, ledger: Ledger) -> None:
        """Of rows with the same key or unique value in one batch, the first is added."""
        rows = [(1, "a", "first"), (1, "b", None), (2, "a", None), (3, "c", None), (3, "c", None)]

        left_out = ledger.run(lambda tx: add(tx, rows))

        assert left_out == [1, 2, 4]
        assert [row[:3] for row in stored(ledger)] == [(1, "a", "first"), (3, "c", None)]

    def test_twins_of_which_the_first_is_taken(self, ledger: Ledger) -> None:
        """Of two rows with one key it is told which was left out, also if it is the first."""
        ledger.run(lambda tx: add(tx, [(1, "a", None)]))

        left_out = ledger.run(lambda tx: add(tx, [(2, "a", None), (2, "b", None)]))

        assert left_out == [0]
        assert [row[:2] for row in stored(ledger)] == [(1, "a"), (2, "b")]

    def test_one_key_twice(self, ledger: Ledger) -> None:
        """Of two changes of one row the one that matches takes effect, and the other is told."""
        ledger.run(lambda tx: add(tx, [(1, None, None), (2, None, None)]))
        rows = [(1, 7, "?"), (2, 1, "two"), (1, 1, "one")]

        refused = ledger.run(lambda tx: change.run(tx, rows, extra_=None))

        assert refused == [0]
        assert [row[2] for row in stored(ledger)] == ["one", "two"]

    def test_a_journal(self, ledger: Ledger) -> None:
        """Rows that cannot be taken already are added in their order, without an answer."""
        count = ROWS_MAX + 5

        ledger.run(lambda tx: note.run(tx, [(i % 3, str(i)) for i in range(count)]))

        with ledger.reading() as tx:
            noted = list(tx.connection.execute(select(entry).order_by(entry.c.id)))
        assert [tuple(row[1:]) for row in noted] == [(i % 3, str(i)) for i in range(count)]

    def test_one_row_alone(self, ledger: Ledger) -> None:
        """A batch of one row answers like any other."""
        assert ledger.run(lambda tx: add(tx, [(1, "a", None)])) == []
        assert ledger.run(lambda tx: add(tx, [(1, "b", None)])) == [0]
        assert ledger.run(lambda tx: change.run(tx, [(1, 1, "x")], extra_="y")) == []
        assert ledger.run(lambda tx: change.run(tx, [(1, 1, "z")], extra_="z")) == [0]
        assert stored(ledger) == [(1, "a", "x", "new", 2, 1, "y")]

    def test_the_refused_are_told(self, ledger: Ledger) -> None:
        """In a mixed batch those that match are changed, the others are told by their position."""
        ledger.run(lambda tx: add(tx, [(i, None, None) for i in range(1, 6)]))
        rows = [(9, 1, "?"), (5, 1, "five"), (2, 7, "?"), (1, 1, "one"), (3, 0, "?")]

        refused = ledger.run(lambda tx: change.run(tx, rows, extra_="x"))

        assert refused == [0, 2, 4]
        changed = {row[0]: row[2] for row in stored(ledger) if row[4] == 2}
        assert changed == {1: "one", 5: "five"}

    def test_what_stays_the_same_is_no_refusal(self, ledger: Ledger) -> None:
        """A row that matches and already holds the values was found: it is not told."""
        ledger.run(lambda tx: add(tx, [(1, "a", None), (2, "b", None)]))

        refused = ledger.run(lambda tx: rename.run(tx, [("a", "new"), ("b", "new"), ("c", "new")]))

        assert refused == [2]

    def test_batches_longer_than_a_statement(self, ledger: Ledger) -> None:
        """A batch may have any length; positions are those of the whole of it."""
        count = 2 * ROWS_MAX + 3
        ledger.run(lambda tx: add(tx, [(ROWS_MAX, None, None), (2 * ROWS_MAX + 1, None, None)]))

        left_out = ledger.run(lambda tx: add(tx, [(i, None, None) for i in range(count)]))
        changes = [(i, 1, "x") for i in range(count)]
        refused = ledger.run(lambda tx: change.run(tx, [*changes, (-1, 1, "x")], extra_=None))

        assert left_out == [ROWS_MAX, 2 * ROWS_MAX + 1]
        assert refused == [count]
        assert {row[2] for row in stored(ledger)} == {"x"}

    def test_backslashes_among_plain_texts(self, ledger: Ledger) -> None:
        """Texts with backslashes and without quotes come back as they were, as do those beside."""
        bodies = ["a\\b", "\\", "c:\\new\\", "plain"]

        ledger.run(lambda tx: add(tx, [(i, None, body) for i, body in enumerate(bodies)]))

        assert [row[2] for row in stored(ledger)] == bodies

    def test_a_longer_batch_is_several(self, ledger: Ledger) -> None:
        """More rows than one statement takes are carried out in several, each row once."""
        rows = [(number, "words") for number in range(ROWS_MAX + 1)]

        ledger.run(lambda tx: note.run(tx, rows))

        counters = ledger.database.measure.by_name()[note.name]
        assert (counters.calls, counters.written) == (2, ROWS_MAX + 1)

    def test_large_bodies(self, ledger: Ledger) -> None:
        """Many bodies of a MiB go in one batch, and come back whole."""
        bodies = [f"{i}'\\\"%" + "x" * (MIB - 5) for i in range(20)]
        bodies[7] = "🦊" * (CHARS_MAX // 2)

        ledger.run(lambda tx: add(tx, [(i, None, body) for i, body in enumerate(bodies)]))

        assert [row[2] for row in stored(ledger)] == bodies
        changes = [(i, 1, body[::-1]) for i, body in enumerate(bodies)]
        assert ledger.run(lambda tx: change.run(tx, changes, extra_=None)) == []
        assert [row[2] for row in stored(ledger)] == [body[::-1] for body in bodies]

    def test_extreme_numbers(self, ledger: Ledger) -> None:
        """The largest and smallest numbers that a column holds come back exactly."""
        numbers = [-BIGINT_MAX - 1, -1, 0, 1, BIGINT_MAX - 1, BIGINT_MAX]

        ledger.run(lambda tx: insert.run(tx, [(n, None, None) for n in numbers], raised=0))

        assert [(row[0], row[5]) for row in stored(ledger)] == [(n, n) for n in numbers]
        changes = [(n, 1, str(n)) for n in numbers]
        assert ledger.run(lambda tx: change.run(tx, changes, extra_=None)) == []
        assert [row[2] for row in stored(ledger)] == [str(n) for n in numbers]

    def test_a_text_that_does_not_fit_is_not_cut(self, ledger: Ledger) -> None:
        """A text too long for its column is refused with StoreError, or kept whole."""
        good, long = (0, "ok", None), (1, "a" * 11, None)
        failure: Exception | None = None

        try:
            ledger.run(lambda tx: add(tx, [good, long]))
        except errors.StoreError as error:
            failure = error

        kept = [held[:2] for held in stored(ledger)]
        assert kept == ([] if failure is not None else [good[:2], long[:2]])
        # Not for any other reason: the row beside it can be written, and one that just fits.
        ledger.run(lambda tx: tx.connection.execute(item.delete()))
        assert ledger.run(lambda tx: add(tx, [good, (1, "a" * 10, None)])) == []

    @pytest.mark.parametrize("number", [BIGINT_MAX + 1, -BIGINT_MAX - 2, 10**30])
    def test_a_number_that_does_not_fit_is_refused(self, ledger: Ledger, number: int) -> None:
        """A number that needs more than 64 bits is refused with StoreError, with all beside it."""
        with pytest.raises(errors.StoreError):
            ledger.run(lambda tx: add(tx, [(0, "ok", None), (number, "b", None)]))

        assert stored(ledger) == []
        assert ledger.run(lambda tx: add(tx, [(0, "ok", None)])) == []

    def test_a_key_that_does_not_fit_finds_nothing(self, ledger: Ledger) -> None:
        """A name longer than any that is kept is not taken for the one that it begins with."""
        ledger.run(lambda tx: add(tx, [(1, "a" * 10, None)]))

        refused = ledger.run(lambda tx: rename.run(tx, [("a" * 11, "x"), ("a" * 10, "y")]))

        assert refused == [0]
        assert [row[3] for row in stored(ledger)] == ["y"]

    def test_what_is_no_text_is_refused(self, ledger: Ledger) -> None:
        """Half a surrogate pair is refused with StoreError, and the transaction is undone."""
        with pytest.raises(errors.StoreError):
            ledger.run(lambda tx: add(tx, [(1, None, "ok"), (2, None, "\ud800")]))

        assert stored(ledger) == []

    def test_random_texts_come_back(self, ledger: Ledger) -> None:
        """Any text comes back as it was: quotes, backslashes, percent signs, emoji, NULL."""

        @settings(
            max_examples=40,
            deadline=None,
            suppress_health_check=[HealthCheck.function_scoped_fixture],
        )
        @given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=8))
        def carry(pairs: list[tuple[str | None, str | None]]) -> None:
            with undone(ledger) as tx:
                add(tx, [(i, None, first) for i, (first, _) in enumerate(pairs)])
                added = [row[2] for row in rows_of(tx)]
                changes = [(i, 1, second) for i, (_, second) in enumerate(pairs)]

                assert change.run(tx, changes, extra_="x%s'") == []

                assert added == [first for first, _ in pairs]
                assert [(row[2], row[6]) for row in rows_of(tx)] == [(b, "x%s'") for _, b in pairs]

        carry()

    def test_random_batches_like_a_model(self, ledger: Ledger) -> None:
        """Any batches, one after the other, leave and answer what a dictionary would."""
        row = st.tuples(st.integers(0, 6), st.integers(1, 3), st.sampled_from("ab"))
        batch = st.lists(row, max_size=6, unique_by=lambda row: row[0])

        @settings(
            max_examples=40,
            deadline=None,
            suppress_health_check=[HealthCheck.function_scoped_fixture],
        )
        @given(st.lists(st.tuples(st.sampled_from(["insert", "change"]), batch), max_size=6))
        def play(batches: list[tuple[str, list[tuple[int, int, str]]]]) -> None:
            model: dict[int, tuple[int, str]] = {}
            with undone(ledger) as tx:
                for word, rows in batches:
                    expected = modelled(model, word, rows)
                    if word == "insert":
                        answered = add(tx, [(n, None, body) for n, _, body in rows])
                    else:
                        answered = change.run(tx, rows, extra_=None)

                    assert answered == expected
                assert {row[0]: (row[4], row[2]) for row in rows_of(tx)} == model

        play()

    def test_claims_answer_what_is_then_there(self, ledger: Ledger) -> None:
        """A claim takes what is due, at most so many, and answers its values afterwards."""
        ledger.run(lambda tx: add(tx, [(i, None, f"body {i}") for i in range(10)]))

        taken = ledger.run(lambda tx: take.run(tx, limit=3, rank_max=7))

        assert taken == [(i, "taken", 2, f"body {i}") for i in (7, 6, 5)]
        assert [row[0] for row in stored(ledger) if row[3] == "taken"] == [5, 6, 7]

    def test_claims_come_in_their_order(self, ledger: Ledger) -> None:
        """What is claimed comes in the order that was asked for, also among many."""
        ranks = [(i * 7919) % 101 for i in range(500)]
        with ledger.transaction() as tx:
            add(tx, [(i, None, None) for i in range(len(ranks))])
            for i, rank in enumerate(ranks):
                tx.connection.execute(update(item).where(item.c.number == i).values(rank=rank))

        taken = ledger.run(lambda tx: take.run(tx, limit=400, rank_max=BIGINT_MAX))

        order = sorted(range(len(ranks)), key=lambda i: (-ranks[i], i))
        assert [row[0] for row in taken] == order[:400]

    def test_a_claim_has_a_limit(self, ledger: Ledger) -> None:
        """However much is asked for, one claim takes at most what fits one statement."""
        ledger.run(lambda tx: add(tx, [(i, None, None) for i in range(ROWS_MAX + 5)]))

        taken = ledger.run(lambda tx: take.run(tx, limit=10 * ROWS_MAX, rank_max=BIGINT_MAX))

        assert len(taken) == ROWS_MAX

    def test_no_row_is_claimed_twice(self, ledger: Ledger) -> None:
        """Claimers side by side share the rows: each row goes to exactly one of them."""
        count = 200
        ledger.run(lambda tx: add(tx, [(i, None, None) for i in range(count)]))

        def drain() -> list[int]:
            mine: list[int] = []
            for _ in range(count):
                taken = ledger.run(lambda tx: take.run(tx, limit=7, rank_max=BIGINT_MAX))
                mine += [row[0] for row in taken]
                if not taken:
                    return mine
            return mine

        shares = together(*[drain] * CLAIMERS)

        assert sorted(number for share in shares for number in share) == list(range(count))

    def test_claiming_waits_for_no_claimer(self, ledger: Ledger) -> None:
        """Where writers work side by side, rows claimed and not committed are passed over."""
        ledger.run(lambda tx: add(tx, [(i, None, None) for i in range(4)]))
        claimed, over = threading.Event(), threading.Event()

        def claim(tx: Transaction) -> list[int]:
            return [row[0] for row in take.run(tx, limit=2, rank_max=BIGINT_MAX)]

        def hold() -> list[int]:
            with ledger.transaction() as tx:
                mine = claim(tx)
                claimed.set()
                # Where there is one writer, the next claimer cannot begin before this one ends.
                if not ledger.database.dialect.one_writer:
                    signaled(over)
                return mine

        with aside(hold) as holding:
            signaled(claimed)
            second = ledger.run(claim)
            over.set()

        assert holding.result() == [3, 2]
        assert second == [1, 0]

    def test_changing_waits_for_no_other_rows(self, ledger: Ledger) -> None:
        """Where writers work side by side, a batch waits only for whoever changes its own rows."""
        ledger.run(lambda tx: add(tx, [(i, None, None) for i in range(4)]))
        changed, over = threading.Event(), threading.Event()

        def hold() -> None:
            with ledger.transaction() as tx:
                add(tx, [(4, None, None)])
                change.run(tx, [(0, 1, "x"), (2, 1, "x")], extra_=None)
                changed.set()
                if not ledger.database.dialect.one_writer:
                    signaled(over)

        with aside(hold):
            signaled(changed)
            refused = ledger.run(lambda tx: change.run(tx, [(1, 1, "y"), (3, 1, "y")], extra_=None))
            over.set()

        assert refused == []
        assert [row[2] for row in stored(ledger)] == ["x", "y", "x", "y", None]

    def test_batches_over_the_same_rows(self, ledger: Ledger) -> None:
        """Batches that change the same rows in opposite orders both come through."""
        count = 100
        ledger.run(lambda tx: add(tx, [(i, str(i), None) for i in range(count)]))

        def change_all(order: Sequence[int]) -> None:
            for state in ("x", "y", "z"):
                rows = [(str(i), state) for i in order]
                assert ledger.run(partial(rename.run, rows=rows)) == []

        together(
            partial(change_all, range(count)),
            partial(change_all, range(count)[::-1]),
        )

        assert {row[3] for row in stored(ledger)} == {"z"}


def add(tx: Transaction, rows: Sequence[Row]) -> list[int]:
    """The positions that were left out."""
    return insert.run(tx, rows, raised=0)


def rows_of(tx: Transaction) -> list[Row]:
    """Everything in the table, by number, read with other means than those under test."""
    return [tuple(row) for row in tx.connection.execute(select(item).order_by(item.c.number))]


def stored(ledger: Ledger) -> list[Row]:
    """The same, as it was committed."""
    with ledger.reading() as tx:
        return rows_of(tx)


def modelled(
    model: dict[int, tuple[int, str]], word: str, rows: list[tuple[int, int, str]]
) -> list[int]:
    """What a batch does to a dictionary of versions and bodies, and the positions it refuses."""
    refused = []
    for i, (number, version, body) in enumerate(rows):
        if word == "insert" and number not in model:
            model[number] = (1, body)
        elif word == "change" and model.get(number, (0, ""))[0] == version:
            model[number] = (version + 1, body)
        else:
            refused.append(i)
    return refused
