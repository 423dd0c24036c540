"""Records that people give as JSON: the documented structures, with bytes in hex."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import inspect

from ledgerstone.errors import BadInput, NotFound, TooLarge

S = TypeVar("S", bound=msgspec.Struct)

STDIN = "-"
FILE_BYTES_MAX = 32 * 1024 * 1024
HASH_BYTES = 32


def record(kind: type[S], file: str, what: str) -> S:
    """The record that a file (`-`: stdin) holds; BadInput says what is wrong with it."""
    data = read_bytes(file, what)
    try:
        given = msgspec.json.decode(data)
        json.loads(data, object_pairs_hook=partial(_once, what))
    except BadInput:
        raise
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadInput(f"{what} is not JSON: {error}") from error
    plain = _unhexed(_type_of(kind), given, what)
    try:
        return msgspec.convert(plain, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise BadInput(f"{what}: {error}") from error


def _once(what: str, pairs: list[tuple[str, object]]) -> None:
    """BadInput for a name that is there twice: people and programs would read different values."""
    names = Counter(name for name, _ in pairs)
    for name, count in names.items():
        if count > 1:
            raise BadInput(f"{what} has the field {name!r:.80} twice")


def read_bytes(file: str, what: str, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """The content of a file (`-`: stdin); NotFound, BadInput or TooLarge if there is none."""
    try:
        if file == STDIN:
            data = sys.stdin.buffer.read(bytes_max + 1)
        else:
            with Path(file).open("rb") as stream:
                data = stream.read(bytes_max + 1)
    except FileNotFoundError as error:
        raise NotFound(f"{what}: there is no file {file}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{what}: {file} cannot be read: {reason}") from error
    if len(data) > bytes_max:
        raise TooLarge(f"{what} has more than {bytes_max:,} bytes")
    return data


def bytes_of(text: str, what: str, size: int | None = HASH_BYTES) -> bytes:
    """The bytes that hex spells, so many of them; BadInput names it by `what`."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        raise BadInput(f"{what} is no hex: {text!r:.80}") from None
    if size is not None and len(data) != size:
        raise BadInput(f"{what} has {size} bytes, {2 * size} hex digits, not {len(data)} bytes")
    return data


@cache
def _type_of(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def _unhexed(kind: inspect.Type, value: object, where: str) -> object:
    """The value with hex as bytes where the type has bytes; unknown fields are refused."""
    match kind:
        case inspect.BytesType() if isinstance(value, str):
            return bytes_of(value, where, None)
        case inspect.StructType() if isinstance(value, Mapping):
            return _fields(kind, value, where)
        case inspect.UnionType():
            return _of_union(kind, value, where)
        case inspect.VarTupleType() if isinstance(value, list):
            return [_unhexed(kind.item_type, item, f"{where}[{n}]") for n, item in enumerate(value)]
        case _:
            return value


def _fields(kind: inspect.StructType, value: Mapping[str, object], where: str) -> object:
    known = {field.encode_name: field.type for field in kind.fields}
    unknown = [name for name in value if name not in known and name != kind.tag_field]
    if unknown:
        hint = f"it has {', '.join(known)}"
        raise BadInput(f"{where} has no field {unknown[0]!r:.80}", hint=hint)
    return {
        name: _unhexed(known[name], item, f"{where}.{name}") if name in known else item
        for name, item in value.items()
    }


def _of_union(kind: inspect.UnionType, value: object, where: str) -> object:
    if value is None:
        return None
    for member in kind.types:
        if isinstance(member, inspect.BytesType):
            return _unhexed(member, value, where)
        if _is_meant(member, value):
            return _unhexed(member, value, where)
    return value


def _is_meant(member: inspect.Type, value: object) -> bool:
    """Whether the value names this structure of several by its tag."""
    if not isinstance(member, inspect.StructType) or not isinstance(value, Mapping):
        return False
    return member.tag_field is not None and value.get(member.tag_field) == member.tag
