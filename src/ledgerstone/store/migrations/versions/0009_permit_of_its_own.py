"""No other table of its name takes the place of the permit of retention.

A role that may make temporary tables could remove history: in a trigger, too, a temporary table
hides the table of the same name.
"""

from __future__ import annotations

from alembic import op

from ledgerstone.store.migrations import steps

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

KEPT = (
    ("job_event", "the history of jobs is kept as it is", ("UPDATE", "DELETE")),
    ("job", "a job is removed by retention only", ("DELETE",)),
    ("message_event", "message_event is kept: it only grows", ("UPDATE", "DELETE")),
)


def upgrade() -> None:
    """Have the triggers look at the permit itself; SQLite's always do."""
    if steps.dialect() == "postgresql":
        steps.look_up_permit_beside_history()
    elif steps.is_mysql():
        op.execute(f"ALTER TABLE {steps.PERMIT} PARTITION BY KEY (id) PARTITIONS 1")
        _keep(steps.PERMITTED_BY_PARTITION)


def downgrade() -> None:
    """Have them look at whatever has the permit's name."""
    if steps.dialect() == "postgresql":
        steps.look_up_permit_by_search_path()
    elif steps.is_mysql():
        _keep(steps.PERMITTED)
        op.execute(f"ALTER TABLE {steps.PERMIT} REMOVE PARTITIONING")


def _keep(permitted: str) -> None:
    for table, words, verbs in KEPT:
        steps.keep_history(table, words, verbs=verbs, permitted=permitted)
