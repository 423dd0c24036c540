"""The tables of jobs: job, job_event, job_key, job_step and job_queue."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Computed,
    Double,
    ForeignKey,
    FromClause,
    Index,
    Integer,
    SmallInteger,
    String,
    Table,
    bindparam,
    literal_column,
)
from sqlalchemy.schema import conv
from sqlalchemy.sql.elements import ColumnElement

from ledgerstone.engine.backoff import BackoffPolicy
from ledgerstone.jobs.states import FINISHED, Gate, Status
from ledgerstone.store.schema.columns import (
    CHURNING,
    MYSQL_TABLE,
    choice_type,
    id_type,
    json_type,
    metadata,
    moment_type,
    partial_index,
    text_type,
)
from ledgerstone.store.schema.namespace import OWN
from ledgerstone.store.sql.expressions import default_id, default_now, unindexed

TYPE_CHARS_MAX = 100
QUEUE_CHARS_MAX = 100
KEY_CHARS_MAX = 255
WHO_CHARS_MAX = 255
CORRELATION_CHARS_MAX = 255
TRACE_CHARS_MAX = 512
ERROR_CODE_CHARS_MAX = 64
ERROR_MESSAGE_CHARS_MAX = 2048
STAGE_CHARS_MAX = 100
STEP_CHARS_MAX = 190
WORKER_CHARS_MAX = 100
HASH_CHARS = 64
DEFAULT_QUEUE = "default"
MAX_ATTEMPTS = 5

STATUS_ENUM, POLICY_ENUM = "job_status", "job_backoff_policy"
STATUSES = tuple(status.value for status in Status)
POLICIES = tuple(policy.value for policy in BackoffPolicy)
_FINISHED = ", ".join(f"'{status}'" for status in STATUSES if Status(status) in FINISHED)

tables = metadata()
status_type = choice_type(STATUS_ENUM, STATUSES, schema=OWN)
policy_type = choice_type(POLICY_ENUM, POLICIES, schema=OWN)

job = Table(
    "job",
    tables,
    Column("id", id_type(), primary_key=True, server_default=default_id()),
    Column("org_id", id_type(), nullable=False),
    Column("type", String(TYPE_CHARS_MAX), nullable=False),
    Column("status", status_type, nullable=False, server_default=Status.QUEUED.value),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("max_attempts", Integer, nullable=False, server_default=str(MAX_ATTEMPTS)),
    Column("backoff_policy", policy_type, nullable=False, server_default=BackoffPolicy.EXP.value),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("idempotency_key", String(KEY_CHARS_MAX)),
    Column("requested_by", String(WHO_CHARS_MAX)),
    Column("created_at", moment_type(), nullable=False, server_default=default_now()),
    Column("updated_at", moment_type(), nullable=False, server_default=default_now()),
    Column("started_at", moment_type()),
    Column("finished_at", moment_type()),
    Column("last_error_code", String(ERROR_CODE_CHARS_MAX)),
    Column("last_error_message", String(ERROR_MESSAGE_CHARS_MAX)),
    Column("queue", String(QUEUE_CHARS_MAX), nullable=False, server_default=DEFAULT_QUEUE),
    Column("payload", json_type()),
    Column("result", json_type()),
    Column("run_at_ms", BigInteger, nullable=False, server_default="0"),
    Column("urgency", Integer, Computed("-priority", persisted=True)),
    Column("gate", SmallInteger, nullable=False, server_default=str(Gate.OPEN.value)),
    Column("limit_key", String(KEY_CHARS_MAX)),
    Column("limit_max", Integer),
    Column("token", BigInteger, nullable=False, server_default="0"),
    Column("lease_until_ms", BigInteger),
    Column("worker", String(WORKER_CHARS_MAX)),
    Column("crashes", Integer, nullable=False, server_default="0"),
    Column("stage", String(STAGE_CHARS_MAX)),
    Column("progress", Double),
    Column("cancel_requested", SmallInteger, nullable=False, server_default="0"),
    Column("correlation_id", String(CORRELATION_CHARS_MAX)),
    Column("trace_context", String(TRACE_CHARS_MAX)),
    CheckConstraint(
        f"(status IN ({_FINISHED})) = (finished_at IS NOT NULL)",
        name=conv("ck_job__status_finished_at_consistency"),
    ),
    **MYSQL_TABLE,
)
for name, words, holder in (
    ("ck_job__status", STATUSES, job.c.status),
    ("ck_job__backoff_policy", POLICIES, job.c.backoff_policy),
):
    # PostgreSQL and MySQL have a type for it.
    listed = ", ".join(f"'{word}'" for word in words)
    job.append_constraint(
        CheckConstraint(f"{holder.name} IN ({listed})", name=conv(name)).ddl_if(dialect="sqlite")
    )
Index("idx_job__job_org_id", job.c.org_id, **CHURNING)
Index("idx_job__org_id_created_at_desc", job.c.org_id, job.c.created_at.desc(), **CHURNING)
Index("idx_job__status_created_at", job.c.status, job.c.created_at, **CHURNING)
Index(
    "idx_job__org_id_idempotency_key",
    job.c.org_id,
    job.c.idempotency_key,
    unique=True,
    # MySQL lets NULL stand in a unique index as often as it likes.
    sqlite_where=job.c.idempotency_key.is_not(None),
    postgresql_where=job.c.idempotency_key.is_not(None),
)


def stands(
    status: Status, *, gate: Gate | None = None, of: FromClause = job
) -> ColumnElement[bool]:
    """The job has this state: as a literal, so that the planner finds the partial index."""
    here: ColumnElement[bool] = of.c.status == literal_column(f"'{status.value}'")
    if gate is None:
        return here
    return here & (of.c.gate == literal_column(str(gate.value)))


def still(status: Status) -> ColumnElement[bool]:
    """The same for a job that is found by its id: the planner tries no other index."""
    return unindexed(job.c.status) == bindparam(None, status.value, type_=String())


due_indexes = partial_index(
    "idx_job__due",
    job.c.queue,
    job.c.org_id,
    job.c.type,
    job.c.urgency,
    job.c.run_at_ms,
    job.c.id,
    where=stands(Status.QUEUED, gate=Gate.OPEN),
    leading=(job.c.status, job.c.gate),
)
scheduled_indexes = partial_index(
    "idx_job__scheduled",
    job.c.queue,
    job.c.run_at_ms,
    job.c.id,
    where=stands(Status.QUEUED, gate=Gate.SCHEDULED),
    leading=(job.c.status, job.c.gate),
)
blocked_indexes = partial_index(
    "idx_job__blocked",
    job.c.limit_key,
    job.c.org_id,
    job.c.urgency,
    job.c.run_at_ms,
    job.c.id,
    where=stands(Status.QUEUED, gate=Gate.BLOCKED),
    leading=(job.c.status, job.c.gate),
)

job_event = Table(
    "job_event",
    tables,
    Column("id", id_type(), primary_key=True, server_default=default_id()),
    Column("job_id", id_type(), ForeignKey("job.id", ondelete="CASCADE"), nullable=False),
    Column("ts", moment_type(), nullable=False, server_default=default_now()),
    Column("prev_status", String(50)),
    Column("next_status", String(50), nullable=False),
    Column("detail_json", json_type()),
    **MYSQL_TABLE,
)
Index("idx_job_event__job_id_ts", job_event.c.job_id, job_event.c.ts, **CHURNING)
Index("idx_job_event__ts", job_event.c.ts, **CHURNING)

job_key = Table(
    "job_key",
    tables,
    Column("org_id", id_type(), primary_key=True),
    Column("idempotency_key", String(KEY_CHARS_MAX), primary_key=True),
    Column("job_id", id_type(), nullable=False),
    Column("content_hash", String(HASH_CHARS), nullable=False),
    Column("used_at_ms", BigInteger, nullable=False),
    Index("idx_job_key__used_at_ms", "used_at_ms"),
    **MYSQL_TABLE,
)
"""Idempotency keys: they outlive their jobs."""

job_step = Table(
    "job_step",
    tables,
    Column("job_id", id_type(), ForeignKey("job.id", ondelete="CASCADE"), primary_key=True),
    Column("name", String(STEP_CHARS_MAX), primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("finished_at_ms", BigInteger, nullable=False),
    Column("result", text_type(), nullable=False),
    **MYSQL_TABLE,
)

job_queue = Table(
    "job_queue",
    tables,
    Column("name", String(QUEUE_CHARS_MAX), primary_key=True),
    Column("paused_at_ms", BigInteger),
    Column("paused_by", String(WHO_CHARS_MAX)),
    Column("concurrency_max", Integer),
    **MYSQL_TABLE,
)
"""Queues that are paused or limited, and the rows that `limits` locks for limit keys."""


def channel_of(queue: str) -> str:
    """The channel of wake-ups for jobs of this queue that become due."""
    return f"jobs:{queue}"
