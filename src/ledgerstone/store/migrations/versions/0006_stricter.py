"""Blocked jobs are found by their limit key in any queue, one organisation after the other."""

from __future__ import annotations

from ledgerstone.store.migrations import steps

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

BLOCKED = "idx_job__blocked"
BY_KEY = ["limit_key", "org_id", "urgency", "run_at_ms", "id"]
BY_QUEUE = ["queue", "limit_key", "urgency", "run_at_ms", "id"]


def upgrade() -> None:
    """Make the index anew; on MySQL an interrupted run is taken up where it stopped."""
    _index_blocked(BY_KEY)


def downgrade() -> None:
    """Make it as it was."""
    _index_blocked(BY_QUEUE)


def _index_blocked(columns: list[str]) -> None:
    steps.drop_index(BLOCKED, "job")
    steps.add_partial_index(
        BLOCKED,
        "job",
        columns,
        where="status = 'queued' AND gate = 2",
        leading=("status", "gate"),
    )
