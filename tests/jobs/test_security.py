"""Row-level security: an organisation's role sees and touches its own jobs, on a real server."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.engine import URL

from ledgerstone import Ledger, errors
from ledgerstone.jobs import Limit, Status
from ledgerstone.jobs.room import MOVING
from ledgerstone.jobs.tables import job as job_table
from ledgerstone.ledger import SHIPPED
from ledgerstone.settings import Settings
from ledgerstone.store.schema import row_security
from ledgerstone.store.schema.namespace import NAMELESS
from ledgerstone.store.schema.row_security import scoped
from ledgerstone.testing.fixtures import Home, new_home
from ledgerstone.testing.waiting import until
from tests.chores.workshop import opened
from tests.contract.store.migrations import execute

pytestmark = pytest.mark.postgres

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "separate-organisations.md"
OURS = "0aaaaaaa-0000-4000-8000-000000000001"
THEIRS = "0bbbbbbb-0000-4000-8000-000000000002"
TABLES = ("job", "job_event", "job_key", "job_step", "job_schedule")
SAY = "SELECT set_config('ledgerstone.org_id', %s, true)"
DENIED = "42501"
"""Both a missing right and a row that a policy refuses."""
SCHEDULE = """
INSERT INTO job_schedule
    (name, type, payload, org_id, cron, time_zone, misfire, next_at_ms, created_at_ms)
    VALUES (:name, 'work', '{}', :org, '0 0 * * *', 'UTC', 'once', 9000000000000, 0)
