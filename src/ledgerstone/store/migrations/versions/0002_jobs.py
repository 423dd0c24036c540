"""The job ledger: jobs, their history, keys, steps and queues."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import conv

from ledgerstone.store.migrations import legacy_jobs, steps
from ledgerstone.store.schema.columns import (
    CHURNING,
    MYSQL_TABLE,
    choice_type,
    id_type,
    json_type,
    moment_type,
    text_type,
)
from ledgerstone.store.sql.expressions import default_id, default_now

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

STATUSES = ("queued", "running", "succeeded", "failed", "canceled", "dead_letter")
FINISHED = ("succeeded", "failed", "canceled", "dead_letter")
POLICIES = ("none", "fixed", "exp")
MOVES = (
    ("queued", "running"),
    ("queued", "canceled"),
    ("running", "succeeded"),
    ("running", "failed"),
    ("running", "canceled"),
    ("running", "queued"),
    ("failed", "queued"),
    ("failed", "dead_letter"),
    ("dead_letter", "queued"),
)
TABLES = ("job_step", "job_event", "job_key", "job_queue", "job", "history_permit")
ENUMS = {"job_status": STATUSES, "job_backoff_policy": POLICIES}
TUNING = "fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 1"


def upgrade() -> None:
    """Add the tables; on MySQL an interrupted run is taken up where it stopped."""
    postgresql = steps.dialect() == "postgresql"
    if postgresql:
        for name, words in ENUMS.items():
            op.execute(f"CREATE TYPE {name} AS ENUM ({_listed(words)})")
    _add_job()
    _index_job()
    _add_job_event()
    _add_keys_steps_queues()
    steps.refuse_moves("job", MOVES, "a job does not move like that")
    steps.keep_history("job_event", "the history of jobs is kept as it is")
    steps.keep_history("job", "a job is removed by retention only", verbs=("DELETE",))
    if postgresql:
        op.execute(f"ALTER TABLE job SET ({TUNING})")
    legacy_jobs.take_over()


def downgrade() -> None:
    """Remove the tables."""
    for name in TABLES:
        op.drop_table(name)
    if steps.dialect() == "postgresql":
        for name in ENUMS:
            op.execute(f"DROP TYPE {name}")
        op.execute("DROP FUNCTION ledgerstone_refuse, ledgerstone_keep")


def _add_job() -> None:
    status = choice_type("job_status", STATUSES)
    policy = choice_type("job_backoff_policy", POLICIES)
    checks: list[Any] = [
        sa.CheckConstraint(
            f"(status IN ({_listed(FINISHED)})) = (finished_at IS NOT NULL)",
            name=conv("ck_job__status_finished_at_consistency"),
        )
    ]
    if steps.dialect() == "sqlite":
        # The others have a type for it.
        checks += [
            sa.CheckConstraint(f"status IN ({_listed(STATUSES)})", name=conv("ck_job__status")),
            sa.CheckConstraint(
                f"backoff_policy IN ({_listed(POLICIES)})", name=conv("ck_job__backoff_policy")
            ),
        ]
    op.create_table(
        "job",
        sa.Column("id", id_type(), nullable=False, server_default=default_id()),
        sa.Column("org_id", id_type(), nullable=False),
        sa.Column("type", sa.String(100), nullable=False),
        sa.Column("status", status, nullable=False, server_default="queued"),
        sa.Column("attempt", sa.Integer, nullable=False, server_default="0"),
        sa.Column("max_attempts", sa.Integer, nullable=False, server_default="5"),
        sa.Column("backoff_policy", policy, nullable=False, server_default="exp"),
        sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("requested_by", sa.String(255)),
        sa.Column("created_at", moment_type(), nullable=False, server_default=default_now()),
        sa.Column("updated_at", moment_type(), nullable=False, server_default=default_now()),
        sa.Column("started_at", moment_type()),
        sa.Column("finished_at", moment_type()),
        sa.Column("last_error_code", sa.String(64)),
        sa.Column("last_error_message", sa.String(2048)),
        sa.Column("queue", sa.String(100), nullable=False, server_default="default"),
        sa.Column("payload", json_type()),
        sa.Column("result", json_type()),
        sa.Column("run_at_ms", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("urgency", sa.Integer, sa.Computed("-priority", persisted=True)),
        sa.Column("gate", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("limit_key", sa.String(255)),
        sa.Column("limit_max", sa.Integer),
        sa.Column("token", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("lease_until_ms", sa.BigInteger),
        sa.Column("worker", sa.String(100)),
        sa.Column("crashes", sa.Integer, nullable=False, server_default="0"),
        sa.Column("stage", sa.String(100)),
        sa.Column("progress", sa.Double),
        sa.Column("cancel_requested", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("correlation_id", sa.String(255)),
        sa.Column("trace_context", sa.String(512)),
        sa.PrimaryKeyConstraint("id", name="pk_job"),
        *checks,
        if_not_exists=True,
        **MYSQL_TABLE,
    )


def _index_job() -> None:
    steps.add_index("idx_job__job_org_id", "job", ["org_id"], **CHURNING)
    newest_first = ["org_id", sa.text("created_at DESC")]
    steps.add_index("idx_job__org_id_created_at_desc", "job", newest_first, **CHURNING)
    steps.add_index("idx_job__status_created_at", "job", ["status", "created_at"], **CHURNING)
    keyed = sa.text("idempotency_key IS NOT NULL")
    steps.add_index(
        "idx_job__org_id_idempotency_key",
        "job",
        ["org_id", "idempotency_key"],
        unique=True,
        sqlite_where=keyed,
        postgresql_where=keyed,
    )
    steps.add_partial_index(
        "idx_job__due",
        "job",
        ["queue", "org_id", "urgency", "run_at_ms", "id"],
        where="status = 'queued' AND gate = 0",
        leading=("status", "gate"),
    )
    steps.add_partial_index(
        "idx_job__scheduled",
        "job",
        ["queue", "run_at_ms", "id"],
        where="status = 'queued' AND gate = 1",
        leading=("status", "gate"),
    )
    steps.add_partial_index(
        "idx_job__blocked",
        "job",
        ["queue", "limit_key", "urgency", "run_at_ms", "id"],
        where="status = 'queued' AND gate = 2",
        leading=("status", "gate"),
    )
    steps.add_partial_index(
        "idx_job__running",
        "job",
        ["queue", "limit_key"],
        where="status = 'running'",
        leading=("status",),
    )


def _add_job_event() -> None:
    op.create_table(
        "job_event",
        sa.Column("id", id_type(), nullable=False, server_default=default_id()),
        sa.Column("job_id", id_type(), nullable=False),
        sa.Column("ts", moment_type(), nullable=False, server_default=default_now()),
        sa.Column("prev_status", sa.String(50)),
        sa.Column("next_status", sa.String(50), nullable=False),
        sa.Column("detail_json", json_type()),
        sa.PrimaryKeyConstraint("id", name="pk_job_event"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["job.id"], name="fk_job_event_job_job_id", ondelete="CASCADE"
        ),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    steps.add_index("idx_job_event__job_id_ts", "job_event", ["job_id", "ts"], **CHURNING)
    steps.add_index("idx_job_event__ts", "job_event", ["ts"], **CHURNING)


def _add_keys_steps_queues() -> None:
    op.create_table(
        "job_key",
        sa.Column("org_id", id_type(), nullable=False),
        sa.Column("idempotency_key", sa.String(255), nullable=False),
        sa.Column("job_id", id_type(), nullable=False),
        sa.Column("content_hash", sa.String(64), nullable=False),
        sa.Column("used_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("org_id", "idempotency_key", name="pk_job_key"),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    steps.add_index("idx_job_key__used_at_ms", "job_key", ["used_at_ms"])
    op.create_table(
        "job_step",
        sa.Column("job_id", id_type(), nullable=False),
        sa.Column("name", sa.String(190), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("finished_at_ms", sa.BigInteger, nullable=False),
        sa.Column("result", text_type(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "name", name="pk_job_step"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["job.id"], name="fk_job_step_job_job_id", ondelete="CASCADE"
        ),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    op.create_table(
        "job_queue",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("paused_at_ms", sa.BigInteger),
        sa.Column("paused_by", sa.String(255)),
        sa.Column("concurrency_max", sa.Integer),
        sa.PrimaryKeyConstraint("name", name="pk_job_queue"),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    op.create_table(
        "history_permit",
        sa.Column("id", id_type(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_history_permit"),
        if_not_exists=True,
        **MYSQL_TABLE,
    )


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(f"'{word}'" for word in words)
