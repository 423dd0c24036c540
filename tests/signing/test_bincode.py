"""The bytes of the stored structures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerstone.errors import BadInput, Malformed
from ledgerstone.signing import values
from ledgerstone.signing.bincode import Fixed, Unsigned, decode, encode
from tests.signing import documented
from tests.signing.shapes import (
    GOLDEN,
    STRUCTURES,
    VARIANTS_MAX,
    Extreme,
    drawn,
    extreme_value,
    golden,
)

ENCODED = [case for case in GOLDEN if "bytes" in case]
BY_NAME: dict[str, type[msgspec.Struct]] = {kind.__name__: kind for kind in STRUCTURES}


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One field of every sort."""

    number: Annotated[int, Unsigned(16)] = 7
    flag: bool = True
    text: str = "é"
    blob: bytes = b"\1"
    fixed: Annotated[bytes, Fixed(2)] = b"ab"
    maybe: str | None = None
    several: tuple[str, ...] = ()
    named: Mapping[str, str] = {}
    decision: values.RequestDecision = values.Pending()


NUMBER, FLAG, TEXT, BLOB, MAYBE, SEVERAL, NAMED, DECISION = 0, 2, 3, 13, 24, 25, 33, 41
"""Where the fields of Sample() begin in its encoding."""


@pytest.mark.parametrize("case", ENCODED, ids=[f"{case['type']}" for case in ENCODED])
def test_golden_bytes(case: dict[str, Any]) -> None:
    """A structure has the bytes that the original's encoder wrote, and is read from them."""
    kind = BY_NAME[case["type"]]
    value = golden(kind, case["value"])
    data = bytes.fromhex(case["bytes"])

    assert encode(value) == data
    assert decode(kind, data) == value


def test_every_sort_of_field() -> None:
    """Each sort of field has the bytes that bincode's fixed-int encoding gives it."""
    sample = Sample(
        maybe="x", several=("a", ""), named={"b": "", "B": "2"}, decision=values.Aborted(reason="r")
    )

    encoded = encode(sample)

    assert encoded == b"".join(
        [
            b"\x07\0",
            b"\1",
            b"\2\0\0\0\0\0\0\0\xc3\xa9",
            b"\1\0\0\0\0\0\0\0\1",
            b"ab",
            b"\1\1\0\0\0\0\0\0\0x",
            b"\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0a\0\0\0\0\0\0\0\0",
            b"\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0B\1\0\0\0\0\0\0\x002",
            b"\1\0\0\0\0\0\0\0b\0\0\0\0\0\0\0\0",
            b"\5\0\0\0\1\0\0\0\0\0\0\0r",
        ]
    )
    assert decode(Sample, encoded) == sample


@given(st.one_of([drawn(kind) for kind in STRUCTURES]))
def test_the_documented_bytes(value: msgspec.Struct) -> None:
    """Every value has the bytes that an encoder made from the document alone gives it."""
    assert encode(value) == documented.encoded(type(value).__name__, value)


