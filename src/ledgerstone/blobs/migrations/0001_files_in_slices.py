"""Blobs, their slices and their owners; what an interrupted run has made is kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from ledgerstone.store.migrations import steps
from ledgerstone.store.schema.columns import MYSQL_TABLE

revision, down_revision = "blobs_0001", None

ZERO = sa.text("0")
COLUMNS = {
    "blobs": "file_id total_size mime completed slice_size slices_stored bytes_stored generation"
    " created_at_ms expires_at_ms disk_name",
    "blob_slices": "file_id slice_no offset data",
    "blob_owners": "owner file_id",
}


def upgrade() -> None:
    """Add the tables."""
    for table, columns in COLUMNS.items():
        steps.refuse_others(table, columns, room="blobs")
    op.create_table(
        "blobs",
        sa.Column("file_id", _ascii(64), primary_key=True),
        sa.Column("total_size", sa.BigInteger, nullable=False),
        sa.Column("mime", _words(255)),
        sa.Column("completed", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("slice_size", sa.Integer),
        sa.Column("slices_stored", sa.BigInteger, nullable=False, server_default=ZERO),
        sa.Column("bytes_stored", sa.BigInteger, nullable=False, server_default=ZERO),
        sa.Column("generation", sa.BigInteger, nullable=False, server_default=ZERO),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False, server_default=ZERO),
        sa.Column("expires_at_ms", sa.BigInteger),
        sa.Column("disk_name", _ascii(64)),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    content = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")
    op.create_table(
        "blob_slices",
        sa.Column("file_id", _ascii(64), primary_key=True),
        sa.Column("slice_no", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("offset", sa.BigInteger, nullable=False, quote=True),
        sa.Column("data", content, nullable=False),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    op.create_table(
        "blob_owners",
        sa.Column("owner", _words(190), primary_key=True),
        sa.Column("file_id", _ascii(64), primary_key=True),
        if_not_exists=True,
        **MYSQL_TABLE,
    )
    expiring = "expires_at_ms IS NOT NULL"
    steps.add_partial_index(
        "idx_blobs_expires_at_ms", "blobs", ["expires_at_ms"], where=expiring, leading=()
    )
    steps.add_index("idx_blobs_created", "blobs", ["created_at_ms", "file_id"])
    # A word of SQL, and SQLAlchemy forgets MariaDB's list of these where quotes are ANSI's.
    offset = sa.quoted_name("offset", quote=True)
    steps.add_index("idx_blob_slices_offset", "blob_slices", ["file_id", offset])
    steps.add_index("idx_blob_owners_file_id", "blob_owners", ["file_id"])
    if steps.dialect() == "postgresql":
        # Files are mostly compressed already.
        op.execute("ALTER TABLE blob_slices ALTER COLUMN data SET STORAGE EXTERNAL")


def _ascii(chars: int) -> sa.types.TypeEngine[str]:
    limited = mysql.VARCHAR(chars, charset="ascii", collation="ascii_bin")
    return sa.Text().with_variant(limited, "mysql", "mariadb")


def _words(chars: int) -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(mysql.VARCHAR(chars), "mysql", "mariadb")
