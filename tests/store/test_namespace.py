"""Where the tables lie: in a schema or database of their own, whatever else is there."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from reminders import REMINDERS
from sqlalchemy import create_engine, inspect, make_url, text

from ledgerstone import Ledger, errors
from ledgerstone.cli.checks import diagnose
from ledgerstone.cli.status import look
from ledgerstone.jobs import Status
from ledgerstone.settings import Settings
from ledgerstone.store import leases
from ledgerstone.store.dialects.postgres.dialect import channel_of
from ledgerstone.store.schema import move_to_namespace, revisions, row_security
from ledgerstone.store.schema.namespace import namespace
from ledgerstone.testing.fixtures import Home, new_home
from ledgerstone.testing.servers import PrivatePgBouncer
from tests.contract.store.migrations import execute
from tests.jobs.test_security import OURS, THEIRS, ledger_of, new_role
from tests.store.test_existing_tables import tables

SERVERS = [
    pytest.param("postgres", id="postgres", marks=pytest.mark.postgres),
    pytest.param("mysql", id="mysql", marks=pytest.mark.mysql),
]
OLD = [revision for revision in revisions.titles() if move_to_namespace.is_of_before(revision)]
JOB = "0aaaaaaa-0000-4000-8000-000000000009"
HISTORY_KEPT = "DELETE FROM {own}.job_event"
NO_MOVE = "UPDATE {own}.job SET status = 'succeeded'"
_numbers = itertools.count(1)


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A fresh, empty database of a server; sessions find nothing in the ledger's own schema."""
    for home in new_home(request, getattr(request, "param", "postgres"), tmp_path):
        if home.kind != "postgres":
            yield home
            continue
        with psycopg.connect(home.url, autocommit=True) as connection:
            name = make_url(home.url).database
            connection.execute(f'ALTER DATABASE "{name}" SET search_path = public')
        yield home


@pytest.fixture
def place(server: Home) -> Iterator[str]:
    """A schema or database for a ledger that is not the user's; gone at the end."""
    name = f"own_{os.getpid()}_{next(_numbers)}"
    yield name
    if server.kind == "mysql":
        with connected(server.url) as connection:
            connection.execute(text("SET foreign_key_checks = 0"))
            connection.execute(text(f"DROP DATABASE IF EXISTS {name}"))


on_servers = pytest.mark.parametrize("server", SERVERS, indirect=True)
on_postgres = pytest.mark.postgres


def opened(url: str, schema: str | None = None, **settings: Any) -> Ledger:
    """A ledger with its tables in this schema, not migrated."""
    store = {"schema": schema, "auto_migrate": "never"}
    return Ledger(url, settings=Settings.load(url=url, environ={}, store=store), **settings)


def users_place(home: Home) -> str:
    """The schema or database in which the tables of the user lie."""
    return "public" if home.kind == "postgres" else str(make_url(home.url).database)


@contextmanager
def connected(url: str) -> Iterator[Any]:
    """A connection of the user's."""
    drivers = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
    parsed = make_url(url)
    engine = create_engine(parsed.set(drivername=drivers.get(parsed.drivername, parsed.drivername)))
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def refused(ledger: Ledger, statement: str) -> bool:
    """Whether the database refuses a statement; {own} is where the tables lie."""
    own = ledger.database.namespace.own
    try:
        with ledger.database.engine.begin() as connection:
            connection.execute(text(statement.format(own=own)))
    except Exception:  # noqa: BLE001 - each driver has an error of its own
        return True
    return False


def worked(ledger: Ledger) -> list[int]:
    """What the jobs of a worker's turn have done."""
    done: list[int] = []
    ledger.job("work")(lambda n: note(done, n))
    worker = ledger.worker()
    worker.tick()
    worker.stop()
    return done


def note(done: list[int], n: int) -> None:
    done.append(n)


