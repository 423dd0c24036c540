"""The record of refused settlements."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ledgerstone.store.migrations import steps
from ledgerstone.store.schema.columns import MYSQL_TABLE, serial_type, text_type

revision, down_revision = "protocols_0003", "protocols_0002"

COLUMNS = "id at_ms queue item attempt status worker reason"


def upgrade() -> None:
    """Add the table; one that an interrupted run has made is kept."""
    steps.refuse_others("protocol_refusal", COLUMNS, room="protocols")
    op.create_table(
        "protocol_refusal",
        sa.Column("id", serial_type(), primary_key=True, autoincrement=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("queue", sa.String(60), nullable=False),
        sa.Column("item", sa.String(190), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("status", sa.String(16)),
        sa.Column("worker", sa.String(100)),
        sa.Column("reason", text_type(), nullable=False),
        if_not_exists=True,
        sqlite_autoincrement=True,
        **MYSQL_TABLE,
    )
    steps.add_index("idx_protocol_refusal__at", "protocol_refusal", ["at_ms"])
