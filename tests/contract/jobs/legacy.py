"""The contract of the table `jobs` of before the job ledger: its rows become jobs, none is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import (
    JSON,
    Column,
    DateTime,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    Uuid,
    inspect,
    text,
)
from sqlalchemy.dialects import mysql, postgresql

from ledgerstone import errors
from ledgerstone.jobs import Status, history, retention
from ledgerstone.jobs.accepting import NO_ORG
from ledgerstone.ledger import Ledger
from ledgerstone.settings import JobSettings
from ledgerstone.store.migrations import legacy_jobs
from ledgerstone.store.schema import revisions
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from tests.contract.store.migrations import MIGRATE, asked, never_migrating
from tests.harness.child import Child
from tests.harness.ledgers import opened
from tests.harness.threads import aside, still_waits

CREATED = datetime(2025, 10, 28, 9, 30, 15, 123456, tzinfo=UTC)
UPDATED = CREATED + timedelta(minutes=3)
RESULT = {"scenes": [1, 2.5, None, True], "title": "Grüße, 世界 😀", "nested": {"a": "'\"\\"}}
OTHERS = (
    "status TEXT, stage TEXT, progress INTEGER, result TEXT, error TEXT, "
    "created_at TIMESTAMP NULL, updated_at TIMESTAMP NULL"
)
"""The columns beside the id, as anybody may have chosen them."""
MANY = 30_000
MANY_AT_ONCE = 5_000
STATUSES = {
    "pending": Status.QUEUED,
    "queued": Status.QUEUED,
    "processing": Status.RUNNING,
    "running": Status.RUNNING,
    "completed": Status.SUCCEEDED,
    "succeeded": Status.SUCCEEDED,
    "canceled": Status.CANCELED,
    "cancelled": Status.CANCELED,
    "failed": Status.DEAD_LETTER,
    "dead_letter": Status.DEAD_LETTER,
    "Completed": Status.SUCCEEDED,
    "on holiday": Status.DEAD_LETTER,
}


class LegacyJob(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the old table."""

    number: int
    status: str | None = "pending"
    stage: str | None = None
    progress: float | None = None
    result: Any = None
    error: str | None = None
    created_at: datetime | None = CREATED
    updated_at: datetime | None = UPDATED

    @property
    def id(self) -> str:
        return f"8f0e1a2b-9a3b-4c5d-8e7f-{self.number:012x}"


