"""The screen of a process that works until a signal comes."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from copy import copy
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, assert_never

import msgspec
from rich.console import Group, RenderableType
from rich.live import Live

from ledgerstone import __version__
from ledgerstone.console import output
from ledgerstone.console.output import Console, Text
from ledgerstone.engine.source import Source, Work
from ledgerstone.engine.status import DUTY
from ledgerstone.engine.store_duties import StoreDuties
from ledgerstone.engine.worker import Worker
from ledgerstone.errors import LedgerstoneError, StoreUnavailable
from ledgerstone.jobs.read import queues
from ledgerstone.ledger import Ledger
from ledgerstone.messaging.cli.carrying import (
    CarriedFacts,
    Relay,
    facts_of,
)
from ledgerstone.messaging.inbox.deliveries import Deliveries, Received
from ledgerstone.messaging.outbox.routing import RETRY
from ledgerstone.signing import DUTIES

if TYPE_CHECKING:
    from ledgerstone.blobs.tus.server import UploadServer

LOOK_SECONDS = 1.0
COUNTED_MAX = 1000
"""Jobs of a status that are counted every second; above it `1,000+` is shown."""
CONNECTING = "connecting"
"""The state of a subscription before its first connection."""
SAY_SECONDS = 5.0
"""Without a terminal, changes are said at most so often."""

DUTIES_ALONE = "schedules and retention"
"""The work of a worker without sources."""
_log = logging.getLogger("ledgerstone.up")


class UpState(Enum):
    """How far it is."""

    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class UpFacts(msgspec.Struct, frozen=True):
    """The state and the counters of one process since it began.

    - `done` to `refused` count all but messages, which stand in `carried` and `received`.
    """

    url: str
    worker: str
    sources: tuple[str, ...]
    concurrency: int
    grace_seconds: float
    state: UpState
    up_ms: int
    running: int
    waiting: int
    claimed: int
    done: int
    failed: int
    returned: int
    refused: int
    prompt: bool
    trouble: str | None
    jobs: dict[str, int] | None
    """How many are queued, running and dead, each counted up to `COUNTED_MAX`."""
    carried: list[CarriedFacts]
    received: Received | None
    signing: dict[str, int]
    """The counters of signing's duties, by duty."""
    uploads: str | None = None
    """Where uploads are taken by HTTP."""

    @property
    def moved(self) -> int:
        """All that came to a good end."""
        handled = self.received.handled if self.received is not None else 0
        return self.done + handled + sum(each.delivered for each in self.carried)


def serve(
    ledger: Ledger,
    sources: Sequence[Source | Work],
    *,
    json: bool = False,
    intro: Sequence[str] = (),
    stores: Sequence[StoreDuties[Any]] = (),
    uploads: UploadServer | None = None,
) -> UpFacts:
    """Work and show it, until a signal comes or an error that waiting cannot help.

    - `intro` are lines to be shown first.
    - `stores` are duties on other stores than the database.
    - `uploads` takes uploads already, and is asked to stop when the worker stops.
    """
    worker = ledger.worker(*sources, stores=stores)
    observer = _Observer(ledger, worker, None if uploads is None else uploads.url)
    console = output.console()
    live = console.is_terminal and not json
    showing: _Show = _Screen(console) if live else _Lines()
    for line in intro:
        # On a terminal one line, however long, to be copied.
        console.print(Text(line), soft_wrap=True) if live else _log.info("%s", line)
    with showing:

        def look(stopping: bool) -> None:
            if stopping and uploads is not None:
                uploads.ask_to_stop()
            showing.show(observer.look(UpState.STOPPING if stopping else UpState.RUNNING))

        worker.run(look=look, look_seconds=LOOK_SECONDS)
        last = observer.look(UpState.STOPPED)
        showing.show(last)
    return last


def signing_work(duties: Mapping[str, int]) -> dict[str, int]:
    """The counters of signing's duties among those of a worker."""
    return {
        name.removeprefix(DUTIES): count
        for name, count in duties.items()
        if name.startswith(DUTIES)
    }


