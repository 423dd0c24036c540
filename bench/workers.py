"""Worker processes: started first, idle, held still while the backlog is made, then let go.

A process that is stopped by SIGSTOP does not notice that time passes, so every side has the whole
backlog before it from the first moment, as after a night without workers, with everything loaded,
connected and warm. It is stopped only outside of transactions.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic_ns, perf_counter, sleep
from typing import Any, Self

from bench.measure import END_SECONDS_MAX
from bench.side import Looked, Side

READY_SECONDS_MAX = 60.0
REHEARSAL = 50
REHEARSALS_MAX = 40
IDLE_SECONDS = 0.2
PAUSES_MAX = 100
LOOK_SECONDS = 0.002
LOOK_CLOSELY_SECONDS = 0.001
STOPPED = {"T", "t"}
_PR_SET_PDEATHSIG = 1
_AFTER_NAME_STATE, _AFTER_NAME_UTIME, _AFTER_NAME_STIME = 0, 11, 12


class Workers:
    """So many workers of a side on a database; as a context manager they are gone at the end.

    - `rehearse` returns when each has done something and all of it is finished.
    - `pause` holds them still, `resume` lets them go.
    - `finish` waits until so many are finished, those of the rehearsal included.
    - Whichever wait it is: it has a limit, and a worker that dies ends it at once.
    """

    def __init__(
        self,
        side: Side,
        url: str,
        count: int,
        *,
        stamps: bool = False,
        rehearsal: int = REHEARSAL,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._side = side
        self._url = url
        self._rehearsal = rehearsal
        self._counts = context.RawArray("Q", count)
        self._processes = []
        self.pipes: list[Connection[Any, Any]] = []
        """Where `stamps` are wanted, each worker sends the moment at which a piece began."""
        for slot in range(count):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (side, url, self._counts, slot, theirs if stamps else None)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(END_SECONDS_MAX)
        for pipe in self.pipes:
            pipe.close()

    @property
    def counted(self) -> int:
        """How many pieces have begun."""
        return sum(self._counts)

    def rehearse(self, looked: Looked) -> int:
        """Send a few until each worker has done one; how many that were."""
        deadline = perf_counter() + READY_SECONDS_MAX
        sent = 0
        for _ in range(REHEARSALS_MAX):
            sent += self._rehearsal
            self._side.fill(self._url, self._rehearsal)
            self._until(lambda: self.counted >= sent and not looked(), deadline, LOOK_SECONDS)  # noqa: B023 - called at once
            if all(self._counts):
                sleep(IDLE_SECONDS)
                return sent
        message = f"{self._side.name}: one of the workers did nothing of {sent}"
        raise RuntimeError(message)

    def pause(self, quiet: Callable[[], bool]) -> None:
        """Stop them all, at a moment when none is in a transaction."""
        for _ in range(PAUSES_MAX):
            self._signal(signal.SIGSTOP)
            deadline = perf_counter() + END_SECONDS_MAX
            self._until(self._all_stopped, deadline, LOOK_SECONDS)
            if quiet():
                return
            self._signal(signal.SIGCONT)
            # Not sooner: within a tenth of a second MariaDB says the same again.
            sleep(IDLE_SECONDS)
        message = f"{self._side.name}: a worker that has nothing to do is always in a transaction"
        raise RuntimeError(message)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def finish(self, total: int, looked: Looked, *, seconds_max: float) -> None:
        """Until so many have begun and none is left unfinished in the database."""
        deadline = perf_counter() + seconds_max
        # Nobody asks the database before it can be true: that would be work beside the work.
        self._until(lambda: self.counted >= total, deadline, LOOK_SECONDS)
        self._until(lambda: not looked(), deadline, LOOK_CLOSELY_SECONDS)

    @property
    def cpu_seconds(self) -> float:
        """What they have used of the processor so far, all together."""
        ticks = 0
        for process in self._processes:
            fields = _fields(process.pid)
            ticks += int(fields[_AFTER_NAME_UTIME]) + int(fields[_AFTER_NAME_STIME])
        return ticks / os.sysconf("SC_CLK_TCK")

    def check(self) -> None:
        """Raise if one has died."""
        for process in self._processes:
            if process.exitcode is not None:
                message = (
                    f"{self._side.name}: a worker ended with {process.exitcode};"
                    " what it said is above"
                )
                raise RuntimeError(message)

    def _until(self, reached: Callable[[], bool], deadline: float, pause: float) -> None:
        while not reached():
            self.check()
            if perf_counter() > deadline:
                message = f"{self._side.name}: only {self.counted} were begun in time"
                raise TimeoutError(message)
            sleep(pause)

    def _all_stopped(self) -> bool:
        return all(
            _fields(process.pid)[_AFTER_NAME_STATE] in STOPPED for process in self._processes
        )

    def _signal(self, number: signal.Signals) -> None:
        self.check()
        for process in self._processes:
            assert process.pid is not None
            os.kill(process.pid, number)


def _fields(pid: int | None) -> list[str]:
    """What the kernel says of a process, after its name, which may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _work(side: Side, url: str, counts: Any, slot: int, pipe: Connection[Any, Any] | None) -> None:
    """One worker, until it is killed; also when its parent is."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    lock = threading.Lock()

    def note(count: int = 1, /) -> None:
        # Some sides call it from several threads.
        with lock:
            counts[slot] += count

    def stamp(count: int = 1, /) -> None:
        began = monotonic_ns()
        note(count)
        if pipe is not None:
            pipe.send(began)

    side.work(url, stamp if pipe is not None else note)
