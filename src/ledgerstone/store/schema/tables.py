"""The tables of the kernel: identity, schema version, leases, permits and workers."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, String, Table

from ledgerstone.store.schema.columns import MYSQL_TABLE, id_type, metadata, text_type

LEASE_CHARS_MAX = 190
OWNER_CHARS_MAX = 100

tables = metadata()

ledger_identity = Table(
    "ledger_identity",
    tables,
    Column("id", id_type(), primary_key=True),
    Column("created_at_ms", BigInteger, nullable=False),
    **MYSQL_TABLE,
)

schema_version = Table(
    "schema_version",
    tables,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("applied_at", BigInteger, nullable=False),
    **MYSQL_TABLE,
)

leases = Table(
    "leases",
    tables,
    Column("lease", String(LEASE_CHARS_MAX), primary_key=True),
    Column("owner", String(OWNER_CHARS_MAX), nullable=False),
    Column("expires_at_ms", BigInteger, nullable=False),
    Column("token", BigInteger, nullable=False),
    **MYSQL_TABLE,
)

history_permit = Table(
    "history_permit", tables, Column("id", id_type(), primary_key=True), **MYSQL_TABLE
)
"""See `retention_permit`."""

worker = Table(
    "worker",
    tables,
    Column("id", id_type(), primary_key=True),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_at_ms", BigInteger, nullable=False),
    Column("seen_at_ms", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("report", text_type(), nullable=False),
    **MYSQL_TABLE,
)
