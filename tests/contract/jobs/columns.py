"""The job contract, the tables: columns, defaults, constraints and indexes as documented."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import inspect, text

from ledgerstone.errors import StoreError
from ledgerstone.ids import new_id
from ledgerstone.jobs.accepting import NO_ORG
from ledgerstone.jobs.states import FINISHED, Status
from ledgerstone.ledger import Ledger
from tests.contract.jobs.examples import count, standing, statement

CHARS = {
    "type": 100,
    "idempotency_key": 255,
    "requested_by": 255,
    "last_error_code": 64,
    "last_error_message": 2048,
}
REQUIRED = {
    "id",
    "org_id",
    "type",
    "status",
    "attempt",
    "max_attempts",
    "backoff_policy",
    "priority",
    "created_at",
    "updated_at",
}
OPTIONAL = {
    "idempotency_key",
    "requested_by",
    "started_at",
    "finished_at",
    "last_error_code",
    "last_error_message",
}
STATUSES = ["queued", "running", "succeeded", "failed", "canceled", "dead_letter"]
POLICIES = ["none", "fixed", "exp"]
JOB_INDEXES = {
    "idx_job__job_org_id": ["org_id"],
    "idx_job__org_id_created_at_desc": ["org_id", "created_at"],
    "idx_job__org_id_idempotency_key": ["org_id", "idempotency_key"],
    "idx_job__status_created_at": ["status", "created_at"],
}
EVENT_INDEXES = {
    "idx_job_event__job_id_ts": ["job_id", "ts"],
    "idx_job_event__ts": ["ts"],
}
KEPT = "INSERT INTO job (id, org_id, type) VALUES (:id, :org, 'a')"
WRONG = (
    "status = 'lost'",
    "status = ''",
    "backoff_policy = 'soon'",
    *(f"{name} = NULL" for name in ("org_id", "type", "status", "attempt", "created_at")),
)
ENUMS = {
    "postgresql": (
        "SELECT e.enumlabel FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid "
        "WHERE t.typname = :name ORDER BY e.enumsortorder"
    ),
}


class JobTablesContract:
    """What is documented of the tables, and kept. Fixtures: `ledger`."""

    def test_columns(self, ledger: Ledger) -> None:
        """The documented columns are there, with their names, lengths and nullability."""
        found = {c["name"]: c for c in inspect(ledger.database.engine).get_columns("job")}

        nullable = {name: bool(column["nullable"]) for name, column in found.items()}
        chars = {name: getattr(found[name]["type"], "length", None) for name in CHARS}
        assert {name for name in REQUIRED if not nullable[name]} == REQUIRED
        assert {name for name in OPTIONAL if nullable[name]} == OPTIONAL
        assert chars == CHARS

    def test_event_columns(self, ledger: Ledger) -> None:
        """So are those of the events, and they refer to their job."""
        inspector = inspect(ledger.database.engine)
        found = {c["name"]: bool(c["nullable"]) for c in inspector.get_columns("job_event")}
        (key,) = inspector.get_foreign_keys("job_event")

        assert found == {
            "id": False,
            "job_id": False,
            "ts": False,
            "prev_status": True,
            "next_status": False,
            "detail_json": True,
        }
        assert (key["constrained_columns"], key["referred_table"]) == (["job_id"], "job")
        assert key["referred_columns"] == ["id"]
        assert key["options"].get("ondelete") == "CASCADE"

    def test_defaults(self, ledger: Ledger) -> None:
        """A row that says nothing but its organisation and type is a queued job like any other."""
        statement(ledger, "INSERT INTO job (org_id, type) VALUES (:org, 'a')", org=NO_ORG)

        with ledger.reading() as tx:
            (row,) = tx.jobs.find().rows
            policy = tx.connection.execute(text("SELECT backoff_policy FROM job")).scalar_one()
        assert (row.status, row.attempt, row.max_attempts, row.priority) == (
            Status.QUEUED,
            0,
            5,
            0,
        )
        assert (policy, row.queue, len(row.id)) == ("exp", "default", 36)
        assert abs((row.updated_at - row.created_at).total_seconds()) < 1
        nothing = (row.key, row.requested_by, row.started_at, row.finished_at)
        assert nothing == (None, None, None, None)
        assert (row.last_error_code, row.last_error_message) == (None, None)

    def test_indexes(self, ledger: Ledger) -> None:
        """The documented indexes are there under their names, on their columns."""
        inspector = inspect(ledger.database.engine)
        job = {i["name"]: i for i in inspector.get_indexes("job")}
        event = {i["name"]: i["column_names"] for i in inspector.get_indexes("job_event")}

        assert {name: job[name]["column_names"] for name in JOB_INDEXES} == JOB_INDEXES
        assert {name for name in JOB_INDEXES if job[name]["unique"]} == {
            "idx_job__org_id_idempotency_key"
        }
        assert {name: event[name] for name in EVENT_INDEXES} == EVENT_INDEXES

    def test_keys_are_unique_where_there_is_one(self, ledger: Ledger) -> None:
        """The database itself keeps a key to one job of an organisation; many may have none."""
        keyed = "INSERT INTO job (org_id, type, idempotency_key) VALUES (:org, 'a', :key)"
        for key in ("k", None, None):
            statement(ledger, keyed, org=NO_ORG, key=key)
        statement(ledger, keyed, org=new_id(), key="k")

        with pytest.raises(StoreError):
            statement(ledger, keyed, org=NO_ORG, key="k")

        assert count(ledger, "job") == 4

    def test_finished_exactly_when_it_has_ended(self, ledger: Ledger) -> None:
        """The database refuses an end without its moment, and a moment without an end."""
        insert = "INSERT INTO job (org_id, type, status, finished_at) VALUES (:org, 'a', '{}', {})"
        moment = "'2026-01-01 00:00:00'"

        for status in Status:
            right, wrong = (moment, "NULL") if status in FINISHED else ("NULL", moment)
            statement(ledger, insert.format(status.value, right), org=NO_ORG)
            with pytest.raises(StoreError, match="ck_job__status_finished_at_consistency"):
                statement(ledger, insert.format(status.value, wrong), org=NO_ORG)

        assert count(ledger, "job") == len(Status)

    def test_no_other_words(self, ledger: Ledger) -> None:
        """The database refuses a status or a policy that there is not, and what may not be NULL."""
        job_id = new_id()
        statement(ledger, KEPT, id=job_id, org=NO_ORG)

        for wrong in WRONG:
            with pytest.raises(StoreError):
                statement(ledger, f"UPDATE job SET {wrong}")  # noqa: S608 - our own

        assert standing(ledger, job_id).status is Status.QUEUED

    def test_an_event_without_its_job(self, ledger: Ledger) -> None:
        """The database refuses an event of a job that there is not."""
        with pytest.raises(StoreError):
            statement(
                ledger,
                "INSERT INTO job_event (job_id, next_status) VALUES (:id, 'queued')",
                id=new_id(),
            )

        assert count(ledger, "job_event") == 0


class NativeTypesContract:
    """What PostgreSQL has of its own. Fixtures: `ledger`, on PostgreSQL."""

    @pytest.mark.parametrize(
        ("name", "words"), [("job_status", STATUSES), ("job_backoff_policy", POLICIES)]
    )
    def test_enums(self, ledger: Ledger, name: str, words: list[str]) -> None:
        """States and policies are enums of the database, in the documented order."""
        with ledger.reading() as tx:
            found = tx.connection.execute(text(ENUMS["postgresql"]), {"name": name})

            assert list(found.scalars()) == words

    def test_types(self, ledger: Ledger) -> None:
        """Ids are uuid, moments timestamptz, documents jsonb, states the enums."""
        told: dict[str, Any] = {}
        with ledger.reading() as tx:
            for table, column, kind in tx.execute(
                text(
                    "SELECT table_name, column_name, udt_name FROM information_schema.columns "
                    "WHERE table_name IN ('job', 'job_event')"
                )
            ):
                told[f"{table}.{column}"] = kind

        uuids = ("job.id", "job.org_id", "job_event.id", "job_event.job_id")
        moments = ("job.created_at", "job.updated_at", "job.started_at", "job.finished_at")
        assert {told[name] for name in uuids} == {"uuid"}
        assert {told[name] for name in (*moments, "job_event.ts")} == {"timestamptz"}
        documents = ("job.payload", "job.result", "job_event.detail_json")
        assert {told[name] for name in documents} == {"jsonb"}
        assert told["job.status"] == "job_status"
        assert told["job.backoff_policy"] == "job_backoff_policy"

    def test_names(self, ledger: Ledger) -> None:
        """Keys and checks have their documented names, and the unique index is partial."""
        inspector = inspect(ledger.database.engine)
        indexes = {i["name"]: i for i in inspector.get_indexes("job")}
        keyed = indexes["idx_job__org_id_idempotency_key"]
        newest = indexes["idx_job__org_id_created_at_desc"]

        assert inspector.get_pk_constraint("job")["name"] == "pk_job"
        assert inspector.get_pk_constraint("job_event")["name"] == "pk_job_event"
        (foreign,) = inspector.get_foreign_keys("job_event")
        assert foreign["name"] == "fk_job_event_job_job_id"
        assert "IS NOT NULL" in keyed["dialect_options"]["postgresql_where"]
        assert newest["column_sorting"]["created_at"] == ("desc",)
