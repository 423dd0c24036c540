"""The walks of ARCHITECTURE.md name files and functions that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/ledgerstone"
_WALK = re.compile(r"^## The way of one \w+$.*?(?=^## )", re.MULTILINE | re.DOTALL)
_STEP = re.compile(r"`([\w/]+\.py)`(?:\s+`(\w+)`)?")


def test_every_step_of_a_walk_is_there() -> None:
    """Each file that a walk names exists, and defines the function that is named with it."""
    walks = _WALK.findall((ROOT / "ARCHITECTURE.md").read_text())
    steps = [step for walk in walks for step in _STEP.findall(walk)]

    missing = [
        (path, name)
        for path, name in steps
        if not (PACKAGE / path).is_file()
        or (name and f"def {name}(" not in (PACKAGE / path).read_text())
    ]

    assert len(walks) == 2
    assert len(steps) > 30
    assert missing == []
