"""A worker: the pumps, the heartbeat and the duties of one process on one database.

After SIGTERM or SIGINT the worker claims nothing more, lets handlers finish within the grace
period, and returns the other claims with their attempts refunded. After a second signal it returns
all claims at once. It ends after the grace period, `engine.notice_seconds` and STOP_CALLS_SECONDS
at the latest, whatever the handlers and the network do.
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

from ledgerstone.cancellation import Cancellation
from ledgerstone.engine.counters import Tick
from ledgerstone.engine.duties import Duties, Duty
from ledgerstone.engine.heartbeat import Heartbeat
from ledgerstone.engine.pump import Pump
from ledgerstone.engine.quarantine import Quarantine
from ledgerstone.engine.source import Source, Work
from ledgerstone.engine.store_duties import StoreDuties
from ledgerstone.engine.worker_rows import ALIVE_SECONDS, WorkerReport, prune, sign_in, sign_off
from ledgerstone.errors import Interrupted, LedgerstoneError
from ledgerstone.ids import new_id

if TYPE_CHECKING:
    from ledgerstone.settings import EngineSettings
    from ledgerstone.store.database import Database
    from ledgerstone.store.transaction import Transaction

TIME_SECONDS = 0.1
"""How often timeouts and claims that wait for a place are checked."""
KEEP_SECONDS = 0.25
"""How often duties are checked."""
PRUNE_SECONDS = 60.0
BEATS_LATE = 2
"""After so many heartbeats without an answer a worker rescues nothing, for the same time."""
JOIN_SECONDS_MAX = 5.0
CALL_SECONDS_MIN = 5.0
"""The shortest deadline of a call to the database, however short leases are."""
STOP_CALLS_SECONDS = 5.0
"""How long a worker that stops may use the database after its handlers have ended."""
STOPPING_SECONDS = 0.1
"""How often a worker that stops checks whether its handlers have finished."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)

V = TypeVar("V")

_log = logging.getLogger("ledgerstone.engine")


