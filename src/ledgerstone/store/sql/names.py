"""Names and keys: text that all databases keep and compare alike.

MySQL takes two names that differ only in spaces at their end for the same one, PostgreSQL keeps no
NUL, and none keeps half of a surrogate pair: such names are refused everywhere.
"""

from __future__ import annotations

from functools import lru_cache

from ledgerstone.errors import BadInput

SEEN_MAX = 1024
"""Names that are remembered to be sound: the same few come again and again."""


def check_text(text: object, what: str) -> None:
    """BadInput unless it is text that every database can be asked about."""
    if not isinstance(text, str):
        message = f"{what} is text, not {text!r}"
        raise BadInput(message)
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        message = f"{what} holds characters that are no text: {text!r}"
        raise BadInput(message)


def check_name(name: str, what: str, *, chars_max: int) -> None:
    """BadInput unless the name is the same name on every database."""
    given: object = name
    if not isinstance(given, str):
        # Python lets anything be given, also what cannot be remembered.
        check_text(given, what)
    _check(name, what, chars_max)


@lru_cache(maxsize=SEEN_MAX)
def _check(name: str, what: str, chars_max: int) -> None:
    if not 0 < len(name) <= chars_max:
        message = f"{what} has 1 to {chars_max} characters, this one {len(name)}"
        raise BadInput(message)
    if name.endswith(" "):
        message = f"{what} does not end in a space: {name!r}"
        raise BadInput(message)
    check_text(name, what)
