"""The transaction contract, against code that ends the transaction inside its block."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import event, insert, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from ledgerstone import errors
from ledgerstone.ids import new_id
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.chores import Chores
from tests.contract.store.transactions import Meeting, count_up
from tests.harness.interrupting import CUT
from tests.harness.own_table import OwnTable, note, notes, notes_kept, write
from tests.harness.threads import together

Act = Callable[[Transaction], Any]


def session_rolls_back(tx: Transaction) -> None:
    """What a session does that was bound to the connection."""
    with Session(bind=tx.connection) as session:
        session.execute(insert(note).values(name="session", count=0))
        session.rollback()


def session_commits(tx: Transaction) -> None:
    """The same, told that the transaction is its own."""
    with Session(bind=tx.connection, join_transaction_mode="control_fully") as session:
        session.execute(insert(note).values(name="session", count=0))
        session.commit()


def root_rolls_back(tx: Transaction) -> None:
    """Through the object that SQLAlchemy has for it."""
    root = tx.connection.get_transaction()
    assert root is not None
    root.rollback()


def by_cursor(words: str) -> Act:
    """Behind SQLAlchemy's back."""

    def act(tx: Transaction) -> None:
        cursor = tx.cursor()
        cursor.execute(words)
        cursor.close()

    return act


def cut(ledger: Ledger, tx: Transaction) -> None:
    """Have the server end the connection; without a server the driver's connection is closed."""
    words = CUT.get(ledger.database.url.get_backend_name())
    if words is None:
        driver = tx.connection.connection.dbapi_connection
        assert driver is not None
        driver.close()
        return
    number = tx.connection.execute(text(words[0])).scalar()
    with ledger.reading() as other:
        other.connection.execute(text(words[1].format(number)))


def called(act: Act, tx: Transaction) -> None:
    """Here."""
    act(tx)


def in_a_thread(act: Act, tx: Transaction) -> None:
    """In another thread, which has done nothing else."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(act, tx).result(WAIT_SECONDS_MAX)


def nothing(_: Transaction) -> None:
    """That was the last of it."""


def accept(tx: Transaction) -> None:
    """A statement of the ledger's."""
    Chores(tx).enqueue(2)


def write_more(tx: Transaction) -> None:
    """A statement of the user's."""
    write(tx, new_id())


def save_and_accept(tx: Transaction) -> None:
    """A savepoint of the ledger's."""
    with tx.savepoint():
        Chores(tx).enqueue(2)


ROLLBACKS = {
    "rollback": lambda tx: tx.connection.rollback(),
    "session": session_rolls_back,
    "root": root_rolls_back,
}
COMMITS = {
    "commit": lambda tx: tx.connection.commit(),
    "session": session_commits,
}
BEHIND = {
    "commit of the driver": lambda tx: tx.connection.connection.dbapi_connection.commit(),
    "commit of a cursor": by_cursor("COMMIT"),
    "rollback of the driver": lambda tx: tx.connection.connection.dbapi_connection.rollback(),
    "rollback of a cursor": by_cursor("ROLLBACK"),
}
INSERTED = "INSERT INTO note (name, count) VALUES ('by a cursor', 0)"
TEXTS = ("COMMIT", " rollback ", "/* a */ Commit", "BEGIN", "START TRANSACTION")
AFTERWARDS = {
    "nothing": nothing,
    "ledger": accept,
    "savepoint": save_and_accept,
    "user": write_more,
}


