"""The tables of a protocol: `schema.sql` in the words of SQLite, read for every database.

    CREATE TABLE message (
      event_id TEXT PRIMARY KEY,
      text TEXT NOT NULL,              -- TEXT, INTEGER, REAL, BLOB, BOOLEAN, VARCHAR(n)
      sent_at_ms INTEGER NOT NULL,
      hidden BOOLEAN NOT NULL DEFAULT 0,
      UNIQUE (author, event_id),
      INDEX idx_message_page (sent_at_ms DESC, event_id DESC)
    );

A text that is part of a key or an index has at most `KEY_CHARS_MAX` characters: MySQL asks for a
limit. Everything else is refused with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from ledgerstone.errors import BadInput
from ledgerstone.protocols.tables import KEY_CHARS_MAX, NAME_CHARS_MAX, OURS
from ledgerstone.store.schema.columns import MYSQL_TABLE, serial_type, text_type

TABLES_MAX = 200
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_TABLE = re.compile(
    r"CREATE\s+TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?(\w+)\s*\((.*)\)\s*\Z", re.IGNORECASE | re.DOTALL
)
_INDEX = re.compile(
    r"CREATE\s+(UNIQUE\s+)?INDEX\s+(?:IF\s+NOT\s+EXISTS\s+)?(\w+)\s+ON\s+(\w+)\s*\((.*)\)\s*\Z",
    re.IGNORECASE | re.DOTALL,
)
_INLINE = re.compile(r"INDEX\s+(\w+)\s*\((.*)\)\Z", re.IGNORECASE | re.DOTALL)
_LISTED = re.compile(r"(PRIMARY\s+KEY|UNIQUE)\s*\((.*)\)\Z", re.IGNORECASE | re.DOTALL)
_COLUMN = re.compile(r"(\w+)\s+(\w+)\s*(?:\(\s*(\d+)\s*\))?\s*(.*)\Z", re.IGNORECASE | re.DOTALL)
_DEFAULT = re.compile(r"DEFAULT\s+('(?:[^']|'')*'|-?\d+(?:\.\d+)?|NULL)", re.IGNORECASE)
_PART = re.compile(r"(\w+)(?:\s+(ASC|DESC))?\Z", re.IGNORECASE)
_TYPES = {"TEXT", "VARCHAR", "INTEGER", "INT", "BIGINT", "REAL", "BLOB", "BOOLEAN"}


class KeyColumn(msgspec.Struct, frozen=True):
    """A column of an index, and its direction."""

    name: str
    descending: bool = False


class Indexed(msgspec.Struct, frozen=True):
    """An index, or a unique constraint (one without a name of its own is the table's)."""

    name: str
    columns: tuple[KeyColumn, ...]
    unique: bool = False


class Field(msgspec.Struct, frozen=True):
    """A column as it is written."""

    name: str
    type: str
    chars_max: int | None = None
    nullable: bool = True
    default: str | None = None
    counts: bool = False


class Definition(msgspec.Struct, frozen=True):
    """A table as it is written."""

    name: str
    columns: tuple[Field, ...]
    key: tuple[str, ...]
    indexes: tuple[Indexed, ...] = ()

    def table(self) -> Table:
        """The same for SQLAlchemy."""
        in_keys = {*self.key, *(c.name for each in self.indexes for c in each.columns)}
        options: dict[str, Any] = dict(MYSQL_TABLE)
        if any(field.counts for field in self.columns):
            options["sqlite_autoincrement"] = True
        made = Table(
            self.name,
            MetaData(),
            *[self._column(each, short=each.name in in_keys) for each in self.columns],
            **options,
        )
        for index in self.indexes:
            columns = [
                made.c[c.name].desc() if c.descending else made.c[c.name] for c in index.columns
            ]
            Index(index.name, *columns, unique=index.unique)
        return made

    def _column(self, field: Field, *, short: bool) -> Column[Any]:
        is_key = field.name in self.key
        default = text(field.default) if field.default is not None else None
        return Column(
            field.name,
            _type_of(field, short=short),
            primary_key=is_key,
            nullable=field.nullable and not is_key,
            server_default=default,
            autoincrement=field.counts,
        )


class Schema(msgspec.Struct, frozen=True):
    """The tables of a protocol."""

    tables: tuple[Definition, ...] = ()

    @classmethod
    def parse(cls, sql: str, protocol: str) -> Schema:
        """The tables of a `schema.sql`; BadInput names the line that cannot be read."""
        tables: dict[str, Definition] = {}
        for statement, line in _statements(sql):
            if found := _TABLE.match(statement):
                made = _defined(found[1], found[2], f"{protocol}, line {line}")
                if made.name in tables:
                    raise BadInput(f"{protocol}: the table {made.name} is made twice")
                tables[made.name] = made
            elif found := _INDEX.match(statement):
                if found[3] not in tables:
                    raise BadInput(f"{protocol}, line {line}: no table {found[3]} before its index")
                on = tables[found[3]]
                index = Indexed(found[2], _parts(found[4], on), unique=bool(found[1]))
                tables[on.name] = msgspec.structs.replace(on, indexes=(*on.indexes, index))
            else:
                message = f"{protocol}, line {line}: only CREATE TABLE and CREATE INDEX are read"
                raise BadInput(message, hint=" ".join(statement.split())[:80])
        if len(tables) > TABLES_MAX:
            raise BadInput(f"{protocol} has more than {TABLES_MAX} tables")
        return cls(tuple(tables.values()))


def _statements(sql: str) -> Iterator[tuple[str, int]]:
    """Each statement without its comments, and the line that it begins in."""
    bare = _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), sql)
    line = 1
    for part in _split(bare, ";"):
        lead = len(part) - len(part.lstrip())
        if part.strip():
            yield part.strip(), line + part[:lead].count("\n")
        line += part.count("\n")


