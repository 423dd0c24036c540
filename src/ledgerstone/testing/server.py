"""Private servers for tests: what each promises, and the machine they all run on."""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from ledgerstone.errors import BadInput, LedgerstoneError, NotAllowedNow
from ledgerstone.testing import supervisor
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

HOST = "127.0.0.1"
# A broker takes its time on a machine that is busy, also where tests are to fail soon.
START_SECONDS_MAX = max(120.0, WAIT_SECONDS_MAX)
KILL_SECONDS_MAX = PAUSE_SECONDS_MAX = QUERY_SECONDS_MAX = WAIT_SECONDS_MAX
CONNECT_SECONDS_MAX = 5
LOOK_EVERY_SECONDS = 0.01
LOG_TAIL_LINES_MAX = 30
LOG_TAIL_BYTES_MAX = 16_384
LOG_BYTES_MAX = 1024**2
LOGS_KEPT_MAX = 8
PORT_MIN = 10_240
PORT_TRIES_MAX = 100
DATABASE_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# Servers refuse to run as root, and every Linux has this user.
UNPRIVILEGED_USER = "nobody"
ENVIRONMENT_KEPT = ("PATH", "LD_LIBRARY_PATH")
MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - a fresh folder of our own is made in it
MEMORY_BYTES_MIN = 4 * 1024**3
PROGRAM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec")
STARTED = "%s answered after %.2f s"
"""The message of the log record for each start of a server."""

logger = logging.getLogger("ledgerstone.testing")


class ServerMissing(LedgerstoneError):
    """Run the line that the hint gives, then start the server again."""

    code = "server_missing"

    def __init__(self, what: str, *, install: str) -> None:
        super().__init__(f"{what} was not found", hint=f"install it with: {install}")
        self.what = what
        self.install = install


class ServerFailed(LedgerstoneError):
    """Read the server's own words in the message: a taken port, a wrong setting, a full disk."""

    code = "server_failed"

    def __init__(self, message: str, *, log_tail: str = "") -> None:
        super().__init__(f"{message}\n{log_tail}" if log_tail else message)
        self.log_tail = log_tail


class Server(Protocol):
    """A server that belongs to the tests: its own folder, processes and port, on 127.0.0.1 only.

    - `start()` returns when the server answers. It raises `ServerMissing` when the server is not
      installed and `ServerFailed`, with the tail of the server's log, when it does not come up.
    - `stop()` leaves no process and no folder. Stopping twice is fine.
    - `kill()` cuts the power: SIGKILL to every process at once. Folder and port are kept.
    - `restart()` brings a killed server back on the same port and the same data.
    - `pause()` freezes every process: connections stay open and nothing answers. `resume()` goes on
      where it stopped.
    - As a context manager it is started on entry and stopped on exit.
    - When the Python process that started it dies, even by SIGKILL, the server dies with it.
    """

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def folder(self) -> Path: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def restart(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *raised: object) -> None: ...


class DatabaseServer(Server, Protocol):
    """A private server that keeps SQL databases.

    - `create_database()` returns the URL of a new database: empty, or a copy of `template`, which
      nobody may be using.
    - `drop_database()` removes it even while connections to it are open; a missing one is fine.
    """

    def create_database(self, name: str, *, template: str | None = None) -> str: ...
    def drop_database(self, name: str) -> None: ...


def free_port() -> int:
    """A port nobody listens on, outside the range that the kernel gives to outgoing connections.

    Inside that range a client could take the port of a killed server before it is back. It is given
    to nobody else while this process lives: a server may take seconds to listen on it.
    """
    ephemeral_min = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]
    ports = range(PORT_MIN, int(ephemeral_min))
    # Never from a seed: test runs side by side with the same seed would want the same port.
    tried = random.SystemRandom().sample(ports, min(len(ports), PORT_TRIES_MAX))
    # Port 0 is the kernel's own choice, for a machine whose ephemeral range leaves nothing else.
    for port in (*tried, 0):
        if (bound := _bound(port)) and _reserved(bound):
            return bound
    raise ServerFailed(f"no free port was found on {HOST}")


def _bound(port: int) -> int | None:
    with socket.socket() as candidate:
        try:
            candidate.bind((HOST, port))
        except OSError:
            return None
        return int(candidate.getsockname()[1])


def _reserved(port: int) -> bool:
    """Whether the port is ours from now on: the name for it was free on this machine."""
    reservation = socket.socket(socket.AF_UNIX)
    try:
        # A name that is no file: it is free again when this process ends, however it ends.
        reservation.bind(f"\0ledgerstone-port-{port}")
    except OSError:
        reservation.close()
        return False
    reservation.detach()
    return True


