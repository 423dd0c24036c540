"""Schedules: jobs that come again and again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import conv

from ledgerstone.store.migrations import steps
from ledgerstone.store.schema.columns import MYSQL_TABLE, id_type, json_type

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; on MySQL an interrupted run is taken up where it stopped."""
    op.create_table(
        "job_schedule",
        sa.Column("name", sa.String(190), nullable=False),
        sa.Column("type", sa.String(100), nullable=False),
        sa.Column("payload", json_type(), nullable=False),
        sa.Column("org_id", id_type(), nullable=False),
        sa.Column("queue", sa.String(100)),
        sa.Column("cron", sa.String(100), nullable=False),
        sa.Column("time_zone", sa.String(64), nullable=False),
        sa.Column("misfire", sa.String(8), nullable=False),
        sa.Column("priority", sa.Integer),
        sa.Column("next_at_ms", sa.BigInteger, nullable=False),
        sa.Column("last_at_ms", sa.BigInteger),
        sa.Column("last_job_id", id_type()),
        sa.Column("paused_at_ms", sa.BigInteger),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_job_schedule"),
        sa.CheckConstraint(
            "misfire IN ('skip', 'once', 'all')", name=conv("ck_job_schedule__misfire")
        ),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    due = ["paused_at_ms", "next_at_ms", "name"]
    steps.add_index("idx_job_schedule__due", "job_schedule", due)


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("job_schedule")
