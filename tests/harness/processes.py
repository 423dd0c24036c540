"""Real worker processes: started, killed with -9, paused and continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Self

import msgspec

from ledgerstone import failpoints
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.harness.forks import PipedFork, preload

preload("tests.harness.traffic", "psycopg", "pymysql", "pysqlite3", "pika")


class WorkerProcess:
    """One worker in a process of its own; as a context manager it is gone at the end.

    `forked`: it begins at once, as a copy of one that has imported everything.
    """

    def __init__(
        self,
        url: str,
        program: str,
        *,
        settings: Mapping[str, object] | None = None,
        failpoint: str | None = None,
        arguments: tuple[str, ...] = (),
        forked: bool = True,
    ) -> None:
        environment = dict(os.environ)
        # Not as an argument: it may hold a password, and everyone sees arguments.
        environment["LEDGERSTONE_URL"] = url
        for name, value in (settings or {}).items():
            environment[f"LEDGERSTONE_{name.upper()}"] = str(value)
        if failpoint is not None:
            environment[failpoints.VARIABLE] = failpoint
        start = _forked if forked else _started
        self._process = start(program, list(arguments), environment)
        self.worker = ""
        self._said: Queue[str | None] = Queue()
        self._complained: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_said, daemon=True),
            threading.Thread(target=self._read_complained, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None while it lives."""
        return self._process.poll()

    @property
    def alive(self) -> bool:
        return self.exit_code is None

    def ready(self) -> str:
        """Wait until it works; its worker id."""
        self.worker = str(self._hear("ready", WAIT_SECONDS_MAX))
        return self.worker

    def report(self) -> dict[str, Any]:
        """Wait for the report of one that was told to stop."""
        report: dict[str, Any] = self._hear("report", WAIT_SECONDS_MAX)
        return report

    def kill(self) -> None:
        """-9, and wait until it is gone."""
        if self.alive:
            self._process.kill()
        self.wait()

    def pause(self) -> None:
        """SIGSTOP: it does not notice that time passes."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM: stop in good order."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = WAIT_SECONDS_MAX) -> int:
        """Until it has ended; its exit code, negative for a signal."""
        code = self._process.wait(seconds)
        for reader in self._readers:
            reader.join(WAIT_SECONDS_MAX)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        return code

    @property
    def complaints(self) -> str:
        """What it wrote to stderr so far."""
        return "".join(self._complained)

    def _hear(self, word: str, seconds: float) -> Any:
        try:
            line = self._said.get(timeout=seconds)
        except Empty:
            line = None
        if line is None:
            message = f"the worker did not say {word!r}:\n{self.complaints}"
            raise AssertionError(message)
        return msgspec.json.decode(line)[word]

    def _read_said(self) -> None:
        for line in self._process.stdout or ():
            self._said.put(line)
        self._said.put(None)

    def _read_complained(self) -> None:
        self._complained.extend(self._process.stderr or ())


def _forked(program: str, words: list[str], environment: dict[str, str]) -> PipedFork:
    return PipedFork(_run, program, words, environment=environment)


def _started(program: str, words: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    path = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-m", program, *words],
        env=environment | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(program: str, words: list[str]) -> None:
    """In the new process: be the program."""
    sys.argv = [program, *words]
    import_module(program).main()


def stopped(worker: WorkerProcess) -> bool:
    """Whether it stands still."""
    return stands_still(worker.pid)


def stands_still(pid: int) -> bool:
    """Whether the process was stopped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] == "T"
