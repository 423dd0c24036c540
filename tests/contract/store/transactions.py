"""The transaction contract: all or nothing, in one place, and again when two meet."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from ledgerstone import errors
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.settings import Settings
from ledgerstone.store.sql.statement import Statement
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.chores import Chores
from tests.chores.workshop import opened
from tests.harness.interrupting import interrupting
from tests.harness.ledgers import another
from tests.harness.own_table import OwnTable, note, notes, notes_kept, write
from tests.harness.threads import aside, signaled, together

FAILURES_MANY = 30
"""More than a pool has connections."""
TURNS_MANY = 25


class Interruption(BaseException):
    """Like Ctrl-C: not an Exception."""


class TransactionContract(OwnTable):
    """What holds for `transaction`, `reading`, `savepoint`, `run`. Fixtures: `ledger`, `home`."""

    def test_a_commit_keeps_both(self, ledger: Ledger) -> None:
        """At the end of the block the user's rows and the ledger's are kept together."""
        with ledger.transaction() as tx:
            write(tx, "mine")
            enqueued = Chores(tx).enqueue({"order": 7})

        assert notes_kept(ledger) == ["mine"]
        with ledger.reading() as tx:
            assert Chores(tx).get(enqueued.id).body == {"order": 7}

    def test_one_that_stands_still_is_ended(self, ledger: Ledger, home: Home) -> None:
        """What stands still past its limit is undone on a server, and holds up nobody else.

        A file has no server: there others are refused with StoreBusy until it ends, and it is kept.
        """
        ended = not ledger.database.dialect.one_writer
        ledger.run(lambda tx: write(tx, "held"))
        still, over = threading.Event(), threading.Event()
        was_ended = threading.Event()

        def stand_still() -> None:
            with limited(home.url, transaction_idle_seconds_max=1) as other:
                # A busy machine may let it stand still before it is asked to.
                while not still.is_set():
                    with suppress(errors.StoreUnavailable), other.transaction() as tx:
                        count_up(tx, "held")
                        still.set()
                        signaled(over)
                        was_ended.set()
                        count_up(tx, "held")
                        was_ended.clear()
            ledger.run(lambda tx: write(tx, "later"))

        with limited(home.url, busy_timeout_seconds=0.1) as beside, aside(stand_still):
            signaled(still)
            try:
                with beside.transaction() as tx:
                    count_up(tx, "held")
                refused = False
            except errors.StoreBusy:
                refused = True
            finally:
                over.set()

        with ledger.reading() as tx:
            rows = tx.connection.execute(select(note.c.name, note.c.count))
            counts = {row.name: row[1] for row in rows}
        assert (was_ended.is_set(), refused) == (ended, not ended)
        assert counts == {"held": 1 if ended else 2, "later": 0}

    @pytest.mark.parametrize("failure", [ValueError("no"), Interruption()], ids=["error", "ctrl-c"])
    def test_an_error_undoes_both(self, ledger: Ledger, failure: BaseException) -> None:
        """If the block raises, whatever it raises, nothing of it is kept, and the error goes on."""
        with pytest.raises(type(failure)) as raised, ledger.transaction() as tx:
            write(tx, "mine")
            enqueued = Chores(tx).enqueue(7)
            raise failure

        assert raised.value is failure
        assert notes_kept(ledger) == []
        with ledger.reading() as tx, pytest.raises(errors.NotFound):
            Chores(tx).get(enqueued.id)

    def test_a_caught_error_is_no_silent_loss(self, ledger: Ledger) -> None:
        """Where the database undoes all for an error that was caught, the commit says so."""
        kept = []
        with suppress(errors.StoreError):
            with ledger.transaction() as tx:
                write(tx, "mine")
                with suppress(DBAPIError):
                    tx.connection.execute(text("SELECT nothing FROM nowhere"))
            kept = ["mine"]

        assert notes_kept(ledger) == kept

    def test_it_is_one_transaction(self, ledger: Ledger) -> None:
        """The user's SQL sees the ledger's rows before the commit, and nobody else does."""
        with ledger.transaction() as tx:
            Chores(tx).enqueue(1)
            inside = tx.connection.execute(text("SELECT COUNT(*) FROM chore")).scalar()
            with ledger.reading() as other:
                outside = other.connection.execute(text("SELECT COUNT(*) FROM chore")).scalar()

        assert (inside, outside) == (1, 0)

    def test_failures_use_up_no_connections(self, ledger: Ledger) -> None:
        """Transactions that fail give their connections back, whatever their error was."""
        for _ in range(FAILURES_MANY):
            with pytest.raises(errors.Duplicate), ledger.transaction() as tx:
                write(tx, "same")
                write(tx, "same")
            with pytest.raises(Interruption), ledger.transaction():
                raise Interruption

        with ledger.transaction() as tx:
            write(tx, "after")
        assert notes_kept(ledger) == ["after"]

    def test_reading_holds_off_no_writer(self, ledger: Ledger) -> None:
        """While a reader has its transaction open, a writer begins, writes and commits."""
        with ledger.transaction() as tx:
            write(tx, "first")

        with ledger.reading() as reader:
            before = notes(reader.connection)
            ledger.run(lambda tx: write(tx, "second"))

        assert before == ["first"]
        assert notes_kept(ledger) == ["first", "second"]

    def test_reading_keeps_nothing(self, ledger: Ledger) -> None:
        """What is written in a transaction that only reads is gone at its end."""
        with ledger.reading() as tx:
            write(tx, "mine")

        assert notes_kept(ledger) == []

    def test_a_second_one_in_the_same_thread(self, ledger: Ledger) -> None:
        """Where there is one writer it is refused at once; elsewhere it is independent."""
        refused = ledger.database.dialect.one_writer

        with ledger.transaction() as tx:
            write(tx, "outer")
            try:
                with ledger.transaction() as inner:
                    write(inner, "inner")
            except errors.NotAllowedNow:
                assert refused

        assert notes_kept(ledger) == (["outer"] if refused else ["inner", "outer"])

    def test_a_savepoint_undoes_its_part(self, ledger: Ledger) -> None:
        """What raises inside a savepoint is undone to its beginning, and no further."""
        with ledger.transaction() as tx:
            write(tx, "before")
            with pytest.raises(ValueError, match="no"), tx.savepoint():
                write(tx, "inside")
                Chores(tx).enqueue(1)
                message = "no"
                raise ValueError(message)
            write(tx, "after")

        assert notes_kept(ledger) == ["after", "before"]
        with ledger.reading() as tx:
            assert sum(Chores(tx).counts().values()) == 0

    def test_savepoints_nest(self, ledger: Ledger) -> None:
        """An inner savepoint is undone alone; an outer one takes a finished inner one with it."""
        with ledger.transaction() as tx:
            with tx.savepoint():
                write(tx, "outer")
                with pytest.raises(Interruption), tx.savepoint():
                    write(tx, "inner")
                    raise Interruption
            with pytest.raises(Interruption), tx.savepoint():
                with tx.savepoint():
                    write(tx, "finished")
                raise Interruption

        assert notes_kept(ledger) == ["outer"]

    def test_a_savepoint_outlives_a_refused_statement(self, ledger: Ledger) -> None:
        """After the database refused a statement inside a savepoint, the transaction goes on."""
        with ledger.transaction() as tx:
            write(tx, "same")
            with pytest.raises(IntegrityError), tx.savepoint():
                write(tx, "same")
            write(tx, "after")

        assert notes_kept(ledger) == ["after", "same"]

    def test_run_answers_and_keeps(self, ledger: Ledger) -> None:
        """`run` answers what the function answers, once it is committed."""
        answer = ledger.run(lambda tx: write(tx, "mine"))

        assert answer == "mine"
        assert notes_kept(ledger) == ["mine"]

    def test_run_tries_so_often(self, home: Home) -> None:
        """A transaction that always meets another one is tried as often as the setting says."""
        tried = []

        def work(tx: Transaction) -> None:
            tried.append(notes(tx.connection))
            write(tx, "mine")
            raise errors.StoreBusy

        with opened(home.url, store={"transaction_tries_max": 3}) as ledger:
            with pytest.raises(errors.StoreBusy):
                ledger.run(work)

            assert tried == [[], [], []]
            assert notes_kept(ledger) == []

    def test_run_repeats_nothing_else(self, ledger: Ledger) -> None:
        """Another error than meeting another transaction is raised at the first try."""
        tried = []

        def work(tx: Transaction) -> None:
            tried.append(1)
            write(tx, "same")
            write(tx, "same")

        with pytest.raises(errors.Duplicate):
            ledger.run(work)

        assert tried == [1]

    def test_two_that_meet_both_succeed(self, ledger: Ledger) -> None:
        """Two transactions that want the same two rows in opposite order: `run` carries out both.

        A server finds the deadlock and ends one of them, which is tried again; SQLite lets the
        second begin when the first is over.
        """
        ledger.run(lambda tx: [write(tx, name) for name in ("a", "b")])
        meet = Meeting(ledger)

        def raise_both(first: str, second: str) -> Callable[[], None]:
            def work(tx: Transaction) -> None:
                count_up(tx, first)
                meet.once()
                count_up(tx, second)

            return lambda: ledger.run(work)

        together(raise_both("a", "b"), raise_both("b", "a"))

        with ledger.reading() as tx:
            counts = tx.connection.execute(select(note.c.name, note.c.count)).all()
        assert sorted(map(tuple, counts)) == [("a", 2), ("b", 2)]

    def test_two_batches_that_meet_both_succeed(self, ledger: Ledger) -> None:
        """The same when they meet inside the ledger's own batches, over the same two keys."""
        meet = Meeting(ledger)

        def enqueue_both(first: str, second: str) -> Callable[[], list[bool]]:
            def work(tx: Transaction) -> list[bool]:
                created = [Chores(tx).enqueue(1, key=first).created]
                meet.once()
                return [*created, Chores(tx).enqueue(1, key=second).created]

            return lambda: ledger.run(work)

        created = together(enqueue_both("a", "b"), enqueue_both("b", "a"))

        assert sorted(created) == [[False, False], [True, True]]

    def test_waiting_has_an_end(self, home: Home) -> None:
        """A statement waits for another transaction as long as the setting says, then StoreBusy."""
        short = {"lock_timeout_seconds": 1, "busy_timeout_seconds": 0.2, "transaction_tries_max": 1}
        held, over = threading.Event(), threading.Event()

        def hold(ledger: Ledger) -> None:
            with ledger.transaction() as tx:
                count_up(tx, "a")
                held.set()
                signaled(over)

        with opened(home.url) as holder, opened(home.url, store=short) as waiter:
            holder.run(lambda tx: write(tx, "a"))
            with aside(lambda: hold(holder)):
                signaled(held)
                with pytest.raises(errors.StoreBusy) as raised:
                    waiter.run(lambda tx: count_up(tx, "a"))
                over.set()

            assert raised.value.retryable
            waiter.run(lambda tx: count_up(tx, "a"))

    @pytest.mark.parametrize("through", ["statement", "connection"])
    @pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
    def test_a_call_that_is_broken_off(
        self, ledger: Ledger, home: Home, through: str, error: type[BaseException]
    ) -> None:
        """A connection in the middle of whose call an error was raised answers nobody any more."""
        with opened(home.url, store={"pool_size_max": 1}) as other:
            with pytest.raises(error), other.transaction() as tx:
                Chores(tx).enqueue(1)
                used = driver_connection(tx)
                with interrupting(ledger, tx, error) as statement:
                    if through == "statement":
                        Statement("test.slow", text(statement)).rows(tx)
                    else:
                        tx.connection.execute(text(statement))

            with other.transaction() as tx:
                ids = [Chores(tx).enqueue(number).id for number in range(3)]
            with other.reading() as tx:
                found = [Chores(tx).get(key).id for key in ids]
        assert found == ids
        assert is_closed(used)

    def test_errors_are_translated(self, ledger: Ledger) -> None:
        """No error of a driver leaves a transaction; each has become one of Ledgerstone's."""

        def failing(statement: str) -> Callable[[], None]:
            def call() -> None:
                with ledger.transaction() as tx:
                    write(tx, "same")
                    tx.connection.execute(text(statement))

            return call

        cases = {
            "INSERT INTO note (name, count) VALUES ('same', 0)": errors.Duplicate,
            "SELECT * FROM nowhere": errors.StoreError,
            "INSERT INTO note (name, count) VALUES (NULL, 0)": errors.StoreError,
            "SELEKT": errors.StoreError,
        }
        for statement, kind in cases.items():
            with pytest.raises(kind) as raised:
                failing(statement)()

            assert type(raised.value) is kind, statement
            assert raised.value.__cause__ is not None
        assert notes_kept(ledger) == []

    def test_databases_are_told_apart(self, ledger: Ledger, home: Home, tmp_path: Path) -> None:
        """Every database has an identity of its own, the same for everyone who opens it."""
        with opened(home.url) as same, another(home, tmp_path) as other:
            assert same.database.identity == ledger.database.identity
            assert other.database.identity != ledger.database.identity

    def test_a_closed_ledger_opens_again(self, ledger: Ledger) -> None:
        """Closing only lets go of the connections: the next use opens new ones."""
        ledger.close()
        ledger.close()

        ledger.run(lambda tx: write(tx, "mine"))

        assert notes_kept(ledger) == ["mine"]

    def test_one_in_use_is_closed_when_it_comes_back(self, ledger: Ledger) -> None:
        """A ledger that is closed in the middle of a transaction ends it, and leaves nothing."""
        with ledger.transaction() as tx:
            write(tx, "mine")
            connection = driver_connection(tx)
            ledger.close()

        assert is_closed(connection)
        assert notes_kept(ledger) == ["mine"]

    def test_one_connection_serves_everybody(self, home: Home) -> None:
        """Whoever waits for the only connection gets it, however often another wants it too."""
        with opened(home.url, store={"pool_size_max": 1}) as ledger:

            def enqueue_some() -> None:
                for _ in range(TURNS_MANY):
                    with ledger.transaction() as tx:
                        tx.jobs.enqueue("mine")

            together(*[enqueue_some] * 4)
            # Also who takes it from the engine, and not for a transaction of ours.
            with ledger.database.engine.connect() as connection:
                kept = connection.execute(text("SELECT COUNT(*) FROM job")).scalar()

        assert kept == 4 * TURNS_MANY

    @pytest.mark.slow
    def test_what_is_dropped_leaves_no_connection(self, ledger: Ledger) -> None:
        """Connections of a worker that nobody closed end with it, and not when they like."""
        sibling = ledger.database.sibling(connections=1)
        with sibling.reading() as tx:
            connection = driver_connection(tx)
        del sibling, tx
        gc.collect()

        assert is_closed(connection)


class Meeting:
    """Where two transactions wait for each other, the first time each of them comes by.

    Where there is one writer they cannot be under way together: there nobody waits.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._barrier = threading.Barrier(2)
        self._over = ledger.database.dialect.one_writer

    def once(self) -> None:
        if not self._over:
            self._barrier.wait(WAIT_SECONDS_MAX)
            self._over = True


def driver_connection(tx: Transaction) -> Any:
    """The connection of the driver that it goes by."""
    return tx.connection.connection.dbapi_connection


def is_closed(connection: Any) -> bool:
    """Whether the driver refuses to use it."""
    try:
        connection.cursor().execute("SELECT 1")
    except Exception:  # noqa: BLE001 - each driver has its own errors
        return True
    return False


def count_up(tx: Transaction, name: str) -> None:
    """Change a row of the user's own."""
    tx.connection.execute(update(note).where(note.c.name == name).values(count=note.c.count + 1))


def limited(url: str, **store: Any) -> Ledger:
    """A ledger on a database that is migrated, with such limits of its transactions."""
    return Ledger(url, settings=Settings.load(url=url, environ={}, store=store))
