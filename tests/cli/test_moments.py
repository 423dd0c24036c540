"""Moments as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ledgerstone.console import moments
from ledgerstone.errors import BadInput


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("90s", timedelta(seconds=90)),
        ("30m", timedelta(minutes=30)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        ("0s", timedelta()),
    ],
)
def test_so_long_ago(text: str, ago: timedelta) -> None:
    """A number and its unit is so long before now."""
    before = datetime.now(UTC)
    found = moments.given_or_ago("--since", text)
    after = datetime.now(UTC)

    assert found is not None
    assert before - ago <= found <= after - ago


def test_an_exact_moment() -> None:
    """A moment with its zone is taken as it is, and none as none."""
    text = "2027-01-31T09:00:00+01:00"

    assert moments.given_or_ago("--since", text) == datetime(2027, 1, 31, 8, tzinfo=UTC)
    assert moments.given_or_ago("--since", None) is None


@pytest.mark.parametrize("text", ["", "7", "7w", "-7d", "7 d", "soon", "2027-01-31"])
def test_what_is_no_moment(text: str) -> None:
    """What is neither is refused by the name of its option."""
    with pytest.raises(BadInput, match="--since"):
        moments.given_or_ago("--since", text)
