"""Jobs that run are found by the index of all states.

One of their own was written with every claim, and read once in a while.
"""

from __future__ import annotations

from ledgerstone.store.migrations import steps

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

NAME = "idx_job__running"


def upgrade() -> None:
    """Remove the index; on MySQL an interrupted run is taken up where it stopped."""
    steps.drop_index(NAME, "job")


def downgrade() -> None:
    """Add it again."""
    steps.add_partial_index(
        NAME, "job", ["queue", "limit_key"], where="status = 'running'", leading=("status",)
    )
