"""Fewer steps for each job.

- Its moves are checked once they are made, which refuses just as much. A trigger before an update
  has PostgreSQL lock each row a second time, write that to its log, and compute anew what is
  computed from other columns; it has SQLite copy the row and look for it again. MySQL is as quick.
- On PostgreSQL it is added in one statement with its first event, also where row-level security is
  on: whether an event is of an own job is then looked up by a function, which sees what the
  statement has added.
"""

from __future__ import annotations

from alembic import op

from ledgerstone.store.migrations import steps

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

MOVES = "tg_job__moves"
# A list of more than two would be made into a table for each row.
NO_MOVE = """
WHEN OLD.status <> NEW.status AND CASE OLD.status
    WHEN 'queued' THEN NEW.status NOT IN ('running', 'canceled')
    WHEN 'running' THEN
        NEW.status NOT IN ('succeeded', 'failed') AND NEW.status NOT IN ('queued', 'canceled')
    WHEN 'failed' THEN NEW.status NOT IN ('queued', 'dead_letter')
    WHEN 'dead_letter' THEN NEW.status <> 'queued'
    ELSE 1
END
"""
POLICY = "ledgerstone_org"
# It looks anew each time. All names in it are spelled out: whoever asks may have tables of the same
# names, and chooses which come first.
SEES = """
DO $$ BEGIN EXECUTE format(
    'CREATE OR REPLACE FUNCTION ledgerstone_sees(uuid) RETURNS boolean LANGUAGE plpgsql AS %L',
    format(
        'BEGIN RETURN EXISTS (SELECT 1 FROM %I.job WHERE id OPERATOR(pg_catalog.=) $1); END',
        (
            SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
            WHERE pg_class.oid = 'job'::regclass
        )
    )
); END $$
"""
BY_JOB = ("job_event", "job_step")


def upgrade() -> None:
    """Make the trigger for the moment after, and rules of what belongs to a job by the function."""
    _check_moves("BEFORE", "AFTER")
    if steps.dialect() == "postgresql":
        op.execute(SEES)
        for table in BY_JOB:
            op.execute(known_by_sight(table))


def downgrade() -> None:
    """Make the trigger as it was; the rule holds for what was written before as well."""
    _check_moves("AFTER", "BEFORE")


def known_by_sight(table: str) -> str:
    """Where organisations are kept apart: what is written there is looked up by the function."""
    return f"""
DO $$ BEGIN IF EXISTS (
    SELECT 1 FROM pg_policy WHERE polname = '{POLICY}' AND polrelid = '{table}'::regclass
) THEN ALTER POLICY {POLICY} ON {table} WITH CHECK (ledgerstone_sees(job_id)); END IF; END $$
"""  # noqa: S608 - names of ours


def _check_moves(was: str, becomes: str) -> None:
    if steps.dialect() == "postgresql":
        op.execute(
            "DO $$ DECLARE made text; BEGIN "  # noqa: S608 - names of ours
            "SELECT pg_get_triggerdef(oid) INTO STRICT made FROM pg_trigger "
            f"WHERE tgname = '{MOVES}' AND tgrelid = 'job'::regclass; "
            f"DROP TRIGGER {MOVES} ON job; "
            f"EXECUTE replace(made, ' {was} UPDATE', ' {becomes} UPDATE'); END $$"
        )
    elif steps.dialect() == "sqlite":
        op.execute(f"DROP TRIGGER {MOVES}")
        op.execute(
            f"CREATE TRIGGER {MOVES} {becomes} UPDATE OF status ON job FOR EACH ROW {NO_MOVE} "
            "BEGIN SELECT RAISE(ABORT, 'a job does not move like that'); END"
        )
