"""Runs of pytest that are forked: each in its own tree, and none beyond its time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.runs import Runs

TESTS = """
import threading
from of_the_tree import NUMBER

def test_number():
    assert NUMBER == 1

def test_endless():
    threading.Event().wait()
"""
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:ledgerstone", "test_it.py", "-k")


@pytest.mark.slow
def test_each_runs_in_its_tree(tmp_path: Path) -> None:
    """A run imports what lies in its tree; its exit code and its output are those of pytest."""
    right, wrong = tree(tmp_path / "right", 1), tree(tmp_path / "wrong", 2)

    with Runs(()) as runs:
        passed = runs.run(right, [*OPTIONS, "number"], os.environ)
        failed = runs.run(wrong, [*OPTIONS, "number"], os.environ)
        endless = runs.run(right, [*OPTIONS, "endless"], os.environ, seconds_max=0.01)

    assert (passed[0], failed[0], endless[0]) == (0, 1, None)
    assert "1 passed" in passed[1]
    assert "assert 2 == 1" in failed[1]


def tree(folder: Path, number: int) -> Path:
    """A tree with a module and a test that looks at it."""
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "of_the_tree.py").write_text(f"NUMBER = {number}\n")
    (folder / "test_it.py").write_text(TESTS)
    return folder