class _Observer:
    """Looks at a worker and at its database."""

    def __init__(self, ledger: Ledger, worker: Worker, uploads: str | None) -> None:
        self._uploads = uploads
        self._ledger = ledger
        self._worker = worker
        sources = [pump.source for pump in worker.pumps]
        self._deliveries = next((each for each in sources if isinstance(each, Deliveries)), None)
        self._unheard: str | None = None
        self._began = time.monotonic()
        self._jobs: dict[str, int] | None = None

    def look(self, state: UpState = UpState.RUNNING) -> UpFacts:
        report = self._worker.report()
        pumps = self._worker.pumps
        relays = [pump.source for pump in pumps if isinstance(pump.source, Relay)]
        of_messages = (Relay, Deliveries)
        tallies = [pump.counters for pump in pumps if not isinstance(pump.source, of_messages)]
        unreached = self._count_jobs()
        said = [pump.counters.trouble or pump.counters.stalled for pump in pumps]
        troubles = [each for each in said if each]
        troubles += [f"{DUTY}{name}: {words}" for name, words in report.duty_troubles.items()]
        if state is UpState.RUNNING and (unheard := self._silence()):
            troubles.append(unheard)
        return UpFacts(
            url=self._ledger.settings.url_masked,
            worker=self._worker.id,
            sources=tuple(report.sources),
            concurrency=self._ledger.settings.engine.concurrency,
            grace_seconds=self._ledger.settings.engine.grace_seconds,
            state=state,
            up_ms=round((time.monotonic() - self._began) * 1000),
            running=report.running,
            waiting=report.waiting + (self._deliveries.waiting if self._deliveries else 0),
            claimed=sum(counters.claimed for counters in tallies),
            done=sum(counters.done for counters in tallies),
            failed=sum(counters.failed for counters in tallies),
            returned=sum(counters.returned for counters in tallies),
            refused=sum(counters.refused for counters in tallies),
            prompt=report.prompt,
            trouble=output.one_line(next(iter(troubles), unreached)),
            jobs=self._jobs,
            carried=[facts_of(self._ledger, relay) for relay in relays],
            received=copy(self._deliveries.counters) if self._deliveries is not None else None,
            signing=signing_work(report.duties),
            uploads=self._uploads,
        )

    def _silence(self) -> str | None:
        """Why nothing is received; the first reason stands until something is."""
        trouble = self._deliveries.trouble if self._deliveries is not None else None
        if trouble is None or self._unheard is None:
            self._unheard = None if trouble == CONNECTING else trouble
        if self._unheard is None or self._deliveries is None:
            return None
        return f"{self._deliveries.name}: {self._unheard}"

    def _count_jobs(self) -> str | None:
        """Count them; if the database is out of reach, what it says, and the last count stands."""
        try:
            with self._ledger.reading() as tx:
                counts = queues.totals(tx, counted_max=COUNTED_MAX)
            self._jobs = {status.value: count for status, count in counts.items()}
        except LedgerstoneError as error:
            return f"{error.code}: {error.message}"
        return None


class _Show(Protocol):
    """Shows facts as they change."""

    def __enter__(self) -> object: ...

    def __exit__(self, *raised: object) -> None: ...

    def show(self, facts: UpFacts) -> None: ...


def _told_here(trouble: str | None) -> bool:
    """Whether a line is to tell of this.

    An outage of the database is told by the store, and that of a duty by the engine.
    """
    return trouble is not None and not trouble.startswith((f"{StoreUnavailable.code}:", DUTY))


