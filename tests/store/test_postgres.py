"""PostgreSQL: what is announced, by whom it is heard, and what is different behind a pooler."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from ledgerstone import Ledger, errors
from ledgerstone.chores import ChoreSource, Status
from ledgerstone.engine.source import Ask, Handler
from ledgerstone.jobs import NewJob
from ledgerstone.jobs import Status as JobStatus
from ledgerstone.jobs.accepting import channel_of
from ledgerstone.store import pipeline
from ledgerstone.store.dialects.postgres import PostgreSQL
from ledgerstone.store.wakeups.listen import CHANNEL, ListenWatcher
from ledgerstone.testing.contract import opened, tables
from ledgerstone.testing.contract.transactions import write
from ledgerstone.testing.fixtures import Home, new_home
from ledgerstone.testing.processes import WorkerProcess
from ledgerstone.testing.servers import PrivatePgBouncer
from ledgerstone.testing.waiting import until

pytestmark = pytest.mark.postgres

SCANS = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'job'"
PLANNED_ANEW = 5
"""So often the server plans a prepared statement anew before it may keep a plan."""
IDLE_IN_TRANSACTION = """
    SELECT COUNT(*) FROM pg_stat_activity
    WHERE datname = current_database() AND state LIKE 'idle in transaction%'
"""

OTHERS = """
    SELECT COUNT(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
OBJECTING = (
    """
    CREATE FUNCTION object() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'no thirteen'; END $$
    """,
    """
    CREATE CONSTRAINT TRIGGER no_thirteen AFTER INSERT ON job DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.type = 'thirteen') EXECUTE FUNCTION object()
    """,
)
"""What a user may have added to a table of ours."""


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A fresh database of PostgreSQL."""
    yield from new_home(request, "postgres", tmp_path)


@pytest.fixture
def listener(home: Home) -> Iterator[Any]:
    """A connection that hears everything."""
    with psycopg.connect(home.url, autocommit=True) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        yield connection


def heard(listener: Any) -> list[str]:
    """What was announced until now: a notification of our own is the last."""
    listener.execute("SELECT pg_notify(%s, 'end')", (CHANNEL,))
    payloads: list[str] = []
    for notification in listener.notifies(timeout=30):
        if notification.payload == "end":
            return payloads
        payloads.append(notification.payload)
    pytest.fail("the last notification did not arrive")


def test_one_announcement_for_each_channel(ledger: Ledger, listener: Any) -> None:
    """However often a transaction wakes a channel, it is announced once, and only if it commits."""
    with ledger.transaction() as tx:
        for number in range(5):
            tx.chores.enqueue(number)
            tx.wake("other")
    with pytest.raises(ValueError, match="no"), ledger.transaction() as tx:
        tx.wake("undone")
        message = "no"
        raise ValueError(message)

    assert heard(listener) == ["chores", "other"]


def test_a_joined_one_announces_at_the_users_commit(
    ledger: Ledger, home: Home, listener: Any
) -> None:
    """In the user's transaction a channel is announced once, by their commit and not before."""
    with psycopg.connect(home.url) as theirs:
        for number in range(5):
            ledger.join(theirs).chores.enqueue(number)
        before = heard(listener)
        theirs.commit()
        after = heard(listener)
        ledger.join(theirs).chores.enqueue(6)
        theirs.rollback()

        assert (before, after) == ([], ["chores"])
        assert heard(listener) == []


def test_announcing_can_be_turned_off(home: Home, listener: Any) -> None:
    """With `notify` off nothing is announced, and nobody listens."""
    with opened(home.url, store={"notify": "off"}) as ledger:
        ledger.run(lambda tx: tx.chores.enqueue(1))

        assert ledger.database.watcher() is None
    assert heard(listener) == []


def test_reading_announces_nothing(ledger: Ledger, listener: Any) -> None:
    """What is woken in a transaction that only reads is not announced."""
    with ledger.reading() as tx:
        tx.wake("chores")

    assert heard(listener) == []


def test_ids_are_plain_text(ledger: Ledger) -> None:
    """Ids come back as the strings that went in, on our own connections."""
    chore = ledger.run(lambda tx: tx.chores.enqueue(1))

    with ledger.reading() as tx:
        (row,) = tx.connection.exec_driver_sql("SELECT id FROM chore").all()

    assert row[0] == chore.id


def test_the_settings_of_a_connection(home: Home) -> None:
    """Waiting for locks is limited, and the connection says whose it is."""
    with opened(home.url, store={"lock_timeout_seconds": 7}) as ledger, ledger.reading() as tx:
        told = ledger.database.dialect.describe(tx.connection)

        assert tx.connection.execute(text("SHOW lock_timeout")).scalar() == "7s"
        assert tx.connection.execute(text("SHOW application_name")).scalar() == "ledgerstone"
        assert told["pooler"] == "no"


def test_an_old_server_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server before version 13 is Unsupported, and the hint says what is needed."""
    monkeypatch.setattr("ledgerstone.store.dialects.postgres.VERSION_MIN", 990000)

    with pytest.raises(errors.Unsupported, match="PostgreSQL 13"):
        opened(home.url)


@pytest.fixture
def pooled(pooler: PrivatePgBouncer, home: Home) -> Iterator[Ledger]:
    """A ledger behind PgBouncer."""
    name = home.url.rpartition("/")[2]
    url = f"postgresql://postgres@127.0.0.1:{pooler.port}/{name}"
    with opened(url, store={"lock_timeout_seconds": 1}) as ledger:
        tables.create_all(ledger.database.engine)
        yield ledger


@pytest.mark.pgbouncer
def test_a_pooler_is_noticed(pooled: Ledger, ledger: Ledger) -> None:
    """Behind a pooler the ledger knows it: nothing is prepared and nobody listens."""
    assert isinstance(pooled.database.dialect, PostgreSQL)
    assert isinstance(ledger.database.dialect, PostgreSQL)

    for _ in range(10):
        pooled.run(lambda tx: tx.chores.enqueue(1))
    with pooled.reading() as tx:
        told = pooled.database.dialect.describe(tx.connection)
        prepared = tx.connection.execute(text("SELECT COUNT(*) FROM pg_prepared_statements"))

        assert prepared.scalar() == 0
        assert told["pooler"].startswith("yes")
    assert pooled.database.dialect.pooled
    assert pooled.database.watcher() is None
    assert not ledger.database.dialect.pooled
    assert isinstance(ledger.database.watcher(), ListenWatcher)


@pytest.mark.pgbouncer
def test_waiting_has_an_end_behind_a_pooler(pooled: Ledger, ledger: Ledger) -> None:
    """Waiting for a lock is limited there too, and leaves no setting in the server's session."""
    pooled.run(lambda tx: write(tx, "a"))
    with ledger.transaction() as tx:
        tx.connection.execute(text("UPDATE note SET count = 1"))
        with pytest.raises(errors.StoreBusy), pooled.transaction() as other:
            other.connection.execute(text("UPDATE note SET count = 2"))

    with psycopg.connect(
        pooled.database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    ) as theirs:
        assert theirs.execute("SHOW lock_timeout").fetchone() == ("0",)


@pytest.mark.pgbouncer
@pytest.mark.parametrize("act", ["connection", "cursor"])
def test_a_rollback_inside_behind_a_pooler(pooled: Ledger, act: str) -> None:
    """Whoever ends the transaction inside its block is told so there, too."""
    with pytest.raises(errors.NotAllowedNow), pooled.transaction() as tx:
        tx.chores.enqueue(1)
        if act == "cursor":
            tx.cursor().execute("ROLLBACK")
        else:
            tx.connection.rollback()

    with pooled.reading() as tx:
        assert sum(tx.chores.counts().values()) == 0


@pytest.mark.pgbouncer
def test_work_is_found_behind_a_pooler(pooled: Ledger, ledger: Ledger) -> None:
    """Without wake-ups, what others commit is found by polling, here and in another process."""
    done: list[str] = []
    here = pooled.worker(ChoreSource(Handler(lambda claim: done.append(claim.body))))
    ledger.run(lambda tx: tx.chores.enqueue("here"))
    here.tick()
    until(lambda: done)
    here.stop()

    url = pooled.database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with WorkerProcess(url, settings={"engine_poll_seconds_max": 0.1}) as elsewhere:
        elsewhere.ready()
        ledger.run(lambda tx: tx.chores.enqueue("elsewhere"))

        def all_done() -> bool:
            with ledger.reading() as tx:
                return tx.chores.counts()[Status.DONE] == 2

        until(all_done)

    assert done == ['"here"']


@pytest.mark.pgbouncer
def test_a_listener_that_hears_nothing_is_not_prompt(
    pooler: PrivatePgBouncer, ledger: Ledger
) -> None:
    """A watcher behind a pooler finds out by itself that it hears nothing, and says so."""
    url = ledger.database.url.set(port=pooler.port)
    watcher = ListenWatcher(url, ledger.database.bells, connect_timeout_seconds=5)

    watcher.start()
    prompt = watcher.prompt
    watcher.stop()

    assert not prompt


def test_a_plan_made_on_an_empty_table(home: Home) -> None:
    """A worker that began with nothing to do reads no table from end to end when there is much."""
    with opened(home.url) as ledger:
        ledger.migrate()
    before = scans(home)
    with opened(home.url) as ledger:

        @ledger.job("a")
        def nothing() -> None:
            """Done at once."""

        worker = ledger.worker()
        for _ in range(PLANNED_ANEW + 1):
            ledger.run(lambda tx: tx.jobs.enqueue("a"))
            worker.tick()
        ledger.run(lambda tx: tx.jobs.enqueue_many([NewJob(type="a")] * 3000))
        while any(tick.claimed for tick in worker.tick()):
            pass

    assert scans(home) == before


def scans(home: Home) -> int:
    """How often the jobs were read from end to end, by those who are gone."""
    with psycopg.connect(home.url) as connection:
        found = connection.execute(SCANS).fetchone()
    assert found is not None
    return int(found[0])


def test_statements_are_prepared_once(ledger: Ledger) -> None:
    """The server prepares each statement of ours once for a connection, and keeps it."""
    for _ in range(3):
        ledger.run(lambda tx: tx.chores.enqueue(1))
        with pytest.raises(LookupError), ledger.transaction() as tx:
            tx.chores.enqueue(2)
            tx.connection.execute(text("SELECT 1"))
            raise LookupError

    with ledger.reading() as tx:
        found = tx.connection.execute(text("SELECT statement FROM pg_prepared_statements"))
        prepared = [statement for (statement,) in found]
    assert any(statement.startswith("INSERT INTO chore") for statement in prepared)
    assert len(prepared) == len(set(prepared))


def test_what_was_prepared_can_be_forgotten(ledger: Ledger) -> None:
    """If somebody has the server forget what is prepared, the transaction is run again."""
    ledger.run(lambda tx: tx.chores.enqueue(1))
    ledger.run(lambda tx: tx.connection.execute(text("DEALLOCATE ALL")))

    ledger.run(lambda tx: tx.chores.enqueue(2))

    with ledger.reading() as tx:
        assert sum(tx.chores.counts().values()) == 2


def test_a_transaction_that_enqueues_is_one_trip(ledger: Ledger) -> None:
    """Until its commit, the server has heard nothing of a transaction that waits for nothing."""
    with ledger.transaction() as tx:
        tx.jobs.enqueue("nothing")
        with ledger.reading() as other:
            begun = other.connection.execute(text(IDLE_IN_TRANSACTION)).scalar()

    assert begun == 0
    with ledger.reading() as tx:
        assert len(tx.jobs.find().rows) == 1


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "dropped"])
def test_nothing_stays_at_hand(ledger: Ledger, listener: Any, closed: bool) -> None:
    """The connection that is kept for the next transaction ends with its ledger or its worker."""
    ledger.close()
    database = ledger.database.sibling(connections=2)
    database.run(lambda tx: tx.jobs.enqueue("nothing"))

    open_before = listener.execute(OTHERS).fetchone()
    if closed:
        # And is still referred to: nobody but itself lets go of the connection.
        database.close()
    else:
        del database
        gc.collect()

    assert open_before == (1,)
    until(lambda: listener.execute(OTHERS).fetchone() == (0,))