def database_name(name: str) -> str:
    """The name, if it needs no quoting in any database."""
    if not DATABASE_NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} cannot be a database's name",
            hint="a-z, 0-9 and _, no digit first, at most 63 characters",
        )
    return name


def find_program(name: str, *, folders: Iterable[Path] = (), install: str) -> Path:
    """The program in the first of the folders that has it; without folders, the one on PATH."""
    searched = [str(folder) for folder in folders]
    searched = searched or [*os.get_exec_path(), *PROGRAM_FOLDERS]
    found = shutil.which(name, path=os.pathsep.join(searched))
    if found is None:
        raise ServerMissing(name, install=install)
    return Path(found)


def ask(
    command: Iterable[object], *, environment: Mapping[str, str] | None = None, told: str = ""
) -> str:
    """The output of a client program with this input; `ServerFailed` in its words when it fails."""
    arguments = [str(argument) for argument in command]
    try:
        answer = subprocess.run(
            arguments,
            env=_clean_environment() | dict(environment or {}),
            input=told,
            capture_output=True,
            text=True,
            timeout=QUERY_SECONDS_MAX,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise ServerFailed(f"{arguments[0]}: no answer within {QUERY_SECONDS_MAX} s") from None
    except subprocess.CalledProcessError as refused:
        raise ServerFailed(f"{arguments[0]}: {refused.stderr.strip()}") from None
    return answer.stdout.strip()


def _clean_environment() -> dict[str, str]:
    """The environment of a program: a PGHOST or MYSQL_HOME of the user must not matter."""
    kept = {name: os.environ[name] for name in ENVIRONMENT_KEPT if name in os.environ}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}


def memory_is_plenty() -> bool:
    """Whether files of servers, which may be programs, can be kept in memory."""
    if not MEMORY_FOLDER.is_dir():
        return False
    kept = os.statvfs(MEMORY_FOLDER)
    room = kept.f_bavail * kept.f_frsize >= MEMORY_BYTES_MIN
    return room and not kept.f_flag & os.ST_NOEXEC


