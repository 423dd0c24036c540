"""Processes that die at a failpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ledgerstone import failpoints

TOP = Path(__file__).parents[2]


def started(code: list[str], *, failpoint: str | None = None) -> subprocess.Popen[bytes]:
    """A Python process that dies at a failpoint."""
    environment = {name: value for name, value in os.environ.items() if "FAILPOINT" not in name}
    environment["PYTHONPATH"] = f"{TOP}:{TOP / 'src'}"
    if failpoint is not None:
        environment[failpoints.VARIABLE] = failpoint
    return subprocess.Popen(
        [sys.executable, *code], cwd=TOP, env=environment, stdout=subprocess.PIPE
    )
