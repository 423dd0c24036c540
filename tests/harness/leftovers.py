"""What a failed test leaves behind, named in its report: logs, files, the seed, the tree.

The logs lie under `.leftovers/`, in a folder for each run and in it one for each test that failed.
A run removes the folders of runs that are over.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest

from ledgerstone.testing import server

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".leftovers"
NAME_MAX = 150
GIT_SECONDS_MAX = 60
RUN = "TESTS_RUN"
"""The variable that tells the processes of one run its folder: the id of the first process."""


def pytest_configure(config: pytest.Config) -> None:
    """Remove what runs that are over have left; another run in this clone keeps its own."""
    if hasattr(config, "workerinput"):
        return
    os.environ[RUN] = str(os.getpid())
    for folder in FOLDER.glob("[0-9]*"):
        if not Path("/proc", folder.name).exists():
            shutil.rmtree(folder, ignore_errors=True)


def pytest_runtest_setup() -> None:
    """Servers of the test before are no business of this one."""
    server.forget_ended()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a failure what it takes to look into it, and to see it again."""
    report = yield
    if report.failed:
        report.sections.append(("left behind", "\n".join(_lines(item))))
    return report


def _lines(item: pytest.Item) -> Iterator[str]:
    seed = getattr(item.config.option, "randomly_seed", None)
    words = f"--randomly-seed={seed}" if seed is not None else ""
    yield f"again: .venv/bin/python -m pytest -n 0 {words} {item.nodeid!r}"
    yield f"tree: {_tree()}"
    if isinstance(files := getattr(item, "funcargs", {}).get("tmp_path"), Path):
        yield f"files: {files}"
    folder = FOLDER / os.environ[RUN] / re.sub(r"[^\w.=-]+", "_", item.nodeid)[-NAME_MAX:]
    for number, (name, text) in enumerate(server.logs()):
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f"{name}-{number}.log"
        log.write_text(text, encoding="utf-8")
        yield f"log of {name}: {log.relative_to(ROOT)}"


@cache
def _tree() -> str:
    """The commit, and the files that differ from it."""
    try:
        commit, changed = (
            subprocess.run(
                ["git", *arguments],  # noqa: S607 - the git of whoever runs the tests
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=GIT_SECONDS_MAX,
                check=True,
            ).stdout.strip()
            for arguments in (("rev-parse", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.SubprocessError):
        return "not a git checkout"
    return f"{commit}, changed:\n{changed}" if changed else commit
