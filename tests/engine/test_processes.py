"""Handlers in processes of their own: none of them outlives, or holds up, the process it serves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

PROGRAM = """
import threading
import time

from ledgerstone.engine.executors.processes import Child


def handle(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


if __name__ == "__main__":
    child = Child()
    assert child.call(handle, 0.0) == 0.0
    if {busy}:
        threading.Thread(target=child.call, args=(handle, 1e6), daemon=True).start()
    print("ends", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True])
def test_a_program_that_ends_without_a_word(tmp_path: Path, busy: bool) -> None:
    """A program ends though the process of a handler still lives, at work or not."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(busy=busy), encoding="utf-8")

    ended = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS_MAX,
    )

    assert (ended.returncode, ended.stdout) == (0, "ends\n"), ended.stderr