"""
RULES = (
    "SELECT tablename, policyname, cmd, qual, with_check FROM pg_policies",
    """
    SELECT relname, relrowsecurity, relforcerowsecurity, grantee, privilege_type
    FROM pg_class CROSS JOIN aclexplode(COALESCE(relacl, acldefault('r', relowner)))
    WHERE relnamespace = 'ledgerstone'::regnamespace AND relkind = 'r'
    """,
    """
    SELECT attrelid::regclass::text, attname, grantee, privilege_type
    FROM pg_attribute CROSS JOIN aclexplode(attacl)
    """,
)
WRITES = (
    "INSERT INTO job (org_id, type) VALUES ('{THEIRS}', 'work')",
    "INSERT INTO job_key VALUES ('{THEIRS}', 'k', '{their_job}', 'h', 0)",
    "INSERT INTO job_event (job_id, next_status) VALUES ('{their_job}', 'queued')",
    "INSERT INTO job_step VALUES ('{their_job}', 'paste', 1, 0, '1')",
    "UPDATE job_schedule SET org_id = '{THEIRS}'",
    "UPDATE job SET org_id = '{THEIRS}'",
    "UPDATE job SET payload = '{{}}'",
    "UPDATE job_key SET job_id = '{their_job}'",
    "UPDATE job_event SET next_status = 'failed'",
    "UPDATE job_step SET result = '2'",
    "UPDATE job_queue SET name = 'another'",
    "UPDATE job_queue SET paused_at_ms = 1",
    "INSERT INTO job_queue (name, paused_at_ms) VALUES ('new', 1)",
    "INSERT INTO history_permit SELECT gen_random_uuid()",
    "INSERT INTO leases VALUES ('duty:rescue:jobs:default', 'me', 9000000000000, 9)",
    "SELECT * FROM leases",
    "UPDATE worker SET host = 'here'",
    "UPDATE ledger_identity SET created_at_ms = 0",
    "UPDATE ledgerstone_revision SET version_num = '0001'",
    "ALTER TABLE job DISABLE ROW LEVEL SECURITY",
    "DROP POLICY ledgerstone_org ON job",
    "CREATE TRIGGER t BEFORE INSERT ON job FOR EACH ROW EXECUTE FUNCTION ledgerstone_refuse()",
    *(f"DELETE FROM {table}" for table in (*TABLES, "job_queue", "worker")),  # noqa: S608 - ours
    *(f"TRUNCATE {table} CASCADE" for table in (*TABLES, "job_queue", "worker")),
)
"""What the role must not do; every one would find rows."""
FIXED = (
    "id",
    "org_id",
    "type",
    "max_attempts",
    "backoff_policy",
    "priority",
    "idempotency_key",
    "requested_by",
    "created_at",
    "queue",
    "payload",
    "limit_key",
    "limit_max",
    "correlation_id",
    "trace_context",
)
"""What was accepted: nobody changes it."""
_numbers = itertools.count(1)


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """A fresh database of PostgreSQL."""
    yield from new_home(request, "postgres", tmp_path)


@pytest.fixture
def role(home: Home) -> Iterator[str]:
    """A role that may log in and nothing else."""
    yield from new_role(home)


@pytest.fixture
def service(home: Home, role: str) -> Iterator[Ledger]:
    """A ledger of the owner of the tables, in which the role was let in."""
    with opened(home.url) as ledger:
        row_security.separate(ledger.database, role=role)
        yield ledger


@pytest.fixture
def tenant(service: Ledger, home: Home, role: str) -> Iterator[Ledger]:
    """A ledger of the role, whose connections say by themselves that they are ours."""
    assert service.database.open
    with ledger_of(home, role, org=OURS) as ledger:
        yield ledger


@pytest.fixture
def ids(service: Ledger) -> dict[str, str]:
    """A job of each organisation, with a key, a step and a schedule, by organisation."""
    with service.transaction() as tx:
        found = {}
        for org in (OURS, THEIRS):
            found[org] = tx.jobs.enqueue("work", {"of": org}, org=org, key="first").id
            step = "INSERT INTO job_step VALUES (:id, 'cut', 1, 0, '1')"
            tx.connection.execute(text(step), {"id": found[org]})
            tx.connection.execute(text(SCHEDULE), {"name": org, "org": org})
    return found


def new_role(home: Home, attributes: str = "") -> Iterator[str]:
    """A role, gone at the end with all its rights."""
    name = f"shop_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(home.url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN {attributes}")
        yield name
        connection.execute(f"DROP OWNED BY {name}")
        connection.execute(f"DROP ROLE {name}")


def url_of(home: Home, role: str, org: str | None = None) -> URL:
    """The database as this role enters it, for an organisation or for none."""
    url = make_url(home.url).set(username=role)
    return (
        url
        if org is None
        else url.update_query_dict({"options": f"-c{row_security.SETTING}={org}"})
    )


def ledger_of(home: Home, role: str, org: str | None = None) -> Ledger:
    """A ledger of this role."""
    url = url_of(home, role, org).render_as_string(hide_password=False)
    return Ledger(url, settings=Settings.load(url=url, environ={}))


def connected(home: Home, role: str, org: str | None = None) -> psycopg.Connection[Any]:
    """A connection of this role."""
    return psycopg.connect(url_of(home, role, org).render_as_string(hide_password=False))


def counts(connection: Any) -> dict[str, int]:
    """How many rows of each table are seen."""
    return {
        table: connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]  # noqa: S608 - ours
        for table in TABLES
    }


def refusal(connection: Any, statement: str, *values: Any) -> str | None:
    """The code with which the database refuses a statement, if it does; nothing is kept."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(statement, values or None)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def test_nothing_of_another_is_seen(home: Home, role: str, ids: dict[str, str]) -> None:
    """A scoped connection sees its own rows, and none of another organisation, in every table."""
    with connected(home, role, OURS) as connection:
        seen = counts(connection)
        found = {
            table: connection.execute(
                f"SELECT COUNT(*) FROM {table} WHERE {column} = %s",  # noqa: S608 - ours
                (value,),
            ).fetchone()
            for table, column, value in (
                ("job", "org_id", THEIRS),
                ("job_key", "org_id", THEIRS),
                ("job_schedule", "org_id", THEIRS),
                ("job_event", "job_id", ids[THEIRS]),
                ("job_step", "job_id", ids[THEIRS]),
            )
        }

    assert seen == dict.fromkeys(TABLES, 1)
    assert found == dict.fromkeys(TABLES, (0,))


@pytest.mark.usefixtures("ids")
def test_who_says_nothing_sees_nothing(home: Home, role: str) -> None:
    """Without an organisation no row is seen or written, also after a transaction that had one."""
    with connected(home, role) as connection:
        before = counts(connection)
        connection.rollback()
        with connection.transaction():
            connection.execute(SAY, (OURS,))
            inside = counts(connection)

        after = counts(connection)
        left = connection.execute("SELECT current_setting(%s)", (row_security.SETTING,)).fetchone()
        insert = "INSERT INTO job (org_id, type) VALUES (%s, 'work')"

        assert (before, after) == (dict.fromkeys(TABLES, 0),) * 2
        assert inside == dict.fromkeys(TABLES, 1)
        assert left == ("",)
        assert refusal(connection, insert, OURS) == DENIED


