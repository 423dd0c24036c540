"""The real command in a process of its own: run to its end, or started and talked to.

Most of what a short command does is to import. So a process is a copy of one that has imported
everything, unless what Python itself does at the start or at the end is what a test is about.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Self

import msgspec

from ledgerstone.cli import main
from ledgerstone.cli.program import COMMANDS
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX, until
from tests.harness.forks import Fork, preload

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 80
COMMAND = [sys.executable, "-m", "ledgerstone"]
WITHOUT_OVERRIDE = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Starts a Python for which the mode of a file counts, also when the tests are run by root."""


preload(*(place.partition(":")[0] for place in COMMANDS.values()), "tests.cli.warmed")


class Ended(msgspec.Struct, frozen=True):
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document, without the database that every command adds at its end."""
        found = msgspec.json.decode(self.out)
        if isinstance(found, dict) and list(found)[-1] == "url":
            del found["url"]
        return found

    @property
    def database(self) -> str:
        """The database that the command says that it worked on."""
        if self.out.startswith("{"):
            return str(msgspec.json.decode(self.out)["url"])
        (line,) = [line for line in self.err.splitlines() if line.startswith("database: ")]
        return line.removeprefix("database: ")


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
        self.command = COMMAND
        self._forked = True

    def obey_modes(self) -> None:
        """From now on it runs as a user for whom the mode of a file counts."""
        self.command = [sys.executable, "-c", WITHOUT_OVERRIDE, "-m", "ledgerstone"]
        self._forked = False

    def be_a_module(self) -> None:
        """From now on it is called as `python -m ledgerstone`, without a program on the path."""
        self.command = [sys.executable, "-m", "ledgerstone"]
        self.environment["PATH"] = os.defpath
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
            everything = self.environment | environment
            return run_forked(be_the_command, words, environment=everything, folder=self.folder)
        done = subprocess.run(
            [*self.command, *words],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS_MAX,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

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
            timeout=WAIT_SECONDS_MAX,
            check=False,
        )
        os.close(theirs)
        os.close(ours)
        return Ended(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: object, **environment: str) -> Running:
        """Start it, with its output in a pipe."""
        return self._started(arguments, environment, terminal=False)

    def show(self, *arguments: object, **environment: str) -> Running:
        """Start it on a terminal."""
        seen = {"TERM": "xterm-256color"} | environment
        return self._started(arguments, seen, terminal=True)

    def _started(
        self, arguments: tuple[object, ...], environment: dict[str, str], *, terminal: bool
    ) -> Running:
        words = [str(argument) for argument in arguments]
        everything = self.environment | environment
        # One that starts processes of its own needs a main module that they can import.
        forked = self._forked and self.command == COMMAND and "--processes" not in words

        def begin(output: int) -> Fork | subprocess.Popen[bytes]:
            given = output if terminal else subprocess.DEVNULL
            if not forked:
                return subprocess.Popen(
                    [*self.command, *words],
                    cwd=self.folder,
                    env=everything,
                    stdin=given,
                    stdout=output,
                    stderr=output,
                )
            return Fork(
                be_the_command,
                words,
                environment=everything,
                folder=self.folder,
                stdin=output if terminal else None,
                stdout=output,
                stderr=output,
            )

        return Running(begin, terminal=terminal)


def run_forked(
    function: Callable[..., None],
    *arguments: object,
    environment: Mapping[str, str],
    folder: Path,
) -> Ended:
    """Run a function to its end, in a process that has imported what a command needs."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        fork = Fork(
            function,
            *arguments,
            environment=environment,
            folder=folder,
            stdout=out.fileno(),
            stderr=err.fileno(),
        )
        try:
            code = fork.wait(WAIT_SECONDS_MAX)
        finally:
            fork.kill()
        out.seek(0)
        err.seek(0)
        return Ended(code, out.read(), err.read())


def be_the_command(words: list[str]) -> None:
    """In the new process."""
    open_streams()
    sys.argv = ["ledgerstone", *words]
    main()


def open_streams() -> None:
    """In a new process: buffered by what they are now, which may be a terminal."""
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)


class Running:
    """A command that runs; as a context manager it is gone at the end."""

    def __init__(
        self, begin: Callable[[int], Fork | subprocess.Popen[bytes]], *, terminal: bool
    ) -> None:
        ours, theirs = pty.openpty() if terminal else os.pipe()
        self._process = begin(theirs)
        os.close(theirs)
        self._heard = bytearray()
        stream = os.fdopen(ours, "rb", 0)
        # Nobody waits for it at the end: a process that outlived the command may hold the pipe.
        self._listener = threading.Thread(target=self._listen, args=(stream,), daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(WAIT_SECONDS_MAX)
        self._listener.join(WAIT_SECONDS_MAX)

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
            until(look)
        assert self.said.count(words) >= times, f"no {words!r} in: {self.said}"

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def resume(self) -> None:
        """Let it go on after it was stopped."""
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        """Wait for the end; its exit code."""
        code = self._process.wait(WAIT_SECONDS_MAX)
        self._listener.join(WAIT_SECONDS_MAX)
        return code

    def _listen(self, stream: IO[bytes]) -> None:
        with stream:
            try:
                while piece := stream.read(65_536):
                    self._heard += piece
            except OSError:
                # A terminal whose other side is closed answers so, and not with an end.
                return
