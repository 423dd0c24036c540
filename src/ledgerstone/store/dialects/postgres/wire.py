"""Statements and parameters in the form in which PostgreSQL receives them, without the driver."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

TEXTS_KEPT = 4096
_PARAMETER = re.compile(r"%\((\w+)\)s|%%")
"""A named parameter of psycopg; a per cent sign is doubled."""


def wired(text: str, values: Mapping[str, Any]) -> tuple[bytes, list[bytes | None]] | None:
    """The text with numbered parameters, and their values as text.

    None if only the driver can write a value: one of another type, or text with NUL.
    """
    numbered, names = _numbered(text)
    try:
        in_order = [values[name] for name in names]
        return numbered, [None if v is None else _WRITTEN[type(v)](v) for v in in_order]
    except (KeyError, ValueError):
        return None


@lru_cache(maxsize=TEXTS_KEPT)
def _numbered(text: str) -> tuple[bytes, tuple[str, ...]]:
    """The text with its parameters as $1, $2, …, and their names in this order."""
    names: dict[str, int] = {}

    def place(found: re.Match[str]) -> str:
        name = found[1]
        return "%" if name is None else f"${names.setdefault(name, len(names) + 1)}"

    numbered = _PARAMETER.sub(place, text)
    return numbered.encode(), tuple(names)


def _text(value: str) -> bytes:
    if "\0" in value:
        raise ValueError(value)
    return value.encode()


_WRITTEN: dict[type, Callable[[Any], bytes]] = {
    str: _text,
    int: lambda value: b"%d" % value,
    float: lambda value: repr(value).encode(),
    bool: lambda value: b"true" if value else b"false",
    bytes: lambda value: b"\\x" + value.hex().encode(),
}
"""How PostgreSQL reads a value of each type from text."""