class EndedContract(OwnTable):
    """What holds when the code in a block ends its transaction. Fixtures: `ledger`."""

    @pytest.mark.parametrize("after", AFTERWARDS)
    @pytest.mark.parametrize("ending", ROLLBACKS)
    def test_a_rollback_inside(self, ledger: Ledger, ending: str, after: str) -> None:
        """Whoever rolls back inside is told so, whatever follows, and nothing is kept."""
        with pytest.raises(errors.NotAllowedNow, match="savepoint"), ledger.transaction() as tx:
            Chores(tx).enqueue(1)
            write(tx, "before")
            ROLLBACKS[ending](tx)
            AFTERWARDS[after](tx)

        assert_kept(ledger)

    @pytest.mark.parametrize("elsewhere", [False, True])
    @pytest.mark.parametrize("failed", [False, True])
    @pytest.mark.parametrize("after", AFTERWARDS)
    def test_used_after_its_block(
        self, ledger: Ledger, after: str, failed: bool, elsewhere: bool
    ) -> None:
        """A use after the block is refused, in any thread, and rides in no other transaction."""
        with suppress(LookupError), ledger.transaction() as tx:
            Chores(tx).enqueue(1)
            write(tx, "inside")
            if failed:
                raise LookupError
        refused = pytest.raises(errors.NotAllowedNow, match="ended with its block")

        with ledger.transaction() as another:
            Chores(another).enqueue(3)
            if after != "nothing":
                with refused:
                    (in_a_thread if elsewhere else called)(AFTERWARDS[after], tx)

        assert notes_kept(ledger) == ([] if failed else ["inside"])
        with ledger.reading() as tx:
            assert sum(Chores(tx).counts().values()) == (1 if failed else 2)

    def test_read_from_after_its_block(self, ledger: Ledger) -> None:
        """The same for one that only reads."""
        with ledger.reading() as tx:
            pass

        with pytest.raises(errors.NotAllowedNow):
            Chores(tx).counts()

    def test_told_at_once(self, ledger: Ledger) -> None:
        """The next call of the ledger is the one that is refused."""
        with pytest.raises(LookupError), ledger.transaction() as tx:
            tx.connection.rollback()
            with pytest.raises(errors.NotAllowedNow):
                Chores(tx).enqueue(1)
            raise LookupError

        assert_kept(ledger)

    def test_a_session_that_failed(self, ledger: Ledger) -> None:
        """A session that rolls back over an error of its own has ended the transaction as well."""
        with pytest.raises(errors.LedgerstoneError), ledger.transaction() as tx:
            Chores(tx).enqueue(1)
            write(tx, "same")
            with Session(bind=tx.connection) as session, suppress(IntegrityError):
                try:
                    session.execute(insert(note).values(name="same", count=0))
                except IntegrityError:
                    session.rollback()
                    raise

        assert_kept(ledger)

    @pytest.mark.parametrize("after", ["nothing", "ledger", "savepoint"])
    def test_a_connection_that_was_closed(self, ledger: Ledger, after: str) -> None:
        """The same for one who closes the connection; it is used by nobody else meanwhile."""
        with pytest.raises(errors.NotAllowedNow), ledger.transaction() as tx:
            Chores(tx).enqueue(1)
            with tx.connection as connection:
                connection.execute(text("SELECT 1"))
            AFTERWARDS[after](tx)

        assert_kept(ledger)

    @pytest.mark.parametrize("after", ["nothing", "ledger"])
    def test_a_connection_that_was_lost(self, ledger: Ledger, after: str) -> None:
        """Whoever catches the error of a lost connection is told that nothing was kept."""
        with pytest.raises(errors.StoreUnavailable), ledger.transaction() as tx:
            Chores(tx).enqueue(1)
            write(tx, "before")
            tx.connection.invalidate()
            AFTERWARDS[after](tx)

        assert_kept(ledger)

    @pytest.mark.parametrize("after", AFTERWARDS)
    def test_an_error_of_ones_own_after_a_loss(self, ledger: Ledger, after: str) -> None:
        """Whoever raises inside gets that error, also if the connection is lost by then."""
        with pytest.raises(LookupError), ledger.transaction() as tx:
            Chores(tx).enqueue(1)
            cut(ledger, tx)
            with suppress(Exception):
                AFTERWARDS[after](tx)
            raise LookupError

        assert ledger.run(lambda tx: Chores(tx).enqueue(3)).created
        with ledger.reading() as tx:
            assert sum(Chores(tx).counts().values()) == 1

    def test_interrupted_inside_a_savepoint_after_a_loss(self, ledger: Ledger) -> None:
        """An interruption inside a savepoint comes out, also if the connection is lost by then."""
        with pytest.raises(KeyboardInterrupt), ledger.transaction() as tx:
            Chores(tx).enqueue(1)
            with tx.savepoint():
                cut(ledger, tx)
                raise KeyboardInterrupt

        assert ledger.run(lambda tx: Chores(tx).enqueue(3)).created
        with ledger.reading() as tx:
            assert sum(Chores(tx).counts().values()) == 1

    def test_lost_before_the_commit(self, ledger: Ledger) -> None:
        """Whoever loses the connection inside is told that nothing is kept; `run` runs it again."""
        runs: list[int] = []

        def work(tx: Transaction) -> None:
            Chores(tx).enqueue(len(runs))
            runs.append(1)
            if len(runs) == 1:
                cut(ledger, tx)
            Chores(tx).enqueue(len(runs))

        with pytest.raises(errors.LedgerstoneError) as raised, ledger.transaction() as tx:
            work(tx)
        runs.clear()
        ledger.run(work)

        assert isinstance(raised.value, errors.StoreUnavailable)
        assert not isinstance(raised.value, errors.CommitUnknown)
        assert len(runs) == 2
        with ledger.reading() as tx:
            assert sum(Chores(tx).counts().values()) == 2

    def test_lost_at_the_commit(self, ledger: Ledger, home: Home) -> None:
        """Once the commit was asked for nobody knows what is kept: `run` does not run it again."""
        runs: list[int] = []

        def work(tx: Transaction) -> None:
            runs.append(1)
            write(tx, "mine")
            # The last thing before the commit.
            tx.at_commit("cut", lambda: cut(ledger, tx))

        with pytest.raises(errors.StoreUnavailable) as raised:
            ledger.run(work)

        # Without a server it shows before the commit is asked for.
        assert isinstance(raised.value, errors.CommitUnknown) == (home.server is not None)
        assert len(runs) == (1 if home.server is not None else 2)
        assert raised.value.retryable

    @pytest.mark.parametrize("ending", COMMITS)
    def test_a_commit_inside(self, ledger: Ledger, ending: str) -> None:
        """A commit inside the block is refused where it is written, and nothing is kept."""
        with pytest.raises(errors.NotAllowedNow, match="commit inside"), ledger.transaction() as tx:
            Chores(tx).enqueue(1)
            write(tx, "before")
            COMMITS[ending](tx)

        assert_kept(ledger)

    @pytest.mark.parametrize("after", ["nothing", "ledger", "savepoint"])
    @pytest.mark.parametrize("ending", COMMITS)
    def test_a_refused_commit_that_is_caught(self, ledger: Ledger, ending: str, after: str) -> None:
        """Whoever catches that is told again, and nothing is kept either."""
        with pytest.raises(errors.NotAllowedNow, match="ended"), ledger.transaction() as tx:
            Chores(tx).enqueue(1)
            with suppress(errors.NotAllowedNow):
                COMMITS[ending](tx)
            AFTERWARDS[after](tx)

        assert_kept(ledger)

    @pytest.mark.parametrize("words", TEXTS)
    def test_a_statement_that_would_end_it(self, ledger: Ledger, words: str) -> None:
        """It is refused before it is sent, and leaves the transaction as it was."""
        with ledger.transaction() as tx:
            Chores(tx).enqueue(1)
            write(tx, "before")
            with pytest.raises(errors.NotAllowedNow, match="refused"):
                tx.connection.execute(text(words))
            Chores(tx).enqueue(2)

        assert_kept(ledger, "before", chores=2)

    @pytest.mark.parametrize("after", ["nothing", "ledger", "savepoint"])
    def test_a_rollback_by_a_cursor(self, ledger: Ledger, after: str) -> None:
        """So is noticed what a cursor of the driver was told."""
        with pytest.raises(errors.NotAllowedNow, match="savepoint"), ledger.transaction() as tx:
            Chores(tx).enqueue(1)
            write(tx, "before")
            by_cursor("ROLLBACK")(tx)
            AFTERWARDS[after](tx)

        assert_kept(ledger)

    @pytest.mark.parametrize("after", ["nothing", "ledger", "savepoint"])
    def test_a_commit_by_a_cursor(self, ledger: Ledger, after: str) -> None:
        """What it has committed cannot be taken back: that is said, and no more is added."""
        with (
            pytest.raises(errors.NotAllowedNow, match="cannot be taken back"),
            ledger.transaction() as tx,
        ):
            Chores(tx).enqueue(1)
            write(tx, "before")
            by_cursor("COMMIT")(tx)
            AFTERWARDS[after](tx)

        assert_kept(ledger, "before", chores=1)

    @pytest.mark.parametrize("after", AFTERWARDS)
    @pytest.mark.parametrize("words", ["COMMIT", "ROLLBACK"])
    def test_ended_in_a_block_with_a_cursor_alone(
        self, ledger: Ledger, words: str, after: str
    ) -> None:
        """An end by a cursor is noticed also if SQLAlchemy's connection was never made."""
        with pytest.raises(errors.NotAllowedNow, match="ended"), ledger.transaction() as tx:
            Chores(tx).enqueue(1)
            by_cursor(INSERTED)(tx)
            by_cursor(words)(tx)
            AFTERWARDS[after](tx)

        kept = ["by a cursor"] if words == "COMMIT" else []
        assert_kept(ledger, *kept, chores=len(kept))

    def test_blocks_with_a_cursor_alone(self, ledger: Ledger) -> None:
        """What a cursor writes is undone and committed with its block, and costs no connection."""
        ledger.run(lambda tx: Chores(tx).enqueue(0))
        made: list[object] = []
        event.listen(ledger.database.engine, "engine_connect", made.append)

        for fails in (True, True, False):
            with suppress(LookupError), ledger.transaction() as tx:
                by_cursor(INSERTED)(tx)
                Chores(tx).enqueue(1)
                if fails:
                    raise LookupError

        assert made == []
        assert_kept(ledger, "by a cursor", chores=2)

    @pytest.mark.parametrize("after", AFTERWARDS)
    @pytest.mark.parametrize("ending", BEHIND)
    def test_ended_behind_our_back(self, ledger: Ledger, ending: str, after: str) -> None:
        """So is what the driver's connection or a cursor was told, whatever follows it."""
        with pytest.raises(errors.NotAllowedNow, match="ended"), ledger.transaction() as tx:
            Chores(tx).enqueue(1)
            write(tx, "before")
            BEHIND[ending](tx)
            AFTERWARDS[after](tx)

        # What comes after a commit stands alone, on a database whose driver begins nothing.
        kept = {"before"} if "commit" in ending else set[str]()
        assert kept <= set(notes_kept(ledger))
        with ledger.reading() as tx:
            assert sum(Chores(tx).counts().values()) == len(kept)

    @pytest.mark.parametrize("ending", BEHIND)
    def test_the_next_transaction_after_one(self, ledger: Ledger, ending: str) -> None:
        """Whatever was ended, the next transaction on the same connections is all or nothing."""
        with pytest.raises(LookupError), ledger.transaction() as tx:
            write(tx, "before")
            BEHIND[ending](tx)
            raise LookupError
        kept = notes_kept(ledger)

        with pytest.raises(LookupError), ledger.transaction() as tx:
            Chores(tx).enqueue(1)
            write(tx, "undone")
            raise LookupError

        assert notes_kept(ledger) == kept
        with ledger.reading() as tx:
            assert sum(Chores(tx).counts().values()) == 0

    @pytest.mark.parametrize("after", AFTERWARDS)
    def test_a_deadlock_that_is_caught(self, ledger: Ledger, after: str) -> None:
        """Who goes on after a deadlock is told at the end: all of it is kept, or nothing.

        A server has undone one of the two; where there is one writer they do not meet.
        """
        ledger.run(lambda tx: [write(tx, name) for name in ("a", "b")])
        meet = Meeting(ledger)

        def raise_both(first: str, second: str) -> Callable[[], bool]:
            def work(tx: Transaction) -> None:
                Chores(tx).enqueue(1)
                count_up(tx, first)
                meet.once()
                with suppress(DBAPIError):
                    count_up(tx, second)
                AFTERWARDS[after](tx)

            return lambda: committed(ledger, work)

        went_well = together(raise_both("a", "b"), raise_both("b", "a"))

        each = 2 if after in {"ledger", "savepoint"} else 1
        assert sum(went_well) == (2 if ledger.database.dialect.one_writer else 1)
        with ledger.reading() as tx:
            assert sum(Chores(tx).counts().values()) == each * sum(went_well)

    def test_a_deadlock_of_the_ledger_that_is_caught(self, ledger: Ledger) -> None:
        """The same if it was the ledger's own statement that met another one."""
        meet = Meeting(ledger)

        def enqueue_both(first: str, second: str) -> Callable[[], bool]:
            def work(tx: Transaction) -> None:
                Chores(tx).enqueue(1, key=first)
                write(tx, first)
                meet.once()
                with suppress(errors.StoreBusy):
                    Chores(tx).enqueue(1, key=second)

            return lambda: committed(ledger, work)

        one_writer = ledger.database.dialect.one_writer
        went_well = together(enqueue_both("a", "b"), enqueue_both("b", "a"))

        assert sum(went_well) == (2 if one_writer else 1)
        assert len(notes_kept(ledger)) == sum(went_well)
        with ledger.reading() as tx:
            assert sum(Chores(tx).counts().values()) == 2

    def test_savepoints_of_the_users(self, ledger: Ledger) -> None:
        """A savepoint is theirs to keep or to undo, by SQLAlchemy, by a session or by words."""
        with ledger.transaction() as tx:
            Chores(tx).enqueue(1)
            for name, keeps in (("kept", True), ("undone", False)):
                nested = tx.connection.begin_nested()
                write(tx, name)
                Chores(tx).enqueue(2)
                (nested.commit if keeps else nested.rollback)()
                with Session(tx.connection, join_transaction_mode="create_savepoint") as session:
                    session.execute(insert(note).values(name=f"session {name}", count=0))
                    (session.commit if keeps else session.rollback)()
            tx.connection.execute(text("SAVEPOINT mine"))
            write(tx, "undone")
            tx.connection.execute(text("ROLLBACK TO SAVEPOINT mine"))
            with Session(tx.connection) as session:
                session.execute(insert(note).values(name="left to the block", count=0))
                session.commit()
            Chores(tx).enqueue(3)

        assert_kept(ledger, "kept", "left to the block", "session kept", chores=3)

    def test_a_reader_may(self, ledger: Ledger) -> None:
        """A transaction that only reads keeps nothing anyway, and goes on."""
        ledger.run(lambda tx: write(tx, "mine"))

        with ledger.reading() as tx:
            tx.connection.rollback()
            seen = notes(tx.connection)
            counted = sum(Chores(tx).counts().values())

        assert (seen, counted) == (["mine"], 0)

    def test_the_engine_is_free(self, ledger: Ledger) -> None:
        """Whoever takes a connection from the engine ends their own transactions on it."""
        with pytest.raises(errors.NotAllowedNow), ledger.transaction() as tx:
            tx.connection.commit()

        with ledger.database.engine.connect() as connection:
            connection.execute(insert(note).values(name="own", count=0))
            Chores(ledger.join(connection)).enqueue(1)
            connection.commit()
            connection.execute(insert(note).values(name="undone", count=0))
            connection.rollback()

        assert_kept(ledger, "own", chores=1)


def committed(ledger: Ledger, work: Act) -> bool:
    """Whether the transaction with this in it was said to be committed."""
    try:
        with ledger.transaction() as tx:
            work(tx)
    except errors.StoreError:
        return False
    return True


def assert_kept(ledger: Ledger, *names: str, chores: int = 0) -> None:
    """These rows and no others; and the next transaction is as ever."""
    assert notes_kept(ledger) == sorted(names)
    with ledger.reading() as tx:
        assert sum(Chores(tx).counts().values()) == chores
    with ledger.transaction() as tx:
        Chores(tx).enqueue(9)
        write(tx, "next")
    assert notes_kept(ledger) == sorted([*names, "next"])
