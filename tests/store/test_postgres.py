"""PostgreSQL: what is announced, by whom it is heard, and what is different behind a pooler."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, func, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from ledgerstone import Ledger, errors
from ledgerstone.engine.source import Ask, Handler
from ledgerstone.jobs import Job, NewJob
from ledgerstone.jobs import Status as JobStatus
from ledgerstone.jobs import claim_order as line
from ledgerstone.jobs.tables import channel_of
from ledgerstone.ledger import Transaction
from ledgerstone.store.dialects.postgres import pipeline
from ledgerstone.store.dialects.postgres.dialect import SCHEMA, PostgreSQL
from ledgerstone.store.dialects.postgres.pipeline import HELD_MAX
from ledgerstone.store.sql.statement import Statement
from ledgerstone.store.wakeups.listen import ListenWatcher
from ledgerstone.testing.fixtures import Home, new_home
from ledgerstone.testing.servers import PrivatePgBouncer
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.chores import Chores, ChoreSource, Status
from tests.chores.workshop import opened, worker_process
from tests.contract.store.pipelines import append
from tests.harness.own_table import tables, write
from tests.harness.threads import aside, still_waits

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
END_OTHERS = """
    SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
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
        connection.execute(f"LISTEN {SCHEMA}")
        yield connection


def heard(listener: Any) -> list[str]:
    """What was announced until now: a notification of our own is the last."""
    listener.execute("SELECT pg_notify(%s, 'end')", (SCHEMA,))
    payloads: list[str] = []
    for notification in listener.notifies(timeout=WAIT_SECONDS_MAX):
        if notification.payload == "end":
            return payloads
        payloads.append(notification.payload)
    pytest.fail("the last notification did not arrive")


def test_one_announcement_for_each_channel(ledger: Ledger, listener: Any) -> None:
    """However often a transaction wakes a channel, it is announced once, and only if it commits."""
    with ledger.transaction() as tx:
        for number in range(5):
            Chores(tx).enqueue(number)
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
            Chores(ledger.join(theirs)).enqueue(number)
        before = heard(listener)
        theirs.commit()
        after = heard(listener)
        Chores(ledger.join(theirs)).enqueue(6)
        theirs.rollback()

        assert (before, after) == ([], ["chores"])
        assert heard(listener) == []


def test_announcing_can_be_turned_off(home: Home, listener: Any) -> None:
    """With `notify` off nothing is announced, and nobody listens."""
    with opened(home.url, store={"notify": "off"}) as ledger:
        ledger.run(lambda tx: Chores(tx).enqueue(1))

        assert ledger.database.watcher() is None
    assert heard(listener) == []


FORGED_SCHEMA = (
    "CREATE SCHEMA forged",
    "CREATE TABLE forged.history_permit (id TEXT)",
    "INSERT INTO forged.history_permit VALUES ('x')",
    "CREATE FUNCTION forged.format(text, name) RETURNS text LANGUAGE sql RETURN 'SELECT true'",
    "SET LOCAL search_path = forged, public, pg_catalog",
)


def test_a_permit_in_another_schema(ledger: Ledger) -> None:
    """History is kept whatever the search path of a session finds first."""
    ledger.run(lambda tx: tx.jobs.enqueue("a"))

    with pytest.raises(errors.StoreError, match="history"), ledger.transaction() as tx:
        for statement in FORGED_SCHEMA:
            tx.connection.execute(text(statement))
        tx.connection.execute(text("DELETE FROM ledgerstone.job_event"))


def test_reading_announces_nothing(ledger: Ledger, listener: Any) -> None:
    """What is woken in a transaction that only reads is not announced."""
    with ledger.reading() as tx:
        tx.wake("chores")

    assert heard(listener) == []


def test_ids_are_plain_text(ledger: Ledger) -> None:
    """Ids come back as the strings that went in, on our own connections."""
    chore = ledger.run(lambda tx: Chores(tx).enqueue(1))

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


GREETING = "Grüße"


