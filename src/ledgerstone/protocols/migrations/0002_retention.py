"""The tables of retention: snapshots, their parts, and which events were pruned."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from ledgerstone.store.migrations import steps
from ledgerstone.store.schema.columns import MYSQL_TABLE, text_type

revision, down_revision = "protocols_0002", "protocols_0001"

NAME_CHARS_MAX = 60


def upgrade() -> None:
    """Add the tables; those that an interrupted run has made are kept."""
    body = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    _add(
        "protocol_retention",
        _protocol(),
        sa.Column("due_ms", sa.BigInteger),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("token", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("lease_until_ms", sa.BigInteger),
        sa.Column("worker", sa.String(100)),
        sa.Column("crashes", sa.Integer, nullable=False, server_default="0"),
        sa.Column("last_error", text_type()),
    )
    steps.add_index("idx_protocol_retention__due", "protocol_retention", ["due_ms"])
    _add(
        "protocol_snapshot",
        _protocol(),
        _position(),
        sa.Column("made_at_ms", sa.BigInteger, nullable=False),
        sa.Column("completed_at_ms", sa.BigInteger),
        sa.Column("removed_at_ms", sa.BigInteger),
        sa.Column("parts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("row_count", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("parts_hash", sa.String(64), nullable=False, server_default=""),
    )
    _add(
        "protocol_snapshot_part",
        _protocol(),
        _position(),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("table_name", sa.String(NAME_CHARS_MAX), nullable=False),
        sa.Column("body", body, nullable=False),
    )
    _add(
        "event_pruned",
        _protocol(),
        _position("snapshot_position"),
        sa.Column("after_position", sa.BigInteger, nullable=False),
        sa.Column("to_position", sa.BigInteger, nullable=False),
        sa.Column("events", sa.BigInteger, nullable=False),
        sa.Column("pruned_at_ms", sa.BigInteger, nullable=False),
    )


def _add(name: str, *columns: sa.Column[object]) -> None:
    steps.refuse_others(name, " ".join(column.name for column in columns), room="protocols")
    op.create_table(name, *columns, if_not_exists=True, **MYSQL_TABLE)


def _protocol() -> sa.Column[object]:
    return sa.Column("protocol", sa.String(NAME_CHARS_MAX), primary_key=True)


def _position(name: str = "position") -> sa.Column[object]:
    return sa.Column(name, sa.BigInteger, primary_key=True, autoincrement=False)