def old_ledger(home: Home, revision: str) -> str:
    """A ledger of before, among the tables of the user; answers its identity."""
    with opened(home.url, users_place(home)) as ledger:
        revisions.migrate(ledger.database, to=revision)
        with ledger.database.engine.begin() as connection:
            if revision >= "0002":
                connection.execute(
                    text("INSERT INTO job (id, org_id, type) VALUES (:job, :org, 'old')"),
                    {"job": JOB, "org": OURS},
                )
                connection.execute(
                    text("INSERT INTO job_event (job_id, next_status) VALUES (:job, 'queued')"),
                    {"job": JOB},
                )
            if revision >= "0004":
                connection.execute(
                    text(
                        "INSERT INTO message_event (at_ms, what, queue_name, partition_key)"
                        " VALUES (:now, 'sent', 'local', '')"
                    ),
                    # An old event would be removed by the first worker.
                    {"now": round(time.time() * 1000)},
                )
        return ledger.database.identity


@on_servers
def test_beside_the_tables_of_the_user(server: Home, place: str) -> None:
    """Tables of the user that have our names are neither read nor changed, and in no way."""
    with connected(server.url) as connection:
        for name in ("worker", "job", "leases"):
            connection.execute(text(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, title INTEGER)"))
            connection.execute(text(f"INSERT INTO {name} VALUES (1, 2)"))  # noqa: S608 - ours

    with opened(server.url, place) as ledger:
        ledger.migrate()
        ledger.run(lambda tx: tx.jobs.enqueue("work", {"n": 7}))
        ledger.run(lambda tx: tx.outbox.publish("order.seen", {}))
        done = worked(ledger)

        with connected(server.url) as connection:
            found = set(inspect(connection).get_table_names())
            for name in ("worker", "job", "leases"):
                rows = connection.execute(text(f"SELECT * FROM {name}")).all()  # noqa: S608 - ours
                assert rows == [(1, 2)]
        assert done == [7]
        assert found == {
            "worker",
            "job",
            "leases",
            "messenger_outbox",
            "messenger_messages",
            "message_broker_deduplication",
        }


@on_postgres
def test_the_schema_of_ours(server: Home) -> None:
    """Without a setting, the tables lie in the schema `ledgerstone`; those of others stay."""
    with opened(server.url) as ledger:
        ledger.migrate()

        found: Any = inspect(ledger.database.engine)
        assert "job" in found.get_table_names(schema="ledgerstone")
        assert {enum["name"] for enum in found.get_enums(schema="ledgerstone")} == {
            "job_status",
            "job_backoff_policy",
        }
        assert found.get_enums(schema="public") == []
        assert set(found.get_table_names(schema="public")) == {
            "messenger_outbox",
            "messenger_messages",
            "message_broker_deduplication",
        }


@on_postgres
@pytest.mark.parametrize("path", ["''", "theirs", "theirs, public, ledgerstone, pg_catalog"])
def test_joining_with_another_search_path(server: Home, path: str) -> None:
    """What is written in a joined transaction lies in the ledger, whatever its names lead to."""
    with opened(server.url) as ledger:
        ledger.migrate()
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE SCHEMA theirs")
            for name in ("job", "job_event", "job_key", "messenger_outbox", "outbox_lane"):
                connection.execute(f"CREATE TABLE theirs.{name} (id TEXT)")
                connection.execute(f"CREATE TEMPORARY TABLE {name} (id TEXT)")
            connection.execute(f"SET search_path = {path}")
            tx = ledger.join(connection)
            job = tx.jobs.enqueue("work", {"n": 1}, key="one")
            tx.outbox.publish("order.seen", {"n": 1}, partition="p", key="one")
            connection.commit()

            assert tx_jobs(ledger) == [job.id]
            waiting = connection.execute("SELECT COUNT(*) FROM public.messenger_outbox")
            assert waiting.fetchall() == [(1,)]
            assert connection.execute("SELECT COUNT(*) FROM theirs.job").fetchall() == [(0,)]


def tx_jobs(ledger: Ledger) -> list[str]:
    """The ids of the jobs that the ledger has."""
    with ledger.reading() as tx:
        return [row.id for row in tx.jobs.find().rows]


@on_postgres
def test_a_role_without_a_search_path(server: Home) -> None:
    """A session that finds no table by its name alone does all that a ledger does."""
    url = make_url(server.url).update_query_dict({"options": "-csearch_path="})

    with opened(url.render_as_string(hide_password=False)) as ledger:
        ledger.migrate()
        ledger.run(lambda tx: tx.jobs.enqueue("work", {"n": 3}))
        ledger.run(lambda tx: tx.outbox.publish("order.seen", {}))

        assert worked(ledger) == [3]
        assert "messenger_outbox" in inspect(ledger.database.engine).get_table_names("public")


def test_a_temporary_table_of_the_same_name(home: Home) -> None:
    """A temporary table of the user takes the place of none of ours, in a joined transaction."""
    if home.kind == "mysql":
        # There a temporary table hides the other one whatever is said.
        return
    with opened(home.url) as ledger:
        ledger.migrate()
        with ledger.database.engine.begin() as connection:
            connection.execute(text("CREATE TEMPORARY TABLE job (id TEXT)"))
            job = ledger.join(connection).jobs.enqueue("work", {"n": 1})

        assert tx_jobs(ledger) == [job.id]


@pytest.mark.mysql
@pytest.mark.parametrize("server", ["mysql"], indirect=True)
def test_joining_from_another_database(server: Home, place: str) -> None:
    """A session that uses another database than the ledger's URL names is refused."""
    with opened(server.url, place) as ledger:
        ledger.migrate()
        with connected(server.url) as connection:
            job = ledger.join(connection).jobs.enqueue("work", {"n": 1})
        with connected(server.url) as connection:
            connection.execute(text(f"USE {place}"))
            with pytest.raises(errors.WrongDatabase):
                opened(server.url, place).join(connection)

        assert tx_jobs(ledger) == [job.id]


@on_postgres
@pytest.mark.pgbouncer
def test_behind_a_pooler(server: Home, pooler: PrivatePgBouncer) -> None:
    """Behind a transaction pooler nothing is left in its sessions, and all is found."""
    url = make_url(server.url).set(port=pooler.port).render_as_string(hide_password=False)
    with opened(url) as ledger:
        ledger.migrate()
        ledger.run(lambda tx: tx.jobs.enqueue("work", {"n": 5}))
        with ledger.database.engine.connect() as connection:
            path = connection.execute(text("SHOW search_path")).scalar()

        assert worked(ledger) == [5]
        assert path == "public"


@on_servers
def test_two_ledgers_of_one_server(server: Home, place: str) -> None:
    """Two ledgers whose tables lie apart share no job, lease or key."""
    with opened(server.url, users_place(server)) as first, opened(server.url, place) as second:
        for ledger in (first, second):
            ledger.migrate()
        one = first.run(lambda tx: tx.jobs.enqueue("work", {"n": 1}, key="same"))
        other = second.run(lambda tx: tx.jobs.enqueue("work", {"n": 2}, key="same"))
        held = [
            first.run(lambda tx: leases.acquire(tx, "door", "ann", seconds=60)),
            second.run(lambda tx: leases.acquire(tx, "door", "bob", seconds=60)),
        ]

        assert (one.created, other.created) == (True, True)
        assert None not in held
        assert (tx_jobs(first), tx_jobs(second)) == ([one.id], [other.id])
        assert worked(second) == [2]
        assert tx_jobs(first) == [one.id]
        with first.reading() as tx:
            assert tx.jobs.get(one.id).status is Status.QUEUED


@on_postgres
def test_wake_ups_of_two_ledgers(server: Home, place: str) -> None:
    """What is announced in one schema wakes nobody who works in another one."""
    with opened(server.url) as first, opened(server.url, place) as second:
        first.migrate()
        second.migrate()
        with psycopg.connect(server.url, autocommit=True) as listener:
            listener.execute(f'LISTEN "{channel_of(second.database.namespace)}"')
            first.run(lambda tx: tx.wake("first"))
            second.run(lambda tx: tx.wake("second"))
            heard = [each.payload for each in listener.notifies(timeout=60, stop_after=1)]

        assert heard == ["second"]
        assert channel_of(first.database.namespace) == "ledgerstone"


@on_servers
@pytest.mark.parametrize("revision", OLD)
def test_a_ledger_of_before_moves(server: Home, place: str, revision: str) -> None:
    """A ledger among the tables of the user, at any revision, moves with all that it has."""
    identity = old_ledger(server, revision)
    users = users_place(server)
    with opened(server.url, place) as ledger:
        with pytest.raises(errors.SchemaOutdated, match=f"at revision {revision}"):
            ledger.run(lambda _: None)

        before = ledger.migrate()

        assert (before.current, before.place, before.moves) == (revision, users, True)
        assert ledger.database.identity == identity
        left = set(inspect(ledger.database.engine).get_table_names(schema=users))
        assert left == {
            "messenger_outbox",
            "messenger_messages",
            "message_broker_deduplication",
        }
        assert tx_jobs(ledger) == ([JOB] if revision >= "0002" else [])
        job = ledger.run(lambda tx: tx.jobs.enqueue("work", {"n": 4}))
        assert refused(ledger, HISTORY_KEPT)
        assert refused(ledger, NO_MOVE)
        assert worked(ledger) == [4]
        with ledger.reading() as tx:
            assert tx.jobs.get(job.id).status is Status.SUCCEEDED
            if revision >= "0004":
                recorded = f"SELECT COUNT(*) FROM {place}.message_event"  # noqa: S608 - ours
                assert tx.connection.execute(text(recorded)).scalar() == 1
        assert ledger.migrate().pending == ()


@on_servers
@pytest.mark.parametrize("revision", ["0003", "0013"])
def test_a_ledger_of_before_moves_by_its_script(server: Home, place: str, revision: str) -> None:
    """So it does by the printed SQL."""
    identity = old_ledger(server, revision)
    with opened(server.url, place) as ledger:
        kind, names = ledger.database.dialect.name, ledger.database.namespace
        script = revisions.script(kind, names, since=revision, rooms=ledger.database.rooms)
    if server.kind == "postgres":
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(script)
    else:
        execute(server.url, script)

    with opened(server.url, place) as ledger:
        assert ledger.migrate().pending == ()
        assert ledger.database.identity == identity
        assert tx_jobs(ledger) == [JOB]
        assert refused(ledger, HISTORY_KEPT)
        assert refused(ledger, NO_MOVE)


@on_servers
def test_a_ledger_that_stays(server: Home, place: str) -> None:
    """A ledger that was told to stay among the tables of the user is moved by no other."""
    with opened(server.url, users_place(server)) as first, opened(server.url, place) as second:
        first.migrate()
        job = first.run(lambda tx: tx.jobs.enqueue("work", {"n": 1}))
        before = second.migrate()

        assert (before.current, before.moves) == (None, False)
        assert tx_jobs(first) == [job.id]
        assert tx_jobs(second) == []


@on_servers
def test_a_table_of_the_user_does_not_move(server: Home, place: str) -> None:
    """A table whose name a later revision takes is the user's, and stays when a ledger moves."""
    old_ledger(server, "0003")
    with connected(server.url) as connection:
        connection.execute(text("CREATE TABLE outbox_lane (id INTEGER PRIMARY KEY)"))

    with opened(server.url, place) as ledger:
        ledger.migrate()

        found = inspect(ledger.database.engine)
        assert "outbox_lane" in found.get_table_names(schema=users_place(server))
        assert "state" in {c["name"] for c in found.get_columns("outbox_lane", schema=place)}


@on_servers
def test_rooms_move_too(server: Home, place: str) -> None:
    """The tables of a room, and its version, move with the ledger."""
    users = users_place(server)
    with opened(server.url, users, rooms=[REMINDERS]) as ledger:
        ledger.migrate()
        with ledger.database.engine.begin() as connection:
            connection.execute(text("UPDATE ledgerstone_revision SET version_num = '0013'"))

    with opened(server.url, place, rooms=[REMINDERS]) as ledger:
        ledger.migrate()

        moved = set(inspect(ledger.database.engine).get_table_names(schema=place))
        assert {*REMINDERS.tables, "ledgerstone_revision_reminders"} <= moved
        ledger.run(lambda tx: tx.jobs.enqueue("work"))


@pytest.mark.mysql
@pytest.mark.parametrize("server", ["mysql"], indirect=True)
def test_an_interrupted_move(server: Home, place: str) -> None:
    """Where a run was killed once the triggers were gone, or the tables moved, the next ends it."""
    old_ledger(server, "0013")
    users = users_place(server)
    with opened(server.url, place) as ledger, connected(server.url) as connection:
        for name in ("tg_job__moves", "tg_job_event__kept_delete"):
            connection.execute(text(f"DROP TRIGGER {users}.{name}"))

        ledger.migrate()

        assert tx_jobs(ledger) == [JOB]
        assert refused(ledger, HISTORY_KEPT)
        assert refused(ledger, NO_MOVE)


@on_postgres
def test_organisations_stay_apart(server: Home) -> None:
    """Where organisations were kept apart they are after the move; the role goes on working."""
    for role in new_role(server):
        with opened(server.url, "public") as ledger:
            ledger.migrate()
            row_security.separate(ledger.database, role=role)
            with ledger.transaction() as tx:
                for org in (OURS, THEIRS):
                    tx.jobs.enqueue("work", {"n": 1}, org=org)
            with ledger.database.engine.begin() as connection:
                connection.execute(text("UPDATE ledgerstone_revision SET version_num = '0013'"))
        with opened(server.url) as ledger:
            ledger.migrate()

        with ledger_of(server, role, org=OURS) as tenant:
            with tenant.reading() as tx:
                seen = [row.org_id for row in tx.jobs.find().rows]
            tenant.run(lambda tx: tx.jobs.enqueue("work", {"n": 2}, org=OURS))
            with pytest.raises(errors.StoreDenied):
                tenant.run(lambda tx: tx.jobs.enqueue("work", {"n": 2}, org=THEIRS))

        assert seen == [OURS]


@on_postgres
def test_a_role_that_may_make_no_schema(server: Home) -> None:
    """A role that may not make the schema is told what an administrator has to do."""
    for role in new_role(server):
        with (
            ledger_of(server, role) as ledger,
            pytest.raises(errors.StoreDenied, match="CREATE SCHEMA ledgerstone AUTHORIZATION"),
        ):
            ledger.migrate()
        with psycopg.connect(server.url) as connection:
            connection.execute(f"CREATE SCHEMA ledgerstone AUTHORIZATION {role}")
            connection.execute(f"GRANT CREATE ON SCHEMA public TO {role}")
        with ledger_of(server, role) as ledger:
            ledger.migrate()
            ledger.run(lambda tx: tx.jobs.enqueue("work", {"n": 6}))

            assert worked(ledger) == [6]


def test_a_file_has_no_schemas(tmp_path: Path) -> None:
    """SQLite has nothing to name: a schema that is set is refused, not passed over."""
    with (
        opened(f"sqlite:///{tmp_path}/ledger.db", "own") as ledger,
        pytest.raises(errors.BadInput, match="no schema own"),
    ):
        ledger.migrate()


def test_the_same_names_are_the_same_namespace() -> None:
    """A statement is compiled once for all databases whose tables lie in places of one name."""
    assert namespace("a", "b") is namespace("a", "b")
    assert namespace("a", "b") is not namespace("b", "a")


@on_servers
def test_where_they_lie_is_said(server: Home, place: str) -> None:
    """`doctor` and `status` say in which schema or database the tables are."""
    with opened(server.url, place) as ledger:
        ledger.migrate()
        settings = ledger.settings
        said = [each.found for each in diagnose(lambda: settings).checks if each.name == "schema"]
        facts = look(ledger.database, settings)

    assert said == [f"{revisions.newest()}, up to date, in the schema {place}"]
    assert facts.schema.place == place


@on_servers
def test_what_is_left_where_they_move_to(server: Home, place: str) -> None:
    """Where both places have a table of ours nothing is moved, and it is said which."""
    old_ledger(server, "0013")
    with opened(server.url, place) as ledger:
        with connected(server.url) as connection:
            ledger.database.dialect.make_place(connection, ledger.database.namespace)
            connection.execute(text(f"CREATE TABLE {place}.leases (id INTEGER PRIMARY KEY)"))
        with pytest.raises(errors.NotAllowedNow, match=f"a table leases in {place}, and one in"):
            ledger.migrate()

        assert tables(opened(server.url, users_place(server))) >= {"job", "leases"}
