"""Worker processes of one application: started, listened to, replaced when they die, stopped.

A pipe connects each process with its team. The process reports its counters through the pipe, and
receives the command to stop through it. A broken pipe means that the other side is dead. Signals do
not carry the command: Ctrl-C and service managers signal every process of a group, and the team
must count such a signal once.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import sys
import threading
import time
from contextlib import suppress
from enum import Enum
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, cast

import msgspec

from ledgerstone.cli import end_without_handlers
from ledgerstone.console import logs
from ledgerstone.console.application import loaded
from ledgerstone.console.call import EXIT_REFUSED, EXIT_RETRYABLE
from ledgerstone.engine.source import Source
from ledgerstone.engine.worker import Worker
from ledgerstone.errors import LedgerstoneError
from ledgerstone.jobs.room import JOBS
from ledgerstone.ledger import Ledger
from ledgerstone.messaging.cli.carrying import Relay, relays_of
from ledgerstone.messaging.room import MESSAGING

LOOK_SECONDS = 0.2
"""How often this process looks for signals and for processes to be started."""
TELL_SECONDS = 0.5
"""How often a process tells its counters."""
SAY_SECONDS = 5.0
"""Changes of the counters are said at most so often."""
RESTART_SECONDS = 0.5
RESTART_SECONDS_MAX = 30.0
"""A process that died is replaced after a pause, which doubles from the first to the second."""
STEADY_SECONDS = 60.0
"""A process that lived so long was all right: the next pause is the first again."""
STOP_SECONDS_MARGIN = 15.0
"""The time that a process gets beyond its grace period before it is killed."""
JOIN_SECONDS_MAX = 5.0

_log = logging.getLogger("ledgerstone.work")


class WorkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one worker process."""

    application: str
    queues: tuple[str, ...]
    destinations: tuple[str, ...]
    """Those that lead to the application's consumers."""
    concurrency: int
    level: str
    json: bool
    rooms: tuple[str, ...] = ()
    """Other rooms whose items are worked off, by their names."""

    def sources(self, ledger: Ledger) -> list[Source]:
        """All of it as sources; from now on the ledger's workers have this concurrency."""
        engine = msgspec.structs.replace(ledger.settings.engine, concurrency=self.concurrency)
        ledger.settings = msgspec.structs.replace(ledger.settings, engine=engine)
        jobs = [ledger.job_source(queue) for queue in self.queues]
        others = other_sources(ledger)
        rest = [source for name in self.rooms for source in others[name]]
        return [*jobs, *relays_of(ledger, self.destinations), *rest]


def other_sources(ledger: Ledger) -> dict[str, list[Source]]:
    """What workers claim from besides jobs and messages, by the names of the rooms."""
    found = {
        room.name: list(room.sources(ledger.rooms.opened(room, ledger.database)))
        for room in ledger.rooms
        if room not in (JOBS, MESSAGING)
    }
    return {name: sources for name, sources in found.items() if sources}


