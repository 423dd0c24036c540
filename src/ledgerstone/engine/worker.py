"""A worker: the pumps, the heartbeat and the duties of one process on one database.

SIGTERM or SIGINT: stop claiming, let handlers finish within the grace period, return the rest with
their attempts refunded. A second one: return everything at once. Whatever the handlers and the
network do, it ends: after the grace period, `engine.notice_seconds` and STOP_CALLS_SECONDS.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from ledgerstone.engine.counters import Tick
from ledgerstone.engine.duties import Duties, Duty
from ledgerstone.engine.heartbeat import Heartbeat
from ledgerstone.engine.pump import Pump
from ledgerstone.engine.quarantine import Quarantine
from ledgerstone.engine.source import Source, Work
from ledgerstone.engine.store_duties import StoreDuties
from ledgerstone.engine.worker_rows import ALIVE_SECONDS, WorkerReport, prune, sign_in, sign_off
from ledgerstone.errors import LedgerstoneError
from ledgerstone.ids import new_id

if TYPE_CHECKING:
    from ledgerstone.settings import EngineSettings
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

TIME_SECONDS = 0.1
"""How often timeouts and claims that wait for a place are looked at."""
KEEP_SECONDS = 0.25
"""How often duties are looked at."""
PRUNE_SECONDS = 60.0
BEATS_LATE = 2
"""After so many heartbeats without an answer a worker knows nothing about others, for as long."""
JOIN_SECONDS_MAX = 5.0
CALL_SECONDS_MIN = 5.0
"""What a call to the database may take at least, however short leases are."""
STOP_CALLS_SECONDS = 5.0
"""How long a worker that stops goes on with calls to the database, after its handlers."""
STOPPING_SECONDS = 0.1
"""How often a worker that stops looks whether its handlers have finished."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)

V = TypeVar("V")

_log = logging.getLogger("ledgerstone.engine")