@pytest.mark.parametrize("trips_commit", [True, False], ids=["by the trip", "by COMMIT"])
def test_a_commit_can_be_refused(
    ledger: Ledger, listener: Any, monkeypatch: pytest.MonkeyPatch, trips_commit: bool
) -> None:
    """What the database objects to only at the commit is raised by it: nothing is kept or told."""
    monkeypatch.setattr(pipeline, "_TRIPS_COMMIT", trips_commit)
    for statement in OBJECTING:
        listener.execute(statement)

    for _ in range(2):
        with pytest.raises(errors.StoreError, match="no thirteen"), ledger.transaction() as tx:
            tx.jobs.enqueue("twelve")
            tx.jobs.enqueue("thirteen")
    ledger.run(lambda tx: tx.jobs.enqueue("twelve"))

    assert heard(listener) == [channel_of("default")]
    with ledger.reading() as tx:
        assert len(tx.jobs.find().rows) == 1
    assert ledger.database.measure.by_name()["jobs.enqueue"].written == 1


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "among others"])
def test_a_claim_is_committed_by_its_statement(ledger: Ledger, alone: bool) -> None:
    """If nothing else happens in its transaction; what follows all the same stands by itself."""
    ledger.kinds.add("a", lambda: None)
    job = ledger.run(lambda tx: tx.jobs.enqueue("a"))
    source = ledger.job_source()

    with pytest.raises(LookupError), ledger.transaction() as tx:
        taken = source.claim(tx, Ask(10, "w", 30.0, alone=alone))
        tx.jobs.enqueue("a", key="second")
        raise LookupError

    with ledger.reading() as tx:
        row, second = tx.jobs.get(job.id), tx.jobs.find(key="second").rows
    assert [claim.key for claim in taken] == [job.id]
    assert row.status is (JobStatus.RUNNING if alone else JobStatus.QUEUED)
    assert second == []
