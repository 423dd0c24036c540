"""How often handling a message that came again has ended with its process."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ledgerstone.store.migrations import steps
from ledgerstone.store.schema.columns import MYSQL_TABLE, id_type

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

TABLE = "delivery_crash"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        TABLE,
        sa.Column("message_id", id_type(), nullable=False),
        sa.Column("consumer", sa.String(190), nullable=False),
        sa.Column("begun", sa.Integer, nullable=False),
        sa.Column("begun_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("message_id", "consumer", name="pk_delivery_crash"),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    steps.add_index("idx_delivery_crash__begun_at", TABLE, ["begun_at_ms"])


def downgrade() -> None:
    """Remove the table."""
    op.drop_table(TABLE)
