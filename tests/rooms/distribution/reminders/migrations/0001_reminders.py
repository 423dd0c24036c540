"""The table of reminders; what an interrupted run has made is kept."""

import sqlalchemy as sa
from alembic import op

from ledgerstone.store.migrations import steps
from ledgerstone.store.schema.columns import MYSQL_TABLE, id_type

revision, down_revision = "reminders_0001", None


def upgrade() -> None:
    """Add the table, and the indexes by which what is due, and what has expired, is found."""
    steps.refuse_others("reminder", "id words due_ms lease_until_ms token worker")
    columns = (
        sa.Column("id", id_type(), primary_key=True),
        sa.Column("words", sa.String(200), nullable=False),
        sa.Column("due_ms", sa.BigInteger),
        sa.Column("lease_until_ms", sa.BigInteger),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("worker", sa.String(100)),
    )
    op.create_table("reminder", *columns, if_not_exists=True, **MYSQL_TABLE)
    steps.add_index("idx_reminder_due", "reminder", ["due_ms", "id"])
    steps.add_index("idx_reminder_held", "reminder", ["lease_until_ms"])