class Worker:
    """Does the work of some sources.

    - `run` works until it is told to stop; `start` and `stop` do so from another thread.
    - `tick` does one bounded step of everything in the calling thread, for tests.
    - Each start of a process is a worker of its own: its id is new, its host and pid are notes.
    - `stores` are the duties of other stores than its database.
    """

    def __init__(
        self,
        database: Database[Any],
        sources: Sequence[Source | Work],
        settings: EngineSettings,
        *,
        duties: Sequence[Duty] = (),
        stores: Sequence[StoreDuties[Any]] = (),
    ) -> None:
        self.id = new_id()
        self._settings = settings
        self._handlers_database = database
        # A worker that is paused in a transaction must not hold its items for longer than a lease.
        idle = math.ceil(settings.lease_seconds)
        self._database = database.sibling(
            connections=2 * len(sources) + 3,
            idle_seconds_max=idle,
            call_seconds_max=max(settings.lease_seconds / 3, CALL_SECONDS_MIN),
        )
        self._watcher = self._database.watcher()
        # Not an event: a signal may come while this thread holds its lock.
        self._news: SimpleQueue[None] = SimpleQueue()
        self._signals = 0
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._reporting = threading.Lock()
        self._beaten_at = float("inf")
        self._late_at = float("-inf")
        self._quarantine = Quarantine(self._say, database.clock.monotonic)
        self.pumps = [self._pump(source) for source in sources]
        self._heartbeat = Heartbeat(self._database, self.pumps, settings)
        self._duties = Duties(self._database, [*self._own_duties(), *duties])
        self._stores = stores
        self._all_duties: list[Duties | StoreDuties[Any]] = [self._duties, *stores]

    def run(
        self,
        *,
        started: Callable[[], None] = lambda: None,
        look: Callable[[bool], None] = lambda _stopping: None,
        look_seconds: float = 1.0,
        signals: Sequence[signal.Signals] = SIGNALS,
    ) -> None:
        """Work until a signal, `stop` from elsewhere, or an error that waiting cannot help.

        `started` is called when it has begun; `look` every so often, with whether it is stopping.
        Whoever handles signals in its place gives none, and calls `ask_to_stop`.
        """
        before = {number: signal.signal(number, self._signalled) for number in signals}
        try:
            self.start()
            started()
            while not self._signals and not self._stop.is_set() and self.failure is None:
                look(False)
                self._news_within(look_seconds)
            self.stop(look=look)
        finally:
            self.stop(grace_seconds=0)
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.failure is not None:
            raise self.failure

    def ask_to_stop(self) -> None:
        """As a signal would: once, and handlers finish; twice, and they are returned at once."""
        self._signals += 1
        self._news.put(None)

    def start(self) -> None:
        """Begin, in threads of its own."""
        self._report()
        if self._watcher is not None:
            self._watcher.start()
        for pump in self.pumps:
            pump.start()
        self._beaten_at = perf_counter()
        self._spawn("heartbeat", self._beat_and_report, self._beat_seconds)
        # Not together with duties: these wait for the database.
        self._spawn("timer", self._look_at_the_time, TIME_SECONDS)
        self._spawn("keeper", self._duties.tick, KEEP_SECONDS)
        for number, store in enumerate(self._stores, 1):
            # In a thread for each: a store that waits keeps no other one waiting.
            self._spawn(f"keeper-{number}", partial(_keep, store), 0.0)

    def stop(
        self,
        grace_seconds: float | None = None,
        *,
        look: Callable[[bool], None] = lambda _stopping: None,
    ) -> None:
        """Stop claiming, let handlers finish, return the rest, and sign off."""
        if self._stop.is_set():
            return
        grace = self._settings.grace_seconds if grace_seconds is None else grace_seconds
        for pump in self.pumps:
            pump.stop_claiming()
        self._await_handlers(grace, look)
        for pump in self.pumps:
            pump.interrupt()
        for pump in self.pumps:
            pump.await_notice()
        # Whatever the network does: what is not settled by then is rescued when its lease is over.
        self._database.deadline.end_within(STOP_CALLS_SECONDS)
        for pump in self.pumps:
            pump.stop()
        for pump in self.pumps:
            pump.close()
        # Until here leases were kept alive.
        self._stop.set()
        self._news.put(None)
        for thread in self._threads:
            thread.join(JOIN_SECONDS_MAX)
        if self._watcher is not None:
            self._watcher.stop()
        try:
            self._database.run(lambda tx: sign_off(tx, self.id, self.report()))
        except LedgerstoneError as error:
            _log.warning("could not sign off: %s", error)
        self._database.close()

    def tick(self, limit: int | None = None) -> list[Tick]:
        """One bounded step of everything, here: duties, then each pump."""
        for duties in self._all_duties:
            duties.tick()
        return [pump.tick(limit) for pump in self.pumps]

    def beat(self) -> int:
        """One heartbeat, here; how many claims were extended."""
        return self._heartbeat.beat()

    def report(self) -> WorkerReport:
        """What it does and did, for people."""
        return WorkerReport(
            sources={pump.source.name: pump.counters for pump in self.pumps},
            running=sum(pump.running for pump in self.pumps),
            waiting=sum(pump.waiting for pump in self.pumps),
            prompt=self._prompt(),
            duties=_of_all(duties.done for duties in self._all_duties),
            duty_troubles=_of_all(duties.trouble for duties in self._all_duties),
            types={
                pump.source.name: list(types)
                for pump in self.pumps
                if (types := getattr(pump.source, "types", None)) is not None
            },
            crashes_max=self._settings.crashes_max,
            begun=self._quarantine.begun,
            locked=self._heartbeat.locked,
            beat_seconds=self._beat_seconds,
        )

    @property
    def failure(self) -> BaseException | None:
        """What ended a pump or another loop, if something did."""
        if self._failure is not None:
            return self._failure
        return next((pump.failure for pump in self.pumps if pump.failure is not None), None)

    @property
    def abandoned(self) -> int:
        """Handlers that were told to stop and still run."""
        return sum(pump.abandoned for pump in self.pumps)

    def _pump(self, source: Source | Work) -> Pump:
        return Pump(
            source,
            self._database,
            self._settings,
            worker=self.id,
            quarantine=self._quarantine,
            handlers_database=self._handlers_database,
            prompt=self._prompt,
            on_failure=lambda: self._news.put(None),
        )

    def _own_duties(self) -> list[Duty]:
        every = self._settings.rescue_seconds
        return [
            *(
                Duty(f"rescue:{pump.source.name}", every, self._rescuing(pump))
                for pump in self.pumps
                if not isinstance(pump.source, Work)
            ),
            Duty("prune:workers", PRUNE_SECONDS, prune),
        ]

    def _rescuing(self, pump: Pump) -> Callable[[Transaction], int]:
        def rescue(tx: Transaction) -> int:
            return pump.rescue(tx) if self._is_steady() else 0

        return rescue

    def _is_steady(self) -> bool:
        """Whether it could renew its own claims all the while.

        If not, perhaps nobody could: others are not judged by theirs until they had time to.
        """
        now, late = perf_counter(), BEATS_LATE * self._beat_seconds
        return now - self._beaten_at <= late <= now - self._late_at

    @property
    def _beat_seconds(self) -> float:
        # However long leases are, it is known who is alive.
        return min(self._settings.heartbeat_every_seconds, ALIVE_SECONDS / 3)

    def _prompt(self) -> bool:
        return self._watcher is not None and self._watcher.prompt

    def _beat_and_report(self) -> None:
        self._heartbeat.beat()
        if self._report():
            now = perf_counter()
            if now - self._beaten_at > BEATS_LATE * self._beat_seconds:
                self._late_at = now
            self._beaten_at = now

    def _report(self) -> bool:
        """Say that it is there; if that cannot be said now, it is said with the next heartbeat."""
        try:
            self._say()
        except LedgerstoneError as error:
            if not error.retryable:
                raise
            _log.debug("could not report: %s", error)
            return False
        return True

    def _say(self) -> None:
        # One after the other: an older word must not be written over a newer one.
        with self._reporting:
            self._database.run(lambda tx: sign_in(tx, self.id, self.report()))

    def _look_at_the_time(self) -> None:
        for pump in self.pumps:
            pump.expire_overdue()
            pump.return_late()

    def _spawn(self, name: str, step: Callable[[], object], every: float) -> None:
        def loop() -> None:
            while not self._stop.wait(every):
                try:
                    step()
                except BaseException as error:  # noqa: BLE001 - reported by `run`, which ends
                    self._failure = error
                    self._news.put(None)
                    return

        thread = threading.Thread(target=loop, name=f"ledgerstone-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _await_handlers(self, grace: float, look: Callable[[bool], None]) -> None:
        """Until no handler runs, the grace period is over, or a second signal comes."""
        clock = self._database.clock
        until = clock.monotonic() + grace
        look(True)
        for pump in self.pumps:
            while self._signals < 2 and not pump.finish(STOPPING_SECONDS):  # noqa: PLR2004
                look(True)
                if clock.monotonic() >= until:
                    return

    def _news_within(self, seconds: float) -> None:
        with suppress(Empty):
            self._news.get(timeout=seconds)

    def _signalled(self, _: int, __: FrameType | None) -> None:
        self.ask_to_stop()


def _keep(store: StoreDuties[Any]) -> None:
    store.tick()
    store.wait(KEEP_SECONDS)


def _of_all(parts: Iterable[dict[str, V]]) -> dict[str, V]:
    return {name: value for part in parts for name, value in dict(part).items()}