def test_nothing_of_another_is_changed(
    service: Ledger, home: Home, role: str, ids: dict[str, str]
) -> None:
    """Updating another's rows finds none."""
    with connected(home, role, OURS) as connection:
        changed = [
            connection.execute(statement).rowcount
            for statement in (
                f"UPDATE job SET crashes = 1 WHERE id = '{ids[THEIRS]}'",  # noqa: S608 - ours
                f"UPDATE job SET token = token + 1 WHERE org_id = '{THEIRS}'",  # noqa: S608 - ours
                f"UPDATE job_schedule SET cron = '* * * * *' WHERE org_id = '{THEIRS}'",  # noqa: S608 - ours
            )
        ]

    assert changed == [0, 0, 0]
    with service.reading() as tx:
        assert tx.jobs.get(ids[THEIRS]).status is Status.QUEUED


def test_what_is_refused(service: Ledger, home: Home, role: str, ids: dict[str, str]) -> None:
    """Nothing is written for another, removed, or changed after it was accepted."""
    service.run(lambda tx: tx.jobs.pause("default"))
    statements = [words.format(THEIRS=THEIRS, their_job=ids[THEIRS]) for words in WRITES]

    with connected(home, role, OURS) as connection:
        answers = {statement: refusal(connection, statement) for statement in statements}

    assert answers == dict.fromkeys(statements, DENIED)


def test_a_table_of_the_same_name_is_not_asked(home: Home, role: str, ids: dict[str, str]) -> None:
    """Which jobs are its own is looked up in ours, also where the role has put another first."""
    theirs = ids[THEIRS]
    told = f"INSERT INTO job_event (job_id, next_status) VALUES ('{theirs}', 'queued')"  # noqa: S608 - ours

    with connected(home, role, OURS) as connection:
        connection.execute(f"CREATE TEMPORARY TABLE job AS SELECT '{theirs}'::uuid AS id")
        connection.execute("SET search_path = pg_temp, ledgerstone, public")
        assert refusal(connection, told) == DENIED


@pytest.mark.usefixtures("ids")
def test_a_move_that_is_none_is_refused(home: Home, role: str) -> None:
    """The triggers hold for the role as well: only declared moves succeed."""
    done = "UPDATE job SET status = 'succeeded', finished_at = now()"

    with connected(home, role, OURS) as connection:
        assert refusal(connection, done) == "23001"


def test_joining_with_the_role(service: Ledger, home: Home, role: str, ids: dict[str, str]) -> None:
    """In the application's own transaction, scoped, it accepts its own jobs and no others."""
    with connected(home, role) as connection:
        with connection.transaction():
            tx = scoped(service.join(connection), OURS)
            first = tx.jobs.enqueue("work", {"n": 1}, org=OURS, key="mine")
            again = tx.jobs.enqueue("work", {"n": 1}, org=OURS, key="mine")
            same = tx.jobs.enqueue("work", {"of": OURS}, org=OURS, key="first")
        with pytest.raises(errors.StoreDenied), connection.transaction():
            scoped(service.join(connection), OURS).jobs.enqueue("work", org=THEIRS)
        with pytest.raises(errors.StoreDenied), connection.transaction():
            service.join(connection).jobs.enqueue("work", org=OURS)

    assert (first.created, again.created, again.id) == (True, False, first.id)
    assert same.id == ids[OURS]
    with service.reading() as tx:
        assert tx.jobs.get(first.id).org_id == OURS
        assert len(tx.jobs.events(first.id).rows) == 1
        assert len(tx.jobs.find().rows) == 3


def test_what_an_application_does(tenant: Ledger, ids: dict[str, str]) -> None:
    """It finds, reads, cancels, explains and schedules its own; another's are not there."""
    with tenant.transaction() as tx:
        listed = [row.id for row in tx.jobs.find().rows]
        explained = tx.jobs.explain(ids[OURS])
        canceled = tx.jobs.cancel(ids[OURS], by="ann")
        events = tx.jobs.events(ids[THEIRS]).rows
        gone: list[Callable[[str], object]] = [tx.jobs.get, tx.jobs.cancel, tx.jobs.retry]
        for ask in gone:
            with pytest.raises(errors.NotFound):
                ask(ids[THEIRS])

    assert listed == [ids[OURS]]
    assert explained.reasons
    assert canceled is Status.CANCELED
    assert events == []
    with pytest.raises(errors.StoreDenied):
        tenant.run(lambda tx: tx.jobs.pause("default"))


