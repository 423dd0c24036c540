"""Messaging: where each partition is, which keys were used, and the record."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import conv

from ledgerstone.store.migrations import steps
from ledgerstone.store.schema.columns import MYSQL_TABLE, id_type, serial_type

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables; on MySQL an interrupted run is taken up where it stopped."""
    _add_lanes()
    op.create_table(
        "outbox_pause",
        sa.Column("queue_name", sa.String(190), nullable=False),
        sa.Column("paused_at_ms", sa.BigInteger, nullable=False),
        sa.Column("who", sa.String(255)),
        sa.PrimaryKeyConstraint("queue_name", name="pk_outbox_pause"),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    op.create_table(
        "outbox_key",
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("message_id", id_type(), nullable=False),
        sa.Column("content_hash", sa.String(64), nullable=False),
        sa.Column("used_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_outbox_key"),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    steps.add_index("idx_outbox_key__used_at", "outbox_key", ["used_at_ms"])
    op.create_table(
        "message_event",
        sa.Column("id", serial_type(), nullable=False, autoincrement=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("message_id", id_type()),
        sa.Column("what", sa.String(32), nullable=False),
        sa.Column("queue_name", sa.String(190), nullable=False),
        sa.Column("partition_key", sa.String(255), nullable=False),
        sa.Column("who", sa.String(255)),
        sa.Column("code", sa.String(64)),
        sa.Column("reason", sa.String(2048)),
        sa.PrimaryKeyConstraint("id", name="pk_message_event"),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    steps.add_index("idx_message_event__message", "message_event", ["message_id"])
    steps.keep_history("message_event", "message_event is kept: it only grows")


def _add_lanes() -> None:
    op.create_table(
        "outbox_lane",
        sa.Column("id", id_type(), nullable=False),
        sa.Column("queue_name", sa.String(190), nullable=False),
        sa.Column("partition_key", sa.String(255), nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("last_id", sa.BigInteger, nullable=False),
        sa.Column("due_at_ms", sa.BigInteger),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("lease_until_ms", sa.BigInteger),
        sa.Column("worker", sa.String(100)),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("crashes", sa.Integer, nullable=False),
        sa.Column("code", sa.String(64)),
        sa.Column("reason", sa.String(2048)),
        sa.Column("changed_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_outbox_lane"),
        sa.UniqueConstraint(
            "queue_name", "partition_key", name="uq_outbox_lane_queue_name_partition_key"
        ),
        sa.CheckConstraint(
            "state IN ('open', 'paused', 'parked')", name=conv("ck_outbox_lane__state")
        ),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    steps.add_partial_index(
        "idx_outbox_lane__due",
        "outbox_lane",
        ["queue_name", "due_at_ms", "id"],
        where="state = 'open' AND lease_until_ms IS NULL AND due_at_ms IS NOT NULL",
        leading=["state", "lease_until_ms"],
    )
    steps.add_partial_index(
        "idx_outbox_lane__held",
        "outbox_lane",
        ["queue_name", "lease_until_ms"],
        where="lease_until_ms IS NOT NULL",
        leading=[],
    )
    steps.add_partial_index(
        "idx_outbox_lane__idle",
        "outbox_lane",
        ["changed_at_ms"],
        where="due_at_ms IS NULL",
        leading=["due_at_ms"],
    )


def downgrade() -> None:
    """Remove the tables."""
    for name in ("message_event", "outbox_key", "outbox_pause", "outbox_lane"):
        op.drop_table(name)
