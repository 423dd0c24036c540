"""Failed messages: what needs no database."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerstone.engine.source import Failure
from ledgerstone.messaging.failed.failed import lane_of, partition_in
from ledgerstone.messaging.failed.rows import (
    RAW_DEPTH_MAX,
    TRACEBACK_CHARS_MAX,
    Raw,
    made,
    row_of,
)
from ledgerstone.messaging.message import PARTITION_CHARS_MAX

FAILURE = Failure("bad_input", "no JSON")
AT = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
consumers = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=190)
partitions = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=200).filter(
    lambda text: not text.endswith(" ")
)


@given(consumer=consumers, partition=partitions)
def test_there_and_back(consumer: str, partition: str) -> None:
    """The lane of a retry fits its column, and leads back to the partition."""
    lane = lane_of(consumer, partition)

    assert len(lane) <= PARTITION_CHARS_MAX
    assert partition_in(lane, consumer) == partition


def test_lanes_of_consumers_are_apart() -> None:
    """Retries for different consumers do not wait for each other."""
    long = "x" * 180

    assert lane_of("mailer", "ann") != lane_of("biller", "ann")
    assert lane_of(f"{long}a", "p" * 100) != lane_of(f"{long}b", "p" * 100)


def test_not_a_lane_of_this_consumer() -> None:
    """What is no lane of the consumer is the partition itself."""
    assert partition_in("ann/7", "mailer") == "ann/7"


@given(body=st.binary(max_size=200), headers=st.dictionaries(st.text(), st.binary() | st.text()))
def test_any_bytes(body: bytes, headers: dict[str, bytes | str]) -> None:
    """Whatever arrived, its bytes are kept, in text that every database takes."""
    raw = Raw(body=body, headers=headers)

    text, about = row_of(raw, consumer="", failure=FAILURE, attempts=0, origin="orders")

    assert "\0" not in text + about
    kept = made((1, about, None, text), "here", AT)
    assert (kept.raw, kept.message, kept.code) == (body, None, "bad_input")


@pytest.mark.parametrize("headers", ["", "oops", "[]", '{"type": ""}', "null"])
def test_rows_that_make_no_sense(headers: str) -> None:
    """A row of others that cannot be read is shown all the same, with what is wrong with it."""
    kept = made((7, headers, None, "{}"), "here", AT)

    assert (kept.id, kept.name, kept.message) == (7, "unreadable", None)
    assert kept.reason


def test_what_is_kept_has_an_end() -> None:
    """Of a traceback the end is kept, and of headers within headers the outer ones."""
    deep: dict[str, object] = {}
    for _ in range(100):
        deep = {"deep": deep}
    failure = Failure("LookupError", "no such order", "x" * TRACEBACK_CHARS_MAX + "the end")

    text, about = row_of(
        Raw(body=b"a\0b", headers=deep), consumer="", failure=failure, attempts=0, origin="orders"
    )

    kept = made((1, about, None, text), "here", AT)
    assert kept.traceback is not None
    assert len(kept.traceback) == TRACEBACK_CHARS_MAX
    assert kept.traceback.endswith("the end")
    assert kept.headers["X-Ledgerstone-Raw"].count('"deep"') == RAW_DEPTH_MAX
    assert ("\0" in text, kept.raw) == (False, b"a\0b")