class LegacyJobContract:
    """What holds for a table `jobs` that is there before Ledgerstone. Fixture: `home`."""

    @pytest.fixture
    def bare(self, home: Home) -> Iterator[Ledger]:
        """A ledger on the database that is not migrated yet."""
        with never_migrating(home.url) as ledger:
            yield ledger

    def test_nothing_is_lost(self, bare: Ledger) -> None:
        """Id, stage, result, error and moments are kept as they were, exactly."""
        old = LegacyJob(
            number=1,
            status="completed",
            stage="Überblick",
            progress=100,
            result=RESULT,
            error="one scene was skipped",
        )
        make_legacy(bare, [old])

        bare.migrate()

        with bare.reading() as tx:
            job = tx.jobs.get(old.id)
        assert (job.org_id, job.type, job.queue) == (NO_ORG, "legacy", "legacy")
        assert (job.stage, job.progress, job.result) == ("Überblick", 1.0, RESULT)
        assert (job.created_at, job.updated_at, job.finished_at) == (CREATED, UPDATED, UPDATED)
        assert (job.last_error_code, job.last_error_message) == ("legacy", "one scene was skipped")

    def test_every_status_has_its_place(self, bare: Ledger) -> None:
        """Each status becomes the one that means the same; what is finished says when."""
        rows = [LegacyJob(number=i, status=status) for i, status in enumerate(STATUSES)]
        make_legacy(bare, rows)

        bare.migrate()

        with bare.reading() as tx:
            jobs = {row.status: tx.jobs.get(row.id) for row in rows}
        assert {status: job.status for status, job in jobs.items()} == STATUSES
        for job in jobs.values():
            over = job.status not in {Status.QUEUED, Status.RUNNING}
            assert job.finished_at == (UPDATED if over else None)

    def test_the_dead_say_why(self, bare: Ledger) -> None:
        """A dead letter has its reason: the error there was, none, or a status that is unknown."""
        rows = [
            LegacyJob(number=1, status="failed", error="disk full"),
            LegacyJob(number=2, status="failed"),
            LegacyJob(number=3, status="on holiday", error="gone"),
            LegacyJob(number=4, status="failed", error="ä" * 3000),
        ]
        make_legacy(bare, rows)

        bare.migrate()

        with bare.reading() as tx:
            jobs = [tx.jobs.get(row.id) for row in rows]
            (event,) = tx.jobs.events(rows[3].id).rows
        assert [(job.last_error_code, job.last_error_message) for job in jobs] == [
            ("legacy", "disk full"),
            ("legacy", "it failed, and no reason was kept"),
            ("legacy_status", "the table jobs had it as on holiday: gone"),
            ("legacy", "ä" * 2048),
        ]
        assert event.detail["error"]["traceback"] == "ä" * 3000

    def test_each_has_one_event(self, bare: Ledger) -> None:
        """One event says where a job came from, and replays to its row."""
        rows = [
            LegacyJob(
                number=i, status=status, stage="cut", progress=50, error="hm" if i % 2 else ""
            )
            for i, status in enumerate(STATUSES)
        ]
        make_legacy(bare, rows)

        bare.migrate()

        with bare.reading() as tx:
            for row in rows:
                job, happened = tx.jobs.get(row.id), tx.jobs.events(row.id).rows
                (event,) = happened
                assert (event.prev_status, event.next_status) == (None, job.status.value)
                assert event.detail["reason"] == "taken over from the table jobs"
                assert event.detail["legacy_status"] == row.status
                told = event.detail.get("error", {"code": None, "message": None})
                assert (told["code"], told["message"]) == (
                    job.last_error_code,
                    job.last_error_message,
                )
                replayed = history.replayed(happened)
                assert (replayed.status, replayed.attempt) == (job.status.value, job.attempt)
                assert (replayed.stage, replayed.progress) == (job.stage, job.progress)

    def test_what_was_going_on_goes_on(self, bare: Ledger) -> None:
        """What was pending is run; what was being processed is rescued, then run."""
        make_legacy(
            bare,
            [
                LegacyJob(number=1, status="pending"),
                LegacyJob(number=2, status="processing"),
                LegacyJob(number=3, status="failed"),
            ],
        )
        done: list[str] = []
        bare.job("legacy", queue="legacy")(lambda job: done.append(job.id))
        bare.migrate()

        worker = bare.worker()
        worker.tick()
        worker.tick()
        worker.stop()

        expected = [LegacyJob(number=1).id, LegacyJob(number=2).id]
        assert sorted(done) == expected
        with bare.reading() as tx:
            assert [tx.jobs.get(key).status for key in expected] == [Status.SUCCEEDED] * 2
            assert "ran out" in tx.jobs.events(expected[1]).rows[1].detail["reason"]

    def test_the_old_table_is_kept(self, bare: Ledger) -> None:
        """The old table has another name and every row that it had."""
        rows = [LegacyJob(number=i, progress=i, result={"i": i}) for i in range(5)]
        make_legacy(bare, rows)
        before = asked(bare, "SELECT * FROM jobs ORDER BY id")

        bare.migrate()

        assert asked(bare, "SELECT * FROM jobs_legacy ORDER BY id") == before
        assert "jobs" not in tables_of(bare)

    def test_an_empty_one(self, bare: Ledger) -> None:
        """An old table without rows gets its other name, and there is no job."""
        make_legacy(bare, [])

        bare.migrate()

        assert {"jobs_legacy"} == tables_of(bare) & {"jobs", "jobs_legacy"}
        assert asked(bare, "SELECT COUNT(*) FROM job") == [(0,)]

    def test_what_is_missing(self, bare: Ledger) -> None:
        """Rows without moments, status or progress are taken over too."""
        nothing = LegacyJob(number=1, status=None, created_at=None, updated_at=None)
        once = LegacyJob(number=2, status="completed", updated_at=None)
        make_legacy(bare, [nothing, once])

        bare.migrate()

        with bare.reading() as tx:
            unknown, finished = tx.jobs.get(nothing.id), tx.jobs.get(once.id)
        assert (unknown.status, unknown.last_error_code) == (Status.DEAD_LETTER, "legacy_status")
        assert unknown.created_at > UPDATED
        assert (finished.created_at, finished.finished_at) == (CREATED, CREATED)

    def test_progress_of_fractions(self, bare: Ledger) -> None:
        """Where progress was a fraction it stays; where it was more than 1 it was in percent."""
        rows = [LegacyJob(number=i, progress=p) for i, p in enumerate((0.25, 1.0, 75.0, None))]
        make_legacy(bare, rows, progress=Float(53))

        bare.migrate()

        with bare.reading() as tx:
            assert [tx.jobs.get(row.id).progress for row in rows] == [0.25, 1.0, 0.75, None]

    @pytest.mark.parametrize("kind", [Integer(), Float(53)], ids=["percent", "fraction"])
    def test_progress_beyond(self, bare: Ledger, kind: Any) -> None:
        """Progress that was less than nothing or more than all is nothing or all."""
        rows = [LegacyJob(number=i, progress=p) for i, p in enumerate((-5, 150, 100, 0))]
        make_legacy(bare, rows, progress=kind)

        bare.migrate()

        with bare.reading() as tx:
            assert [tx.jobs.get(row.id).progress for row in rows] == [0, 1, 1, 0]

    def test_what_was_taken_over_is_kept(self, bare: Ledger, home: Home) -> None:
        """Retention counts from the migration: what ended long ago is not gone the next day."""
        make_legacy(bare, [LegacyJob(number=i, status="completed") for i in range(3)])
        bare.migrate()
        day = JobSettings(keep_days=1)

        at_once = bare.run(lambda tx: retention.retire(tx, day))
        in_two_days = ManualClock(round((datetime.now(UTC) + timedelta(days=2)).timestamp() * 1000))
        with opened(home.url, clock=in_two_days) as later:
            in_time = later.run(lambda tx: retention.retire(tx, day))

        assert (at_once, in_time) == (0, 3)

    def test_migrating_again(self, bare: Ledger) -> None:
        """The second migration changes nothing of what was taken over."""
        make_legacy(bare, [LegacyJob(number=i) for i in range(3)])
        bare.migrate()
        before = taken_over(bare)

        bare.migrate()

        assert taken_over(bare) == before
        assert asked(bare, "SELECT COUNT(*) FROM jobs_legacy") == [(3,)]

    def test_what_is_there_is_not_copied_again(self, bare: Ledger) -> None:
        """Rows that are jobs already stay as they are, with their one event; others are added."""
        make_legacy(bare, [LegacyJob(number=i) for i in range(3)])
        bare.migrate()
        before = taken_over(bare)
        with bare.database.engine.begin() as connection:
            connection.execute(text("ALTER TABLE jobs_legacy RENAME TO jobs"))
        add_legacy(bare, [LegacyJob(number=3)])

        with (
            bare.database.engine.begin() as connection,
            Operations.context(MigrationContext.configure(connection)),
        ):
            legacy_jobs.take_over()

        after = taken_over(bare)
        assert [row for row in after if row in before] == before
        assert len(after) == 4
        assert asked(bare, "SELECT COUNT(*) FROM job_event") == [(4,)]
        assert "jobs" not in tables_of(bare)

    def test_somebody_still_writes(self, bare: Ledger) -> None:
        """A row that is being written to the old table when it is taken over is not missed."""
        make_legacy(bare, [LegacyJob(number=1)])
        with bare.database.engine.connect() as connection:
            connection.execute(legacy_table().insert(), as_rows([LegacyJob(number=2)]))

            with aside(bare.migrate) as migrating_too:
                waited = still_waits(migrating_too)
                connection.commit()

        assert waited
        assert len(taken_over(bare)) == 2

    def test_killed_before_the_commit(self, bare: Ledger, home: Home) -> None:
        """Killed with -9 at the end of the step, the next run has each row once."""
        make_legacy(bare, [LegacyJob(number=i) for i in range(3)])
        failpoint = "migrate.step=kill@2"
        with Child(MIGRATE, home.url, revisions.LOCATION, failpoint=failpoint) as child:
            child.go()
            code, _ = child.ended()

        bare.migrate()

        assert code == -signal.SIGKILL
        assert len(taken_over(bare)) == 3
        assert asked(bare, "SELECT COUNT(*) FROM job_event") == [(3,)]
        assert asked(bare, "SELECT COUNT(*) FROM jobs_legacy") == [(3,)]

    @pytest.mark.parametrize(
        "ddl",
        [
            "TABLE jobs (id INTEGER PRIMARY KEY, title VARCHAR(20))",
            f"TABLE jobs (id INTEGER PRIMARY KEY, {OTHERS})",
            f"TABLE jobs (id CHAR(36) PRIMARY KEY, {OTHERS}, title TEXT)",
            f"TABLE jobs (id VARCHAR(50) PRIMARY KEY, {OTHERS})",
            "VIEW jobs AS SELECT 1 AS id",
        ],
        ids=["two columns", "numbered", "one column more", "other ids", "a view"],
    )
    def test_a_table_of_somebody_else(self, bare: Ledger, ddl: str) -> None:
        """A table or view `jobs` that is not of that shape is left as it is."""
        with bare.database.engine.begin() as connection:
            connection.execute(text(f"CREATE {ddl}"))
            if "VIEW" not in ddl:
                connection.execute(text("INSERT INTO jobs (id) VALUES ('7')"))
        before = asked(bare, "SELECT * FROM jobs")

        bare.migrate()

        assert asked(bare, "SELECT * FROM jobs") == before
        assert asked(bare, "SELECT COUNT(*) FROM job") == [(0,)]
        assert "jobs_legacy" not in tables_of(bare)

    def test_both_names_taken(self, bare: Ledger) -> None:
        """Where a table jobs_legacy is there already it is not overwritten: an error says so."""
        make_legacy(bare, [LegacyJob(number=1)])
        with bare.database.engine.begin() as connection:
            connection.execute(text("CREATE TABLE jobs_legacy (id INTEGER)"))

        with pytest.raises(errors.NotAllowedNow, match="jobs_legacy"):
            bare.migrate()

        assert asked(bare, "SELECT COUNT(*) FROM jobs") == [(1,)]
        with bare.database.engine.begin() as connection:
            connection.execute(text("DROP TABLE jobs_legacy"))
        bare.migrate()
        assert len(taken_over(bare)) == 1

    def test_printed_it_says_so(self, bare: Ledger) -> None:
        """The printed SQL leaves the old table alone and says that it does."""
        script = revisions.script(bare.database.url.get_backend_name(), bare.database.namespace)

        assert "-- A table jobs of before the job ledger" in script
        assert "jobs_legacy" not in script

    @pytest.mark.slow
    def test_many(self, bare: Ledger) -> None:
        """A large table is copied by the database, each row once."""
        make_legacy(bare, [])
        for start in range(0, MANY, MANY_AT_ONCE):
            rows = [LegacyJob(number=start + i, result={"i": i}) for i in range(MANY_AT_ONCE)]
            add_legacy(bare, rows)

        bare.migrate()

        assert asked(bare, "SELECT COUNT(*), COUNT(result) FROM job") == [(MANY, MANY)]
        assert asked(bare, "SELECT COUNT(DISTINCT job_id) FROM job_event") == [(MANY,)]
        assert asked(bare, "SELECT COUNT(*) FROM jobs_legacy") == [(MANY,)]


