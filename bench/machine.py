"""Where and of what a result was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
BYTES_IN_GIB = 2**30


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine, as far as it bears on a figure."""

    processor: str
    cores: int
    memory_gib: int
    kernel: str
    python: str

    def __str__(self) -> str:
        return (
            f"{self.cores} cores of {self.processor}, {self.memory_gib} GiB, {self.kernel},"
            f" Python {self.python}"
        )


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the source; `dirty` if it holds what was not committed."""

    hash: str
    dirty: bool

    def __str__(self) -> str:
        return f"{self.hash[:12]} with changes" if self.dirty else self.hash[:12]


def this_machine() -> Machine:
    """The machine that this runs on."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_gib=round(pages / BYTES_IN_GIB),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def this_commit() -> Commit:
    """What git says of the source; without git or a commit, that there is none."""
    found = _git("rev-parse", "HEAD")
    return Commit(hash=found or "no commit", dirty=bool(_git("status", "--porcelain")))


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - constant arguments
            ["git", "-C", str(ROOT), *arguments],  # noqa: S607 - the user's own git
            check=False,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def versions(packages: Sequence[str]) -> dict[str, str]:
    """The installed version of each package."""
    return {package: version(package) for package in packages}
