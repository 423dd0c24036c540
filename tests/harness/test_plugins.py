"""What a run tells at its end: what a failure has left, the verdicts, and a test that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import threading

def test_kept(record_property):
    record_property("orders", 7)

def test_broken():
    assert 1 == 2

def test_hangs():
    threading.Event().wait()
"""


@pytest.mark.slow
def test_a_failure_and_a_verdict(tmp_path: Path) -> None:
    """A failure names the command that repeats it and the commit; each test has a verdict."""
    said = _run(tmp_path, "-n", "0", "-k", "kept or broken")

    assert "again: .venv/bin/python -m pytest -n 0" in said
    assert "tree: " in said
    assert "kept " in said
    assert "7 orders" in said
    assert "BROKEN" in said
    assert "1 of 2 kept their promises" in said


@pytest.mark.slow
def test_a_test_that_hangs_is_named(tmp_path: Path) -> None:
    """A test beyond the limit ends its process; the run goes on and names it."""
    limit = ["-o", "faulthandler_timeout=1", "-o", "faulthandler_exit_on_timeout=true"]

    said = _run(tmp_path, "-n", "1", *limit, "-k", "kept or hangs")

    assert "crashed while running 'test_it.py::test_hangs'" in said
    assert "1 failed, 1 passed" in said


def _run(folder: Path, *options: str) -> str:
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    plugins = ["-p", "tests.harness.leftovers", "-p", "tests.harness.verdicts", "-p", "no:randomly"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:ledgerstone", *plugins, *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return ended.stdout
