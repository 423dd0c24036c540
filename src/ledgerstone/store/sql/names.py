"""Names and keys: text that all databases store and compare alike.

MySQL ignores spaces at the end of a name, PostgreSQL stores no NUL, and none stores half of a
surrogate pair: such names are refused on every database.
"""

from __future__ import annotations

from functools import lru_cache

from ledgerstone.errors import BadInput

SEEN_MAX = 1024
"""The size of the cache of checked names."""


def check_text(text: object, what: str) -> None:
    """BadInput unless `text` is a string that every database can compare; `what` names it."""
    if not isinstance(text, str):
        message = f"{what} is text, not {text!r}"
        raise BadInput(message)
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        message = f"{what} holds characters that are no text: {text!r}"
        raise BadInput(message)


def check_name(name: str, what: str, *, chars_max: int) -> None:
    """BadInput unless every database stores and compares the name alike; `what` names it."""
    given: object = name
    if not isinstance(given, str):
        # A caller may pass any object, also one that cannot be hashed.
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
