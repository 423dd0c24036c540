"""What is kept of files: blobs, their slices, and who owns them.

`blobs` and `blob_slices` have the columns of the document; what Ledgerstone adds is nullable or has
a default, so that a program that knows only those can go on adding rows.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    false,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from ledgerstone.store.schema.columns import metadata, partial_index

FILE_ID_CHARS = 64
"""SHA-256 in hexadecimal digits. The id of an upload whose hash is not known yet is as long, so
that SQLite renames a slice in place."""
MIME_CHARS_MAX = 255
OWNER_CHARS_MAX = 190


def file_id_type() -> TypeEngine[str]:
    """The hash of a content, or the id of an upload: ASCII."""
    chars = mysql.VARCHAR(FILE_ID_CHARS, charset="ascii", collation="ascii_bin")
    return Text().with_variant(chars, "mysql", "mariadb")


def words_type(chars_max: int) -> TypeEngine[str]:
    """A short text, of limited length where an index asks for that."""
    return Text().with_variant(mysql.VARCHAR(chars_max), "mysql", "mariadb")


def content_type() -> TypeEngine[bytes]:
    """The bytes of a slice (MySQL's BLOB ends at 64 KiB)."""
    return LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")


tables = metadata()

blobs = Table(
    "blobs",
    tables,
    Column("file_id", file_id_type(), primary_key=True),
    Column("total_size", BigInteger, nullable=False),
    Column("mime", words_type(MIME_CHARS_MAX)),
    Column("completed", Boolean, nullable=False, server_default=false()),
    # The size of each slice but the last; NULL: slices are appended in order, of any size.
    Column("slice_size", Integer),
    Column("slices_stored", BigInteger, nullable=False, server_default=text("0")),
    Column("bytes_stored", BigInteger, nullable=False, server_default=text("0")),
    # Raised when slices are removed, so that what was verified before is not completed.
    Column("generation", BigInteger, nullable=False, server_default=text("0")),
    Column("created_at_ms", BigInteger, nullable=False, server_default=text("0")),
    # When an upload that nobody continues is removed; NULL: never.
    Column("expires_at_ms", BigInteger),
    # The file in the folder of blobs that has, or is about to have, the content; NULL: slices have.
    Column("disk_name", file_id_type()),
)
expiring = partial_index(
    "idx_blobs_expires_at_ms",
    blobs.c.expires_at_ms,
    where=blobs.c.expires_at_ms.is_not(None),
    leading=(),
)
created = Index("idx_blobs_created", blobs.c.created_at_ms, blobs.c.file_id)

slices = Table(
    "blob_slices",
    tables,
    Column("file_id", file_id_type(), primary_key=True),
    Column("slice_no", BigInteger, primary_key=True, autoincrement=False),
    Column("offset", BigInteger, nullable=False, quote=True),
    Column("data", content_type(), nullable=False),
)
by_offset = Index("idx_blob_slices_offset", slices.c.file_id, slices.c.offset)

owners = Table(
    "blob_owners",
    tables,
    Column("owner", words_type(OWNER_CHARS_MAX), primary_key=True),
    Column("file_id", file_id_type(), primary_key=True),
)
owned = Index("idx_blob_owners_file_id", owners.c.file_id)

uploads = Table(
    "blob_uploads",
    tables,
    Column("upload_id", file_id_type(), primary_key=True),
    # The hash of what was uploaded; NULL: it is not finished.
    Column("file_id", file_id_type()),
    Column("owner", words_type(OWNER_CHARS_MAX)),
    Column("total_size", BigInteger, nullable=False),
    # What the client said, as it said it.
    Column("metadata", Text),
    Column("concat", Text),
    Column("expires_at_ms", BigInteger, nullable=False),
)
forgotten = Index("idx_blob_uploads_expires_at_ms", uploads.c.expires_at_ms)
