"""Failpoints: each name stands in the code, and each in the code has a name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ledgerstone
from ledgerstone import failpoints
from tests.contract.engine.crashes import FAILPOINTS

SOURCES = Path(ledgerstone.__file__).parent


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def test_names_and_places_agree() -> None:
    """Every declared failpoint is somewhere in the code, and no other."""
    placed = {
        name
        for path in SOURCES.rglob("*.py")
        for name in re.findall(r'\bhit\("([^"]+)"\)', path.read_text(encoding="utf-8"))
    }

    assert placed == failpoints.names()


def test_the_crash_contract_kills_at_each_of_the_pump() -> None:
    """No step of the pump is left out of the crash contract."""
    killed = {part.partition("=")[0] for part in FAILPOINTS}

    assert killed >= {name for name in failpoints.names() if name.startswith(("pump", "trans"))}


def test_hit_at_the_count() -> None:
    """It acts when its place is reached for the given time, not before or after."""
    failpoints.arm("pump.ran=fail@2")

    failpoints.hit("pump.ran")
    with pytest.raises(failpoints.FailpointHit):
        failpoints.hit("pump.ran")
    failpoints.hit("pump.ran")


@pytest.mark.parametrize("text", ["pump.nowhere=kill", "pump.ran=explode", "pump.ran"])
def test_nonsense_is_refused(text: str) -> None:
    """A name or an action that does not exist is an error, not a silence."""
    with pytest.raises(ValueError, match="no such failpoint"):
        failpoints.arm(text)
