"""The pipeline contract: a statement nobody waits for is done in its turn, or its error is told."""

from __future__ import annotations

import pytest
from sqlalchemy import BigInteger, bindparam, select, text, update

from ledgerstone import errors
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.store.sql.batch import AppendEach
from ledgerstone.store.sql.statement import Statement
from ledgerstone.testing.fixtures import Home
from tests.chores import Chores, NewChore
from tests.chores.workshop import opened
from tests.harness.own_table import OwnTable, note, notes, notes_kept

FAILURES_MANY = 30
"""More than a pool has connections."""
NOTES_MANY = 40
"""More than are held."""
LONG = "x" * 900_000
"""Two of them are more than is held."""

append = AppendEach("notes.append", note, incoming=(note.c.name,), values=lambda _: {"count": 0})
count_up = Statement(
    "notes.count_up",
    update(note)
    .where(note.c.name == bindparam("name_", type_=note.c.name.type))
    .values(count=note.c.count + bindparam("by", type_=BigInteger())),
)
counted = Statement(
    "notes.counted",
    select(note.c.count).where(note.c.name == bindparam("name_", type_=note.c.name.type)),
)


class PipelineContract(OwnTable):
    """What holds for statements whose answers nobody reads. Fixtures: `ledger`, `home`."""

    def test_a_late_error_is_raised(self, ledger: Ledger) -> None:
        """What the database refuses is raised by the end of the block, as the error that it is."""
        ledger.run(lambda tx: add(tx, "same"))

        for _ in range(FAILURES_MANY):
            with pytest.raises(errors.Duplicate) as raised, ledger.transaction() as tx:
                add(tx, "same")

            assert raised.value.__cause__ is not None

    def test_nothing_is_half_written(self, ledger: Ledger) -> None:
        """If one of them is refused, nothing of the transaction is kept, before it or after it."""
        ledger.run(lambda tx: add(tx, "same"))

        with pytest.raises(errors.Duplicate), ledger.transaction() as tx:
            Chores(tx).enqueue("before")
            add(tx, "before")
            add(tx, "same")
            add(tx, "after")
            Chores(tx).enqueue("after")

        assert notes_kept(ledger) == ["same"]
        with ledger.reading() as tx:
            assert sum(Chores(tx).counts().values()) == 0

    def test_a_refused_one_rings_nobody(self, ledger: Ledger) -> None:
        """What is refused at the commit counts as written nowhere."""
        ledger.run(lambda tx: add(tx, "same"))
        before = ledger.database.measure.by_name()[append.name].written

        with pytest.raises(errors.Duplicate), ledger.transaction() as tx:
            add(tx, "same")

        assert ledger.database.measure.by_name()[append.name].written == before

    def test_an_error_of_the_block_undoes_them(self, ledger: Ledger) -> None:
        """A block that raises leaves nothing, and its own error is the one that is raised."""
        with pytest.raises(LookupError), ledger.transaction() as tx:
            add(tx, "mine")
            raise LookupError

        assert notes_kept(ledger) == []

    def test_the_connection_sees_them(self, ledger: Ledger) -> None:
        """The user's own statements find all that was written before them, in order."""
        with ledger.transaction() as tx:
            add(tx, "first")
            connection = tx.connection
            seen = notes(connection)
            add(tx, "second")
            # Asked of the connection that was there before.
            seen_later = notes(connection)

        assert seen == ["first"]
        assert seen_later == ["first", "second"]
        assert notes_kept(ledger) == ["first", "second"]

    def test_the_connection_hears_of_errors(self, ledger: Ledger) -> None:
        """Once the user has the connection, what is refused is raised where it is written."""
        ledger.run(lambda tx: add(tx, "same"))

        with pytest.raises(LookupError), ledger.transaction() as tx:
            tx.connection.execute(text("SELECT 1"))
            with pytest.raises(errors.Duplicate):
                add(tx, "same")
            raise LookupError

        assert notes_kept(ledger) == ["same"]

    def test_a_driver_cursor_sees_them(self, ledger: Ledger) -> None:
        """So does a cursor of the driver."""
        with ledger.transaction() as tx:
            add(tx, "first")
            cursor = tx.cursor()
            cursor.execute("SELECT name FROM note")
            seen = [row[0] for row in cursor.fetchall()]
            cursor.close()

        assert seen == ["first"]

    def test_own_rows_are_read(self, ledger: Ledger) -> None:
        """A statement that reads or changes finds what those before it have written."""
        with ledger.transaction() as tx:
            add(tx, "mine")
            changed = count_up.run(tx, name_="mine", by=2)
            later = counted.later(tx, name_="mine")
            count_up.send(tx, name_="mine", by=5)
            now = counted.one(tx, name_="mine")

        assert changed == 1
        assert [tuple(row) for row in later()] == [(2,)]
        assert now is not None
        assert tuple(now) == (7,)

    def test_a_savepoint_holds_its_errors(self, ledger: Ledger) -> None:
        """What is refused inside a savepoint is raised inside it, and undone with it alone."""
        with ledger.transaction() as tx:
            add(tx, "same")
            with pytest.raises(errors.Duplicate), tx.savepoint():
                add(tx, "inside")
                add(tx, "same")
            add(tx, "after")

        assert notes_kept(ledger) == ["after", "same"]

    def test_a_savepoint_that_is_given_up(self, ledger: Ledger) -> None:
        """What would be refused inside a savepoint is undone with it, if its block raises first."""
        ledger.run(lambda tx: add(tx, "same"))

        with ledger.transaction() as tx:
            with pytest.raises((LookupError, errors.Duplicate)), tx.savepoint():
                add(tx, "same")
                raise LookupError
            add(tx, "after")

        assert notes_kept(ledger) == ["after", "same"]

    def test_a_value_that_the_driver_looks_at(self, ledger: Ledger) -> None:
        """A statement that cannot travel with others finds what those before it have written."""

        class Word(str):
            """A text of a type that is not known here."""

            __slots__ = ()

        with ledger.transaction() as tx:
            add(tx, "mine")
            count_up.send(tx, name_="mine", by=3)
            found = counted.one(tx, name_=Word("mine"))

        assert found is not None
        assert tuple(found) == (3,)

    def test_a_savepoint_undoes_only_its_own(self, ledger: Ledger) -> None:
        """What was written before a savepoint stays when it is undone, and what was inside goes."""
        with ledger.transaction() as tx:
            add(tx, "before")
            with pytest.raises(LookupError), tx.savepoint():
                add(tx, "inside")
                raise LookupError
            with tx.savepoint():
                add(tx, "kept")
            add(tx, "after")

        assert notes_kept(ledger) == ["after", "before", "kept"]

    def test_many_keep_their_order(self, ledger: Ledger) -> None:
        """However many they are, and however large, each is done once and in its turn."""
        with ledger.transaction() as tx:
            add(tx, "mine")
            for i in range(NOTES_MANY):
                add(tx, f"{i:02}")
                count_up.send(tx, name_="mine", by=1)
            Chores(tx).enqueue_many([NewChore(body=LONG), NewChore(body=LONG)])
            Chores(tx).enqueue(LONG)

        with ledger.reading() as tx:
            assert tuple(counted.rows(tx, name_="mine")[0]) == (NOTES_MANY,)
            assert sum(Chores(tx).counts().values()) == 3
        assert notes_kept(ledger) == [*(f"{i:02}" for i in range(NOTES_MANY)), "mine"]

    def test_each_is_counted_once(self, ledger: Ledger) -> None:
        """Statements that travel together are counted and timed by their own names."""
        with ledger.transaction() as tx:
            append.run(tx, [("a",), ("b",)])
            append.run(tx, [("c",)])
            count_up.send(tx, name_="a", by=1)
            counted.rows(tx, name_="a")

        by_name = ledger.database.measure.by_name()
        assert (by_name[append.name].calls, by_name[append.name].written) == (2, 3)
        assert (by_name[count_up.name].calls, by_name[count_up.name].written) == (1, 1)
        assert (by_name[counted.name].calls, by_name[counted.name].read) == (1, 1)
        assert by_name[append.name].seconds > 0

    def test_nothing_done_is_nothing(self, ledger: Ledger) -> None:
        """A transaction in which nothing happens commits, also after one that failed."""
        with pytest.raises(LookupError), ledger.transaction():
            raise LookupError

        with ledger.transaction():
            pass

        ledger.run(lambda tx: add(tx, "mine"))
        assert notes_kept(ledger) == ["mine"]

    def test_reading_keeps_none_of_them(self, ledger: Ledger) -> None:
        """What a reading transaction writes is not kept, wherever it was when the block ended."""
        try:
            with ledger.reading() as tx:
                add(tx, "mine")
        except errors.StoreError:
            # Some databases refuse it.
            pass

        assert notes_kept(ledger) == []

    def test_unprepared_they_do_the_same(self, home: Home) -> None:
        """Nothing changes where the server is not to prepare statements."""
        with opened(home.url, store={"prepared_statements": "off"}) as ledger:
            ledger.run(lambda tx: add(tx, "same"))

            with pytest.raises(errors.Duplicate), ledger.transaction() as tx:
                add(tx, "same")
            ledger.run(lambda tx: add(tx, "other"))

            assert notes_kept(ledger) == ["other", "same"]


def add(tx: Transaction, name: str) -> None:
    """A row of the user's own, with nobody waiting for it."""
    append.run(tx, [(name,)])
