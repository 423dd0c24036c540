"""`tools/prepare.py`: what `make` does before anything else."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ledgerstone.signing.rocksdb import library
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
SECONDS_MAX = WAIT_SECONDS_MAX
NEVER_MADE = f"no-such-package-of-ledgerstone==1.0 --hash=sha256:{'0' * 64}\n"


def prepare(root: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, root / "tools" / "prepare.py", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=os.environ | environment,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout in which nothing was prepared, and whose lock names what nobody has."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "prepare.py", tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "constraints.txt").write_text(NEVER_MADE)
    return tmp_path


def test_what_cannot_be_fetched_is_one_line(tree: Path) -> None:
    """Without a registry it ends in one line that says what to do, and the next run starts over."""
    first = prepare(tree, PIP_NO_INDEX="1")
    second = prepare(tree, PIP_NO_INDEX="1")

    for ended in (first, second):
        assert ended.returncode == 1
        assert "installing 1 locked packages" in ended.stdout
        assert ended.stderr.splitlines()[-1] == (
            "prepare: cannot install the locked packages: nothing could be fetched; "
            "check the network or the proxy, and run again"
        )
        assert "Traceback" not in ended.stderr


def test_missing_servers_are_named(tree: Path) -> None:
    """Where it may not install, it says which line would, before any test runs."""
    pretend_prepared(tree)
    nowhere = tree / "nowhere"
    nowhere.mkdir()

    ended = prepare(tree, "--servers", PATH=str(nowhere))

    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("prepare: the tests need ")
    assert "as root, apt-get install --no-install-recommends " in line
    assert "mariadb-client-core" in line


def test_a_missing_library_is_named(tree: Path) -> None:
    """Where the library of RocksDB is missing, the package that has it is named."""
    forget_library(tree)
    pretend_prepared(tree)
    nowhere = tree / "nowhere"
    nowhere.mkdir()

    ended = prepare(tree, "--servers", PATH=str(nowhere))

    assert ended.returncode == 1
    assert "libnobodyhasthis.so" in ended.stderr
    assert "librocksdb7.8" in ended.stderr


def test_a_missing_library_stops_nothing(tree: Path) -> None:
    """What does not need RocksDB goes on without it, after one line."""
    forget_library(tree)
    code = "import prepare; prepare.offer_library(); print('went on')"
    nowhere = tree / "nowhere"
    nowhere.mkdir()

    ended = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=tree / "tools",
        env=os.environ | {"PATH": str(nowhere)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )

    (line,) = ended.stderr.splitlines()
    assert line.startswith("prepare: signing needs the library of RocksDB: as root, apt-get ")
    assert ended.stdout == "went on\n"


def test_the_library_is_looked_for_under_the_same_names(tree: Path) -> None:
    """Preparing and loading agree on the files and the package of RocksDB."""
    code = "import prepare; print(prepare.LIBRARY_PACKAGE, *prepare.LIBRARY_FILES)"

    said = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=tree / "tools",
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    ).stdout

    assert said.split() == [library.DEBIAN_PACKAGE, *library.FILE_NAMES]


def test_nothing_to_do_is_said_by_nothing(tree: Path) -> None:
    """A prepared tree is left alone, in silence; one that changed is not taken for prepared."""
    pretend_prepared(tree)

    silent = prepare(tree)
    (tree / "constraints.txt").write_text(NEVER_MADE + "\n")
    changed = prepare(tree, PIP_NO_INDEX="1")

    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "", "")
    assert "making .venv" in changed.stdout


def test_two_at_once_take_turns(tree: Path) -> None:
    """One that finds another at work says so and waits for it."""
    pretend_prepared(tree)
    with (tree / "constraints.txt").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = subprocess.Popen(
            [sys.executable, tree / "tools" / "prepare.py"], stdout=subprocess.PIPE, text=True
        )
        assert waiting.stdout is not None
        said = waiting.stdout.readline()
        still = waiting.poll()

    with waiting:
        assert said == "prepare: waiting for another prepare to finish\n"
        assert still is None
        assert waiting.wait(SECONDS_MAX) == 0


def forget_library(tree: Path) -> None:
    """Let the tool look for a library that no system has."""
    tool = tree / "tools" / "prepare.py"
    tool.write_text(tool.read_text().replace('"librocksdb.so', '"libnobodyhasthis.so'))


def pretend_prepared(tree: Path) -> None:
    """The stamp of a finished run, written by the tool's own words."""
    (tree / ".venv" / "bin").mkdir(parents=True)
    (tree / ".venv" / "bin" / "python").touch()
    code = "import prepare; prepare.STAMP.write_text('\\n'.join(prepare._stamp()) + '\\n')"
    folder = tree / "tools"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, timeout=SECONDS_MAX)