class Machine:
    """The folder and the processes of one server; every private server runs on its own.

    - `assembly()` makes the folder, and removes it again when the block fails.
    - `run()` runs one command to its end, `boot()` starts the server and waits until it answers.
    - Both run as an unprivileged user when the tests run as root, under a supervisor.
    - `forgetful`: nobody needs its files after a power cut. They are kept in memory, if there is
      plenty: databases that come and go are slow on some file systems.
    """

    def __init__(self, name: str, *, start_seconds_max: float, forgetful: bool = False) -> None:
        self.name = name
        self.forgetful = forgetful
        self.start_seconds_max = start_seconds_max
        self._folder: Path | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._owned = True
        _known.add(self)

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process: it can reach the server, and cannot end it."""
        return self.__dict__ | {"_supervisor": None, "_owned": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _known.add(self)

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise NotAllowedNow(f"{self.name} is not started")
        return self._folder

    @contextlib.contextmanager
    def assembly(self) -> Iterator[None]:
        if self._folder is not None:
            raise NotAllowedNow(f"{self.name} is started already")
        place = MEMORY_FOLDER if self.forgetful and memory_is_plenty() else None
        self._folder = Path(tempfile.mkdtemp(prefix=f"ledgerstone-{self.name}-", dir=place))
        self._give_away(self._folder)
        try:
            yield
        except BaseException:
            self.stop()
            raise

    def write(self, name: str, text: str, *, mode: int = 0o600) -> Path:
        """Write a file that the server's user owns."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(mode)
        self._give_away(path)
        return path

    def lend(self, tree: Path) -> Path:
        """The tree itself, or a copy in the folder when the server's user cannot get to it."""
        if _user() is None or all(part.stat().st_mode & 0o001 for part in (tree, *tree.parents)):
            return tree
        copy = self.folder / tree.name
        shutil.copytree(tree, copy, symlinks=True)
        for path in (copy, *copy.rglob("*")):
            self._give_away(path)
        return copy

    def _give_away(self, path: Path) -> None:
        if user := _user():
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)

    def run(self, command: Iterable[object], environment: Mapping[str, str] | None = None) -> None:
        running = self._spawn(command, environment)
        try:
            code = running.wait(self.start_seconds_max)
        except BaseException as interrupted:
            self.kill()
            if isinstance(interrupted, subprocess.TimeoutExpired):
                raise self._failure(f"was not prepared within {self.start_seconds_max} s") from None
            raise
        if code != 0:
            raise self._failure(f"could not be prepared (exit code {code})")
        # Successful steps would only push the server's own words out of the tail.
        self._log().unlink()

    def boot(
        self,
        command: Iterable[object],
        environment: Mapping[str, str] | None = None,
        *,
        answers: Callable[[], bool],
    ) -> None:
        began = time.monotonic()
        running = self._spawn(command, environment)
        try:
            self._wait_until(answers, running)
            logger.info(STARTED, self.name, time.monotonic() - began)
        except BaseException:
            self.kill()
            raise

    def _spawn(
        self, command: Iterable[object], environment: Mapping[str, str] | None
    ) -> subprocess.Popen[bytes]:
        if self._running():
            raise NotAllowedNow(f"{self.name} is running already")
        home = {"HOME": str(self.folder), "TMPDIR": str(self.folder)}
        user = _user()
        with self._log().open("ab") as log:
            self._supervisor = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", supervisor.__file__),
                    *(str(os.getpid()), str(self.folder), user.pw_name if user else ""),
                    *(str(argument) for argument in command),
                ],
                env=_clean_environment() | home | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the tests; they end the server themselves.
                start_new_session=True,
            )
        return self._supervisor

    def _wait_until(self, answers: Callable[[], bool], running: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self.start_seconds_max
        while time.monotonic() < deadline:
            if running.poll() is not None:
                raise self._failure(f"exited with {running.returncode} before it answered")
            if answers():
                return
            time.sleep(LOOK_EVERY_SECONDS)
        raise self._failure(f"did not answer within {self.start_seconds_max} s")

    def _failure(self, what: str) -> ServerFailed:
        return ServerFailed(f"{self.name} {what}; its log ends with:", log_tail=self._log_tail())

    def _log(self) -> Path:
        return self.folder / "server.log"

    def log_text(self, bytes_max: int = LOG_BYTES_MAX) -> str:
        """The end of what the server wrote; nothing if it never wrote or is gone."""
        if self._folder is None or not self._log().exists():
            return ""
        with self._log().open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - bytes_max))
            return log.read().decode(errors="replace")

    def _log_tail(self) -> str:
        lines = self.log_text(LOG_TAIL_BYTES_MAX).splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES_MAX:])

    def pause(self) -> None:
        supervised = self._required()
        supervisor.freeze(supervised)
        deadline = time.monotonic() + PAUSE_SECONDS_MAX
        while not set(supervisor.descendants(supervised).values()) <= {"T", "t"}:
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} was not frozen within {PAUSE_SECONDS_MAX} s")
            time.sleep(LOOK_EVERY_SECONDS)

    def resume(self) -> None:
        for pid in supervisor.descendants(self._required()):
            supervisor.send(pid, signal.SIGCONT)

    def kill(self) -> None:
        deadline = time.monotonic() + KILL_SECONDS_MAX
        while (running := self._running()) and time.monotonic() < deadline:
            # Again until the supervisor has reaped all and left: it may not have spawned yet.
            supervisor.kill_tree(running.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(LOOK_EVERY_SECONDS)
        if running:
            raise ServerFailed(f"{self.name} could not be killed within {KILL_SECONDS_MAX} s")

    def stop(self) -> None:
        if not self._owned:
            raise NotAllowedNow(f"{self.name} belongs to the process that started it")
        self.kill()
        if self._folder is not None:
            _ended.append((self.name, self.log_text()))
            shutil.rmtree(self._folder)
            self._folder = None

    def _running(self) -> subprocess.Popen[bytes] | None:
        running = self._supervisor
        return running if running and running.poll() is None else None

    def _required(self) -> int:
        if running := self._running():
            return running.pid
        raise NotAllowedNow(f"{self.name} is not running")


_known: weakref.WeakSet[Machine] = weakref.WeakSet()
_ended: deque[tuple[str, str]] = deque(maxlen=LOGS_KEPT_MAX)


def logs() -> list[tuple[str, str]]:
    """Name and log of the servers that this process knows, and of those that it stopped last."""
    running = [(machine.name, machine.log_text()) for machine in list(_known)]
    return [(name, text) for name, text in [*running, *_ended] if text]


def forget_ended() -> None:
    """Keep no logs of servers that were stopped until now."""
    _ended.clear()


def _user() -> pwd.struct_passwd | None:
    return pwd.getpwnam(UNPRIVILEGED_USER) if os.geteuid() == 0 else None
