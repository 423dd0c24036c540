"""Bincode with fixed-int encoding: the bytes of a value class, derived from its annotations.

    Annotated[int, Unsigned(8)]   little-endian, 1, 2, 4 or 8 bytes wide
    bool                          one byte, 0 or 1
    str, bytes                    u64 length, then UTF-8 or the bytes themselves
    Annotated[bytes, Fixed(32)]   the bytes without a length
    T | None                      tag byte 0, or tag byte 1 and the value
    tuple[T, ...]                 u64 count, then the items
    Mapping[K, V]                 u64 count, then the pairs, keys in ascending order of their bytes
    a msgspec.Struct              its fields in order, with nothing between them
    A | B | C (structs)           u32 index of the variant, then its fields

Decoding is strict: one value has exactly one encoding. Trailing bytes, a length beyond the end, an
unknown tag, invalid UTF-8 and map keys out of order raise Malformed. Memory use is proportional to
the bytes that are there, whatever a length claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NewType,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from ledgerstone.errors import BadInput, Malformed

S = TypeVar("S", bound=msgspec.Struct)

LENGTH_BYTES = 8
TAG_BYTES = 4


def encode(value: msgspec.Struct) -> bytes:
    """The bytes of a value; BadInput names the field that does not fit its type."""
    out = bytearray()
    _codec(type(value)).write(value, out)
    return bytes(out)


def decode(kind: type[S], data: bytes) -> S:
    """The value of this class that the bytes encode, or Malformed."""
    if type(data) is not bytes:
        raise BadInput(f"bytes are needed, not {data!r:.80}")
    source = Source(data)
    try:
        value: S = _codec(kind).read(source)
    except Malformed as error:
        raise Malformed(f"no {kind.__name__}: {error.message}") from error
    if source.left:
        raise Malformed(f"no {kind.__name__}: {source.left} bytes follow its end")
    return value


class Source:
    """The bytes being decoded, read from the front."""

    __slots__ = ("_at", "_data", "left")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.left = len(data)

    def take(self, count: int) -> bytes:
        """The next `count` bytes; Malformed if fewer are left."""
        if count > self.left:
            raise Malformed(f"{count} bytes expected at byte {self._at}, {self.left} are left")
        start = self._at
        self._at += count
        self.left -= count
        return self._data[start : self._at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def wrong(self, message: str) -> Malformed:
        """The error for what was read last."""
        return Malformed(f"{message} before byte {self._at}")


class Codec(Protocol):
    """Encoding of one type.

    - `bytes_min` is the length of its shortest encoding, at least 1.
    - `write` appends the bytes of a value, or raises BadInput.
    - `read` takes exactly the bytes of one value, or raises Malformed.
    """

    @property
    def bytes_min(self) -> int: ...
    def write(self, value: Any, out: bytearray) -> None: ...
    def read(self, source: Source) -> Any: ...


class Unsigned(msgspec.Struct, frozen=True):
    """An integer of `bits` bits without a sign."""

    bits: int

    @property
    def bytes_min(self) -> int:
        return self.bits // 8

    def write(self, value: Any, out: bytearray) -> None:
        # A bool is an int to Python, but not to the format.
        if type(value) is not int or not 0 <= value < 1 << self.bits:
            raise BadInput(f"an integer from 0 to 2**{self.bits} - 1 is needed, not {value!r:.80}")
        out += value.to_bytes(self.bits // 8, "little")

    def read(self, source: Source) -> int:
        return source.number(self.bits // 8)


class Fixed(msgspec.Struct, frozen=True):
    """Exactly `bytes_min` bytes."""

    bytes_min: int

    def write(self, value: Any, out: bytearray) -> None:
        if type(value) is not bytes or len(value) != self.bytes_min:
            raise BadInput(f"{self.bytes_min} bytes are needed, not {value!r:.80}")
        out += value

    def read(self, source: Source) -> bytes:
        return source.take(self.bytes_min)


class _Boolean(msgspec.Struct, frozen=True):
    bytes_min: int = 1

    def write(self, value: Any, out: bytearray) -> None:
        if type(value) is not bool:
            raise BadInput(f"a bool is needed, not {value!r:.80}")
        out.append(value)

    def read(self, source: Source) -> bool:
        number = source.number(1)
        if number > 1:
            raise source.wrong(f"{number} is no bool")
        return number == 1


class _Blob(msgspec.Struct, frozen=True):
    bytes_min: int = LENGTH_BYTES

    def write(self, value: Any, out: bytearray) -> None:
        if type(value) is not bytes:
            raise BadInput(f"bytes are needed, not {value!r:.80}")
        out += len(value).to_bytes(LENGTH_BYTES, "little")
        out += value

    def read(self, source: Source) -> bytes:
        return source.take(source.number(LENGTH_BYTES))


class _Text(msgspec.Struct, frozen=True):
    bytes_min: int = LENGTH_BYTES

    def write(self, value: Any, out: bytearray) -> None:
        if not isinstance(value, str):
            raise BadInput(f"text is needed, not {value!r:.80}")
        try:
            encoded = value.encode()
        except UnicodeEncodeError as error:
            raise BadInput(f"{value!r:.80} holds half of a surrogate pair") from error
        out += len(encoded).to_bytes(LENGTH_BYTES, "little")
        out += encoded

    def read(self, source: Source) -> str:
        encoded = source.take(source.number(LENGTH_BYTES))
        try:
            return encoded.decode()
        except UnicodeDecodeError as error:
            raise source.wrong("text that is no UTF-8") from error


class _Optional(msgspec.Struct, frozen=True):
    item: Any
    bytes_min: int = 1

    def write(self, value: Any, out: bytearray) -> None:
        if value is None:
            out.append(0)
        else:
            out.append(1)
            self.item.write(value, out)

    def read(self, source: Source) -> Any:
        match source.number(1):
            case 0:
                return None
            case 1:
                return self.item.read(source)
            case tag:
                raise source.wrong(f"{tag} is no tag of an option")


class _Sequence(msgspec.Struct, frozen=True):
    item: Any
    bytes_min: int = LENGTH_BYTES

    def write(self, value: Any, out: bytearray) -> None:
        if not isinstance(value, tuple):
            raise BadInput(f"a tuple is needed, not {value!r:.80}")
        out += len(value).to_bytes(LENGTH_BYTES, "little")
        for item in value:
            self.item.write(item, out)

    def read(self, source: Source) -> tuple[Any, ...]:
        count = _count(source, self.item.bytes_min)
        return tuple(self.item.read(source) for _ in range(count))


class _Map(msgspec.Struct, frozen=True):
    key: Any
    item: Any
    bytes_min: int = LENGTH_BYTES

    def write(self, value: Any, out: bytearray) -> None:
        if not isinstance(value, Mapping):
            raise BadInput(f"a mapping is needed, not {value!r:.80}")
        try:
            # Ascending code points are ascending bytes in UTF-8.
            keys = sorted(value)
        except TypeError as error:
            raise BadInput("the keys of a mapping are of one type") from error
        out += len(keys).to_bytes(LENGTH_BYTES, "little")
        for key in keys:
            self.key.write(key, out)
            self.item.write(value[key], out)

    def read(self, source: Source) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        previous = None
        for _ in range(_count(source, self.key.bytes_min + self.item.bytes_min)):
            key = self.key.read(source)
            if previous is not None and key <= previous:
                raise source.wrong("a map key that is out of order")
            found[key] = self.item.read(source)
            previous = key
        return found


class _Fields(msgspec.Struct, frozen=True):
    kind: type[msgspec.Struct]
    fields: tuple[tuple[str, Any], ...]

    @property
    def bytes_min(self) -> int:
        return sum(codec.bytes_min for _, codec in self.fields)

    def write(self, value: Any, out: bytearray) -> None:
        if type(value) is not self.kind:
            raise BadInput(f"a {self.kind.__name__} is needed, not {value!r:.80}")
        for name, codec in self.fields:
            try:
                codec.write(getattr(value, name), out)
            except BadInput as error:
                raise BadInput(f"{name}: {error.message}") from error

    def read(self, source: Source) -> msgspec.Struct:
        return self.kind(**{name: codec.read(source) for name, codec in self.fields})


class _Variants(msgspec.Struct, frozen=True):
    variants: tuple[_Fields, ...]
    bytes_min: int = TAG_BYTES

    def write(self, value: Any, out: bytearray) -> None:
        for tag, variant in enumerate(self.variants):
            if type(value) is variant.kind:
                out += tag.to_bytes(TAG_BYTES, "little")
                variant.write(value, out)
                return
        names = ", ".join(variant.kind.__name__ for variant in self.variants)
        raise BadInput(f"one of {names} is needed, not {value!r:.80}")

    def read(self, source: Source) -> msgspec.Struct:
        tag = source.number(TAG_BYTES)
        if tag >= len(self.variants):
            raise source.wrong(f"{tag} is no variant")
        return self.variants[tag].read(source)


def _count(source: Source, item_bytes_min: int) -> int:
    """The count of a collection, refused before anything is made if it cannot be true."""
    count = source.number(LENGTH_BYTES)
    if count * item_bytes_min > source.left:
        raise source.wrong(f"{count} items in {source.left} bytes")
    return count


_PLAIN: dict[Any, Codec] = {bool: _Boolean(), str: _Text(), bytes: _Blob()}


@cache
def _codec(kind: Any) -> Codec:
    """The codec of an annotation."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, NewType):
        return _codec(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _fields(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        codec: Codec = kind.__metadata__[0]
        return codec
    if origin is tuple and arguments[1:] == (...,):
        return _Sequence(_codec(arguments[0]))
    if origin is Mapping:
        return _Map(_codec(arguments[0]), _codec(arguments[1]))
    if origin in {Union, UnionType}:
        return _union(arguments)
    raise TypeError(f"{kind!r} has no encoding")


def _fields(kind: type[msgspec.Struct]) -> _Fields:
    hints = get_type_hints(kind, include_extras=True)
    return _Fields(kind, tuple((name, _codec(hints[name])) for name in kind.__struct_fields__))


def _union(arguments: tuple[Any, ...]) -> Codec:
    rest = tuple(argument for argument in arguments if argument is not NoneType)
    inner = _codec(rest[0]) if len(rest) == 1 else _Variants(tuple(map(_fields, rest)))
    return inner if len(rest) == len(arguments) else _Optional(inner)