@pytest.mark.parametrize("kind", STRUCTURES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("extreme", [*Extreme], ids=lambda extreme: extreme.value)
def test_extreme_values(kind: type[msgspec.Struct], extreme: Extreme) -> None:
    """Fields that are none, empty, the largest or in each variant have the documented bytes."""
    for variant in range(VARIANTS_MAX):
        value = extreme_value(kind, extreme, variant=variant)

        data = encode(value)

        assert data == documented.encoded(kind.__name__, value)
        assert decode(kind, data) == value


@given(st.one_of([drawn(kind) for kind in STRUCTURES]))
def test_what_is_encoded_is_decoded(value: msgspec.Struct) -> None:
    """Every value is read from its bytes as it was."""
    assert decode(type(value), encode(value)) == value


@given(kind=st.sampled_from(STRUCTURES), data=st.data())
def test_hostile_bytes(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    """Bytes with an error in them decode to a value with exactly these bytes, or are Malformed."""
    encoded = bytearray(encode(data.draw(drawn(kind))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(encoded)))
        encoded[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))

    try:
        value = decode(kind, bytes(encoded))
    except Malformed:
        return

    assert encode(value) == encoded


@given(kind=st.sampled_from(STRUCTURES), data=st.binary(max_size=400))
def test_random_bytes(kind: type[msgspec.Struct], data: bytes) -> None:
    """Random bytes decode to a value with exactly these bytes, or are Malformed."""
    try:
        value = decode(kind, data)
    except Malformed:
        return

    assert encode(value) == data


@given(kind=st.sampled_from(STRUCTURES), data=st.data())
def test_a_cut_value(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    """A value that was cut off anywhere is Malformed, and so is one with a byte behind it."""
    encoded = encode(data.draw(drawn(kind)))
    cut = data.draw(st.integers(0, len(encoded) - 1))

    for wrong in (encoded[:cut], encoded + b"\0"):
        with pytest.raises(Malformed, match=kind.__name__):
            decode(kind, wrong)


@pytest.mark.parametrize(
    ("at", "replaced", "message"),
    [
        (FLAG, b"\2", "no bool"),
        (MAYBE, b"\2", "no tag of an option"),
        (DECISION, b"\6\0\0\0", "no variant"),
        (DECISION, b"\0\0\0\x80", "no variant"),
        (TEXT + 8, b"\xff\xff", "no UTF-8"),
        (TEXT + 8, b"\xed\xa0", "no UTF-8"),
        (TEXT, b"\xff" * 8, "bytes expected"),
        (BLOB, b"\xff" * 7 + b"\x7f", "bytes expected"),
        (SEVERAL, b"\xff" * 8, "items in"),
        (SEVERAL, b"\2\0\0\0\0\0\0\0", "items in"),
        (NAMED, b"\xff" * 8, "items in"),
    ],
)
def test_strict_decoding(at: int, replaced: bytes, message: str) -> None:
    """A wrong tag, wrong UTF-8 and a length beyond the end are Malformed, before memory is used."""
    encoded = bytearray(encode(Sample()))
    encoded[at : at + len(replaced)] = replaced

    with pytest.raises(Malformed, match=message):
        decode(Sample, bytes(encoded))


@pytest.mark.parametrize("data", [bytearray(b"\0"), memoryview(b"\0"), "\0", None, 5])
def test_only_bytes_are_decoded(data: Any) -> None:
    """A value that is not bytes is BadInput: another type would stay inside the decoded value."""
    with pytest.raises(BadInput, match="bytes are needed"):
        decode(Sample, data)


@pytest.mark.parametrize("keys", [("b", "a"), ("a", "a")])
def test_map_keys_in_order(keys: tuple[str, str]) -> None:
    """A map whose keys are repeated or out of order is Malformed: no value has such bytes."""
    pairs = b"".join(b"\1\0\0\0\0\0\0\0" + key.encode() + b"\0" * 8 for key in keys)
    encoded = encode(Sample())
    hostile = encoded[:NAMED] + b"\2\0\0\0\0\0\0\0" + pairs + encoded[DECISION:]

    with pytest.raises(Malformed, match="out of order"):
        decode(Sample, hostile)


def test_map_order_is_that_of_bytes() -> None:
    """Keys of a map are in the order of their UTF-8, whatever order they were given in."""
    keys = ["\U00010000", "\uffff", "z", "ä", "Z", ""]

    ordered = list(decode(Sample, encode(Sample(named=dict.fromkeys(keys, "")))).named)

    assert ordered == sorted(keys, key=str.encode)


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": -1},
        {"number": 2**16},
        {"number": True},
        {"number": 1.0},
        {"flag": 1},
        {"text": b"x"},
        {"text": "\ud800"},
        {"blob": "x"},
        {"blob": bytearray(b"x")},
        {"fixed": b"abc"},
        {"several": ["a"]},
        {"several": (1,)},
        {"named": [("a", "b")]},
        {"named": {"a": 1}},
        {"named": {1: "a"}},
        {"named": {"a": "a", 1: "a"}},
        {"decision": None},
        {"decision": "Pending"},
    ],
    ids=str,
)
def test_values_that_do_not_fit(wrong: dict[str, Any]) -> None:
    """A value that its field cannot hold is BadInput, which names the field."""
    with pytest.raises(BadInput, match=next(iter(wrong))):
        encode(Sample(**wrong))


def test_an_unknown_annotation() -> None:
    """A structure with a field that has no encoding is an error of the programmer."""

    class Odd(msgspec.Struct):
        number: float = 1.0

    with pytest.raises(TypeError, match="no encoding"):
        encode(Odd())