def _split(words: str, at: str) -> list[str]:
    """Parts between separators that stand outside of parentheses and quotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for i, char in enumerate(words):
        if char == "'":
            quoted = not quoted
        elif not quoted and char in "()":
            depth += 1 if char == "(" else -1
        elif not quoted and depth == 0 and char == at:
            parts.append(words[start:i])
            start = i + 1
    return [*parts, words[start:]]


def _entries(body: str) -> Iterator[str]:
    """The lines of a table; an INDEX line may do without a comma around it."""
    for part in _split(body, ","):
        lines = re.split(r"\n\s*(?=INDEX\s)", f"\n{part}", flags=re.IGNORECASE)
        yield from (line.strip() for line in lines if line.strip())


def _defined(name: str, body: str, where: str) -> Definition:
    if len(name) > NAME_CHARS_MAX or name.lower() in OURS:
        raise BadInput(
            f"{where}: a protocol cannot have a table {name}", hint="choose another name"
        )
    columns: list[Field] = []
    listed: list[tuple[str, str]] = []
    inline: list[tuple[str, str]] = []
    key: tuple[str, ...] = ()
    unique: list[str] = []
    for entry in _entries(body):
        if found := _INLINE.match(entry):
            inline.append((found[1], found[2]))
        elif found := _LISTED.match(entry):
            listed.append((found[1].split()[0].upper(), found[2]))
        elif (found := _COLUMN.match(entry)) and found[2].upper() in _TYPES:
            column, is_key, is_unique = _column_of(found, f"{where}: {entry}")
            columns.append(column)
            key = (column.name,) if is_key else key
            unique += [column.name] if is_unique else []
        else:
            raise BadInput(f"{where}: cannot read {' '.join(entry.split())!r} of {name}")
    made = Definition(name, tuple(columns), key)
    indexes = [Indexed(each, _parts(names, made)) for each, names in inline]
    indexes += [Indexed(f"uq_{name}__{c}", (KeyColumn(c),), unique=True) for c in unique]
    for kind, names in listed:
        parts = _parts(names, made)
        if kind == "PRIMARY":
            key = tuple(part.name for part in parts)
        else:
            title = "_".join(part.name for part in parts)
            indexes.append(Indexed(f"uq_{name}__{title}", parts, unique=True))
    if not key:
        hint = "the table needs a key by which its rows are told apart"
        raise BadInput(f"{where}: {name} has no PRIMARY KEY", hint=hint)
    return Definition(name, tuple(columns), key, tuple(indexes))


def _column_of(found: re.Match[str], where: str) -> tuple[Field, bool, bool]:
    name, kind, chars, rest = found[1], found[2].upper(), found[3], f" {found[4]} "
    default = _DEFAULT.search(rest)
    rest = _DEFAULT.sub(" ", rest).upper()
    flags = {}
    for words in ("PRIMARY KEY", "AUTOINCREMENT", "NOT NULL", "UNIQUE"):
        pattern = r"\s" + words.replace(" ", r"\s+") + r"(?=\s)"
        flags[words] = re.search(pattern, rest) is not None
        rest = re.sub(pattern, " ", rest)
    if rest.strip():
        raise BadInput(f"{where}: cannot read {rest.strip()!r}")
    field = Field(
        name,
        {"INT": "INTEGER", "BIGINT": "INTEGER"}.get(kind, kind),
        int(chars) if chars else None,
        nullable=not flags["NOT NULL"],
        default=None if default is None or default[1].upper() == "NULL" else default[1],
        counts=flags["AUTOINCREMENT"],
    )
    return field, flags["PRIMARY KEY"], flags["UNIQUE"]


def _parts(names: str, on: Definition) -> tuple[KeyColumn, ...]:
    known = {column.name for column in on.columns}
    parts = []
    for each in names.split(","):
        found = _PART.match(each.strip())
        if found is None or found[1] not in known:
            raise BadInput(f"{on.name} has no column {each.strip()!r}")
        parts.append(KeyColumn(found[1], (found[2] or "").upper() == "DESC"))
    return tuple(parts)


def _type_of(field: Field, *, short: bool) -> TypeEngine[Any]:
    match field.type:
        case "INTEGER":
            return serial_type() if field.counts else BigInteger()
        case "REAL":
            return Float(53)
        case "BOOLEAN":
            return SmallInteger()
        case "BLOB":
            return LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
        case _:
            pass
    if field.chars_max is not None:
        return String(field.chars_max)
    return String(KEY_CHARS_MAX) if short else text_type()
