"""Values of rows against the declared types of their columns.

SQLite stores a text in an INTEGER column, MySQL rounds 1.5 to 2 there, PostgreSQL refuses both;
MariaDB takes "a " and "a" for the same key. Values that databases would store in different ways are
refused on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from typing import Any

import msgspec

from ledgerstone.errors import BadInput
from ledgerstone.protocols.schema import Definition, Field
from ledgerstone.protocols.tables import KEY_CHARS_MAX
from ledgerstone.store.sql.names import check_text

INTEGER_MAX = (1 << 63) - 1
Check = Callable[[Any], Any]
"""Answers the value as it is sent; BadInput if the column does not take it."""


class _Column(msgspec.Struct, frozen=True, gc=False):
    """A column; the text of one `in_key` is compared with others of its table."""

    name: str
    nullable: bool
    in_key: bool
    chars_max: int | None


def checks_of(definition: Definition) -> Mapping[str, Check]:
    """The checks of the columns of a table, by their names."""
    unique = [each for each in definition.indexes if each.unique]
    keys = {*definition.key, *(part.name for each in unique for part in each.columns)}
    short = {*keys, *(part.name for each in definition.indexes for part in each.columns)}

    def column(field: Field) -> _Column:
        return _Column(
            f"{definition.name}.{field.name}",
            field.nullable and field.name not in definition.key,
            field.name in keys,
            field.chars_max or (KEY_CHARS_MAX if field.name in short else None),
        )

    return {each.name: partial(_CHECKS[each.type], column(each)) for each in definition.columns}


def sent(table: str, checks: Mapping[str, Check], values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a statement for these values; BadInput if a column refuses one."""
    try:
        return {f"{name}_": checks[name](value) for name, value in values.items()}
    except KeyError as error:
        raise BadInput(f"{table} has no column {error.args[0]}") from None


def _integer(column: _Column, value: Any) -> int | None:
    if type(value) is int and -INTEGER_MAX <= value <= INTEGER_MAX:
        return value
    _null(column, value, "a whole number of 64 bits")
    return None


def _real(column: _Column, value: Any) -> float | None:
    if type(value) in {int, float} and isfinite(value):
        return float(value)
    _null(column, value, "a finite number")
    return None


def _boolean(column: _Column, value: Any) -> int | None:
    if type(value) is bool or (type(value) is int and value in {0, 1}):
        return int(value)
    _null(column, value, "true or false")
    return None


def _bytes(column: _Column, value: Any) -> bytes | bytearray | memoryview | None:
    if isinstance(value, bytes | bytearray | memoryview):
        return value
    _null(column, value, "bytes")
    return None


def _text(column: _Column, value: Any) -> str | None:
    if not isinstance(value, str):
        _null(column, value, "a text")
        return None
    if "\0" in value or not value.isascii():
        check_text(value, column.name)
    if column.chars_max is not None and len(value) > column.chars_max:
        raise BadInput(f"{column.name} takes {column.chars_max} characters, not {len(value)}")
    if column.in_key and value.endswith(" "):
        raise BadInput(f"{column.name} is in a key, and does not end in a space: {value!r}")
    return value


def _null(column: _Column, value: Any, wanted: str) -> None:
    """BadInput unless the value is None and the column takes it."""
    if value is not None or not column.nullable:
        raise BadInput(f"{column.name} takes {wanted}, not {type(value).__name__}")


_CHECKS: Mapping[str, Callable[..., Any]] = {
    "INTEGER": _integer,
    "REAL": _real,
    "BOOLEAN": _boolean,
    "BLOB": _bytes,
    "TEXT": _text,
    "VARCHAR": _text,
}