def legacy_table(progress: Any = None) -> Table:
    """The old table, as each database had it."""
    moment = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    return Table(
        "jobs",
        MetaData(),
        Column("id", Uuid(as_uuid=False).with_variant(String(36), "mysql", "mariadb", "sqlite")),
        Column("status", String(20)),
        Column("stage", Text),
        Column("progress", progress or Integer),
        Column(
            "result",
            JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql"),
        ),
        Column("error", Text),
        Column("created_at", moment),
        Column("updated_at", moment),
    )


def make_legacy(ledger: Ledger, rows: Sequence[LegacyJob], *, progress: Any = None) -> None:
    """The old table with these rows, in a database that Ledgerstone has not seen."""
    with ledger.database.engine.begin() as connection:
        legacy_table(progress).create(connection)
    add_legacy(ledger, rows, progress=progress)


def add_legacy(ledger: Ledger, rows: Sequence[LegacyJob], *, progress: Any = None) -> None:
    """Rows of the old table, as its own program would write them."""
    if not rows:
        return
    with ledger.database.engine.begin() as connection:
        connection.execute(legacy_table(progress).insert(), as_rows(rows))


def as_rows(rows: Sequence[LegacyJob]) -> list[dict[str, Any]]:
    """The rows as the table takes them."""
    names = [name for name in LegacyJob.__struct_fields__ if name != "number"]
    return [{"id": row.id} | {name: getattr(row, name) for name in names} for row in rows]


def taken_over(ledger: Ledger) -> list[tuple[Any, ...]]:
    """The jobs, as the database holds them."""
    return asked(ledger, "SELECT * FROM job ORDER BY id")


def tables_of(ledger: Ledger) -> set[str]:
    """The names of all tables."""
    with ledger.database.reading() as tx:
        return set(inspect(tx.connection).get_table_names())
