"""What is known of an upload by HTTP; what an interrupted run has made is kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from ledgerstone.store.migrations import steps
from ledgerstone.store.schema.columns import MYSQL_TABLE

revision, down_revision = "blobs_0002", "blobs_0001"

COLUMNS = "upload_id file_id owner total_size metadata concat expires_at_ms"


def upgrade() -> None:
    """Add the table."""
    steps.refuse_others("blob_uploads", COLUMNS, room="blobs")
    limited = mysql.VARCHAR(64, charset="ascii", collation="ascii_bin")
    ascii_id = sa.Text().with_variant(limited, "mysql", "mariadb")
    op.create_table(
        "blob_uploads",
        sa.Column("upload_id", ascii_id, primary_key=True),
        sa.Column("file_id", ascii_id),
        sa.Column("owner", sa.Text().with_variant(mysql.VARCHAR(190), "mysql", "mariadb")),
        sa.Column("total_size", sa.BigInteger, nullable=False),
        sa.Column("metadata", sa.Text),
        sa.Column("concat", sa.Text),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    steps.add_index("idx_blob_uploads_expires_at_ms", "blob_uploads", ["expires_at_ms"])
