"""The joining contract: in the user's own transaction, whatever they hold it in.

The clauses are the same for every guest: SQLAlchemy's connection and session, both also
asynchronous, Django's connection, and the bare connection of a driver.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ledgerstone import errors
from ledgerstone.engine.source import Handler
from ledgerstone.jobs import NewJob
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.settings import Settings
from ledgerstone.store import leases
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests import chores
from tests.chores import Chores, ChoreSource, Enqueued, NewChore, Status
from tests.chores.chores import CHANNEL
from tests.chores.workshop import worker_process
from tests.contract.store.batches import add, change
from tests.contract.store.batches import tables as batch_tables
from tests.contract.store.wakeups import WATCHED, watched
from tests.harness.joinable import GUESTS, Guest, guest_on, url_for
from tests.harness.ledgers import another, subscribed
from tests.harness.own_table import notes, notes_kept, tables
from tests.harness.threads import PATIENCE_SECONDS, together

USERS, ROUNDS = 6, 25


def enqueue(guest: Guest, ledger: Ledger, body: object, key: str | None = None) -> Enqueued:
    """A chore in the transaction of the guest."""
    return guest.joined(ledger, lambda tx: Chores(tx).enqueue(body, key=key))


def accept_many(tx: Transaction, key: str) -> None:
    """Several jobs at once."""
    tx.jobs.enqueue_many([NewJob(type="a", key=f"{key}-{part}") for part in range(3)])


SIDE_BY_SIDE: dict[str, Callable[..., object]] = {
    "job": lambda tx, key: tx.jobs.enqueue("a", {}, key=key),
    "jobs": accept_many,
    "message": lambda tx, key: tx.outbox.publish("a.b", {}, key=key, partition=key),
    "chore": lambda tx, key: Chores(tx).enqueue(1, key=key),
}

AFTER_ITS_END: dict[str, Callable[[Transaction], object]] = {
    "enqueue": lambda tx: Chores(tx).enqueue(2),
    "read": lambda tx: Chores(tx).counts(),
    "nothing": lambda tx: tx.jobs.enqueue_many([]),
    "connection": lambda tx: tx.connection,
    "cursor": lambda tx: tx.cursor(),
    "command": lambda tx: tx.command("SELECT 1"),
    "savepoint": lambda tx: tx.savepoint().__enter__(),
    "wake": lambda tx: tx.wake(CHANNEL),
    "hook": lambda tx: tx.at_commit("late", lambda: None),
}
NOT_TOLD_APART = ("driver", "sqlite3")
"""Guests whose connection only reports that a transaction is open, and not which one."""


@pytest.mark.filterwarnings("ignore:SQLite .* has the WAL-reset bug:RuntimeWarning")
class JoinContract:
    """What holds in a joined transaction. Fixtures: `home`, `clock`."""

    @pytest.fixture(params=list(GUESTS))
    def name(self, request: pytest.FixtureRequest) -> str:
        """Every way to hold a transaction."""
        return str(request.param)

    @pytest.fixture
    def ledger(self, home: Home, clock: ManualClock, name: str) -> Iterator[Ledger]:
        """A ledger that the guest can join."""
        url = url_for(name, home)
        settings = Settings.load(url=url, environ={})
        with Ledger(url, settings=settings, clock=clock) as ledger:
            ledger.migrate()
            chores.install(ledger.database)
            tables.create_all(ledger.database.engine)
            yield ledger

    @pytest.fixture
    def guest(self, name: str, ledger: Ledger, home: Home) -> Iterator[Guest]:
        """A program with a transaction of its own on the same database."""
        with guest_on(name, home.url) as guest:
            guest.begin()
            yield guest

    def test_a_commit_keeps_both(self, ledger: Ledger, guest: Guest) -> None:
        """When the user commits, their rows and ours are kept; until then nobody sees either."""
        add_note(guest, "mine")
        enqueued = enqueue(guest, ledger, {"order": 7})
        inside = guest.execute("SELECT COUNT(*) FROM chore")
        before = kept(ledger)

        guest.commit()

        assert enqueued.created
        assert inside == [(1,)]
        assert before == ([], 0)
        assert kept(ledger) == (["mine"], 1)
        with ledger.reading() as tx:
            assert Chores(tx).get(enqueued.id).body == {"order": 7}

    def test_a_rollback_keeps_neither(self, ledger: Ledger, guest: Guest) -> None:
        """When the user rolls back, neither is kept; their next transaction is joined as well."""
        enqueue(guest, ledger, 1)
        add_note(guest, "mine")

        guest.rollback()
        after = kept(ledger)
        guest.begin()
        enqueue(guest, ledger, 2)
        guest.commit()

        assert after == ([], 0)
        assert kept(ledger) == ([], 1)

    @pytest.mark.parametrize("ending", ["commit", "rollback"])
    def test_used_after_the_user_ended_it(self, ledger: Ledger, guest: Guest, ending: str) -> None:
        """Once the user has ended it, each use of it is NotInTransaction, and writes nothing."""
        in_it = guest.join(ledger)
        in_it(lambda tx: Chores(tx).enqueue(1))

        getattr(guest, ending)()
        accepted = [
            name
            for name, use in AFTER_ITS_END.items()
            if not raised(errors.NotInTransaction, partial(in_it, use))
        ]

        assert accepted == []
        assert kept(ledger) == ([], 1 if ending == "commit" else 0)

    @pytest.mark.parametrize("ending", ["commit", "rollback"])
    def test_used_in_the_users_next_transaction(
        self, name: str, ledger: Ledger, guest: Guest, ending: str
    ) -> None:
        """A use in the next transaction is refused; where the driver cannot tell, it is kept."""
        in_it = guest.join(ledger)
        in_it(lambda tx: Chores(tx).enqueue(1))
        getattr(guest, ending)()
        guest.begin()
        add_note(guest, "next")

        told = raised(errors.NotInTransaction, lambda: in_it(lambda tx: Chores(tx).enqueue(2)))
        guest.commit()

        assert told == (name not in NOT_TOLD_APART)
        assert kept(ledger) == (["next"], (ending == "commit") + (not told))

    def test_a_savepoint_takes_ours_with_it(self, ledger: Ledger, guest: Guest) -> None:
        """Back to the user's savepoint, what we wrote since is gone, and what came before stays."""
        add_note(guest, "before")
        first = enqueue(guest, ledger, "before")
        guest.savepoint()
        add_note(guest, "inside")
        second = enqueue(guest, ledger, "inside")

        guest.undo()

        add_note(guest, "after")
        enqueue(guest, ledger, "after")
        guest.commit()
        assert kept(ledger) == (["after", "before"], 2)
        with ledger.reading() as tx:
            assert Chores(tx).get(first.id).body == "before"
            with pytest.raises(errors.NotFound):
                Chores(tx).get(second.id)

    @pytest.mark.slow
    def test_it_stays_the_users(self, ledger: Ledger, guest: Guest) -> None:
        """We never commit, roll back, close or reset it, not even when ours are collected."""
        add_note(guest, "mine")
        for number in range(3):
            enqueue(guest, ledger, number)
            gc.collect()
        ledger.close()
        gc.collect()

        inside = guest.execute("SELECT COUNT(*) FROM chore")
        outside = kept(ledger)
        guest.commit()

        assert inside == [(3,)]
        assert outside == ([], 0)
        assert kept(ledger) == (["mine"], 3)

    def test_a_conflict_leaves_it_usable(self, ledger: Ledger, guest: Guest) -> None:
        """A refused key costs the user nothing: their transaction goes on and commits."""
        add_note(guest, "before")
        first = enqueue(guest, ledger, 1, key="order-7")

        again = enqueue(guest, ledger, 1, key="order-7")
        with pytest.raises(errors.KeyConflict):
            enqueue(guest, ledger, 2, key="order-7")

        add_note(guest, "after")
        guest.commit()
        assert (again.id, again.created) == (first.id, False)
        assert kept(ledger) == (["after", "before"], 1)

    def test_everything_works_in_it(self, ledger: Ledger, guest: Guest) -> None:
        """Batches, refusals, savepoints and leases do in it what they always do."""
        batch_tables.create_all(ledger.database.engine)

        def work(tx: Transaction) -> list[Any]:
            lease = leases.acquire(tx, "door", "ann", seconds=5)
            assert lease is not None
            # Nothing changes by it: the row is found all the same.
            leases.renew(tx, lease, seconds=5)
            with pytest.raises(errors.Duplicate), tx.savepoint():
                tx.command("INSERT INTO note (name, count) VALUES ('mine', 0)")
            Chores(tx).enqueue_many([NewChore(body=f"'{i}\\%🦊") for i in range(50)])
            return [
                add(tx, [(1, "a", "%s"), (2, "b", None), (1, "c", None)]),
                change.run(tx, [(1, 1, "🦊"), (2, 7, None)], extra_="%"),
                leases.release(tx, lease),
                Chores(tx).counts()[Status.QUEUED],
            ]

        add_note(guest, "mine")
        answers = guest.joined(ledger, work)
        guest.commit()

        assert answers == [[2], [1], True, 50]
        assert kept(ledger) == (["mine"], 50)

    def test_another_database_is_refused(
        self, name: str, ledger: Ledger, home: Home, tmp_path: Path
    ) -> None:
        """A connection to a database with another ledger or none is WrongDatabase, and goes on."""
        with another(home, tmp_path) as other:
            tables.create_all(other.database.engine)
            other.close()

            with guest_on(name, url_of(other)) as stranger:
                stranger.begin()
                add_note(stranger, "before")
                with pytest.raises(errors.WrongDatabase):
                    enqueue(stranger, ledger, 1)
                add_note(stranger, "after")
                stranger.commit()
                stranger.begin()
                stranger.execute("DROP TABLE ledger_identity")
                stranger.commit()
                stranger.begin()
                with pytest.raises(errors.WrongDatabase):
                    enqueue(stranger, ledger, 1)
                add_note(stranger, "at last")
                stranger.commit()

            with other.database.reading() as tx:
                assert notes(tx.connection) == ["after", "at last", "before"]
        assert kept(ledger) == ([], 0)

    def test_without_a_transaction_it_is_refused(
        self, name: str, ledger: Ledger, home: Home
    ) -> None:
        """Where every statement commits by itself there is nothing to join: NotInTransaction."""
        with guest_on(name, home.url, isolation_level="AUTOCOMMIT") as guest:
            with pytest.raises(errors.NotInTransaction) as raised:
                enqueue(guest, ledger, 1)
            add_note(guest, "mine")

        assert raised.value.hint
        assert kept(ledger) == (["mine"], 0)