def test_scoped_ends_with_its_transaction(home: Home, role: str, ids: dict[str, str]) -> None:
    """The organisation of a transaction is not left to the next one on the same connection."""
    with ledger_of(home, role) as ledger:
        with ledger.transaction() as tx:
            mine = scoped(tx, OURS).jobs.find().rows
        with ledger.transaction() as tx:
            nobodys = tx.jobs.find().rows
        with ledger.transaction() as tx:
            theirs = scoped(tx, THEIRS).jobs.find().rows

    assert [row.id for row in mine] == [ids[OURS]]
    assert nobodys == []
    assert [row.id for row in theirs] == [ids[THEIRS]]


def test_an_organisation_is_a_uuid(tenant: Ledger) -> None:
    """What is no UUID is refused before it reaches the database."""
    with pytest.raises(errors.BadInput, match="named by a UUID"), tenant.transaction() as tx:
        scoped(tx, "shop")


def test_the_service_works_for_all(service: Ledger, ids: dict[str, str]) -> None:
    """A worker of the owner runs the jobs of every organisation."""
    done = noting(service)

    worker = service.worker()
    worker.tick()
    worker.stop()

    assert sorted(done) == [OURS, THEIRS]
    with service.reading() as tx:
        assert {tx.jobs.get(key).status for key in ids.values()} == {Status.SUCCEEDED}


def test_an_owner_without_special_rights(home: Home, role: str) -> None:
    """Who migrates its tables as a plain role goes on working for all, and keeps others apart."""
    for owner in new_role(home):
        with psycopg.connect(home.url) as connection:
            connection.execute(f"GRANT CREATE ON SCHEMA public TO {owner}")
            name = make_url(home.url).database
            connection.execute(f'GRANT CREATE ON DATABASE "{name}" TO {owner}')
        with ledger_of(home, owner) as ledger:
            ledger.migrate()
            row_security.separate(ledger.database, role=role)
            with ledger.transaction() as tx:
                for org in (OURS, THEIRS):
                    tx.jobs.enqueue("work", {"of": org}, org=org)
            done = noting(ledger)

            with ledger_of(home, role, OURS) as tenant, tenant.reading() as tx:
                seen = [row.org_id for row in tx.jobs.find().rows]
            worker = ledger.worker()
            worker.tick()
            worker.stop()

        assert seen == [OURS]
        assert sorted(done) == [OURS, THEIRS]


