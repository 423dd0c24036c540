"""Bodies as JSON text; a value that a database would not return unchanged is refused."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import msgspec

from ledgerstone.errors import BadInput, TooLarge

NESTING_MAX = 31
"""The deepest nesting of lists and dicts: MariaDB does not accept a deeper document as JSON."""

INTEGER_MIN, INTEGER_MAX = -(2**63), 2**64 - 1
"""MySQL stores every other integer of a document as a float."""
EXPONENT_MIN = 1e16
"""From here on a float is written with an exponent."""

_encoder = msgspec.json.Encoder(order="deterministic")
_digits_alike = bytes.maketrans(b"123456789", b"0" * 9)
_EXPONENT, _LONG_NUMBER = b"0e0", b"0" * 19
"""With digits alike: a float of 1e16 or more, and an integer that may be too large."""
_quoted = re.compile(rb'"[^"]*"')
_as_lists = bytes.maketrans(b"{}", b"[]")
_not_brackets = bytes(set(range(256)) - set(b"[]"))


def encode(
    value: Any,
    *,
    bytes_max: int,
    setting: str = "store.body_bytes_max",
    as_text: bool = False,
) -> str:
    """The value as JSON, the same text for the same content.

    - TooLarge for more than `bytes_max` bytes; the error names `setting`.
    - BadInput for a value that a JSON column does not return unchanged on every database, such as
      an integer beyond 64 bits. `as_text`: the column is text, which stores every number.
    """
    try:
        encoded = _encoder.encode(value)
        if not as_text and _may_have_large_numbers(encoded):
            encoded = _exact(value)
        text = encoded.decode()
    except BadInput:
        raise
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


def canonical(text: str) -> str:
    """The canonical text of a document, which a database may have reformatted."""
    return _encoder.encode(_spelled_out(decode(text))).decode()


def _may_have_large_numbers(encoded: bytes) -> bool:
    """Whether there may be a large number; a regex would take four times as long."""
    alike = encoded.translate(_digits_alike)
    return _EXPONENT in alike or _LONG_NUMBER in alike


def _exact(value: Any) -> bytes:
    """A value with large numbers, as a document that every database stores unchanged."""
    plain = msgspec.to_builtins(value, str_keys=True, order="deterministic")
    if _has_large_integer(plain):
        message = "the body holds an integer beyond 64 bits, which not every database keeps exactly"
        raise BadInput(message, hint="send it as text")
    return _encoder.encode(_spelled_out(plain))


def _spelled_out(value: Any) -> Any:
    """The value with large floats written in full: PostgreSQL would store 1e16 as an integer."""
    if isinstance(value, float) and abs(value) >= EXPONENT_MIN and math.isfinite(value):
        return msgspec.Raw(f"{Decimal(repr(value)):f}.0".encode())
    if isinstance(value, dict):
        return {key: _spelled_out(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_spelled_out(part) for part in value]
    return value


def _has_large_integer(value: Any) -> bool:
    if isinstance(value, int):
        return not INTEGER_MIN <= value <= INTEGER_MAX
    if isinstance(value, dict):
        return any(_has_large_integer(part) for part in value.values())
    return isinstance(value, list) and any(_has_large_integer(part) for part in value)


def _is_too_deep(encoded: bytes) -> bool:
    """Whether brackets are left after the innermost pairs were removed `NESTING_MAX` times."""
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
