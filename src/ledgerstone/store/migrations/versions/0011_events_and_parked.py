"""Indexes of the record by its moment, and of the partitions that do not go on by themselves."""

from __future__ import annotations

from ledgerstone.store.migrations import steps

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

EVENT, LANE = "idx_message_event__at", "idx_outbox_lane__standing"


def upgrade() -> None:
    """Make the indexes."""
    steps.add_index(EVENT, "message_event", ["at_ms"])
    columns = ["queue_name", "state", "partition_key"]
    steps.add_partial_index(LANE, "outbox_lane", columns, where="state <> 'open'", leading=())


def downgrade() -> None:
    """Remove the indexes."""
    steps.drop_index(EVENT, "message_event")
    steps.drop_index(LANE, "outbox_lane")
