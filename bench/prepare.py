"""Install what only the benchmarks need into the environment that runs them.

    python -m bench.prepare

Every benchmark calls `ensure` first: where nothing is missing, nothing is done and nothing is said.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
INSTALL_SECONDS_MAX = 1800
LINES_SHOWN_MAX = 12


def ensure() -> None:
    """Install the locked packages unless they are all there."""
    absent = missing()
    if not absent:
        return
    print(f"prepare: the benchmarks need {', '.join(absent)}", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-input", "--require-hashes", "--requirement", str(REQUIREMENTS)]
    try:
        done = subprocess.run(  # noqa: S603 - our own list
            command, check=False, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX
        )
    except subprocess.TimeoutExpired:
        sys.exit(f"prepare: pip did not end within {INSTALL_SECONDS_MAX} s; run again")
    if done.returncode != 0:
        for line in done.stderr.strip().splitlines()[-LINES_SHOWN_MAX:]:
            print(f"  {line}", file=sys.stderr)
        sys.exit("prepare: the packages of bench/requirements.txt could not be installed")


def missing() -> list[str]:
    """The locked packages that are not installed in a version of the lock."""
    wanted: dict[str, set[str]] = {}
    pins = re.findall(r"^([\w.-]+)==(\S+)", REQUIREMENTS.read_text(), flags=re.MULTILINE)
    for name, pin in pins:
        # A package may be locked in several versions, one for each range of Pythons.
        wanted.setdefault(name, set()).add(pin)
    return [name for name, allowed in wanted.items() if _installed(name) not in allowed]


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    ensure()
