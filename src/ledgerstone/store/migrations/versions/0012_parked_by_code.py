"""An index of the partitions that do not go on by themselves, by why they stopped."""

from __future__ import annotations

from ledgerstone.store.migrations import steps

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

INDEX = "idx_outbox_lane__code"


def upgrade() -> None:
    """Make the index."""
    columns = ["queue_name", "state", "code", "partition_key"]
    steps.add_partial_index(INDEX, "outbox_lane", columns, where="state <> 'open'", leading=())


def downgrade() -> None:
    """Remove the index."""
    steps.drop_index(INDEX, "outbox_lane")
