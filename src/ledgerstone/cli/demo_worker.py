"""The worker processes of the demonstration, and the one type of job that they run.

    LEDGERSTONE_URL=URL python -m ledgerstone.cli.demo_worker QUEUE

A worker writes its id to stdout when it has begun, and works until it is told to stop.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Self

from ledgerstone.console import logs
from ledgerstone.engine.executors.processes import die_with_parent
from ledgerstone.errors import StoreUnavailable
from ledgerstone.ledger import Ledger

TYPE = "ledgerstone.demo"


class DemoWorker:
    """One worker process; as a context manager it is gone at the end."""

    def __init__(self, url: str, queue: str, settings: Mapping[str, object]) -> None:
        own = {f"LEDGERSTONE_{name.upper()}": str(value) for name, value in settings.items()}
        path = os.pathsep.join(each for each in sys.path if each)
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", __name__, queue],
            # The URL is no argument: it may hold a password, and everyone sees arguments.
            env={**os.environ, **own, "LEDGERSTONE_URL": url, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self) -> str:
        """Wait until it works; its worker id."""
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            message = f"worker process {self.pid} ended before it began"
            raise StoreUnavailable(message, hint="its log above says why")
        return line.strip()

    def kill(self) -> None:
        """-9, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: it does not notice that time passes. Returns when it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM: stop in good order."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self._process.wait()


def take_a_moment(item: int, take_ms: int) -> int:
    """The handler: it takes the time that the item says."""
    time.sleep(take_ms / 1000)
    return item


def main() -> None:
    """Work until a signal."""
    (queue,) = sys.argv[1:]
    # A demonstration that is killed leaves no worker behind.
    die_with_parent()
    with Ledger() as ledger:
        logs.to_stderr(level=ledger.settings.log.level)
        ledger.job(TYPE, queue=queue)(take_a_moment)
        worker = ledger.worker(ledger.job_source(queue))
        worker.run(started=lambda: _say(worker.id))


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