class _Lines:
    """Log lines: one at the start, one at the end, and some when something has changed."""

    def __init__(self) -> None:
        self._said: UpFacts | None = None
        self._counted = ""
        self._counted_at = 0.0

    def __enter__(self) -> object:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing to put back."""

    def show(self, facts: UpFacts) -> None:
        before, now = self._said, time.monotonic()
        if before is None:
            # Work before this first look is counted with the next.
            heard = facts.received is not None and facts.received.received
            begun = facts.claimed or heard or any(each.moved for each in facts.carried)
            self._counted = "" if begun else _counts(facts)
            _log.info(
                "up: ledgerstone %s on %s does %s, %d at a time, as worker %s; SIGTERM stops it",
                *(
                    __version__,
                    facts.url,
                    ", ".join(facts.sources) or DUTIES_ALONE,
                    facts.concurrency,
                    facts.worker,
                ),
            )
            if facts.uploads is not None:
                _log.info("up: takes uploads at %s", facts.uploads)
            if _told_here(facts.trouble):
                _log.warning("trouble: %s", facts.trouble)
            if facts.state is not UpState.RUNNING:
                # A signal came while it began.
                self._say_state(facts)
        elif facts.state is not before.state:
            self._say_state(facts)
        elif facts.trouble != before.trouble and (
            _told_here(facts.trouble) or _told_here(before.trouble)
        ):
            if _told_here(facts.trouble):
                _log.warning("trouble: %s", facts.trouble)
            else:
                _log.info("the trouble is over")
        elif _counts(facts) != self._counted and now >= self._counted_at + SAY_SECONDS:
            self._counted, self._counted_at = _counts(facts), now
            _log.info("%s; running %d, waiting %d", self._counted, facts.running, facts.waiting)
        self._said = facts

    @staticmethod
    def _say_state(facts: UpFacts) -> None:
        if facts.state is UpState.STOPPED:
            done = _counts(facts) or "nothing was done"
            _log.info("stopped after %s: %s", output.lasting(facts.up_ms), done)
        else:
            _log.info(
                "stopping: %d running, for at most %g s; a second signal returns them at once",
                *(facts.running, facts.grace_seconds),
            )


def _counts(facts: UpFacts) -> str:
    # Hardly ever anything is retried: it is told when something was.
    told = [each for each in facts.carried if each.destination != RETRY or each.moved]
    said = [f"{each.destination}: {each.words}" for each in told]
    if facts.received is not None:
        said.insert(0, _heard(facts.received))
    if len(facts.sources) > len(facts.carried):
        said.insert(
            0,
            f"done {facts.done}, failed {facts.failed},"
            f" returned {facts.returned}, refused {facts.refused}",
        )
    if any(facts.signing.values()):
        done = (f"{name} {count:,}" for name, count in facts.signing.items() if count)
        said.append(f"signing: {', '.join(done)}")
    return "; ".join(said)


def _heard(received: Received) -> str:
    counts = {
        "handled": received.handled,
        "duplicates": received.duplicates,
        "tried again": received.retried,
        "failed": received.failed,
        "unreadable or for nobody": received.malformed,
        "given back": received.returned,
    }
    said = [f"{name} {count:,}" for name, count in counts.items() if count]
    return ", ".join([f"received {received.received:,}", *said])


class _Screen:
    """A live screen; what is logged meanwhile scrolls above it."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, redirect_stderr=True)
        self._before = (0, 0)

    def __enter__(self) -> object:
        self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._live.stop()

    def show(self, facts: UpFacts) -> None:
        up_ms, moved = self._before
        self._before = facts.up_ms, facts.moved
        rate = (facts.moved - moved) * 1000 / max(facts.up_ms - up_ms, 1)
        self._live.update(screen(facts, per_second=rate), refresh=True)


def screen(facts: UpFacts, *, per_second: float) -> RenderableType:
    """The facts as people see them."""
    rows: dict[str, RenderableType] = {
        "database": Text(facts.url),
        "worker": f"{output.short(facts.worker)}, up {output.lasting(facts.up_ms)}",
        "sources": ", ".join(facts.sources) or DUTIES_ALONE,
    }
    if facts.uploads is not None:
        rows["uploads"] = Text(facts.uploads)
    if facts.state is not UpState.STOPPED:
        most = f" of {facts.concurrency}" if facts.received is None else ""
        work = f"{facts.running} running{most}, {facts.waiting} waiting"
        rows["wake-ups"] = "at once" if facts.prompt else "by polling"
        rows["work"] = f"{work}, [bold]{per_second:,.0f}[/] done per second"
    for number, words in enumerate(_counts(facts).split("; ")):
        rows["so far" if not number else " " * number] = Text(words)
    if facts.jobs is not None:
        rows["jobs"] = ", ".join(
            f"{name.replace('_', ' ')} {output.counted(count, COUNTED_MAX)}"
            for name, count in facts.jobs.items()
        )
    if facts.trouble:
        rows["trouble"] = Text(facts.trouble, "red")
    for each in facts.carried:
        if each.trouble:
            rows[each.destination] = Text(each.trouble, "red")
    return Group(f"[bold]Ledgerstone {__version__}[/]  {_state(facts)}", output.pairs(rows))


def _state(facts: UpFacts) -> str:
    match facts.state:
        case UpState.RUNNING:
            return "[green]running[/]  [dim]Ctrl-C stops it[/]"
        case UpState.STOPPING:
            return "[yellow]stopping[/]  [dim]Ctrl-C again returns what runs at once[/]"
        case UpState.STOPPED:
            return "[dim]stopped[/]"
        case _:
            assert_never(facts.state)