class Worker:
    """Runs the pumps, the heartbeat and the duties of some sources.

    - `run` works until a signal or `stop`; `start` and `stop` do the same without blocking.
    - `tick` does one bounded step of everything in the calling thread, for tests.
    - Each worker has a new id; its host and pid are for information.
    - `duties` are done on its database, `stores` on other stores.
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
        long = [duty for duty in duties if duty.rounds is not None]
        # A worker that is paused in a transaction must not hold its items for longer than a lease.
        idle = math.ceil(settings.lease_seconds)
        self._database = database.sibling(
            connections=2 * len(sources) + len(long) + 3,
            idle_seconds_max=idle,
            call_seconds_max=max(settings.lease_seconds / 3, CALL_SECONDS_MIN),
        )
        self._watcher = self._database.watcher()
        # Not an event: a signal may come while this thread holds its lock.
        self._news: SimpleQueue[None] = SimpleQueue()
        self._signals = 0
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._threads: dict[threading.Thread, float] = {}
        self._reporting = threading.Lock()
        self._beaten_at = float("inf")
        self._late_at = float("-inf")
        self._quarantine = Quarantine(self._say, database.clock.monotonic)
        self.pumps = [self._pump(source) for source in sources]
        self._heartbeat = Heartbeat(self._database, self.pumps, settings)
        short = [duty for duty in duties if duty not in long]
        self._duties = Duties(self._database, [*self._own_duties(), *short])
        self._long_duties = [Duties(self._database, [duty]) for duty in long]
        self._stopping = Cancellation()
        self._stores = stores
        self._all_duties: list[Duties | StoreDuties[Any]] = [self._duties, *self._long_duties]
        self._all_duties += stores

    def run(
        self,
        *,
        started: Callable[[], None] = lambda: None,
        look: Callable[[bool], None] = lambda _stopping: None,
        look_seconds: float = 1.0,
        signals: Sequence[signal.Signals] = SIGNALS,
    ) -> None:
        """Work until a signal, until `stop` is called, or until an error that no retry can help.

        - `started` is called when the worker has started.
        - `look` is called every `look_seconds`, with whether the worker is stopping.
        - `signals` stop the worker. A program with its own signal handlers gives none, and calls
          `ask_to_stop`.
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
        """As a signal.

        After the first call handlers finish, after the second claims return at once.
        """
        self._signals += 1
        self._news.put(None)

    def start(self) -> None:
        """Start the threads of the worker."""
        self._report()
        if self._watcher is not None:
            self._watcher.start()
        for pump in self.pumps:
            pump.start()
        self._beaten_at = perf_counter()
        self._spawn("heartbeat", self._beat_and_report, self._beat_seconds)
        # Not in the thread of the duties, which waits for the database.
        self._spawn("timer", self._look_at_the_time, TIME_SECONDS)
        self._spawn("keeper", self._duties.tick, KEEP_SECONDS)
        for number, long in enumerate(self._long_duties, 1):
            # One thread for each: it delays no other duty, and the end of the worker only as a
            # handler does that takes no notice.
            notice = self._settings.notice_seconds
            self._spawn(f"duty-{number}", partial(self._tick_long, long), KEEP_SECONDS, notice)
        for number, store in enumerate(self._stores, 1):
            # One thread for each store: a slow store delays no other one.
            self._spawn(f"keeper-{number}", partial(_keep, store), 0.0)

    def stop(
        self,
        grace_seconds: float | None = None,
        *,
        look: Callable[[bool], None] = lambda _stopping: None,
    ) -> None:
        """Stop claiming, let handlers finish, return other claims, and mark the worker as stopped.

        - `grace_seconds`: how long handlers may take, in place of `engine.grace_seconds`.
        - `look` is called with True while handlers finish.
        """
        if self._stop.is_set():
            return
        grace = self._settings.grace_seconds if grace_seconds is None else grace_seconds
        for pump in self.pumps:
            pump.stop_claiming()
        self._await_handlers(grace, look)
        for pump in self.pumps:
            pump.interrupt()
        self._stopping.cancel(Interrupted("the worker is stopping"))
        for pump in self.pumps:
            pump.await_notice()
        # Also if the network is silent. A claim that is not settled then is rescued after its
        # lease.
        self._database.deadline.end_within(STOP_CALLS_SECONDS)
        for pump in self.pumps:
            pump.stop()
        for pump in self.pumps:
            pump.close()
        # Until here leases were kept alive.
        self._stop.set()
        self._news.put(None)
        ends = perf_counter() + JOIN_SECONDS_MAX
        for thread, seconds in self._threads.items():
            thread.join(min(seconds, max(ends - perf_counter(), 0.0)))
        if self._watcher is not None:
            self._watcher.stop()
        try:
            self._database.run(lambda tx: sign_off(tx, self.id, self.report()))
        except LedgerstoneError as error:
            _log.warning("could not sign off: %s", error)
        self._database.close()

    def tick(self, limit: int | None = None) -> list[Tick]:
        """One bounded step in this thread: duties, then each pump with at most `limit` claims."""
        for duties in self._all_duties:
            duties.tick()
        return [pump.tick(limit) for pump in self.pumps]

    def beat(self) -> int:
        """One heartbeat in this thread; how many claims were extended."""
        return self._heartbeat.beat()

    def report(self) -> WorkerReport:
        """The report that the heartbeat writes."""
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
        """The error that ended a pump or another thread, if any did."""
        if self._failure is not None:
            return self._failure
        return next((pump.failure for pump in self.pumps if pump.failure is not None), None)

    @property
    def abandoned(self) -> int:
        """How many abandoned handlers still run."""
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
        """Whether the heartbeats of this worker were in time.

        If not, perhaps those of other workers were late, too: they get time to extend their claims
        before this worker rescues any.
        """
        now, late = perf_counter(), BEATS_LATE * self._beat_seconds
        return now - self._beaten_at <= late <= now - self._late_at

    @property
    def _beat_seconds(self) -> float:
        # Heartbeats come often enough for ALIVE_SECONDS, however long leases are.
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
        """Write the row of this worker; after a temporary error the next heartbeat writes it."""
        try:
            self._say()
        except LedgerstoneError as error:
            if not error.retryable:
                raise
            _log.debug("could not report: %s", error)
            return False
        return True

    def _say(self) -> None:
        # One at a time: an older report must not overwrite a newer one.
        with self._reporting:
            self._database.run(lambda tx: sign_in(tx, self.id, self.report()))

    def _look_at_the_time(self) -> None:
        for pump in self.pumps:
            pump.expire_overdue()
            pump.return_late()

    def _tick_long(self, duties: Duties) -> None:
        """One turn of a long duty, whose next call of the database raises when the worker stops."""
        token = self._stopping.begin()
        try:
            duties.tick()
        finally:
            Cancellation.leave(token)

    def _spawn(
        self,
        name: str,
        step: Callable[[], object],
        every: float,
        join_seconds: float = JOIN_SECONDS_MAX,
    ) -> None:
        def loop() -> None:
            while not self._stop.wait(every):
                try:
                    step()
                except BaseException as error:  # noqa: BLE001 - reported by `run`, which ends
                    self._failure = error
                    self._news.put(None)
                    return

        thread = threading.Thread(target=loop, name=f"ledgerstone-{name}", daemon=True)
        self._threads[thread] = join_seconds
        thread.start()

    def _await_handlers(self, grace: float, look: Callable[[bool], None]) -> None:
        """Wait until no handler runs, the grace period is over, or a second signal comes."""
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
