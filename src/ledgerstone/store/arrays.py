"""The text of a PostgreSQL array: the driver takes twenty times as long for a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def array(values: Sequence[Any]) -> str:
    """The text of an array of these; there is at least one."""
    first = values[0]
    if values.count(first) == len(values):
        return "{" + ",".join([_word(first)] * len(values)) + "}"
    if all(type(value) is str for value in values):
        # Nothing in them has to be spelled for it, as in no id: then they are joined as they are.
        joined = '","'.join(values)
        if "\\" not in joined and joined.count('"') == 2 * (len(values) - 1):
            return '{"' + joined + '"}'
    return "{" + ",".join(map(_word, values)) + "}"


def _word(value: Any) -> str:
    """One element of the text of an array."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
