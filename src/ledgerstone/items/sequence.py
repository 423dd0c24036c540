"""The declaration of a sequence: a table whose committed rows get positions."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import BigInteger, Column, MetaData, String, Table

from ledgerstone.store.schema.columns import MYSQL_TABLE, serial_type, text_type
from ledgerstone.store.sql.names import check_name

NAME_CHARS_MAX = 60


class Sequence(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose rows get positions, and the log of these positions.

    - `number`: an auto-increment column of the source table, unique and indexed.
    - `position`, `numbered`: the columns of the log; see `log_table`.
    - `progress`: the table of `progress_table`; several sequences may share it.
    """

    name: str
    number: Column[Any]
    position: Column[Any]
    numbered: Column[Any]
    progress: Table

    def __post_init__(self) -> None:
        check_name(self.name, "the name of a sequence", chars_max=NAME_CHARS_MAX)

    @property
    def channel(self) -> str:
        """The wake-up channel for new positions."""
        return f"positions:{self.name}"


def log_table(name: str, tables: MetaData) -> Table:
    """A log of positions: `position`, and the `number` of its source row."""
    return Table(
        name,
        tables,
        Column("position", serial_type(), primary_key=True, autoincrement=False),
        Column("number", BigInteger, nullable=False, unique=True),
        **MYSQL_TABLE,
    )


def progress_table(name: str, tables: MetaData) -> Table:
    """The progress of sequences, one row each."""
    return Table(
        name,
        tables,
        Column("name", String(NAME_CHARS_MAX), primary_key=True),
        Column("last_position", BigInteger, nullable=False),
        Column("head", BigInteger, nullable=False),
        Column("looks", text_type(), nullable=False),
        **MYSQL_TABLE,
    )
