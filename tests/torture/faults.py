"""What is done to an application, its database and its network while it works."""

from __future__ import annotations

import os
import pwd
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

from ledgerstone.testing.servers import PrivateMariaDB, PrivatePostgres
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.harness.drivers import connect
from tests.harness.processes import WorkerProcess
from tests.harness.proxy import Proxy
from tests.torture.shop import CLOCK

LEASE_SECONDS = 3
CALL_SECONDS = 5
"""What a call of a worker may take: a third of a lease, and at least so long."""
STOP_SECONDS_MAX = WAIT_SECONDS_MAX
LOST_ANSWERS = 8
HOUR_MS = 3_600_000
COMMITS = {"postgresql": (b"COMMIT", b"S\x00\x00\x00\x04"), "mysql": (b"COMMIT",)}
"""What a commit is on the wire; what ends a trip to PostgreSQL commits what came with it."""
HELD = "SELECT id FROM job WHERE status = 'running' LIMIT 3"

Server = PrivatePostgres | PrivateMariaDB


class Faults:
    """The faults that there are on one kind of database, each by its name.

    - `start` starts a worker in place of one that has ended.
    - Each leaves everything in working order again, and every process that was stopped goes on.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        start: Callable[[], WorkerProcess],
        workers: list[WorkerProcess],
        server: Server | None,
        proxy: Proxy | None,
        dice: random.Random,
    ) -> None:
        self._url, self._folder = url, folder
        self._start, self.workers = start, workers
        self._server, self._proxy, self._dice = server, proxy, dice
        self._kind = url.partition(":")[0]
        self._wrong_ms = 0

    @property
    def names(self) -> list[str]:
        """Those that there are here."""
        names = ["kill", "pause", "terminate", "hold", "clock", "full"]
        if self._server is not None:
            names += ["kill_server", "pause_server", "cut", "silence", "lose_commits"]
        return names

    def kill(self) -> None:
        """A worker is killed with -9."""
        self._one().kill()
        self._replace()

    def terminate(self) -> None:
        """A worker is told to end, and ends in good order."""
        worker = self._one()
        worker.terminate()
        code = worker.wait(STOP_SECONDS_MAX)
        assert code == 0, f"SIGTERM: exit code {code}\n{worker.complaints}"
        self._replace()

    def pause(self) -> None:
        """A worker stands still for longer than its lease."""
        worker = self._one()
        worker.pause()
        _wait(LEASE_SECONDS * 2)
        worker.resume()

    def hold(self) -> None:
        """Somebody's transaction holds the file, or rows of jobs that run, and stays open."""
        connection = connect(self._url)
        cursor = connection.cursor()
        if self._kind == "postgresql":
            cursor.execute("SET search_path TO public, ledgerstone")
        if self._kind == "sqlite":
            cursor.execute("BEGIN IMMEDIATE")
        else:
            cursor.execute(HELD)
            for (job,) in sorted(cursor.fetchall()):
                cursor.execute(f"SELECT id FROM job WHERE id = '{job}' FOR UPDATE")  # noqa: S608
        _wait(LEASE_SECONDS * 1.5)
        connection.rollback()
        connection.close()

    def clock(self) -> None:
        """Every clock is set an hour ahead, and back again."""
        self._wrong_ms += HOUR_MS
        self._set_clock()
        _wait(LEASE_SECONDS)
        self._wrong_ms -= HOUR_MS
        self._set_clock()

    def go_ahead(self) -> None:
        """Set every clock ahead for good: what was due when clocks were wrong is due."""
        if (self._folder / CLOCK).exists():
            self._wrong_ms += 2 * HOUR_MS
            self._set_clock()

    def full(self) -> None:
        """No file that is written here can grow for a while, as on a disk that is full."""
        if self._server is None:
            with _no_growth([worker.pid for worker in self.workers], _bytes_of(self._url)):
                _wait(LEASE_SECONDS)
            return
        with _no_growth(_processes_in(self._server.folder), _largest_in(self._server.folder)):
            _wait(LEASE_SECONDS)
        self.kill_server()

    def kill_server(self) -> None:
        """The database server is killed with -9 and comes back."""
        assert self._server is not None
        self._server.kill()
        self._server.restart()

    def pause_server(self) -> None:
        """The database server stands still for longer than a call may take."""
        assert self._server is not None
        self._server.pause()
        _wait(CALL_SECONDS + 2)
        self._server.resume()

    def cut(self) -> None:
        """Every connection is closed, three times."""
        assert self._proxy is not None
        for _ in range(3):
            self._proxy.cut()
            _wait(0.3)

    def silence(self) -> None:
        """Packets vanish, for longer than a call may take."""
        assert self._proxy is not None
        self._proxy.silence()
        _wait(CALL_SECONDS + 2)
        self._proxy.speak()

    def lose_commits(self) -> None:
        """The server commits, and its answer is lost."""
        assert self._proxy is not None
        before = self._proxy.lost
        self._proxy.lose_answers(LOST_ANSWERS, *COMMITS[self._kind])
        for _ in range(100):
            if self._proxy.lost >= before + LOST_ANSWERS:
                return
            _wait(0.1)
        self._proxy.lose_answers(0)

    def _one(self) -> WorkerProcess:
        self._dice.shuffle(self.workers)
        return self.workers[-1]

    def _replace(self) -> None:
        self.workers[-1] = self._start()

    def _set_clock(self) -> None:
        # Renamed into place: no process reads half of it.
        new = self._folder / f"{CLOCK}.new"
        new.write_text(str(self._wrong_ms))
        new.rename(self._folder / CLOCK)


