"""The real command in a process of its own: run to its end, or started and talked to."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Self

import msgspec

from ledgerstone.cli import main
from ledgerstone.cli.program import COMMANDS
from ledgerstone.testing.forks import Fork, preload
from ledgerstone.testing.waiting import until

ROOT = Path(__file__).resolve().parents[2]
RUN_SECONDS_MAX = 120
SAY_SECONDS_MAX = 60.0
COLUMNS = 80
WITHOUT_OVERRIDE = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Starts a Python for which the mode of a file counts, also when the tests are run by root."""


preload(*(place.partition(":")[0] for place in COMMANDS.values()))


class Ended(msgspec.Struct, frozen=True):
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)


class Program:
    """`ledgerstone`, called in a folder, with an environment that knows nothing of the caller's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "SSL_CERT_FILE": os.environ["SSL_CERT_FILE"],
            "PYTHONPATH": str(ROOT / "src"),
            "TMPDIR": str(folder),
            "COLUMNS": str(COLUMNS),
        }
        self.command = [sys.executable, "-m", "ledgerstone"]
        self._forked = True

    def obey_modes(self) -> None:
        """From now on it runs as a user for whom the mode of a file counts."""
        self.command = [sys.executable, "-c", WITHOUT_OVERRIDE, "-m", "ledgerstone"]
        self._forked = False

    def hide(self, module: str) -> None:
        """From now on it runs where the module is not installed."""
        folder = self.folder.parent / "hidden"
        folder.mkdir(exist_ok=True)
        missing = f"raise ModuleNotFoundError('No module named {module}', name={module!r})\n"
        (folder / f"{module}.py").write_text(missing)
        self.environment["PYTHONPATH"] = f"{folder}:{self.environment['PYTHONPATH']}"
        self._forked = False

    def run(self, *arguments: object, **environment: str) -> Ended:
        """Run it to its end."""
        words = [str(argument) for argument in arguments]
        if self._forked:
            return self._fork(words, self.environment | environment)
        done = subprocess.run(
            [*self.command, *words],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def _fork(self, words: list[str], environment: dict[str, str]) -> Ended:
        with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
            fork = Fork(
                _be_the_command,
                words,
                environment=environment,
                folder=self.folder,
                stdout=out.fileno(),
                stderr=err.fileno(),
            )
            try:
                code = fork.wait(RUN_SECONDS_MAX)
            finally:
                fork.kill()
            out.seek(0)
            err.seek(0)
            return Ended(code, out.read(), err.read())

    def answered(self, answer: str, *arguments: object) -> Ended:
        """Run it on a terminal at which somebody types."""
        ours, theirs = pty.openpty()
        os.write(ours, f"{answer}\n".encode())
        done = subprocess.run(
            [*self.command, *map(str, arguments)],
            cwd=self.folder,
            env=self.environment,
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
        os.close(theirs)
        os.close(ours)
        return Ended(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: object, **environment: str) -> Running:
        """Start it, with its output in a pipe."""
        command = [*self.command, *map(str, arguments)]
        return Running(command, self.folder, self.environment | environment, terminal=False)

    def show(self, *arguments: object, **environment: str) -> Running:
        """Start it on a terminal."""
        command = [*self.command, *map(str, arguments)]
        seen = {"TERM": "xterm-256color"}
        return Running(command, self.folder, self.environment | seen | environment, terminal=True)


def _be_the_command(words: list[str]) -> None:
    """In the new process."""
    sys.argv = ["ledgerstone", *words]
    main()


class Running:
    """A command that runs; as a context manager it is gone at the end."""

    def __init__(
        self, command: list[str], folder: Path, environment: dict[str, str], *, terminal: bool
    ) -> None:
        ours, theirs = pty.openpty() if terminal else os.pipe()
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=theirs if terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._heard = bytearray()
        self._listener = threading.Thread(target=self._listen, args=(os.fdopen(ours, "rb", 0),))
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def said(self) -> str:
        """What it wrote so far."""
        return self._heard.decode(errors="replace")

    def says(self, words: str, times: int = 1) -> None:
        """Wait until it has written the words."""

        def look() -> bool:
            over = self._process.poll() is not None and not self._listener.is_alive()
            return self.said.count(words) >= times or over

        with suppress(AssertionError):
            until(look, seconds_max=SAY_SECONDS_MAX)
        assert self.said.count(words) >= times, f"no {words!r} in: {self.said}"

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        """Wait for the end; its exit code."""
        code = self._process.wait(RUN_SECONDS_MAX)
        self._listener.join(RUN_SECONDS_MAX)
        return code

    def _listen(self, stream: IO[bytes]) -> None:
        with stream:
            try:
                while piece := stream.read(65_536):
                    self._heard += piece
            except OSError:
                # A terminal whose other side is closed answers so, and not with an end.
                return