@pytest.mark.parametrize("way", [0, 1], ids=["BYPASSRLS", "policies"])
@pytest.mark.usefixtures("ids")
def test_the_service_under_another_role(home: Home, service: Ledger, way: int) -> None:
    """A role with rights and either of the documented ways past security works for all, too."""
    (ways,) = re.findall(r"```sql\n(.*?)```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL)
    for name in new_role(home):
        with psycopg.connect(home.url) as connection:
            connection.execute(f"GRANT USAGE ON SCHEMA ledgerstone TO {name}")
            connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA ledgerstone TO {name}")
            connection.execute(ways.split("\n\n")[way].replace(" service ", f" {name} "))
        with ledger_of(home, name) as ledger:
            done = noting(ledger)

            worker = ledger.worker()
            worker.tick()
            worker.stop()
            ledger.run(lambda tx: tx.jobs.limit("default", 3))

        assert sorted(done) == [OURS, THEIRS]
        assert name not in row_security.separate(service.database).apart


def test_a_worker_of_one_organisation(service: Ledger, tenant: Ledger, ids: dict[str, str]) -> None:
    """Run with the restricted role, a worker claims and finishes its organisation's jobs only."""
    done: list[str] = []

    def work(job: Any, of: str) -> str:
        done.append(of)
        job.progress(0.5, "half")
        return str(job.step("look", lambda: of))

    tenant.job("work")(work)

    worker = tenant.worker()
    worker.start()
    until(lambda: standing(service, ids[OURS]) is Status.SUCCEEDED, what="its job is done")
    prompt = worker.report().prompt
    worker.stop()

    assert worker.failure is None
    assert prompt
    assert done == [OURS]
    assert standing(service, ids[THEIRS]) is Status.QUEUED
    with service.reading() as tx:
        job = tx.jobs.get(ids[OURS])
        moves = [event.next_status for event in tx.jobs.events(ids[OURS]).rows]
    assert (job.result, job.stage, job.progress) == (OURS, "half", 0.5)
    assert moves == ["queued", "running", "running", "succeeded"]


def test_limits_with_the_role(tenant: Ledger) -> None:
    """Jobs with limit keys, which lock their queue, are run by the role as well."""
    done: list[int] = []

    @tenant.job("keyed", limit=Limit(key=lambda n: f"key {n % 1}"))
    def keyed(n: int) -> None:
        done.append(n)

    with tenant.transaction() as tx:
        for n in range(3):
            tx.jobs.enqueue("keyed", {"n": n}, org=OURS)

    worker = tenant.worker()
    for _ in range(5):
        worker.tick()
    worker.stop()

    assert sorted(done) == [0, 1, 2]


def test_failures_with_the_role(service: Ledger, tenant: Ledger) -> None:
    """A job that fails for the last time is a dead letter, and its organisation retries it."""
    tenant.job("bad", max_attempts=1)(lambda: 1 / 0)
    with tenant.transaction() as tx:
        key = tx.jobs.enqueue("bad", org=OURS).id

    worker = tenant.worker()
    worker.tick()
    worker.stop()
    dead = standing(service, key)
    tenant.run(lambda tx: tx.jobs.retry(key))

    assert dead is Status.DEAD_LETTER
    assert standing(service, key) is Status.QUEUED


def noting(ledger: Ledger) -> list[str]:
    """The organisations of the jobs that were run, from now on."""
    done: list[str] = []

    @ledger.job("work")
    def work(of: str) -> None:
        done.append(of)

    return done


def standing(ledger: Ledger, job_id: str) -> Status:
    with ledger.reading() as tx:
        return tx.jobs.get(job_id).status


def test_again_it_changes_nothing(service: Ledger, role: str) -> None:
    """Separating twice leaves the same policies and rights as once."""
    before = rules(service)

    done = row_security.separate(service.database, role=role)

    assert rules(service) == before
    assert done.apart == (role,)
    assert set(TABLES) < set(done.tables)


def test_the_script_does_the_same(service: Ledger, home: Home, role: str) -> None:
    """The printed SQL makes the same policies and rights, also when it is run twice."""
    before = rules(service)
    with psycopg.connect(home.url) as connection:
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute("DROP POLICY ledgerstone_org ON job")
        connection.execute("ALTER TABLE job DISABLE ROW LEVEL SECURITY")

    for _ in range(2):
        execute(
            home.url,
            row_security.script(
                "postgresql", service.database.namespace, service.database.rooms, role=role
            ),
        )

    assert rules(service) == before


def rules(ledger: Ledger) -> list[tuple[Any, ...]]:
    """Policies, rights, and on which tables security is on, and for whom it is forced."""
    with ledger.reading() as tx:
        return [
            tuple(map(str, row))
            for query in RULES
            for row in sorted(map(tuple, tx.connection.execute(text(query))), key=str)
        ]


def test_rules_of_before_are_made_anew(home: Home, tenant: Ledger) -> None:
    """Organisations that were kept apart before jobs came with their first event still are."""
    migration = import_module("ledgerstone.store.migrations.versions.0007_fewer_steps")
    own = "EXISTS (SELECT 1 FROM job WHERE job.id = job_event.job_id)"
    with psycopg.connect(home.url, autocommit=True) as connection:
        connection.execute(f"ALTER POLICY ledgerstone_org ON job_event WITH CHECK ({own})")
        with pytest.raises(errors.StoreDenied):
            tenant.run(lambda tx: scoped(tx, OURS).jobs.enqueue("work", org=OURS))

        connection.execute(migration.known_by_sight("job_event"))

    assert tenant.run(lambda tx: scoped(tx, OURS).jobs.enqueue("work", org=OURS)).created


def test_rights_from_before_are_taken_away(service: Ledger, home: Home, role: str) -> None:
    """Whatever the role could do on our tables before, it ends with what it needs."""
    before = rules(service)
    with psycopg.connect(home.url) as connection:
        connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA ledgerstone TO {role}")
        others = "chore, chore_event, messenger_outbox, messenger_messages"
        others += ", message_broker_deduplication"
        connection.execute(f"REVOKE ALL ON {others} FROM {role}")

    row_security.separate(service.database, role=role)

    assert rules(service) == before


@pytest.mark.parametrize(
    "attributes",
    ["SUPERUSER", "BYPASSRLS", "IN ROLE postgres", "NOINHERIT IN ROLE postgres"],
)
def test_a_role_above_security_is_refused(service: Ledger, home: Home, attributes: str) -> None:
    """A role that would see every organisation anyway is not let in as if it did not."""
    for name in new_role(home, attributes):
        with pytest.raises(errors.BadInput, match="above row-level security"):
            row_security.separate(service.database, role=name)


def test_members_of_the_owner(service: Ledger, home: Home, role: str) -> None:
    """A member of the owner is held apart exactly if it does not inherit the owner's rights."""
    for heir, stranger in zip(
        new_role(home, "INHERIT IN ROLE postgres"),
        new_role(home, "NOINHERIT IN ROLE postgres"),
        strict=True,
    ):
        with psycopg.connect(home.url) as connection:
            connection.execute(f"GRANT USAGE ON SCHEMA ledgerstone TO {heir}, {stranger}")
            connection.execute(f"GRANT SELECT ON job TO {heir}, {stranger}")

        apart = row_security.separate(service.database).apart

        service.run(lambda tx: tx.jobs.enqueue("work", org=THEIRS))
        seen = {}
        for name in (heir, stranger):
            with connected(home, name, org=OURS) as connection:
                row = connection.execute("SELECT COUNT(*) FROM job").fetchone()
                seen[name] = row is not None and row[0]
        assert set(apart) == {role, stranger}
        assert seen == {heir: 1, stranger: 0}


@pytest.mark.parametrize("name", ["nobody_here", 'a"b', "a'b", "$$", "", "x" * 64])
def test_a_role_that_cannot_be(service: Ledger, name: str) -> None:
    """A role that is not there, or whose name is none, is told; nothing is run."""
    with pytest.raises((errors.NotFound, errors.BadInput)):
        row_security.separate(service.database, role=name)


def test_the_document_names_every_table() -> None:
    """What the role can do is told of each table that it is granted or refused."""
    document = Path(__file__).parents[2] / "docs" / "how-to" / "separate-organisations.md"
    words = document.read_text(encoding="utf-8")

    rules = [row_security.KERNEL, *(room.security for room in SHIPPED)]
    told = {table for rule in rules for table in (*rule.grants, *rule.refused)}
    assert [table for table in sorted(told) if f"`{table}`" not in words] == []


def test_a_row_of_others_is_told_with_what_to_do(tenant: Ledger) -> None:
    """Where security refuses a row, the error says how to name the right organisation."""
    with pytest.raises(errors.StoreDenied, match="--org or org=") as raised:
        tenant.run(lambda tx: tx.jobs.enqueue("work", org=THEIRS))

    assert "row-level security" in raised.value.message


def test_an_organisation_that_is_none_is_told(service: Ledger, home: Home, role: str) -> None:
    """A connection that says nonsense is told where it says it."""
    service.run(lambda tx: tx.jobs.enqueue("work", org=OURS))

    with (
        ledger_of(home, role, org="nonsense") as ledger,
        pytest.raises(errors.StoreError, match=r"set ledgerstone\.org_id"),
    ):
        ledger.run(lambda tx: tx.jobs.find())


def test_every_column_is_decided_on() -> None:
    """Each column of a job is either what was accepted or what its moves change."""
    written = [column.name for column in job_table.c if column.computed is None]

    assert sorted(FIXED + MOVING) == sorted(written)


def test_only_on_postgresql(tmp_path: Path) -> None:
    """Elsewhere it is Unsupported, and the words say why."""
    with opened(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        with pytest.raises(errors.Unsupported, match="PostgreSQL's"):
            row_security.separate(ledger.database)
        with pytest.raises(errors.Unsupported, match="PostgreSQL's"), ledger.transaction() as tx:
            scoped(tx, OURS)
    with pytest.raises(errors.Unsupported, match="mysql"):
        row_security.script("mysql", NAMELESS, [])
