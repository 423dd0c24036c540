"""Bodies: values as JSON text, refused before anything is written if they cannot travel."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from ledgerstone.errors import BadInput, TooLarge

NESTING_MAX = 31
"""Lists and dicts inside one another: MariaDB takes no document for JSON that has more of them."""

_encoder = msgspec.json.Encoder(order="deterministic")
_quoted = re.compile(rb'"[^"]*"')
_as_lists = bytes.maketrans(b"{}", b"[]")
_not_brackets = bytes(set(range(256)) - set(b"[]"))


def encode(value: Any, *, bytes_max: int, setting: str = "store.body_bytes_max") -> str:
    """The value as JSON, the same text for the same content; `setting` is what bounds it."""
    try:
        encoded = _encoder.encode(value)
        text = encoded.decode()
    except (TypeError, ValueError, RecursionError) as error:
        message = f"the body cannot be written as JSON: {error}"
        raise BadInput(message, hint="use strings, numbers, lists, dicts, dates") from error
    if len(encoded) > bytes_max:
        message = f"the body has {len(encoded)} bytes, at most {bytes_max} are accepted"
        hint = f"raise {setting}, or keep it elsewhere and refer to it"
        raise TooLarge(message, hint=hint)
    if encoded.count(b"[") + encoded.count(b"{") > NESTING_MAX and _is_too_deep(encoded):
        message = f"the body has lists and dicts more than {NESTING_MAX} deep in one another"
        raise BadInput(message, hint="make it flatter, or send a part of it as text")
    if b"\\u0000" in encoded and _has_nul(msgspec.to_builtins(value)):
        message = "the body holds the character NUL, which no database keeps in a document"
        raise BadInput(message, hint="send bytes as base64")
    # JSON has no NaN or infinity; the encoder would write null for them in silence.
    if b"null" in encoded and _has_no_number(msgspec.to_builtins(value)):
        message = "the body holds a float that JSON cannot write (NaN or infinity)"
        raise BadInput(message, hint="send null or a string instead")
    return text


def decode(text: str) -> Any:
    """The value of a stored body."""
    return msgspec.json.decode(text)


def _is_too_deep(encoded: bytes) -> bool:
    """Whether brackets are left when the innermost pairs were taken away so often."""
    unescaped = encoded.replace(rb"\\", b"").replace(rb"\"", b"")
    unquoted = _quoted.sub(b"", unescaped)
    left = unquoted.translate(_as_lists).translate(None, _not_brackets)
    for _ in range(NESTING_MAX):
        left = left.replace(b"[]", b"")
    return bool(left)


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_has_nul(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return any(_has_nul(part) for part in value)
    return False


def _has_no_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(_has_no_number(part) for part in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return any(_has_no_number(part) for part in value)
    return False
