"""Bodies and names: what may be kept, and that it comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerstone.errors import BadInput, TooLarge
from ledgerstone.store.sql.json_body import (
    INTEGER_MAX,
    INTEGER_MIN,
    NESTING_MAX,
    canonical,
    decode,
    encode,
)
from ledgerstone.store.sql.names import check_name

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
IN_64_BITS = st.integers(INTEGER_MIN, INTEGER_MAX)


def plain(integers: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    """Whatever JSON can say, with these integers."""
    floats = st.floats(allow_nan=False, allow_infinity=False)
    return st.recursive(
        st.none() | st.booleans() | integers | floats | TEXT,
        lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
        max_leaves=20,
    )


PLAIN = plain(IN_64_BITS)
LARGE = 1_000_000


@dataclass
class Reading:
    """A value class of a user's own."""

    celsius: float


@given(plain(st.integers()))
def test_a_body_comes_back(value: Any) -> None:
    """Whatever JSON can say comes back equal, as text with integers of any size."""
    assert decode(encode(value, bytes_max=LARGE, as_text=True)) == value


@given(PLAIN)
def test_a_document_comes_back(value: Any) -> None:
    """So does a document, with integers of 64 bits."""
    text = encode(value, bytes_max=LARGE)

    assert decode(text) == value
    assert canonical(text) == text


@pytest.mark.parametrize("number", [1e16, 1e22, -1.5e300, 1.7976931348623157e308])
def test_a_large_float_is_spelled_out(number: float) -> None:
    """A database that counts in decimals would take an exponent for an integer."""
    text = encode({"n": [number, 0.5, "1e16"]}, bytes_max=LARGE)

    assert "e" not in text.replace('"1e16"', "")
    assert decode(text) == {"n": [number, 0.5, "1e16"]}


@given(st.dictionaries(st.text("ab", max_size=3), IN_64_BITS, min_size=2))
def test_the_same_content_is_the_same_text(value: dict[str, int]) -> None:
    """The order in which a dict was filled does not matter."""
    backwards = dict(reversed(value.items()))

    assert encode(value, bytes_max=LARGE) == encode(backwards, bytes_max=LARGE)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        [float("inf")],
        {"a": {"b": (1, -float("inf"))}},
        Reading(float("nan")),
        [Reading(1.0), Reading(float("inf"))],
    ],
    ids=str,
)
def test_numbers_that_json_has_not(value: object) -> None:
    """NaN and infinity are refused wherever they are, and never become null in silence."""
    with pytest.raises(BadInput, match="NaN"):
        encode(value, bytes_max=LARGE)


def test_null_is_no_number() -> None:
    """None beside numbers is fine, and so is the word."""
    assert decode(encode([None, 1.5, "null"], bytes_max=LARGE)) == [None, 1.5, "null"]
    assert decode(encode(Reading(20.5), bytes_max=LARGE)) == {"celsius": 20.5}


@pytest.mark.parametrize("value", [object(), {1: 2}, "\ud800", {"\ud800": 1}, {(1,): 2}, 1j])
def test_what_json_cannot_say(value: object) -> None:
    """What has no JSON is BadInput before anything is written."""
    with pytest.raises(BadInput):
        encode(value, bytes_max=LARGE)


def test_depth_has_an_end() -> None:
    """A value nested without end is BadInput, not a crash."""
    value: list[Any] = []
    value.append(value)

    with pytest.raises(BadInput):
        encode(value, bytes_max=LARGE)


def nested(depth: int, value: object = "x") -> object:
    """The value in so many lists and dicts."""
    for level in range(depth):
        value = [value, 1] if level % 2 else {"a": value, "b": "]"}
    return value


@pytest.mark.parametrize("value", ["x", "]" * 50, '"[{' * 50, "\\", '\\"', {"[": 1}, [[], {}]])
def test_a_body_has_a_depth(value: object) -> None:
    """Only so many lists and dicts stand in one another, whatever the text in them is."""
    room = NESTING_MAX - (2 if value == [[], {}] else 1 if isinstance(value, dict) else 0)

    assert decode(encode(nested(room, value), bytes_max=LARGE)) == nested(room, value)
    with pytest.raises(BadInput, match=str(NESTING_MAX)):
        encode(nested(room + 1, value), bytes_max=LARGE)


def test_what_is_wide_is_not_deep() -> None:
    """Lists and dicts beside one another are as many as there is room for."""
    wide = [{"a": [n, {"b": "]"}]} for n in range(1000)]

    assert decode(encode(wide, bytes_max=LARGE)) == wide


@pytest.mark.slow
@given(PLAIN, st.integers(0, NESTING_MAX + 5))
def test_the_depth_is_that_of_the_value(value: Any, more: int) -> None:
    """A body is refused exactly if its value is too deep."""
    value = nested(more, value)

    if _depth(value) <= NESTING_MAX:
        assert decode(encode(value, bytes_max=LARGE)) == value
    else:
        with pytest.raises(BadInput, match="deep"):
            encode(value, bytes_max=LARGE)


def _depth(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    parts = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, parts), default=0)


def test_a_body_has_a_size() -> None:
    """The limit counts bytes, not characters, and the message names the setting."""
    assert encode("ä" * 10, bytes_max=22)

    with pytest.raises(TooLarge, match="body_bytes_max"):
        encode("ä" * 10, bytes_max=21)


@pytest.mark.parametrize("name", ["a", " a", "a b", "ä", "🦊", "a" * 20, "a\n", "%s'\"\\"])
def test_names_that_are_fine(name: str) -> None:
    """Any text that all databases keep and compare alike."""
    check_name(name, "a name", chars_max=20)


@pytest.mark.parametrize("name", ["", "a" * 21, "a ", "a\0", "\ud800", " "])
def test_names_that_are_not(name: str) -> None:
    """Empty, too long, ending in a space, with a NUL or half a pair: BadInput, and it says what."""
    with pytest.raises(BadInput, match="a name"):
        check_name(name, "a name", chars_max=20)


@pytest.mark.parametrize("value", ["\0", ["a\0b"], {"a\0": 1}, {"a": {"b": "\0"}}])
def test_nul_is_refused(value: object) -> None:
    """No database keeps NUL in a document; text that only looks like its spelling is kept."""
    with pytest.raises(BadInput, match="NUL"):
        encode(value, bytes_max=1000)

    assert decode(encode("\\u0000", bytes_max=1000)) == "\\u0000"
