"""Jobs in line are apart by their types: a claim does not pass by types that it cannot take."""

from __future__ import annotations

from ledgerstone.store.migrations import steps

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

DUE = "idx_job__due"
BY_TYPE = ["queue", "org_id", "type", "urgency", "run_at_ms", "id"]
BY_ORGANISATION = ["queue", "org_id", "urgency", "run_at_ms", "id"]


def upgrade() -> None:
    """Make the index of the line anew; on MySQL this can be repeated."""
    _index_due(BY_TYPE)


def downgrade() -> None:
    """Make the index as it was."""
    _index_due(BY_ORGANISATION)


def _index_due(columns: list[str]) -> None:
    steps.drop_index(DUE, "job")
    steps.add_partial_index(
        DUE,
        "job",
        columns,
        where="status = 'queued' AND gate = 0",
        leading=("status", "gate"),
    )
