"""Limit keys in all queues, and history that is not replaced or truncated either."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ledgerstone.store.migrations import steps
from ledgerstone.store.schema.columns import MYSQL_TABLE, id_type, serial_type

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

BLOCKED = "idx_job__blocked"
BY_KEY = ["limit_key", "org_id", "urgency", "run_at_ms", "id"]
BY_QUEUE = ["queue", "limit_key", "urgency", "run_at_ms", "id"]
GUARD = "history_guard"
WORDS = "a job is removed by retention only"
KEPT_KEY = "tg_job__kept_key"


def upgrade() -> None:
    """Make the index anew and watch history more; on MySQL this can be repeated."""
    _index_blocked(BY_KEY)
    steps.keep_from_replace("job_event", "the history of jobs is kept as it is")
    steps.keep_from_replace("job", WORDS, unique=("org_id", "idempotency_key"))
    if steps.dialect() == "sqlite":
        _keep_keyed()
    if steps.is_mysql():
        _add_guard()


def downgrade() -> None:
    """Make the index as it was; history stays as well watched as it can be."""
    if steps.is_mysql():
        op.drop_table(GUARD)
    if steps.dialect() == "sqlite":
        op.execute(f"DROP TRIGGER IF EXISTS {KEPT_KEY}")
    _index_blocked(BY_QUEUE)


def _index_blocked(columns: list[str]) -> None:
    """Blocked jobs are found by their key in any queue, one organisation after the other."""
    steps.drop_index(BLOCKED, "job")
    steps.add_partial_index(
        BLOCKED,
        "job",
        columns,
        where="status = 'queued' AND gate = 2",
        leading=("status", "gate"),
    )


def _keep_keyed() -> None:
    """A job that took the place of the one with its key is refused.

    A connection that does not look after foreign keys would leave the events of that one behind:
    by them it is known that it was not removed by retention.
    """
    op.execute(f"DROP TRIGGER IF EXISTS {KEPT_KEY}")
    op.execute(
        f"CREATE TRIGGER {KEPT_KEY} AFTER INSERT ON job FOR EACH ROW "  # noqa: S608 - names of ours
        "WHEN NEW.idempotency_key IS NOT NULL AND EXISTS (SELECT 1 FROM job_key "
        "WHERE job_key.org_id = NEW.org_id AND job_key.idempotency_key = NEW.idempotency_key "
        "AND job_key.job_id <> NEW.id "
        "AND NOT EXISTS (SELECT 1 FROM job WHERE job.id = job_key.job_id) "
        "AND EXISTS (SELECT 1 FROM job_event WHERE job_event.job_id = job_key.job_id)) "
        f"BEGIN SELECT RAISE(ABORT, '{WORDS}'); END"
    )


def _add_guard() -> None:
    """MySQL has no trigger for TRUNCATE, and refuses it for a table that another refers to.

    This one is always empty.
    """
    op.create_table(
        GUARD,
        sa.Column("id", id_type(), nullable=False),
        sa.Column("job_event_id", id_type()),
        sa.Column("message_event_id", serial_type()),
        sa.PrimaryKeyConstraint("id", name="pk_history_guard"),
        sa.ForeignKeyConstraint(
            ["job_event_id"],
            ["job_event.id"],
            name="fk_history_guard_job_event",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["message_event_id"],
            ["message_event.id"],
            name="fk_history_guard_message_event",
            ondelete="CASCADE",
        ),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
