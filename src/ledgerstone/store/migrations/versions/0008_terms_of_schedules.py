"""Schedules keep what the kind of their job says, for workers that do not know it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

from ledgerstone.store.schema.columns import json_type

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TABLE, COLUMN = "job_schedule", "terms"


def upgrade() -> None:
    """Add the column, unless an interrupted run has; it is filled when a schedule is put again."""
    if context.is_offline_mode() or COLUMN not in _columns():
        op.add_column(TABLE, sa.Column(COLUMN, json_type()))


def downgrade() -> None:
    """Remove the column."""
    op.drop_column(TABLE, COLUMN)


def _columns() -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(TABLE)}
