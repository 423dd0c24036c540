"""Records for people: the same plain values with bytes in hex."""

from __future__ import annotations

import msgspec


def in_hex(record: msgspec.Struct) -> object:
    """The record as dicts, lists, numbers and text, ready for JSON."""
    return _plain(msgspec.to_builtins(record, builtin_types=(bytes,)))


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
