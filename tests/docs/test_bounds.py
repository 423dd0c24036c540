"""The numbers in the documents are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgerstone.engine.outcomes import TRACEBACK_CHARS_MAX, TRACEBACK_LINE_CHARS_MAX
from ledgerstone.engine.pump import WAITING_AHEADS_MAX
from ledgerstone.store.sql.json_body import NESTING_MAX

JOBS = Path(__file__).parents[2] / "docs" / "explanation" / "jobs.md"
IN_WORDS = {4: "four"}


@pytest.mark.parametrize(
    "words",
    [
        f"nested more than {NESTING_MAX} deep",
        f"at most {TRACEBACK_CHARS_MAX:,} characters",
        f"lines of at most {TRACEBACK_LINE_CHARS_MAX:,}",
        f"for a place {IN_WORDS[WAITING_AHEADS_MAX]} times as long",
    ],
)
def test_bounds_of_jobs(words: str) -> None:
    """Each bound that the page of jobs names is the one that holds."""
    assert words in " ".join(JOBS.read_text(encoding="utf-8").split())
