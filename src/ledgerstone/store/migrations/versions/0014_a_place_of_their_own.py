"""The tables lie in a schema of their own, or where `store.schema` says.

A ledger of before was moved there. Code that names the old place gets the new one: a function of
PostgreSQL that names its table, and the triggers, without which MySQL moves a table.
"""

from __future__ import annotations

from importlib import import_module

from alembic import op

from ledgerstone.store.migrations import steps

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_VERSIONS = "ledgerstone.store.migrations.versions"
WORDS = "a job does not move like that"


def upgrade() -> None:
    """Make both anew; this can be repeated."""
    if steps.dialect() == "postgresql":
        op.execute(import_module(f"{_VERSIONS}.0007_fewer_steps").SEES)
    elif steps.is_mysql():
        jobs = import_module(f"{_VERSIONS}.0002_jobs")
        steps.refuse_moves("job", jobs.MOVES, WORDS)
        for table, words, verbs in import_module(f"{_VERSIONS}.0009_permit_of_its_own").KEPT:
            permitted = steps.PERMITTED_BY_PARTITION
            steps.keep_history(table, words, verbs=verbs, permitted=permitted)


def downgrade() -> None:
    """Nothing: they stay where they are."""
