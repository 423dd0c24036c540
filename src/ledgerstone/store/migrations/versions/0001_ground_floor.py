"""The ground floor: identity, schema version, leases, workers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ledgerstone.store.schema.columns import MYSQL_TABLE, id_type, text_type
from ledgerstone.store.sql.expressions import database_now_ms, random_id

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables; on MySQL an interrupted run is taken up where it stopped."""
    identity = op.create_table(
        "ledger_identity",
        sa.Column("id", id_type()),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_identity"),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    op.create_table(
        "schema_version",
        sa.Column("version", sa.Integer, autoincrement=False),
        sa.Column("applied_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_schema_version"),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    op.create_table(
        "leases",
        sa.Column("lease", sa.String(190)),
        sa.Column("owner", sa.String(100), nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("lease", name="pk_leases"),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    op.create_table(
        "worker",
        sa.Column("id", id_type()),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("started_at_ms", sa.BigInteger, nullable=False),
        sa.Column("seen_at_ms", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("report", text_type(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_worker"),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    # A database has one identity for ever: none is added where an interrupted run left one.
    fresh = sa.select(random_id(), database_now_ms()).where(~sa.exists(sa.select(identity.c.id)))
    op.execute(sa.insert(identity).from_select(["id", "created_at_ms"], fresh))


def downgrade() -> None:
    """Remove the tables."""
    for name in ("worker", "leases", "ledger_identity"):
        op.drop_table(name)
