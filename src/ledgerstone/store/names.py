"""Names and keys: text that all databases keep and compare alike.

MySQL takes two names that differ only in spaces at their end for the same one, PostgreSQL keeps no
NUL, and none keeps half of a surrogate pair: such names are refused everywhere.
"""

from __future__ import annotations

from functools import lru_cache

from ledgerstone.errors import BadInput

SEEN_MAX = 1024
"""Names that are remembered to be sound: the same few come again and again."""


@lru_cache(maxsize=SEEN_MAX)
def check_name(name: str, what: str, *, chars_max: int) -> None:
    """BadInput unless the name is the same name on every database."""
    if not 0 < len(name) <= chars_max:
        message = f"{what} has 1 to {chars_max} characters, this one {len(name)}"
        raise BadInput(message)
    if name.endswith(" "):
        message = f"{what} does not end in a space: {name!r}"
        raise BadInput(message)
    if "\0" in name or any("\ud800" <= char <= "\udfff" for char in name):
        message = f"{what} holds characters that are no text: {name!r}"
        raise BadInput(message)
