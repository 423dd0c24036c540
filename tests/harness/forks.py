"""Processes that begin at once: forked from one that has imported what they need.

Most of what a short program does is to import. A test process has one helper (the fork server of
`multiprocessing`) that imports once and has no threads; every process here is a copy of it, and is
killed, stopped and waited for like any other.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from ledgerstone import failpoints

_STANDARD = (0, 1, 2)
_preloaded: list[str] = []
_forks = multiprocessing.get_context("forkserver")


def preload(*modules: str) -> None:
    """What every process has imported from now on; too late once there was one."""
    _preloaded.extend(modules)
    _forks.set_forkserver_preload(_preloaded)


class Fork:
    """`function(*arguments)` in a process of its own, in a folder (this one) and an environment.

    What it reads (nothing, if not said), says and complains of goes by the descriptors `stdin`,
    `stdout` and `stderr`; they stay open here.
    """

    def __init__(
        self,
        function: Callable[..., None],
        *arguments: object,
        environment: Mapping[str, str],
        stdout: int,
        stderr: int,
        stdin: int | None = None,
        folder: Path | None = None,
    ) -> None:
        with Path(os.devnull).open() as nothing:
            streams = _Streams((nothing.fileno() if stdin is None else stdin, stdout, stderr))
            self._process = _forks.Process(
                target=_begin,
                args=(function, arguments, dict(environment), streams, folder or Path.cwd()),
            )
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it lives."""
        return self._process.exitcode

    def wait(self, seconds_max: float) -> int:
        """Until it has ended; its exit code."""
        self._process.join(seconds_max)
        code = self._process.exitcode
        if code is None:
            message = f"process {self.pid} still runs after {seconds_max:g} s"
            raise TimeoutError(message)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Signal it, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class PipedFork(Fork):
    """One that is talked to: what it reads, says and complains of are streams of text here."""

    def __init__(
        self, function: Callable[..., None], *arguments: object, environment: Mapping[str, str]
    ) -> None:
        (asked, ask), (say, said), (complain, complained) = (os.pipe() for _ in _STANDARD)
        try:
            super().__init__(
                function,
                *arguments,
                environment=environment,
                stdin=asked,
                stdout=said,
                stderr=complained,
            )
        finally:
            for theirs in (asked, said, complained):
                os.close(theirs)
        self.stdin = os.fdopen(ask, "w")
        self.stdout = os.fdopen(say)
        self.stderr = os.fdopen(complain)

    def close(self) -> None:
        """Close the streams."""
        for stream in (self.stdin, self.stdout, self.stderr):
            # The other side may be gone while a word to it still waits.
            with suppress(BrokenPipeError):
                stream.close()


class _Streams:
    """Descriptors, on their way into another process."""

    def __init__(self, descriptors: tuple[int, ...]) -> None:
        self.descriptors = descriptors

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, tuple(DupFd(each) for each in self.descriptors)


def _received(*sent: Any) -> _Streams:
    return _Streams(tuple(each.detach() for each in sent))


def _begin(
    function: Callable[..., None],
    arguments: tuple[object, ...],
    environment: dict[str, str],
    streams: _Streams,
    folder: Path,
) -> None:
    # What was imported before the fork stays: looking through it would copy its memory.
    gc.freeze()
    for ours, standard in zip(streams.descriptors, _STANDARD, strict=True):
        os.dup2(ours, standard)
        os.close(ours)
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    failpoints.arm(environment.get(failpoints.VARIABLE, ""))
    os.chdir(folder)
    function(*arguments)