class TeamCounters(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of jobs so far, and how many messages consumers have handled."""

    claimed: int = 0
    done: int = 0
    failed: int = 0
    returned: int = 0
    refused: int = 0
    messages: int = 0

    def __add__(self, other: TeamCounters) -> TeamCounters:
        return TeamCounters(
            claimed=self.claimed + other.claimed,
            done=self.done + other.done,
            failed=self.failed + other.failed,
            returned=self.returned + other.returned,
            refused=self.refused + other.refused,
            messages=self.messages + other.messages,
        )

    @property
    def words(self) -> str:
        messages = f", messages {self.messages}" if self.messages else ""
        return (
            f"done {self.done}, failed {self.failed},"
            f" returned {self.returned}, refused {self.refused}{messages}"
        )


class TeamCommand(Enum):
    """The options and settings that a process gets."""

    STOP = "stop"
    NOW = "now"
    """Return everything at once."""


class Team:
    """So many worker processes, of which each that dies is replaced.

    - `run` ends after a signal, when the last process has ended or was killed for taking too long.
    - `counters` counts also what processes did that died, up to what they told last.
    """

    def __init__(self, order: WorkOrder, processes: int, *, grace_seconds: float) -> None:
        self.died = 0
        self._members = [_Member(order, number) for number in range(1, processes + 1)]
        self._gone = TeamCounters()
        self._signals = 0
        self._passed_on = 0
        self._stop_seconds_max = grace_seconds + STOP_SECONDS_MARGIN
        self._kill_at = float("inf")
        self._said = TeamCounters()
        self._said_at = 0.0

    @property
    def counters(self) -> TeamCounters:
        return sum((member.counters for member in self._members), self._gone)

    def run(self) -> None:
        """Keep them at work until a signal, then until they have stopped."""
        before = {number: signal.signal(number, self._signalled) for number in _SIGNALS}
        try:
            while not self._signals or any(member.alive for member in self._members):
                self._pass_on()
                self._start_due()
                self._listen()
                self._bury_dead()
                self._say()
        finally:
            for member in self._members:
                member.kill()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signalled(self, _: int, __: FrameType | None) -> None:
        self._signals += 1

    def _pass_on(self) -> None:
        if self._passed_on == 0 and self._signals:
            _log.info("stopping; a second signal returns what runs at once")
            self._kill_at = time.monotonic() + self._stop_seconds_max
            self._tell(TeamCommand.STOP)
        if self._passed_on <= 1 < self._signals:
            self._tell(TeamCommand.NOW)
        self._passed_on = self._signals
        if time.monotonic() > self._kill_at:
            for member in self._members:
                if member.alive:
                    _log.error("worker process %d did not stop and is killed", member.number)
                    member.kill()

    def _tell(self, word: TeamCommand) -> None:
        for member in self._members:
            member.tell(word)

    def _start_due(self) -> None:
        if self._signals:
            return
        for member in self._members:
            if not member.alive and time.monotonic() >= member.due_at:
                member.start()
                _log.info("worker process %d is pid %d", member.number, member.pid)

    def _listen(self) -> None:
        """Hear who has something to tell, for at most one look."""
        heard = {member.pipe: member for member in self._members if member.pipe is not None}
        if not heard:
            time.sleep(LOOK_SECONDS)
            return
        for pipe in connection.wait(list(heard), LOOK_SECONDS):
            heard[cast("Connection[Any, Any]", pipe)].hear()

    def _bury_dead(self) -> None:
        for member in self._members:
            if member.ended is None:
                continue
            code, pid = member.ended, member.pid
            self._gone += member.bury()
            if self._signals:
                if code not in {0, -signal.SIGTERM}:
                    _log.warning("worker process %d ended %s", member.number, _words(code))
                continue
            self.died += 1
            _log.warning(
                "worker process %d, pid %d, ended %s; it is replaced in %.1f s",
                *(member.number, pid, _words(code), member.pause_seconds),
            )

    def _say(self) -> None:
        now, counters = time.monotonic(), self.counters
        if counters != self._said and now >= self._said_at + SAY_SECONDS:
            _log.info("%s", counters.words)
            self._said, self._said_at = counters, now


class _Member:
    """One place in the team, and the process that has it at the moment."""

    def __init__(self, order: WorkOrder, number: int) -> None:
        self.number = number
        self.counters = TeamCounters()
        self.due_at = float("-inf")
        self.pause_seconds = 0.0
        self.pipe: Connection[Any, Any] | None = None
        self._order = order
        self._process: BaseProcess | None = None
        self._born_at = 0.0
        self._early_deaths = 0

    @property
    def alive(self) -> bool:
        """Whether there is a process that was not buried."""
        return self._process is not None

    @property
    def pid(self) -> int:
        return (self._process.pid or 0) if self._process is not None else 0

    @property
    def ended(self) -> int | None:
        """The exit code of a process that has ended, negative for a signal."""
        return self._process.exitcode if self._process is not None else None

    def start(self) -> None:
        # Not fork: a copy of a process with threads may hold a lock that nobody gives back.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_work,
            args=(self._order, self.number, theirs),
            name=f"ledgerstone-worker-{self.number}",
        )
        # Ctrl-C on a terminal reaches also a process that has not yet come to ignoring it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()
        self._born_at = time.monotonic()

    def tell(self, word: TeamCommand) -> None:
        if self.pipe is not None:
            with suppress(OSError):
                self.pipe.send(word)

    def hear(self) -> None:
        """Take what it told; a broken pipe is left for its burial."""
        try:
            while self.pipe is not None and self.pipe.poll():
                self.counters = self.pipe.recv()
        except (EOFError, OSError):
            self._hang_up()

    def bury(self) -> TeamCounters:
        """Forget the process, and say when another one is due; what it did."""
        self.hear()
        self._hang_up()
        lived = time.monotonic() - self._born_at
        self._early_deaths = 0 if lived >= STEADY_SECONDS else self._early_deaths + 1
        doublings = max(self._early_deaths - 1, 0)
        self.pause_seconds = min(RESTART_SECONDS * 2 ** min(doublings, 30), RESTART_SECONDS_MAX)
        self.due_at = time.monotonic() + self.pause_seconds
        counters, self.counters, self._process = self.counters, TeamCounters(), None
        return counters

    def kill(self) -> None:
        """End it whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.join(JOIN_SECONDS_MAX)

    def _hang_up(self) -> None:
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None


def _words(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _work(order: WorkOrder, number: int, pipe: Connection[Any, Any]) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    log = partial(logs.to_stderr, level=order.level, json=order.json, process=f"worker {number}")
    log()
    try:
        with loaded(order.application) as ledger:
            # After the import: the application may have set up logging itself.
            log(application=True)
            # One process at a time writes such a store: the first of the team does its duties.
            stores = ledger.store_duties() if number == 1 else []
            worker = ledger.worker(*order.sources(ledger), stores=stores)
            _CommandListener(pipe, worker).open()
            worker.run(look=lambda _: _tell(pipe, worker), look_seconds=TELL_SECONDS, signals=())
            _tell(pipe, worker)
        end_without_handlers(0)
    except LedgerstoneError as error:
        _log.error("%s: %s", error.code, error)
        sys.exit(EXIT_RETRYABLE if error.retryable else EXIT_REFUSED)


def _tell(pipe: Connection[Any, Any], worker: Worker) -> None:
    relays = [pump.source for pump in worker.pumps if isinstance(pump.source, Relay)]
    tallies = [pump.counters for pump in worker.pumps if not isinstance(pump.source, Relay)]
    with suppress(OSError):
        pipe.send(
            TeamCounters(
                claimed=sum(counters.claimed for counters in tallies),
                done=sum(counters.done for counters in tallies),
                failed=sum(counters.failed for counters in tallies),
                returned=sum(counters.returned for counters in tallies),
                refused=sum(counters.refused for counters in tallies),
                messages=sum(relay.counters.delivered for relay in relays),
            )
        )


class _CommandListener:
    """Hears in a worker process what its team tells, and counts every way of saying stop once."""

    def __init__(self, pipe: Connection[Any, Any], worker: Worker) -> None:
        self._pipe = pipe
        self._worker = worker
        self._stopping = False

    def open(self) -> None:
        """Hear from now on, also while the worker begins."""
        signal.signal(signal.SIGTERM, lambda _, __: self._stop())
        threading.Thread(target=self._listen, name="ledgerstone-ears", daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                word = self._pipe.recv()
            except (EOFError, OSError):
                self._stop()
                return
            self._stop()
            if word is TeamCommand.NOW:
                self._worker.ask_to_stop()

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._worker.ask_to_stop()


_SIGNALS = (signal.SIGTERM, signal.SIGINT)