@pytest.fixture
def encoded(home: Home) -> Iterator[Callable[[str], str]]:
    """Makes a database of this encoding beside the test's, and answers its URL."""
    made: list[str] = []

    def make(encoding: str) -> str:
        parsed = make_url(home.url)
        name = f"{parsed.database}_{encoding.lower()}"
        made.append(name)
        with psycopg.connect(home.url, autocommit=True) as connection:
            connection.execute(
                f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}'"
                " LC_COLLATE 'C' LC_CTYPE 'C'"
            )
        return parsed.set(database=name).render_as_string(hide_password=False)

    yield make
    assert home.server is not None
    for name in made:
        home.server.drop_database(name)


@pytest.mark.parametrize("by", ["database", "environment", "url"])
def test_any_client_encoding(
    home: Home, encoded: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Text is kept as it is, whatever the default encoding; a joined key is the same job."""
    url = encoded("LATIN1") if by == "database" else home.url
    if by == "environment":
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    ours = f"{url}?client_encoding=latin1" if by == "url" else url
    with opened(ours) as ledger, psycopg.connect(ours) as theirs:
        job = ledger.run(lambda tx: tx.jobs.enqueue("a", {"words": GREETING}, key=GREETING))
        again = ledger.join(theirs).jobs.enqueue("a", {"words": GREETING}, key=GREETING)
        theirs.rollback()
        with ledger.reading() as tx:
            row = tx.jobs.get(job.id)

    with psycopg.connect(url, client_encoding="utf8") as connection:
        kept = connection.execute("SELECT idempotency_key, payload->>'words' FROM job").fetchall()
    assert kept == [(GREETING, GREETING)]
    assert row.payload == {"words": GREETING}
    assert (again.id, again.created) == (job.id, False)


def test_what_the_encoding_of_the_database_lacks(encoded: Callable[[str], str]) -> None:
    """A character that it cannot keep is refused, and the hint says what to do."""
    with opened(encoded("LATIN1")) as ledger:
        with pytest.raises(errors.StoreError, match="UTF8") as raised:
            ledger.run(lambda tx: tx.jobs.enqueue("a", {"words": "🦊"}))

        assert "LATIN1" in raised.value.message
        with ledger.reading() as tx:
            assert tx.jobs.find().rows == []


def test_a_database_without_an_encoding(encoded: Callable[[str], str]) -> None:
    """A joined connection that answers bytes for text is refused, one with an encoding is not."""
    url = encoded("SQL_ASCII")
    with opened(url) as ledger:
        job = ledger.run(lambda tx: tx.jobs.enqueue("a", {"words": GREETING}, key=GREETING))
        with (
            psycopg.connect(url) as theirs,
            pytest.raises(errors.Unsupported, match="client_encoding"),
        ):
            ledger.join(theirs)
        with psycopg.connect(url, client_encoding="utf8") as theirs:
            again = ledger.join(theirs).jobs.enqueue("a", {"words": GREETING}, key=GREETING)

        assert again.id == job.id


@pytest.mark.pgbouncer
@pytest.mark.parametrize("behind", ["nothing", "pooler"])
def test_any_date_style(pooler: PrivatePgBouncer, home: Home, behind: str) -> None:
    """Moments are read whatever the default of the database; a joined connection must use ISO."""
    name = home.url.rpartition("/")[2]
    pooled = f"postgresql://postgres@127.0.0.1:{pooler.port}/{name}"
    with psycopg.connect(home.url) as connection:
        connection.execute(f"ALTER DATABASE {name} SET DateStyle = 'German'")
        connection.execute(f"ALTER DATABASE {name} SET array_nulls = off")
    with (
        opened(pooled if behind == "pooler" else home.url) as ledger,
        psycopg.connect(home.url) as theirs,
    ):
        jobs = [NewJob(type="a"), NewJob(type="a", key="key")]
        accepted = ledger.run(lambda tx: tx.jobs.enqueue_many(jobs))
        with ledger.reading() as tx:
            rows = [tx.jobs.get(job.id) for job in accepted]

        with pytest.raises(errors.Unsupported, match="DateStyle"):
            ledger.join(theirs)
        theirs.execute("SET DateStyle = ISO")
        joined = ledger.join(theirs).jobs.get(accepted[0].id)

    assert [row.key for row in rows] == [None, "key"]
    assert joined == rows[0]


ISOLATION = Statement("test.isolation", select(func.current_setting("transaction_isolation")))


@pytest.fixture
def strict(home: Home) -> Home:
    """The database, above READ COMMITTED by default."""
    with psycopg.connect(home.url) as connection:
        connection.execute(
            f"ALTER DATABASE {home.url.rpartition('/')[2]}"
            " SET default_transaction_isolation = 'repeatable read'"
        )
    return home


@pytest.mark.pgbouncer
@pytest.mark.parametrize("behind", ["nothing", "pooler"])
@pytest.mark.parametrize("trips", ["one", "several", "their own", "reading"])
def test_read_committed_whatever_the_default(
    pooler: PrivatePgBouncer, strict: Home, behind: str, trips: str
) -> None:
    """Every transaction of ours is READ COMMITTED, also a single trip, and one that reads."""
    name = strict.url.rpartition("/")[2]
    pooled = f"postgresql://postgres@127.0.0.1:{pooler.port}/{name}"
    with (
        opened(pooled if behind == "pooler" else strict.url) as ledger,
        ledger.reading() if trips == "reading" else ledger.transaction() as tx,
    ):
        if trips == "one":
            tx.end_with_next()
        elif trips == "their own":
            tx.connection.execute(text("SELECT 1"))
        found = ISOLATION.one(tx)

    assert found == ("read committed",)


def test_a_limit_is_exact_whatever_the_default(strict: Home) -> None:
    """A claim that waited for another one counts what that one took."""
    with opened(strict.url) as ledger:
        ledger.kinds.add("a", lambda: None)
        source = ledger.job_source()
        with ledger.transaction() as tx:
            tx.jobs.enqueue_many([NewJob(type="a")] * 9)
            tx.jobs.limit("default", 3)

        def claim() -> int:
            with ledger.transaction() as tx:
                return len(source.claim(tx, Ask(9, "second", 30.0)))

        with ExitStack() as waits, ledger.transaction() as tx:
            first = len(source.claim(tx, Ask(9, "first", 30.0)))
            second = waits.enter_context(aside(claim))
            waited = still_waits(second)

    assert waited
    assert (first, second.result()) == (3, 0)


def test_completed_above_read_committed(strict: Home) -> None:
    """A session whose snapshot is too old is StoreBusy; run again it completes the job."""
    busy: list[str] = []
    with opened(strict.url) as ledger:
        engine = create_engine(ledger.database.url, poolclass=NullPool)

        @ledger.job("a")
        def work(job: Job) -> None:
            for tell in (True, False):
                try:
                    with Session(engine) as session, session.begin():
                        session.execute(text("SELECT 1"))
                        if tell:
                            job.progress(0.5)
                        job.complete(ledger.join(session))
                except errors.StoreBusy as error:
                    busy.append(str(error.hint))

        job = ledger.run(lambda tx: tx.jobs.enqueue("a"))
        ledger.worker().tick()

        with ledger.reading() as tx:
            assert tx.jobs.get(job.id).status is JobStatus.SUCCEEDED
    assert len(busy) == 1
    assert "READ COMMITTED" in busy[0]


def test_an_old_server_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server before version 13 is Unsupported, and the hint says what is needed."""
    monkeypatch.setattr("ledgerstone.store.dialects.postgres.dialect.VERSION_MIN", 990000)

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
        pooled.run(lambda tx: Chores(tx).enqueue(1))
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
        Chores(tx).enqueue(1)
        if act == "cursor":
            tx.cursor().execute("ROLLBACK")
        else:
            tx.connection.rollback()

    with pooled.reading() as tx:
        assert sum(Chores(tx).counts().values()) == 0


@pytest.mark.pgbouncer
def test_work_is_found_behind_a_pooler(pooled: Ledger, ledger: Ledger) -> None:
    """Without wake-ups, what others commit is found by polling, here and in another process."""
    done: list[str] = []
    here = pooled.worker(ChoreSource(Handler(lambda claim: done.append(claim.body))))
    ledger.run(lambda tx: Chores(tx).enqueue("here"))
    here.tick()
    until(lambda: done)
    here.stop()

    url = pooled.database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with worker_process(url, settings={"engine_poll_seconds_max": 0.1}) as elsewhere:
        elsewhere.ready()
        ledger.run(lambda tx: Chores(tx).enqueue("elsewhere"))

        def all_done() -> bool:
            with ledger.reading() as tx:
                return Chores(tx).counts()[Status.DONE] == 2

        until(all_done)

    assert done == ['"here"']


@pytest.mark.pgbouncer
def test_a_listener_that_hears_nothing_is_not_prompt(
    pooler: PrivatePgBouncer, ledger: Ledger
) -> None:
    """A watcher behind a pooler finds out by itself that it hears nothing, and says so."""
    url = ledger.database.url.set(port=pooler.port)
    watcher = ListenWatcher(
        url, ledger.database.wake_signals, channel=SCHEMA, connect_timeout_seconds=WAIT_SECONDS_MAX
    )

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
        ledger.run(lambda tx: Chores(tx).enqueue(1))
        with pytest.raises(LookupError), ledger.transaction() as tx:
            Chores(tx).enqueue(2)
            tx.connection.execute(text("SELECT 1"))
            raise LookupError

    with ledger.reading() as tx:
        found = tx.connection.execute(text("SELECT statement FROM pg_prepared_statements"))
        prepared = [statement for (statement,) in found]
    assert any(statement.startswith("INSERT INTO ledgerstone.chore") for statement in prepared)
    assert len(prepared) == len(set(prepared))


def test_what_was_prepared_can_be_forgotten(ledger: Ledger) -> None:
    """If somebody has the server forget what is prepared, the transaction is run again."""
    ledger.run(lambda tx: Chores(tx).enqueue(1))
    ledger.run(lambda tx: tx.connection.execute(text("DEALLOCATE ALL")))

    ledger.run(lambda tx: Chores(tx).enqueue(2))

    with ledger.reading() as tx:
        assert sum(Chores(tx).counts().values()) == 2


def test_a_transaction_that_enqueues_is_one_trip(ledger: Ledger) -> None:
    """Until its commit, the server has heard nothing of a transaction that waits for nothing."""
    with ledger.transaction() as tx:
        tx.jobs.enqueue("nothing")
        with ledger.reading() as other:
            begun = other.connection.execute(text(IDLE_IN_TRANSACTION)).scalar()

    assert begun == 0
    with ledger.reading() as tx:
        assert len(tx.jobs.find().rows) == 1


@pytest.mark.parametrize("read", [False, True])
def test_lost_in_a_single_trip(ledger: Ledger, listener: Any, read: bool) -> None:
    """A transaction that travels with its commit is CommitUnknown, and is not run again."""
    runs: list[int] = []

    def work(tx: Transaction) -> None:
        runs.append(1)
        tx.jobs.enqueue("nothing")
        listener.execute(END_OTHERS)
        if read:
            tx.may_end_early = True
            tx.end_with_next()
            ISOLATION.one(tx)

    ledger.run(lambda tx: tx.jobs.enqueue("before"))
    with pytest.raises(errors.CommitUnknown):
        ledger.run(work)

    assert runs == [1]


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
def test_a_claim_is_committed_by_its_statement(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """If nothing else happens in its transaction; what follows all the same stands by itself."""
    monkeypatch.setattr(line, "SLOW_SECONDS", WAIT_SECONDS_MAX)
    ledger.kinds.add("a", lambda: None)
    source = ledger.job_source()
    # The first claim finds out that the line is of one group.
    ledger.run(lambda tx: tx.jobs.enqueue("a"))
    ledger.run(lambda tx: source.claim(tx, Ask(10, "w", 30.0)))
    job = ledger.run(lambda tx: tx.jobs.enqueue("a"))

    with pytest.raises(LookupError), ledger.transaction() as tx:
        tx.may_end_early = alone
        taken = source.claim(tx, Ask(10, "w", 30.0))
        tx.jobs.enqueue("a", key="second")
        raise LookupError

    with ledger.reading() as tx:
        row, second = tx.jobs.get(job.id), tx.jobs.find(key="second").rows
    assert [claim.key for claim in taken] == [job.id]
    assert row.status is (JobStatus.RUNNING if alone else JobStatus.QUEUED)
    assert second == []


def test_what_is_held_is_bounded(ledger: Ledger) -> None:
    """However many statements a transaction has, few of them wait for their trip."""
    tables.create_all(ledger.database.engine)
    held: list[int] = []

    with ledger.transaction() as tx:
        for number in range(3 * HELD_MAX):
            append.run(tx, [(f"{number}",)])
            assert tx.pipeline is not None
            held.append(len(tx.pipeline._held))

    assert max(held) == HELD_MAX - 1
