"""Values of the stored structures: read from golden vectors, or drawn at random."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NewType, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from ledgerstone.signing import values
from ledgerstone.signing.bincode import Fixed, Unsigned

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "vectors.json").read_text(encoding="utf-8")
)["cases"]

STRUCTURES: tuple[type[msgspec.Struct], ...] = (
    values.GroupConfig,
    values.GroupMetadata,
    values.GroupPolicy,
    values.SigningEvent,
    values.SigningRequest,
    values.StoredProposal,
    values.RequestInput,
    values.SignerAckRecord,
    values.PartialSigRecord,
)

VARIANTS_MAX = 6
"""No enum has more variants."""

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def golden(kind: Any, given: Any) -> Any:
    """The value that a golden vector spells in JSON."""
    if isinstance(kind, NewType):
        return golden(kind.__supertype__, given)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind, include_extras=True)
        return kind(**{name: golden(hints[name], item) for name, item in given.items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return golden(arguments[0], given)
    if origin is tuple:
        return tuple(golden(arguments[0], item) for item in given)
    if origin in {Union, UnionType}:
        if given is None:
            return None
        rest = [argument for argument in arguments if argument is not NoneType]
        return golden(rest[0], given) if len(rest) == 1 else _golden_variant(rest, given)
    return bytes.fromhex(given) if kind is bytes else given


def _golden_variant(kinds: list[Any], given: Any) -> Any:
    name, fields = (given, {}) if isinstance(given, str) else next(iter(given.items()))
    return golden(next(kind for kind in kinds if kind.__name__ == name), fields)


@cache
def drawn(kind: Any) -> st.SearchStrategy[Any]:
    """Values that fit an annotation."""
    if isinstance(kind, NewType):
        return drawn(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind, include_extras=True)
        return st.builds(kind, **{name: drawn(hints[name]) for name in kind.__struct_fields__})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        match arguments[1]:
            case Unsigned(bits):
                return st.integers(0, 2**bits - 1)
            case Fixed(size):
                return st.binary(min_size=size, max_size=size)
            case other:
                raise TypeError(other)
    if origin is tuple:
        return st.lists(drawn(arguments[0]), max_size=4).map(tuple)
    if origin is Mapping:
        return st.dictionaries(drawn(arguments[0]), drawn(arguments[1]), max_size=4)
    if origin in {Union, UnionType}:
        return st.one_of([drawn(argument) for argument in arguments])
    return {
        str: texts,
        bytes: st.binary(max_size=12),
        bool: st.booleans(),
        NoneType: st.none(),
    }[kind]


class Extreme(Enum):
    """The ends of what a field can hold."""

    LEAST = "least"
    """None, nothing, zero."""
    EMPTY = "empty"
    """There, with nothing in it."""
    MOST = "most"
    """The largest numbers, characters of four bytes, several items."""


PLAIN: dict[Extreme, dict[Any, Any]] = {
    Extreme.LEAST: {str: "", bytes: b"", bool: False},
    Extreme.EMPTY: {str: "", bytes: b"", bool: False},
    Extreme.MOST: {str: "\U0010ffff" * 300, bytes: bytes(300), bool: True},
}
MAP_MOST = {"\U0010ffff": "z", "": "", "\uffff": "y", "a": "\0"}


def extreme_value(kind: Any, extreme: Extreme, *, variant: int) -> Any:
    """A value whose fields are all at that end; enums are in the variant of this number."""

    def inner(of: Any) -> Any:
        return extreme_value(of, extreme, variant=variant)

    if kind in PLAIN[extreme]:
        return PLAIN[extreme][kind]
    if isinstance(kind, NewType):
        return inner(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind, include_extras=True)
        return kind(**{name: inner(hints[name]) for name in kind.__struct_fields__})
    origin, arguments = get_origin(kind), get_args(kind)
    most = extreme is Extreme.MOST
    if origin is Annotated:
        return _extreme_number(arguments[1], most=most)
    if origin is tuple:
        return tuple(inner(arguments[0]) for _ in range(3 if most else 0))
    if origin is Mapping:
        return MAP_MOST if most else {}
    rest = [argument for argument in arguments if argument is not NoneType]
    optional = len(rest) < len(arguments)
    return None if optional and extreme is Extreme.LEAST else inner(rest[variant % len(rest)])


def _extreme_number(codec: Any, *, most: bool) -> int | bytes:
    match codec:
        case Unsigned(bits):
            return 2**bits - 1 if most else 0
        case Fixed(size):
            return (b"\xff" if most else b"\0") * size
        case other:
            raise TypeError(other)