class JoinedWorkContract:
    """How what was enqueued in a user's transaction is found. Fixtures: `ledger`, `home`."""

    @pytest.fixture
    def guest(self, ledger: Ledger, home: Home) -> Iterator[Guest]:
        """A program with a connection of its own."""
        with guest_on("driver", home.url) as guest:
            yield guest

    def test_the_users_commit_wakes(self, ledger: Ledger, guest: Guest, home: Home) -> None:
        """A watcher notices the user's commit, not earlier and not without it."""
        with watched(ledger) as watcher, subscribed(ledger, CHANNEL) as wake_signal:
            enqueue(guest, ledger, 1)
            guest.rollback()
            enqueue(guest, ledger, 2)
            early = wake_signal.wait(PATIENCE_SECONDS)
            guest.commit()
            woken = watcher is not None and wake_signal.wait(WAIT_SECONDS_MAX)

        assert not early
        assert woken == WATCHED[home.kind]

    @pytest.mark.parametrize("what", SIDE_BY_SIDE)
    def test_side_by_side(self, ledger: Ledger, home: Home, what: str) -> None:
        """Users whose transactions accept different keys at the same time never meet."""

        def accept(user: int) -> int:
            with guest_on("driver", home.url) as guest:
                for number in range(ROUNDS):
                    guest.joined(ledger, partial(SIDE_BY_SIDE[what], key=f"{number}-{user}"))
                    guest.commit()
            return ROUNDS

        accepted = together(*(partial(accept, user) for user in range(USERS)))

        assert sum(accepted) == USERS * ROUNDS

    def test_a_worker_finds_it_after_the_commit(
        self, ledger: Ledger, guest: Guest, home: Home
    ) -> None:
        """A worker in this process and one in another see it only when the user has committed."""
        done: list[str] = []
        here = ledger.worker(ChoreSource(Handler(lambda claim: done.append(claim.body))))
        elsewhere = worker_process(home.url, settings={"engine_poll_seconds_max": 0.2})

        with elsewhere:
            elsewhere.ready()
            chore = enqueue(guest, ledger, 1)
            # Where there is one writer, a worker cannot even look before the user is done.
            if not ledger.database.dialect.one_writer:
                here.tick()
            before = kept_chores(ledger)
            guest.commit()
            here.tick()
            until(lambda: finished(ledger, chore.id), what="the chore")
        here.stop()

        assert before == 0
        assert done in ([], ["1"])


def raised(error: type[Exception], call: Callable[[], object]) -> bool:
    """Whether the call raised this error."""
    try:
        call()
    except error:
        return True
    return False


def finished(ledger: Ledger, chore: str) -> bool:
    """Whether the chore was done."""
    with ledger.reading() as tx:
        return Chores(tx).get(chore).status is Status.DONE


def kept_chores(ledger: Ledger) -> int:
    """How many chores everyone sees."""
    with ledger.reading() as tx:
        return sum(Chores(tx).counts().values())


def add_note(guest: Guest, name: str) -> None:
    """A row of the user's own."""
    guest.execute(f"INSERT INTO note (name, count) VALUES ('{name}', 0)")  # noqa: S608 - fixed names


def kept(ledger: Ledger) -> tuple[list[str], int]:
    """What everyone sees: the user's rows, and how many chores."""
    return notes_kept(ledger), kept_chores(ledger)


def url_of(ledger: Ledger) -> str:
    """Its URL."""
    return ledger.database.url.set(
        drivername=ledger.database.url.get_backend_name()
    ).render_as_string(hide_password=False)
