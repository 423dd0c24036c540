"""A script in a process of its own."""

from __future__ import annotations

import os
import signal
import sys
from typing import Self

import pytest

from ledgerstone import failpoints
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.harness.forks import PipedFork
from tests.harness.processes import stands_still


class Child:
    """A script in a process of its own: when it has said `ready` it waits until it is told to go.

    As a context manager it is gone at the end.
    """

    def __init__(self, script: str, *arguments: object, failpoint: str | None = None) -> None:
        environment = {
            name: value for name, value in os.environ.items() if name != failpoints.VARIABLE
        }
        if failpoint is not None:
            environment[failpoints.VARIABLE] = failpoint
        words = [str(argument) for argument in arguments]
        self._process = PipedFork(_follow, script, words, environment=environment)

    def __enter__(self) -> Self:
        line = self._process.stdout.readline()
        if line != "ready\n":
            self._process.kill()
            pytest.fail(f"the process said {line!r}:\n{self._process.stderr.read()}")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(WAIT_SECONDS_MAX)
        self._process.close()

    def go(self) -> None:
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def stopped(self) -> bool:
        """Whether it stands still."""
        return self.alive and stands_still(self._process.pid)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def ended(self) -> tuple[int, str]:
        """Its exit code, negative for a signal, and what it said."""
        code = self._process.wait(WAIT_SECONDS_MAX)
        sys.stderr.write(self._process.stderr.read())
        return code, self._process.stdout.read().strip()


def _follow(script: str, words: list[str]) -> None:
    """In the new process: do what the script says."""
    sys.argv = ["-c", *words]
    exec(script, {"__name__": "__main__", "ready": _ready, "sys": sys})  # noqa: S102 - the test's own


def _ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