@contextmanager
def _no_growth(pids: list[int], bytes_max: int) -> Iterator[None]:
    """No file of these processes grows beyond so much; a write that would, fails."""
    _limit(pids, bytes_max)
    try:
        yield
    finally:
        _limit(pids, "unlimited")


def _limit(pids: list[int], bytes_max: int | str) -> None:
    """Limit the files of processes, as the user that they belong to: nobody else may."""
    for pid in pids:
        with suppress(FileNotFoundError):
            user = Path(f"/proc/{pid}").stat().st_uid
            other = user != os.geteuid()
            # One that has just ended, or is about to become another user's, is left alone.
            subprocess.run(
                ["/usr/bin/prlimit", f"--pid={pid}", f"--fsize={bytes_max}:"],
                check=False,
                timeout=WAIT_SECONDS_MAX,
                stderr=subprocess.DEVNULL,
                cwd="/",
                user=user if other else None,
                group=pwd.getpwuid(user).pw_gid if other else None,
            )


def _bytes_of(url: str) -> int:
    file = Path(url.removeprefix("sqlite:///"))
    log = file.with_name(file.name + "-wal")
    return max(each.stat().st_size for each in (file, log) if each.exists())


def _processes_in(folder: Path) -> list[int]:
    """The server whose files are there, and its children."""
    parents = {pid: parent for pid, parent, _ in _processes()}
    heads = [pid for pid, _, words in _processes() if str(folder) in words]
    return [pid for pid in parents if pid in heads or parents[pid] in heads]


def _processes() -> Iterator[tuple[int, int, str]]:
    for each in Path("/proc").iterdir():
        if not each.name.isdigit() or int(each.name) == os.getpid():
            continue
        with suppress(OSError, ValueError):
            stat = (each / "stat").read_text()
            words = (each / "cmdline").read_bytes().decode(errors="replace")
            yield int(each.name), int(stat.rpartition(")")[2].split()[1]), words


def _largest_in(folder: Path) -> int:
    """The size of the largest file that is no log of fixed size."""
    sizes = [1 << 16]
    for each in folder.rglob("*"):
        with suppress(OSError):
            if each.is_file() and "wal" not in str(each) and "logfile" not in each.name:
                sizes.append(each.stat().st_size)
    return max(sizes)


def _wait(seconds: float) -> None:
    Event().wait(seconds)


def resume(workers: list[WorkerProcess]) -> None:
    """Whatever happened: none stands still."""
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGCONT)
